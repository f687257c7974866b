"""A route between two systems on the real broker; persist and settle of both are played by their pure parts."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client import Publisher, ReaderQos, Sample, SampleReader, WriterQos
from ackstream.client.errors import ReaderTimeout
from ackstream.connectivity.routes import Route
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, RouteSettings, Settings
from tests.harness.acknowledging import TOPICS, Acknowledging
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.client.publishing._acks import Callback

pytestmark = pytest.mark.integration

EXPLICIT = ReaderQos(kind="application-explicit")


@pytest.fixture
def systems(kafka: Kafka) -> Iterator[tuple[Kafka, Kafka]]:
    """Return this system and the other one, both served."""
    there = kafka.model_copy(update={"topic_prefix": f"{kafka.topic_prefix}there-"})
    with ExitStack() as stack:
        for system in (kafka, there):
            ensure_topics(Settings(kafka=system), TOPICS)
            stack.enter_context(Acknowledging(system))
        yield kafka, there


def _route(here: Kafka, there: Kafka, **options: Any) -> Route:
    settings = RouteSettings(name="there", writers=("w*",), topic_prefix=there.topic_prefix, **options)
    return Route(settings, here, timeout=PATIENCE_SECONDS)


def _publisher(kafka: Kafka, **options: Any) -> Publisher:
    return Publisher(kafka, name="w1", writer_qos=WriterQos(), logon_timeout=PATIENCE_SECONDS, **options)


def _take(reader: SampleReader, count: int) -> list[Sample]:
    found: list[Sample] = []
    while len(found) < count:
        more = reader.take(count - len(found), PATIENCE_SECONDS)
        assert more, f"only {len(found)} of {count} samples came"
        found += more
    return found


def test_rti_29_a_publisher_hears_the_route_and_never_the_reader_behind_it(systems: tuple[Kafka, Kafka]) -> None:
    here, there = systems
    heard: list[Callback] = []
    with (
        SampleReader(there, name="S", qos=EXPLICIT, start_timeout=PATIENCE_SECONDS) as reader,
        _route(here, there),
        _publisher(here, on_application_acknowledgment=heard.append) as publisher,
    ):
        publisher.publish(b"1", topic="orders", key=b"k", headers=[("colour", b"red")])
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        (sample,) = _take(reader, 1)
        assert (sample.publisher, sample.topic, sample.key, sample.value) == ("route-there", "orders", b"k", b"1")
        assert sample.headers == {
            "colour": b"red",
            "original-writer": b"w1",
            "original-seq": b"1",
            "routed-by": b"there",
        }
        sample.acknowledge()
        publisher.publish(b"2")
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        eventually(lambda: len(heard) == 2, "both acknowledgements")
    assert [(callback.reader, callback.seq) for callback in heard] == [("route-there", 1), ("route-there", 2)]


def test_the_end_to_end_label_is_issued_when_the_reader_behind_the_route_has_finished(
    systems: tuple[Kafka, Kafka],
) -> None:
    here, there = systems
    headers = [
        ("correlation-id", b"c1"),
        ("requested-acks", b'["there:delivered"]'),
        ("ditto-entity-id", b"thing:org.acme:lamp"),
    ]
    with (
        SampleReader(there, name="S", qos=EXPLICIT, start_timeout=PATIENCE_SECONDS) as reader,
        _route(here, there, label="there:delivered"),
        _publisher(here) as publisher,
    ):
        publisher.publish(b"1", topic="orders", headers=headers)
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        (sample,) = _take(reader, 1)
        assert records(here, "acks") == []
        sample.acknowledge()
        (answer,) = eventually(lambda: records(here, "acks"), "the label")
    told = json.loads(answer.value)
    assert (told["topic"], told["status"]) == ("org.acme/lamp/things/twin/acks/there:delivered", 200)


def test_what_was_published_while_the_route_was_away_is_passed_on_by_its_next_run(systems: tuple[Kafka, Kafka]) -> None:
    here, there = systems
    with (
        SampleReader(there, name="S", start_timeout=PATIENCE_SECONDS) as reader,
        _publisher(here) as publisher,
    ):
        with _route(here, there):
            publisher.publish(b"1")
            publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        publisher.publish(b"2")
        with pytest.raises(ReaderTimeout, match="waits for route-there"):
            # who is waited for is asked first
            publisher.wait_for_acknowledgments(5)
        with _route(here, there):
            publisher.publish(b"3")
            publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        assert [sample.value for sample in _take(reader, 3)] == [b"1", b"2", b"3"]
        assert reader.take() == []
