from __future__ import annotations

import ast
import socket
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaConnectionError, KafkaTimeoutError
from kafka.producer.transaction_manager import TransactionManager
from pydantic import ValidationError

from ackstream.client import Requester, Responder
from ackstream.errors import SettingsError, UnreachableError
from ackstream.kafka import clients
from ackstream.kafka.library import AdaptedConsumer
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Settings
from ackstream.settings.kafka import KafkaOptions, KafkaSecurity
from tests.harness.ports import free_ports

PACKAGE = Path(clients.__file__).parents[1]
CONSTRUCTORS = {"KafkaProducer", "KafkaConsumer", "KafkaAdminClient"}


def _kafka_names(path: Path) -> set[str]:
    """Return which clients of the library a module names, and which of Spark's Kafka connection options."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    return names & CONSTRUCTORS | texts & {"bootstrap.servers", "kafka.bootstrap.servers", "kafka."}


def test_one_module_constructs_clients_and_connects_spark() -> None:
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if _kafka_names(path)}
    # the settings name what they refuse, and one class is adapted
    assert found - {"settings/kafka.py", "kafka/library.py"} == {"kafka/clients.py"}


def test_one_module_polls_consumers_and_skips_what_cannot_be_unpacked() -> None:
    polls = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if ".poll(timeout_ms" in path.read_text("utf-8")
    }
    assert polls == {"kafka/reader.py"}


def test_spark_gets_its_options_and_what_is_set_here_wins_over_them() -> None:
    options = KafkaOptions(python={"linger.ms": "7"}, java={"linger.ms": "9", "request.timeout.ms": "70000"})
    kafka = Kafka(bootstrap="a:1,b:2", options=options)
    assert clients.spark_options(kafka, {"linger.ms": "5"}) == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.isolation.level": "read_committed",
        "kafka.linger.ms": "5",
        "kafka.request.timeout.ms": "70000",
    }


@pytest.mark.parametrize(
    "connect",
    [
        Requester,
        lambda kafka: Responder(kafka, handler=lambda _signal: None),
        clients.connect_admin,
        lambda kafka: clients.connect_consumer(kafka, None),
        lambda kafka: clients.connect_producer(kafka, None, delivery_timeout=1),
        lambda kafka: ensure_topics(Settings(kafka=kafka)),
    ],
)
def test_without_a_broker_the_error_names_the_remedy(
    connect: Callable[[Kafka], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(clients._COMMON, "bootstrap_timeout_ms", 200)
    (port,) = free_ports(1)
    with pytest.raises(
        UnreachableError, match=rf"^No Kafka answers at localhost:{port}: start one with `ackstream up`"
    ):
        connect(Kafka(bootstrap=f"localhost:{port}"))


@pytest.mark.parametrize(
    ("bootstrap", "protocol", "remedy"),
    [
        ("localhost:1,127.0.0.1:1", "PLAINTEXT", "start one with `ackstream up`, or correct kafka.bootstrap (ACK"),
        ("192.0.2.1:1", "PLAINTEXT", "start its brokers, or correct kafka.bootstrap (ACKSTREAM_KAFKA_BOOTSTRAP)."),
        ("localhost:1,broker.invalid:1", "PLAINTEXT", "the name broker.invalid does not resolve: correct kafka.boot"),
        ("broker.invalid:1", "SSL", "the name broker.invalid does not resolve: correct kafka.bootstrap (ACKSTREAM_K"),
    ],
)
def test_the_remedy_fits_the_address_that_does_not_answer(
    bootstrap: str, protocol: Any, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def getaddrinfo(host: str, *_: object, **__: object) -> list[Any]:
        if host.endswith(".invalid"):
            raise socket.gaierror
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    kafka = Kafka(bootstrap=bootstrap, security=KafkaSecurity(protocol=protocol))
    found = clients.failure(kafka, KafkaConnectionError())
    assert str(found).startswith(f"No Kafka answers at {bootstrap}: {remedy}")


@pytest.mark.parametrize(("answers_after", "expected"), [(3, nullcontext()), (12, pytest.raises(KafkaTimeoutError))])
def test_a_busy_broker_has_as_long_for_the_partitions_as_for_the_connection(
    answers_after: int, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = count(step=1_000)
    monkeypatch.setattr(clients, "monotonic_ms", lambda: next(now))
    tries = count(1)

    class Producer:
        def partitions_for(self, _topic: str) -> set[int]:
            if next(tries) < answers_after:
                raise KafkaTimeoutError
            return {0}

    with expected:
        clients.look_up(Producer(), "t")


def test_a_topic_that_the_broker_lacks_is_not_waited_for_but_one_without_a_leader_is() -> None:
    lacking = iter([False, False, True])

    class Producer:
        def partitions_for(self, _topic: str) -> set[int]:
            raise KafkaTimeoutError

    with pytest.raises(KafkaTimeoutError):
        clients.look_up(Producer(), "t", lambda: next(lacking))
    # it has looked three times
    assert next(lacking, None) is None


def test_options_are_those_of_kafka_with_their_types() -> None:
    options = {"request.timeout.ms": "5000", "metrics.enabled": "True", "receive.buffer.bytes": "65536"}
    kafka = Kafka(options=KafkaOptions(python=options | {"fetch.max.bytes": "7", "linger.ms": "3"}))
    shared = {"request_timeout_ms": 5000, "metrics_enabled": True, "receive_buffer_bytes": 65_536}
    # what only consumers know is not for producers, and the other way round
    assert clients.python_options(kafka, AdaptedConsumer.DEFAULT_CONFIG) == {**shared, "fetch_max_bytes": 7}
    assert clients.python_options(kafka, KafkaProducer.DEFAULT_CONFIG) == {**shared, "linger_ms": 3}


CLIENTS: dict[str, Callable[[Kafka], Any]] = {
    "reader": lambda kafka: clients.connect_consumer(kafka, "mine", auto_offset_reset="earliest", fetch_max_wait_ms=50),
    "worker": lambda kafka: clients.connect_consumer(kafka, "mine", session_timeout_ms=6_000),
    "producer": lambda kafka: clients.connect_producer(kafka, "t", linger_ms=2),
    "admin": lambda kafka: clients.connect_admin(kafka, bootstrap_timeout_ms=500),
}


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let no client connect; return what the last one was given."""
    given: dict[str, Any] = {}

    def construct(library: Any) -> Any:
        def client(**config: Any) -> Any:
            assert config.keys() <= library.DEFAULT_CONFIG.keys()
            given.clear()
            given.update(config)
            return SimpleNamespace(
                partitions_for=lambda _topic: {0},
                _transaction_manager=TransactionManager(),
                _sender=SimpleNamespace(_send_producer_data=None),
                _accumulator=None,
            )

        client.DEFAULT_CONFIG = library.DEFAULT_CONFIG  # type: ignore[attr-defined]
        return client

    for library in (AdaptedConsumer, KafkaProducer, KafkaAdminClient):
        monkeypatch.setattr(clients, library.__name__, construct(library))
    return given


def _other_value(default: object) -> str:
    if isinstance(default, bool):
        return str(not default).lower()
    return "7" if isinstance(default, (int, float)) else "x"


def _free(name: str) -> bool:
    with suppress(ValidationError):
        return bool(Kafka(options=KafkaOptions(python={name: ""})))
    return False


@pytest.mark.parametrize("name", sorted(filter(_free, clients._DEFAULTS.keys() - clients._OBJECTS)))
def test_every_client_can_be_constructed_with_every_option(name: str, connected: dict[str, Any]) -> None:
    value = "7" if name in clients._NUMBERS else _other_value(clients._DEFAULTS[name])
    kafka = Kafka(bootstrap="a:1,b:2", options=KafkaOptions(python={name.replace("_", "."): value}))
    for connect in CLIENTS.values():
        own = _given(connect, Kafka(bootstrap="a:1,b:2"), connected)
        with_option = _given(connect, kafka, connected)
        changed = {key for key in with_option if own.get(key, clients._DEFAULTS[key]) != with_option[key]}
        assert changed <= {name}


def _given(connect: Callable[[Kafka], Any], kafka: Kafka, connected: dict[str, Any]) -> dict[str, Any]:
    connect(kafka)
    return {key: value for key, value in connected.items() if key != "partitioner"}


def test_no_option_changes_what_a_client_sets_itself(connected: dict[str, Any]) -> None:
    kafka = Kafka(bootstrap="a:1,b:2", options=KafkaOptions(python={"linger.ms": "99", "fetch.max.wait.ms": "99"}))
    CLIENTS["reader"](kafka)
    assert (connected["group_id"], connected["bootstrap_servers"]) == ("mine", ["a:1", "b:2"])
    assert (connected["enable_auto_commit"], connected["fetch_max_wait_ms"]) == (False, 50)
    CLIENTS["producer"](kafka)
    assert (connected["acks"], connected["enable_idempotence"], connected["linger_ms"]) == ("all", True, 2)


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.001, 30.0, 120.0])
def test_a_producer_can_have_any_delivery_timeout(seconds: float, connected: dict[str, Any]) -> None:
    clients.connect_producer(Kafka(), "t", delivery_timeout=seconds)
    # what the library asks for
    assert connected["delivery_timeout_ms"] >= connected["linger_ms"] + connected["request_timeout_ms"]
    assert connected["delivery_timeout_ms"] == pytest.approx(seconds * 1000, abs=10)


def test_what_is_not_committed_is_read_by_nobody(connected: dict[str, Any]) -> None:
    CLIENTS["reader"](Kafka())
    assert connected["isolation_level"] == "read_committed"
    assert clients.spark_options(Kafka())["kafka.isolation.level"] == "read_committed"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("requst.timeout.ms", "1", "has requst.timeout.ms, which no client of Python takes .* kafka.options.java"),
        ("partition.assignment.strategy", "x", "which no client of Python takes from the settings: remove it"),
        ("request.timeout.ms", "soon", "request.timeout.ms = 'soon', which is not a whole number"),
        ("send.buffer.bytes", "1k", "send.buffer.bytes = '1k', which is not a whole number"),
        ("check.crcs", "1", "check.crcs = '1', which is not true or false"),
        ("request.timeout.ms", "1", r"^No Kafka client can be made with kafka.options.python .* fetch_max_wait_ms"),
    ],
)
def test_an_option_that_is_wrong_is_named(key: str, value: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        clients.connect_consumer(Kafka(options=KafkaOptions(python={key: value})), None)


def test_of_failures_at_once_the_first_is_logged_and_then_one_after_each_growing_pause() -> None:
    failures = clients.Failures()
    logged = [now for now in range(400) if failures.due(now)]
    assert logged == [0, 1, 2, 3, 4, 6, 10, 17, 30, 56, 108, 168, 228, 288, 348]
    # after a quiet time a failure is a new one
    assert [failures.due(now) for now in (500, 500.05, 500.1, 500.2, 500.3)] == [True, False, True, False, True]
