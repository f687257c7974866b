"""The topics of all planes and the signs of life of the jobs, on a real broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from ackstream.kafka.parties import LEASES, PARTIES
from ackstream.kafka.topics import ensure_topics
from ackstream.observe import plane_feed
from ackstream.observe.overview import Watching
from ackstream.observe.plane_feed import JOBS, PlaneFeed, PlaneWatch
from ackstream.observe.planes import Planes
from ackstream.protocol import destinations, messages
from ackstream.protocol.destinations import Replicated
from ackstream.protocol.messages import StoredRange
from ackstream.settings import Settings
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from ackstream.settings import Kafka


def test_a_job_that_is_shown_has_a_lease_and_the_topics_that_it_reads() -> None:
    assert {f"{job}-lease" for job in JOBS} == set(LEASES)
    for job, topics in JOBS.items():
        assert PARTIES[job].groups == (f"ackstream-{job}",)
        assert set(topics) <= set(PARTIES[job].reads)
    assert set(LEASES) <= set(PARTIES["gateway"].looks_up)


@pytest.fixture
def settings(kafka: Kafka) -> Settings:
    return Settings(kafka=kafka)


def write(settings: Settings, topic: str, *values: bytes) -> None:
    with KafkaProducer(bootstrap_servers=settings.kafka.bootstrap) as producer:
        for value in values:
            producer.send(settings.kafka.topic(topic), key=b"k", value=value).get(timeout=30)


STORED = messages.write_stored(StoredRange("orders", 1, 3, 5))


@pytest.mark.integration
def test_planes_are_read_from_the_topics_that_exist(settings: Settings) -> None:
    ensure_topics(settings, ["stored", "destinations", "dead-letters"])
    write(settings, "destinations", destinations.write_replicated(Replicated("mirror", "t", 4)))
    write(settings, "stored", STORED, b"no json")
    planes = Planes(60_000)
    # a destination's last report counts, however old it is
    with PlaneFeed(settings, time.time_ns() // 1_000_000 + 3_600_000) as feed:
        feed.read_to_end(planes)
        assert planes.view(0).destinations[0].destination == "mirror"
        assert not planes.view(0).publishers
    with PlaneFeed(settings, 0) as feed:
        feed.read_to_end(planes)
    assert [publisher.last for publisher in planes.view(0).publishers] == [3]
    assert planes.view(0).destinations[0].behind == 1


@pytest.mark.integration
def test_a_job_that_has_run_is_alive_while_it_gives_signs_and_shows_its_lag(settings: Settings) -> None:
    kafka = settings.kafka
    ensure_topics(settings, ["signals", "acks", "ledger", "correlate-lease", "archive-lease"])
    with PlaneFeed(settings, 0) as feed:
        assert feed.signs() == []
    write(settings, "correlate-lease", b"0")
    write(settings, "signals", *[b"{}"] * 10)
    with KafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=kafka.group_of("correlate")) as consumer:
        places = [TopicPartition(kafka.topic("signals"), number) for number in range(kafka.partitions)]
        ends = consumer.end_offsets(places)
        consumer.commit({place: OffsetAndMetadata(max(0, ends[place] - 1), "", -1) for place in places})
        behind = sum(min(1, end) for end in ends.values())
    with PlaneFeed(settings, 0) as feed:
        (sign,) = feed.signs()
    assert (sign.job, sign.alive) == ("correlate", True)
    # of acks nothing has been read
    assert [(lag.topic, lag.records) for lag in sign.lags] == [(kafka.topic("signals"), behind)]


@pytest.mark.integration
def test_a_broker_without_any_topic_of_the_planes_shows_nothing(settings: Settings) -> None:
    planes = Planes(60_000)
    with PlaneFeed(settings, 0) as feed:
        feed.read_to_end(planes)
        feed.give(planes)
        assert feed.signs() == []


@pytest.mark.integration
def test_a_topic_that_is_created_later_is_read_too(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_feed, "SIGNS_SECONDS", 0.1)
    ensure_topics(settings, ["ledger"])
    with PlaneWatch(settings) as watch:
        watch.look()
        ensure_topics(settings, ["stored", "persist-lease"])
        write(settings, "stored", STORED)
        write(settings, "persist-lease", b"0")
        eventually(lambda: bool(watch.look()[0].publishers), "publishers")
        eventually(lambda: [sign.job for sign in watch.look()[1]] == ["persist"], "the job")


@pytest.mark.integration
def test_nothing_is_read_until_somebody_looks_and_some_time_after(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_topics(settings, ["stored"])
    opened: list[Any] = []

    class Counted(PlaneFeed):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append("opened")

        def close(self) -> None:
            super().close()
            opened.append("closed")

    monkeypatch.setattr(plane_feed, "PlaneFeed", Counted)
    with PlaneWatch(settings) as watch:
        write(settings, "stored", STORED)
        assert not opened
        eventually(lambda: bool(watch.look()[0].publishers), "publishers")
        assert opened == ["opened"]
        # nobody looks any more
        monkeypatch.setattr(plane_feed, "IDLE_SECONDS", 0.0)
        eventually(lambda: opened == ["opened", "closed"], "an end")
        monkeypatch.setattr(plane_feed, "IDLE_SECONDS", 60.0)
        eventually(lambda: bool(watch.look()[0].publishers), "publishers")
    assert opened == ["opened", "closed"] * 2


@pytest.mark.integration
def test_what_a_terminal_shows_has_requests_jobs_and_planes(settings: Settings) -> None:
    ensure_topics(settings, ["ledger", "stored", "correlate-lease"])
    write(settings, "stored", STORED)
    write(settings, "correlate-lease", b"0")
    with Watching(settings, 60_000) as watching:
        watching.read_to_end()
        shown = watching.now()
        assert (shown.planes and shown.planes.publishers[0].client, shown.jobs[0].job) == ("orders", "correlate")
        write(settings, "stored", messages.write_stored(StoredRange("orders", 4, 9, 6)))
        watching.follow(3.0)
        assert watching.now().planes.publishers[0].last == 9
