""""""

from __future__ import annotations

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import LeaderNotAvailableError
from kafka.partitioner import DefaultPartitioner

from ackstream.client import Requester, Responder
from ackstream.client.errors import UnreachableError
from ackstream.errors import SettingsError
from ackstream.kafka import clients
from ackstream.kafka.clients import options
from ackstream.settings import Kafka
from tests.conftest import free_ports


class Cluster:
    """What a partitioner asks."""

    def __init__(self, number: int) -> None:
        self._partitions = set(range(number))

    def topics(self) -> set[str]:
        return {"t"}

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return self._partitions

    available_partitions_for_topic = partitions_for_topic


@pytest.mark.parametrize("number", [1, 4, 7])
def test_a_key_goes_where_every_kafka_client_puts_it(number):
    ours, theirs = clients.KeyPartitioner(), DefaultPartitioner()
    for key in (b"", b"a", b"org.acme:lamp", b"org.acme:lamp", b"x" * 99):
        arguments = ("t", key, key, b"", b"", Cluster(number))
        assert ours.partition(*arguments) == theirs.partition(*arguments)
    assert ours.partition("t", None, None, b"", b"", Cluster(number)) in range(number)


def test_more_keys_than_are_remembered_still_go_to_their_places(monkeypatch):
    monkeypatch.setattr(clients, "_HASHES", 3)
    ours, theirs = clients.KeyPartitioner(), DefaultPartitioner()
    for number in range(10):
        arguments = ("t", None, b"%d" % number, b"", b"", Cluster(5))
        assert ours.partition(*arguments) == theirs.partition(*arguments)


def test_a_topic_whose_partitions_are_not_known_for_a_moment_is_tried_again():
    with pytest.raises(LeaderNotAvailableError) as caught:
        clients.KeyPartitioner().partition("t", None, b"k", b"", b"", Cluster(0))
    assert isinstance(caught.value, clients.SEND_AGAIN)


@pytest.mark.parametrize("connect", [Requester, lambda kafka: Responder(kafka, lambda _signal: None)])
def test_where_no_broker_answers_the_remedy_is_told(connect, monkeypatch):
    monkeypatch.setitem(clients._COMMON, "bootstrap_timeout_ms", 200)
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError, match=rf"No Kafka answers at localhost:{port}: start one with `ackstream up`"):
        connect(Kafka(bootstrap=f"localhost:{port}"))


def test_options_are_those_of_kafka_with_their_types():
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
    assert options(kafka, KafkaConsumer.DEFAULT_CONFIG) == {**shared, "fetch_max_bytes": 7}
    assert options(kafka, KafkaProducer.DEFAULT_CONFIG) == {**shared, "linger_ms": 3}


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("sasl.jaas.config", "x", "kafka.options has sasl.jaas.config, which the Kafka client does not know"),
        ("request.timeout.ms", "soon", "request.timeout.ms = 'soon', which is not a whole number"),
        ("check.crcs", "1", "check.crcs = '1', which is not true or false"),
    ],
)
def test_an_option_that_is_wrong_is_named(key, value, sentence):
    with pytest.raises(SettingsError, match=sentence):
        options(Kafka(options={key: value}), KafkaConsumer.DEFAULT_CONFIG)
