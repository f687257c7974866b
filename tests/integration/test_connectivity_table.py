"""The table of headers for connections, against the running system: real brokers, real correlate job."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.envelopes import decode
from ackstream.settings import Kafka, Settings
from tests.harness.connections import Elsewhere, connected
from tests.harness.kafka import following
from tests.harness.remotes import REMOTES, Remote
from tests.harness.system import System
from tests.harness.waiting import eventually
from tests.prose import each, prose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

ROWS = [name for name in prose("header_defaults") if name.startswith("doc-Connectivity-")]
REQUESTED = ["twin-persisted", "my-ack"]
OUTCOMES = {
    "nothing published; settled immediately": (None, "immediately"),
    "nothing published; settled after acks": (None, "after acks"),
    "error published; settled negatively": ("error", "immediately"),
    "response published; settled immediately": ("response", "immediately"),
    "aggregate published; settled after acks": ("acks", "after acks"),
}
NEGATIVE = "error published; settled negatively"
FAILED = "failed"
"""A further row: an aggregate with a failed acknowledgement."""


def headers(row: dict[str, Any]) -> dict[str, Any]:
    found = {
        "response_required": row["response-required"],
        "requested_acks": [] if row["requested-acks"] == "empty" else REQUESTED,
    }
    # without one it is the default
    return found | {"timeout": "0"} if row["timeout"] == "zero" else found


class KafkaRows:
    """A partition for each message, whose commits then show its settlement."""

    name = "kafka"

    def __init__(self, kafka: Kafka, number: int) -> None:
        self._elsewhere = Elsewhere(kafka)
        self._incoming = self._elsewhere.topic("in", number)
        self._answers = self._elsewhere.topic("answers")

    def connection(self) -> dict[str, Any]:
        target = {"address": self._answers}
        source = {"addresses": [self._incoming], "qos": 1, "start": "earliest", "reply_target": target}
        return {"id": self._elsewhere.id, "type": "kafka", "sources": [source]}

    def send(self, message: dict[str, Any], number: int) -> None:
        self._elsewhere.send(self._incoming, message, partition=number)

    def settled(self, number: int) -> bool:
        return bool(self._elsewhere.committed(self._incoming, number))

    def answers(self) -> list[bytes]:
        return [record.value for record in self._elsewhere.read(self._answers)]

    def rejected(self) -> int | None:
        return None

    def close(self) -> None:
        self._elsewhere.close()


class RemoteRows:
    """A queue for each message."""

    def __init__(self, remote: Remote) -> None:
        self.name = type(remote).__name__.lower()
        self._remote = remote
        self._sent: set[int] = set()

    def connection(self) -> dict[str, Any]:
        return self._remote.connection(reply_target={"address": self._remote.target()["address"]})

    def send(self, message: dict[str, Any], number: int) -> None:
        self._remote.send(message, number)
        self._sent.add(number)

    def settled(self, number: int) -> bool:
        return number in self._sent and self._remote.depth(number) == 0

    def answers(self) -> list[bytes]:
        return [payload for _, payload in self._remote.receive()]

    def rejected(self) -> int | None:
        return self._remote.rejected()

    def close(self) -> None:
        self._remote.close()


@pytest.fixture(scope="module")
def system(broker: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Run correlate; the correlation-ids of each protocol begin with its name."""
    kafka = Kafka(bootstrap=broker, topic_prefix=f"table{os.getpid()}-", partitions=2)
    with following(kafka), closing(System(kafka, tmp_path_factory.mktemp("table"), clock=True)) as found:
        ensure_topics(found.settings)
        with found.correlate(spark):
            yield found


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Any], Any]]:
    """Return a function that starts a broker, or finds it running."""
    with ExitStack() as stack:
        yield cache(lambda kind: stack.enter_context(kind(tmp_path_factory.mktemp("remote"))))


@pytest.fixture(scope="module", params=[None, *REMOTES], ids=lambda kind: "Kafka" if kind is None else kind.__name__)
def rows(
    request: pytest.FixtureRequest, system: System, brokers: Callable[[Any], Any]
) -> Iterator[KafkaRows | RemoteRows]:
    kind, number = request.param, len(ROWS) + 1
    found: KafkaRows | RemoteRows
    if kind is None:
        found = KafkaRows(system.settings.kafka, number)
    else:
        found = RemoteRows(kind(brokers(kind.broker), f"table{os.getpid()}-{kind.__name__}", number))
    yield found
    found.close()


@pytest.fixture(scope="module")
def table(system: System, rows: KafkaRows | RemoteRows) -> dict[str, Any]:
    """Send a message for each row; the value tells what was published for each, and when it was settled."""
    given_ = {name: prose("header_defaults")[name]["given"] for name in ROWS}
    given_[FAILED] = {"response-required": True, "requested-acks": "non-empty", "timeout": "non-zero"}
    waiting = {name for name, row in given_.items() if row["requested-acks"] != "empty" and row["timeout"] != "zero"}
    order = list(given_)
    ids = {name: f"{rows.name}-{name}" for name in given_}

    def settled() -> set[str]:
        return {name for number, name in enumerate(order) if rows.settled(number)}

    with connected(Settings(kafka=system.settings.kafka, connections=(rows.connection(),))):
        # MQTT acknowledges in the order of arrival, and a broker may change the order of messages of several topics
        for part in (set(order) - waiting, waiting):
            for number, name in enumerate(order):
                if name in part:
                    rows.send(system.command_json(ids[name], **headers(given_[name])), number)
            eventually(lambda: settled() == set(order) - waiting, "all messages that await nothing are settled")
        for name, row in given_.items():
            if row["response-required"] and row["timeout"] != "zero":
                topic = "org.acme/lamp/things/twin/commands/modify"
                named = {"correlation-id": ids[name]}
                system.answer(ids[name], {"topic": topic, "headers": named, "path": "/attributes/x", "status": 204})
            elif name in waiting:
                aggregate = system.ack_json(ids[name], "") | {"value": {"twin-persisted": {"status": 204}}}
                system.answer(ids[name], aggregate)
        assert settled() == set(order) - waiting
        for name in waiting:
            system.ack(ids[name], "my-ack", 404 if name == FAILED else 200)
        eventually(lambda: settled() == set(order), "everything is settled")
        eventually(lambda: len(rows.answers()) == 6, "all answers")
        published = [decode(value) for value in rows.answers()]
        signals = [record["signal"] for record in system.ledger() if "signal" in record]
    own = [signal for signal in signals if signal["correlation_id"].startswith(f"{rows.name}-")]
    assert {signal["timeout_ms"] for signal in own} == {0, 60_000}
    kinds = {"errors": "error", "commands": "response", "acks": "acks"}
    answered = {answer.headers["correlation-id"]: kinds[answer.topic.criterion] for answer in published}
    assert len(answered) == len(published)
    return {name: (answered.get(ids[name]), "after acks" if name in waiting else "immediately") for name in given_}


@each("header_defaults", "doc-Connectivity-")
def test_prose_row(
    given_: dict[str, Any], expect: dict[str, Any], table: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    assert given_["api"] == "Connectivity"
    name = next(name for name in ROWS if name in request.node.name)
    assert table[name] == OUTCOMES[expect["outcome"]]
    assert (table[name][0] == "error") is expect["clientError"]


def test_an_aggregate_with_a_failed_acknowledgement_is_published_by_default(table: dict[str, Any]) -> None:
    assert table[FAILED] == ("acks", "after acks")


def test_what_is_settled_negatively_is_rejected_where_the_protocol_can_say_so(
    table: dict[str, Any], rows: KafkaRows | RemoteRows
) -> None:
    assert table
    negative = [name for name in ROWS if prose("header_defaults")[name]["expect"]["outcome"] == NEGATIVE]
    assert rows.rejected() in (len(negative) + 1, None)
