"""The official clients of Eclipse Ditto, for Java and for JavaScript, on the whole system: all parts real."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ackstream.gateway.access.passwords import hash_password
from ackstream.settings import Gateway
from tests.harness import ditto_clients
from tests.harness.ditto_clients import JAVA, JAVASCRIPT, results, stories
from tests.harness.gateway import running_with_twin, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

SECRET = "the secret that signs the tokens of the tests"
ACCESS = [{"subjects": ["user:ditto", "jwt:robot"], "grant": ["READ", "WRITE"], "labels": ["*"]}]


@pytest.fixture(scope="module")
def gateway(broker: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the system, and a gateway that knows the clients; the value is its host and port."""
    directory = tmp_path_factory.mktemp("clients")
    key = directory / "key"
    key.write_text(SECRET, "utf-8")
    with running_with_twin(broker, spark, directory, ["unused"]) as running:
        users = {"ditto": hash_password("ditto")}
        issuer = {"issuer": "tests", "audience": ["ackstream"], "algorithms": ["HS256"], "key_file": str(key)}
        known = Gateway(port=0, users=users, issuers=[issuer], access=ACCESS)
        with serving(running.system.settings.model_copy(update={"gateway": known})) as (url, _):
            yield url.removeprefix("http://")


@pytest.fixture(scope="module")
def java(gateway: str) -> dict[str, str]:
    return results(ditto_clients.java(f"ws://{gateway}", SECRET))


@pytest.fixture(scope="module")
def javascript(gateway: str) -> dict[str, str]:
    return results(ditto_clients.javascript(gateway))


@pytest.mark.parametrize("story", stories(JAVA))
def test_the_java_client(java: dict[str, str], story: str) -> None:
    assert java[story] == ""


@pytest.mark.parametrize("story", stories(JAVASCRIPT))
def test_the_javascript_client(javascript: dict[str, str], story: str) -> None:
    assert javascript[story] == ""


def test_the_programs_have_the_stories_that_are_looked_for(java: dict[str, str], javascript: dict[str, str]) -> None:
    assert java.keys() == set(stories(JAVA))
    assert javascript.keys() == set(stories(JAVASCRIPT))
