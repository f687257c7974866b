from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import LeaderNotAvailableError
from kafka.partitioner import DefaultPartitioner

from ackstream.client import Requester, Responder
from ackstream.errors import SettingsError, UnreachableError
from ackstream.kafka import clients
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Settings
from tests.harness.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

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
    assert found == {"kafka/clients.py"}


def test_spark_gets_the_settings_options_and_its_own_win_over_them() -> None:
    kafka = Kafka(bootstrap="a:1,b:2", options={"sasl.jaas.config": "x", "linger.ms": "9"})
    assert clients.spark_options(kafka, {"linger.ms": "5"}) == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.sasl.jaas.config": "x",
        "kafka.linger.ms": "5",
    }


class Cluster:
    """A cluster as a partitioner sees it."""

    def __init__(self, number: int) -> None:
        self._partitions = set(range(number))

    def topics(self) -> set[str]:
        return {"t"}

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return self._partitions

    available_partitions_for_topic = partitions_for_topic


@pytest.mark.parametrize("number", [1, 4, 7])
def test_a_key_goes_where_every_kafka_client_puts_it(number: int) -> None:
    ours, theirs = clients.KeyPartitioner(), DefaultPartitioner()
    for key in (b"", b"a", b"org.acme:lamp", b"org.acme:lamp", b"x" * 99):
        arguments = ("t", key, key, b"", b"", Cluster(number))
        assert ours.partition(*arguments) == theirs.partition(*arguments)
    assert ours.partition("t", None, None, b"", b"", Cluster(number)) in range(number)


def test_a_send_is_retried_when_the_partitions_of_its_topic_are_unknown_for_a_moment() -> None:
    with pytest.raises(LeaderNotAvailableError) as caught:
        clients.KeyPartitioner().partition("t", None, b"k", b"", b"", Cluster(0))
    assert isinstance(caught.value, clients.SEND_AGAIN)


@pytest.mark.parametrize(
    "connect",
    [
        Requester,
        lambda kafka: Responder(kafka, lambda _signal: None),
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


def test_options_are_those_of_kafka_with_their_types() -> None:
    kafka = Kafka(
        options={
            "security.protocol": "SASL_SSL",
            "request.timeout.ms": "5000",
            "ssl.check.hostname": "False",
            "fetch.max.bytes": "7",
            "linger.ms": "3",
        }
    )
    shared = {"security_protocol": "SASL_SSL", "request_timeout_ms": 5000, "ssl_check_hostname": False}
    # what only consumers know is not for producers, and the other way round
    assert clients.python_options(kafka, KafkaConsumer.DEFAULT_CONFIG) == {**shared, "fetch_max_bytes": 7}
    assert clients.python_options(kafka, KafkaProducer.DEFAULT_CONFIG) == {**shared, "linger_ms": 3}


def test_options_change_neither_the_broker_nor_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: dict[str, Any] = {}

    class Consumer:
        DEFAULT_CONFIG = KafkaConsumer.DEFAULT_CONFIG

        def __init__(self, **config: Any) -> None:
            connected.update(config)

    monkeypatch.setattr(clients, "KafkaConsumer", Consumer)
    options = {"group.id": "other", "bootstrap.servers": "other:1", "fetch.min.bytes": "9"}
    clients.connect_consumer(Kafka(bootstrap="a:1,b:2", options=options), "mine")
    assert connected["group_id"] == "mine"
    assert connected["bootstrap_servers"] == ["a:1", "b:2"]
    assert connected["fetch_min_bytes"] == 9
    assert connected["bootstrap_timeout_ms"] == 10_000
    assert not connected["enable_auto_commit"]


@pytest.mark.parametrize("key", ["sasl.jaas.config", "ssl.truststore.location", "ssl.keystore.password"])
def test_credentials_for_spark_may_stand_beside_those_for_python(key: str) -> None:
    kafka = Kafka(options={key: "x", "sasl.plain.username": "user"})
    assert clients.python_options(kafka, KafkaConsumer.DEFAULT_CONFIG) == {"sasl_plain_username": "user"}
    assert clients.spark_options(kafka)[f"kafka.{key}"] == "x"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("securty.protocol", "SSL", "kafka.options has securty.protocol, which the Kafka client does not know"),
        ("request.timeout.ms", "soon", "request.timeout.ms = 'soon', which is not a whole number"),
        ("check.crcs", "1", "check.crcs = '1', which is not true or false"),
    ],
)
def test_an_option_that_is_wrong_is_named(key: str, value: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        clients.connect_consumer(Kafka(options={key: value}), None)
