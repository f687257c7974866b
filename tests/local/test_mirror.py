from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ackstream.errors import LocalError
from ackstream.local import mirror

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://mirror.example/maven"
SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>
  <mirror><id>other</id><mirrorOf>jcenter</mirrorOf><url>https://wrong.example</url></mirror>
  <mirror><id>blocker</id><mirrorOf>*</mirrorOf><url>http://0.0.0.0/</url><blocked>true</blocked></mirror>
  <mirror><id>ours</id><mirrorOf>{pattern}</mirrorOf><url>{url}</url></mirror>
</mirrors></settings>"""


@pytest.mark.parametrize("pattern", ["central", "*", "external:*", "spring, central", "*,!internal"])
def test_a_mirror_of_central_is_taken_from_mavens_settings(tmp_path: Path, pattern: str):
    path = tmp_path / "settings.xml"
    path.write_text(SETTINGS.format(pattern=pattern, url=URL))
    assert mirror.java_options({}, path) == ["-Dackstream.resolver=mirror", f"-Dackstream.mirror={URL}"]


@pytest.mark.parametrize("pattern", ["", "external:http:*", "*,!central", "centralized"])
def test_a_mirror_of_something_else_is_passed_over(tmp_path: Path, pattern: str):
    path = tmp_path / "settings.xml"
    path.write_text(SETTINGS.format(pattern=pattern, url=URL))
    assert mirror.java_options({}, path) == []


def test_without_settings_of_maven_central_is_reached_straight(tmp_path: Path):
    assert mirror.java_options({}, tmp_path / "settings.xml") == []


def test_settings_of_maven_that_are_not_xml_are_named(tmp_path: Path):
    path = tmp_path / "settings.xml"
    path.write_text("<settings>")
    with pytest.raises(LocalError, match=rf"^Maven's settings {path} are not XML \(.*\): correct the file\.$"):
        mirror.java_options({}, path)


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({"https_proxy": "http://proxy:3128"}, ["-Dhttps.proxyHost=proxy", "-Dhttps.proxyPort=3128"]),
        ({"HTTP_PROXY": "proxy:8080"}, ["-Dhttp.proxyHost=proxy", "-Dhttp.proxyPort=8080"]),
        ({"https_proxy": "http://proxy"}, ["-Dhttps.proxyHost=proxy", "-Dhttps.proxyPort=80"]),
        ({"no_proxy": "localhost, .corp,"}, ["-Dhttp.nonProxyHosts=localhost|*.corp"]),
    ],
)
def test_the_proxy_of_the_environment_is_told_to_java(tmp_path: Path, environment: dict[str, str], options: list[str]):
    assert mirror.java_options(environment, tmp_path / "settings.xml") == options
