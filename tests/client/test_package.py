from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from ackstream import client, settings
from ackstream.errors import BadParameterError

SLOW = (
    # what jobs run on, and what reads tables
    *("pyspark", "py4j", "delta", "deltalake", "pyarrow", "pandas", "numpy", "duckdb"),
    # servers, other systems, and logins that few clients use
    *("httpx", "starlette", "uvicorn", "websockets", "anyio", "jwt", "cryptography", "paho", "pika", "proton", "re2"),
    *("rich", "typer"),
)
SETTINGS_OF_SERVICES = ("ackstream.settings.jobs", "ackstream.settings.gateway", "ackstream.settings.connections")


def _loaded(code: str, names: tuple[str, ...]) -> list[str]:
    code += f"\nimport sys; print(*[name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("names", [SLOW, SETTINGS_OF_SERVICES], ids=["slow", "settings"])
def test_importing_the_client_loads_neither_slow_libraries_nor_the_settings_of_services(names: tuple[str, ...]) -> None:
    assert _loaded("import ackstream.client", names) == []


def test_the_settings_of_kafka_and_the_lake_load_no_other_section() -> None:
    code = "from ackstream.settings import Kafka, Lake; Kafka(bootstrap='localhost:9092'); Lake()"
    assert _loaded(code, SETTINGS_OF_SERVICES + SLOW) == []


@pytest.mark.parametrize("package", [client, settings], ids=lambda package: package.__name__)
def test_everything_that_a_package_offers_is_there(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert names == sorted(set(names))
    assert all(getattr(package, name) is not None for name in names)


def test_a_section_that_does_not_exist_is_no_attribute_of_the_settings() -> None:
    with pytest.raises(AttributeError, match="Gatway"):
        settings.Gatway  # type: ignore[attr-defined]  # noqa: B018


CLIENTS = (
    *(client.Requester, client.Responder, client.Subscriber, client.Publisher, client.SampleReader),
    *(client.QueueConsumer, client.QueryClient, client.known_readers, client.delete_durable_subscription),
)


@pytest.mark.parametrize("make", CLIENTS, ids=lambda make: make.__name__)
def test_every_client_is_made_from_the_brokers_and_otherwise_by_names(make: Callable[..., object]) -> None:
    first, *others = inspect.signature(make).parameters.values()
    assert (first.name, first.default) == ("bootstrap_servers", inspect.Parameter.empty)
    assert {other.kind for other in others} == {inspect.Parameter.KEYWORD_ONLY}
    given: dict[str, Any] = {other.name: "x" for other in others if other.default is inspect.Parameter.empty}
    given |= {"handler": print} if "handler" in given else {}
    with pytest.raises(BadParameterError, match=r"bootstrap_servers is \['localhost:9092'\]: give host:port"):
        make(["localhost:9092"], **given)


def test_every_error_of_the_sdk_is_of_one_tree_and_offered() -> None:
    raised = {each for each in vars(client.errors).values() if isinstance(each, type) and issubclass(each, Exception)}
    assert raised
    for error in raised:
        assert issubclass(error, client.AckstreamError)
        assert getattr(client, error.__name__) is error


def test_a_message_is_the_same_whoever_received_it() -> None:
    for kind in (client.Sample, client.QueueMessage, client.LogMessage):
        assert issubclass(kind, client.Message)
        assert {"publisher", "topic", "key", "value", "headers", "timestamp_ms"} <= {each.name for each in fields(kind)}
