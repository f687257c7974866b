from __future__ import annotations

import fcntl
import hashlib
import io
import json
import re
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from ackstream.errors import LocalError
from ackstream.local import jars, machine
from tests.harness.pages import ROOT
from tests.harness.scripts import module_of
from tests.local.programs import java_home

# Stands for Ivy: every run takes the next step of the plan and is counted; what it prints is Ivy's own text
IVY = """
import json, pathlib, zipfile
plan = pathlib.Path(__file__).with_name("plan.json")
steps = json.loads(plan.read_text())
step = steps.pop(0)
plan.write_text(json.dumps(steps))
cache = pathlib.Path(next(a for a in sys.argv if a.startswith("-Dackstream.cache=")).partition("=")[2])
print("\\tfound org#one;1 in central\\n\\tfound org#two;2 in central")
if step == "unreachable":
    print("\\t\\t::          UNRESOLVED DEPENDENCIES         ::\\n\\n\\t\\t:: org#two;2: not found\\n")
    print("\\tServer access error at url http://x/two-2.jar (java.net.ConnectException: Connection refused)")
    sys.exit(1)
if step == "cut off":
    print("\\t\\t[FAILED     ] org#two;2!two.jar: Premature EOF (17ms)\\n\\n\\t\\t:: org#two;2!two.jar\\n")
    sys.exit(1)
if step == "broken settings":
    sys.exit("impossible to load the settings\\n\\n")
paths = [cache / "one-1.jar", cache / "two-2.jar"]
for path in paths:
    if not path.exists():
        with zipfile.ZipFile(path, "w") as jar:
            jar.writestr(zipfile.ZipInfo("content"), ("y" if step == "other" else "x") * 1000)
        print(f"\\t[SUCCESSFUL ] org#{path.stem};1!{path.name} (3ms)")
if step == "half":
    paths[1].write_bytes(paths[1].read_bytes()[:500])
listing = sys.argv[sys.argv.index("-cachepath") + 1]
pathlib.Path(listing).write_text(":".join(map(str, paths)) + "\\n")
"""


class Ivy:
    """The fake Ivy and its plan."""

    def __init__(self, directory: Path) -> None:
        self._plan = java_home(directory, IVY) / "bin" / "plan.json"
        self.plan()

    def plan(self, *steps: str) -> None:
        self._plan.write_text(json.dumps(steps))

    @property
    def left(self) -> list[str]:
        return json.loads(self._plan.read_text())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "cache" / "ackstream" / "ivy"


def _sha256(letter: str) -> str:
    """Return the SHA-256 of a jar of the fake Ivy."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as jar:
        jar.writestr(zipfile.ZipInfo("content"), letter * 1000)
    return hashlib.sha256(file.getvalue()).hexdigest()


LIST = "".join(f"{_sha256('x')}  {name}-{number}.jar\n" for number, name in enumerate(("one", "two"), 1))


@pytest.fixture
def ivy(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ivy:
    cache.mkdir(parents=True)
    conf = tmp_path / "conf"
    conf.mkdir()
    for name, text in (("ivy.xml", "<ivy-module version='2.0'/>"), ("ivysettings.xml", ""), ("jars.sha256", LIST)):
        (conf / name).write_text(text, "utf-8")
    monkeypatch.setattr(machine, "conf", lambda name: conf / name)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return Ivy(tmp_path / "java")


def test_jars_are_fetched_once(ivy: Ivy, cache: Path):
    ivy.plan("whole", "not needed")
    fetched = jars.resolve("spark")
    assert fetched == [cache / "one-1.jar", cache / "two-2.jar"]
    assert jars.resolve("spark") == jars.present("spark") == fetched
    assert ivy.left == ["not needed"]


def test_the_second_call_starts_no_java_at_all(ivy: Ivy, monkeypatch: pytest.MonkeyPatch):
    ivy.plan("whole")
    fetched = jars.resolve("spark")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert jars.resolve("spark") == fetched


def test_before_the_first_fetch_nothing_is_present(cache: Path):
    assert not cache.exists()
    assert jars.present("spark") == []


def test_the_configurations_are_fetched_apart(ivy: Ivy):
    ivy.plan("whole", "whole")
    jars.resolve("spark")
    assert jars.present("broker") == []
    jars.resolve("broker")
    assert ivy.left == []


def test_another_ivy_file_has_its_own_listing(ivy: Ivy, tmp_path: Path):
    ivy.plan("whole", "whole")
    other = tmp_path / "brokers.xml"
    other.write_text("<ivy-module/>", "utf-8")
    other.with_name("jars.sha256").write_text(LIST, "utf-8")
    jars.resolve("spark")
    assert jars.present("spark", other) == []
    assert jars.resolve("spark", module=other) == jars.present("spark", other) != []
    assert ivy.left == []


@pytest.mark.parametrize("damage", ["removed", "shortened", "listing"])
def test_what_was_damaged_afterwards_is_fetched_again(ivy: Ivy, cache: Path, damage: str):
    ivy.plan("whole", "whole", "whole")
    jar = jars.resolve("spark")[1]
    match damage:
        case "removed":
            jar.unlink()
        case "shortened":
            jar.write_bytes(jar.read_bytes()[:100])
        case "listing":
            next(cache.glob("listing-spark-*")).write_text("[{")
    assert jars.present("spark") == []
    assert all(zipfile.is_zipfile(path) for path in jars.resolve("spark"))


def test_other_versions_in_ivy_xml_are_another_listing(ivy: Ivy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ivy.plan("whole", "whole")
    jars.resolve("spark")
    (tmp_path / "ivy.xml").write_text("<ivy-module/>")
    (tmp_path / "jars.sha256").write_text(LIST)
    monkeypatch.setattr(machine, "conf", lambda name: tmp_path / name)
    assert jars.present("spark") == []
    jars.resolve("spark")
    assert ivy.left == []


def test_a_jar_that_is_not_the_listed_one_is_removed_and_fetched_again(ivy: Ivy, cache: Path):
    ivy.plan("other", "whole", "not needed")
    assert hashlib.sha256(jars.resolve("spark")[0].read_bytes()).hexdigest() == _sha256("x")
    # exchanged later, with the same size: the time tells
    (cache / "two-2.jar").write_bytes((cache / "two-2.jar").read_bytes().replace(b"x" * 1000, b"y" * 1000))
    assert jars.present("spark") == []
    ivy.plan("whole", "whole")
    assert hashlib.sha256(jars.resolve("spark")[1].read_bytes()).hexdigest() == _sha256("x")


def test_a_server_that_gives_another_jar_is_not_believed(ivy: Ivy, cache: Path):
    ivy.plan("other", "other")
    sentence = (
        r"^The jar one-1\.jar that was fetched is not the one whose SHA-256 is in .*jars\.sha256, and was removed: "
    )
    with pytest.raises(LocalError, match=sentence):
        jars.resolve("spark")
    assert jars.present("spark") == []
    assert not list(cache.glob("*.jar"))


def test_a_jar_that_is_not_listed_is_refused(ivy: Ivy, tmp_path: Path):
    (tmp_path / "conf" / "jars.sha256").write_text(LIST.splitlines()[0])
    ivy.plan("whole")
    with pytest.raises(
        LocalError, match=r"^The jar two-2\.jar is not in .*jars\.sha256: restore that file and ivy\.xml;"
    ):
        jars.resolve("spark")


def test_the_list_is_written_anew_from_jars_that_it_lacks(ivy: Ivy, tmp_path: Path):
    pins, module = module_of(ROOT / "requirements/pins.py"), tmp_path / "conf" / "ivy.xml"
    module.with_name("jars.sha256").write_text(LIST.splitlines()[0])
    ivy.plan("whole")
    assert pins.fetched("spark", module) == {name: digest for digest, name in map(str.split, LIST.splitlines())}


@pytest.mark.parametrize("text", [None, "one two three\n"])
def test_without_the_list_nothing_is_believed(ivy: Ivy, tmp_path: Path, text: str | None):
    path = tmp_path / "conf" / "jars.sha256"
    path.unlink() if text is None else path.write_text(text)
    ivy.plan("whole")
    with pytest.raises(
        LocalError, match=r"jars\.sha256 of the SHA-256 of jars is missing or damaged: install ackstream"
    ):
        jars.resolve("spark")


def test_a_new_list_makes_the_jars_be_read_again(ivy: Ivy, tmp_path: Path):
    ivy.plan("whole", "whole", "whole")
    jars.resolve("spark")
    path = tmp_path / "conf" / "jars.sha256"
    path.write_text(LIST.replace(_sha256("x"), _sha256("y")))
    assert jars.present("spark") == []
    with pytest.raises(LocalError, match="is not the one"):
        jars.resolve("spark")


@pytest.mark.parametrize("mishap", ["half", "cut off", "unreachable"])
def test_a_download_that_fails_twice_is_tried_a_third_time(ivy: Ivy, mishap: str):
    ivy.plan(mishap, mishap, "whole")
    assert all(zipfile.is_zipfile(path) for path in jars.resolve("spark"))
    assert ivy.left == []


@pytest.mark.parametrize(
    ("mishap", "problem"),
    [
        ("half", r"two-2\.jar is incomplete"),
        ("cut off", r"org#two;2!two\.jar could not be downloaded: Premature EOF"),
        ("unreachable", r"org#two;2 could not be downloaded: java\.net\.ConnectException: Connection refused"),
        ("broken settings", r"Ivy printed: impossible to load the settings"),
    ],
)
def test_a_download_that_never_succeeds_is_one_sentence(ivy: Ivy, cache: Path, mishap: str, problem: str):
    ivy.plan(mishap, mishap, mishap)
    sentence = (
        rf"^The spark jars could not be fetched after 3 attempts \({problem}\): check the network, .* delete {cache}\.$"
    )
    with pytest.raises(LocalError, match=sentence):
        jars.resolve("spark")
    assert jars.present("spark") == []


def test_progress_shows_how_many_jars_have_arrived(ivy: Ivy):
    ivy.plan("whole")
    shown = io.StringIO()
    jars.resolve("spark", Console(file=shown, width=120))
    assert "spark jars: ready" in shown.getvalue()
    assert "2/2" in shown.getvalue()


def test_a_process_that_waited_for_another_fetches_nothing(ivy: Ivy, cache: Path):
    ivy.plan("whole", "not needed")
    jars.resolve("spark")
    listing = next(cache.glob("listing-spark-*"))
    content = listing.read_bytes()
    listing.unlink()
    shown, waits = io.StringIO(), threading.Event()
    console = Console(file=shown, width=120)
    # the first thing said is that it waits
    console.print = lambda *_: waits.set()  # type: ignore[method-assign]
    found: list[list[Path]] = []
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(target=lambda: found.append(jars.resolve("spark", console)))
        other.start()
        assert waits.wait(30)
        listing.write_bytes(content)
    other.join()
    assert found == [[cache / "one-1.jar", cache / "two-2.jar"]]
    assert ivy.left == ["not needed"]


def test_a_cache_that_cannot_be_written_is_named(ivy: Ivy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ivy.plan("not needed")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(LocalError, match=r"cannot be written \(.*\): set XDG_CACHE_HOME\.$"):
        jars.resolve("spark")


def test_a_directory_in_the_place_of_pyspark_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    (tmp_path / "pyspark").mkdir()
    with pytest.raises(LocalError, match=r"^The directory pyspark on Python's path is not PySpark: rename it\.$"):
        machine.spark_home()


@pytest.mark.parametrize(("jar", "kind"), [("", "no Spark"), ("spark-core_2.12-3.5.1.jar", "Spark 3.5.1")])
def test_another_spark_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jar: str, kind: str):
    (tmp_path / "jars").mkdir()
    if jar:
        (tmp_path / "jars" / jar).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(LocalError, match=rf"^SPARK_HOME is .*, which has {kind}: set it to a Spark 4\.2, or unset it"):
        machine.spark_home()


def test_another_pyspark_on_pythonpath_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    (tmp_path / "pyspark" / "jars").mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    sentence = f"PySpark is found at {tmp_path}/pyspark (PYTHONPATH is {tmp_path}), which has Spark 3.5.1: install"
    with pytest.raises(LocalError, match=f"^{re.escape(sentence)} pyspark 4[.]2, or take it off PYTHONPATH[.]$"):
        machine.spark_home()


def test_the_spark_of_spark_home_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/spark-core_2.13-4.2.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert machine.spark_home() == tmp_path


def test_a_pyspark_without_ivy_is_reported(ivy: Ivy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ivy.plan("not needed")
    monkeypatch.setattr(machine, "spark_home", lambda: tmp_path)
    with pytest.raises(LocalError, match=r"^There is no Ivy jar in .*: install PySpark again\.$"):
        jars.resolve("spark")


IVY_XML = """<ivy-module version="2.0"><info organisation="a" module="a"/>
<configurations><conf name="spark"/></configurations>
<dependencies><dependency org="org.example" name="part" rev="1.0" conf="spark->master"/></dependencies></ivy-module>"""
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>org.example</groupId><artifactId>part</artifactId><version>1.0</version></project>"""


@pytest.fixture
def repository(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository with one jar, in the place of Central by Maven's settings; Ivy and Java are the real ones."""
    directory = tmp_path / "repository" / "org" / "example" / "part" / "1.0"
    directory.mkdir(parents=True)
    (directory / "part-1.0.pom").write_text(POM)
    with zipfile.ZipFile(directory / "part-1.0.jar", "w") as jar:
        jar.writestr("content", "x")
    content = (directory / "part-1.0.jar").read_bytes()
    (directory / "part-1.0.jar.sha1").write_text(hashlib.sha1(content).hexdigest())
    digest = hashlib.sha256(content).hexdigest()
    (tmp_path / "jars.sha256").write_text(f"{digest}  org.example/part/jars/part-1.0.jar\n")
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(
        f"<settings><mirrors><mirror><mirrorOf>*</mirrorOf><url>{(tmp_path / 'repository').as_uri()}/</url></mirror>"
        "</mirrors></settings>"
    )
    (tmp_path / "ivy.xml").write_text(IVY_XML)
    real = machine.conf
    monkeypatch.setattr(machine, "conf", lambda name: tmp_path / name if name == "ivy.xml" else real(name))
    assert not cache.exists()
    return directory


@pytest.mark.integration
def test_the_real_ivy_fetches_from_a_mirror(repository: Path, cache: Path):
    shown = io.StringIO()
    (jar,) = jars.resolve("spark", Console(file=shown, width=120))
    assert jar.is_relative_to(cache)
    assert jar.read_bytes() == (repository / "part-1.0.jar").read_bytes()
    assert "1/1" in shown.getvalue()


@pytest.mark.integration
def test_the_real_ivy_refuses_a_jar_that_does_not_match_its_checksum(repository: Path):
    (repository / "part-1.0.jar").write_bytes(b"half")
    with pytest.raises(
        LocalError, match=r"\(org\.example#part;1\.0!part\.jar could not be downloaded: invalid sha1: .*\)"
    ):
        jars.resolve("spark")


@pytest.mark.integration
def test_the_real_ivy_may_be_given_another_jar_with_its_checksum_but_it_is_not_taken(repository: Path, cache: Path):
    with zipfile.ZipFile(repository / "part-1.0.jar", "w") as jar:
        jar.writestr("content", "y")
    digest = hashlib.sha1((repository / "part-1.0.jar").read_bytes()).hexdigest()
    (repository / "part-1.0.jar.sha1").write_text(digest)
    with pytest.raises(LocalError, match=r"^The jar part-1\.0\.jar that was fetched is not the one"):
        jars.resolve("spark")
    # nor without any checksum, with which Ivy is content
    (repository / "part-1.0.jar.sha1").unlink()
    with pytest.raises(LocalError, match=r"^The jar part-1\.0\.jar that was fetched is not the one"):
        jars.resolve("spark")
    assert not list(cache.rglob("part-1.0.jar"))


@pytest.mark.integration
def test_the_real_ivy_names_a_missing_jar(repository: Path):
    (repository / "part-1.0.pom").unlink()
    (repository / "part-1.0.jar").unlink()
    with pytest.raises(LocalError, match=r"\(org\.example#part;1\.0 could not be downloaded\)"):
        jars.resolve("spark")


@pytest.mark.integration
def test_a_download_cut_off_by_a_kill_is_taken_up_again(repository: Path, cache: Path):
    (jar,) = jars.resolve("spark")
    # as Ivy leaves it when it is killed: a part, and no listing
    jar.rename(jar.with_name(jar.name + ".part"))
    next(cache.glob("listing-*")).unlink()
    assert jars.resolve("spark") == [jar]
    assert jar.read_bytes() == (repository / "part-1.0.jar").read_bytes()


URL = "https://mirror.example/maven"
SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>
  <mirror><id>other</id><mirrorOf>jcenter</mirrorOf><url>https://wrong.example</url></mirror>
  <mirror><id>blocker</id><mirrorOf>*</mirrorOf><url>http://0.0.0.0/</url><blocked>true</blocked></mirror>
  <mirror><id>ours</id><mirrorOf>{pattern}</mirrorOf><url>{url}</url></mirror>
</mirrors></settings>"""


@pytest.fixture
def maven_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the settings of Maven are; there are none yet, and no proxy."""
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".m2").mkdir()
    return tmp_path / ".m2" / "settings.xml"


@pytest.mark.parametrize("pattern", ["central", "*", "external:*", "spring, central", "*,!internal"])
def test_a_mirror_of_central_is_taken_from_mavens_settings(maven_settings: Path, pattern: str):
    maven_settings.write_text(SETTINGS.format(pattern=pattern, url=URL))
    assert jars.java_options() == ["-Dackstream.resolver=mirror", f"-Dackstream.mirror={URL}"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (
            "http://mirror.example/maven",
            "is reached by http: its files could be changed on the way. Name its https",
        ),
        ("ftp://mirror.example", "is reached by ftp"),
        ("mirror.example/maven", "is reached by no scheme"),
        ("https://me:hunter2@mirror.example/maven", "with a user or password in its address, which every user of this"),
    ],
)
def test_a_mirror_that_others_could_change_or_see_the_password_of_is_refused(
    maven_settings: Path, url: str, words: str
):
    maven_settings.write_text(SETTINGS.format(pattern="*", url=url))
    with pytest.raises(LocalError, match=words) as caught:
        jars.java_options()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("pattern", ["", "external:http:*", "*,!central", "centralized"])
def test_a_mirror_of_something_else_is_passed_over(maven_settings: Path, pattern: str):
    maven_settings.write_text(SETTINGS.format(pattern=pattern, url=URL))
    assert jars.java_options() == []


@pytest.mark.usefixtures("maven_settings")
def test_without_settings_of_maven_central_is_reached_straight():
    assert jars.java_options() == []


def test_settings_of_maven_that_are_not_xml_are_named(maven_settings: Path):
    maven_settings.write_text("<settings>")
    sentence = rf"^Maven's settings {maven_settings} are not XML \(.*\): correct the file\.$"
    with pytest.raises(LocalError, match=sentence):
        jars.java_options()


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({"https_proxy": "http://proxy:3128"}, ["-Dhttps.proxyHost=proxy", "-Dhttps.proxyPort=3128"]),
        ({"HTTP_PROXY": "proxy:8080"}, ["-Dhttp.proxyHost=proxy", "-Dhttp.proxyPort=8080"]),
        ({"https_proxy": "http://proxy"}, ["-Dhttps.proxyHost=proxy", "-Dhttps.proxyPort=80"]),
        ({"no_proxy": "localhost, .corp,"}, ["-Dhttp.nonProxyHosts=localhost|*.corp"]),
    ],
)
@pytest.mark.usefixtures("maven_settings")
def test_the_proxy_of_the_environment_is_passed_to_java(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], options: list[str]
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert jars.java_options() == options
