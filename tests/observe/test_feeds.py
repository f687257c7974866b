"""The topics of all planes and the signs of life of the jobs, on a real broker."""

from __future__ import annotations

import time
from unittest import mock

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import UnknownTopicOrPartitionError
from kafka.structs import OffsetAndMetadata

from ackstream.errors import AckstreamError
from ackstream.gateway.page.live import KAFKA_SECONDS
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.parties import LEASES, PARTIES
from ackstream.kafka.topics import ensure_topics
from ackstream.observe import feeds
from ackstream.observe.feeds import JOBS, LedgerFeed, PlaneFeed, Watching, silence
from ackstream.observe.outcomes import Meter
from ackstream.observe.planes import Planes
from ackstream.protocol import messages
from ackstream.protocol.messages import Replicated, StoredRange
from ackstream.settings import Kafka, Settings
from tests.harness.ledgers import outcome
from tests.harness.waiting import PATIENCE_SECONDS


def test_the_lag_of_a_job_is_that_of_the_records_it_processes() -> None:
    assert JOBS == {
        "correlate": ("signals", "acks", "twin-acks"),
        "archive": ("ledger", "audit"),
        "twin": ("signals",),
        "persist": ("messages",),
        "settle": ("stored", "app-acks"),
        "queues": ("app-acks",),
        "query": ("queries", "stored"),
    }
    for job in JOBS:
        assert PARTIES[job].groups == (f"ackstream-{job}",)
    assert set(LEASES) <= set(PARTIES["gateway"].looks_up)


GONE = "The job correlate has given {}, so no request is answered or times out: is it running?"
NEVER = GONE.format("no sign of life yet")


@pytest.mark.parametrize(
    ("signed_at", "warning"),
    [
        (100_000, ""),
        (90_000, ""),
        # the broker's clock is ahead of this machine's
        (130_000, ""),
        (26_000, GONE.format("its last sign of life 74 s ago")),
        (None, NEVER),
    ],
)
def test_a_clock_that_stands_still_is_reported(signed_at: int | None, warning: str):
    assert silence(signed_at, 100_000) == warning


def test_a_broker_that_hangs_holds_up_a_feed_for_less_than_the_sign_of_life_of_a_gateway_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = mock.MagicMock()
    for name in ("connect_admin", "connect_consumer"):
        monkeypatch.setattr(feeds, name, connect)
    PlaneFeed(Settings(), 0).close()
    assert connect.call_count == 2
    assert all(call.kwargs["request_timeout_ms"] < KAFKA_SECONDS * 1000 for call in connect.call_args_list)


@pytest.fixture
def ledger_settings(kafka: Kafka) -> Settings:
    settings = Settings(kafka=kafka)
    ensure_topics(settings, ("signals", "acks", "ledger"))
    return settings


def write_ledger(settings: Settings, topic: str, values: list[bytes]) -> int:
    """Write records, each with its own key; return the broker's time of the last one."""
    with KafkaProducer(bootstrap_servers=settings.kafka.bootstrap, linger_ms=0) as producer:
        sent = [
            producer.send(settings.kafka.topic(topic), key=str(number).encode(), value=value)
            for number, value in enumerate(values)
        ]
        return max(int(future.get(timeout=PATIENCE_SECONDS).timestamp) for future in sent)


@pytest.mark.integration
def test_a_feed_counts_what_was_written_since(ledger_settings: Settings):
    last = write_ledger(ledger_settings, "ledger", [outcome(f"r{number}") for number in range(10)])
    write_ledger(ledger_settings, "ledger", [b"no json", outcome("r10"), outcome("r10")])
    meter = Meter(60_000)
    with LedgerFeed(ledger_settings, 0) as feed:
        feed.read_all(meter.take)
        assert meter.snapshot(last).counts["answered"].total == 11
        write_ledger(ledger_settings, "ledger", [outcome("r11")])
        feed.read_all(meter.take)
        assert meter.snapshot(last).counts["answered"].total == 12


@pytest.mark.integration
def test_a_feed_leaves_out_what_is_older(ledger_settings: Settings):
    last = write_ledger(ledger_settings, "ledger", [outcome("r0")])
    meter = Meter(60_000)
    with LedgerFeed(ledger_settings, last + 3_600_000) as feed:
        feed.read_all(meter.take)
    assert meter.snapshot(last).counts["answered"].total == 0


@pytest.mark.integration
def test_a_feed_knows_when_the_clock_last_gave_a_sign_of_life(ledger_settings: Settings):
    with LedgerFeed(ledger_settings, 0) as feed:
        assert "no sign of life yet" in feed.warning()
        ensure_topics(ledger_settings, ["correlate-lease"])
        assert "no sign of life yet" in feed.warning()
        write_ledger(ledger_settings, "correlate-lease", [b"0"])
        assert feed.warning() == ""


@pytest.mark.integration
def test_a_topic_that_is_not_there_is_one_sentence(kafka: Kafka):
    with pytest.raises(AckstreamError, match=r"There is no topic .*ledger"):
        LedgerFeed(Settings(kafka=kafka), 0)


@pytest.fixture
def settings(kafka: Kafka) -> Settings:
    return Settings(kafka=kafka)


def write(settings: Settings, topic: str, *values: bytes) -> None:
    with KafkaProducer(bootstrap_servers=settings.kafka.bootstrap) as producer:
        for value in values:
            producer.send(settings.kafka.topic(topic), key=b"k", value=value).get(timeout=PATIENCE_SECONDS)


STORED = messages.write_stored(StoredRange("orders", 1, 3, 5))


@pytest.mark.integration
def test_planes_are_read_from_the_topics_that_exist(settings: Settings) -> None:
    ensure_topics(settings, ["stored", "destinations", "dead-letters"])
    write(settings, "destinations", messages.write_replicated(Replicated("mirror", "t", 4)))
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
    ensure_topics(settings, ["signals", "acks", "ledger", "correlate-lease", "archive-lease", "declarations"])
    orders = f"{kafka.topic_prefix}orders"
    with connect_admin(kafka) as admin:
        admin.create_topics([NewTopic(orders, 1, 1)])
        admin.wait_for_topics([orders])
    with PlaneFeed(settings, 0) as feed:
        assert feed.signs() == []
    write(settings, "correlate-lease", b"0")
    write(settings, "signals", *[b"{}"] * 10)
    with KafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=kafka.group_of("correlate")) as consumer:
        places = [TopicPartition(kafka.topic("signals"), number) for number in range(kafka.partitions)]
        ends = consumer.end_offsets(places)
        consumer.commit({place: OffsetAndMetadata(max(0, ends[place] - 1), "", -1) for place in places})
        further = [TopicPartition(name, 0) for name in (orders, kafka.topic("declarations"))]
        consumer.commit({place: OffsetAndMetadata(0, "", -1) for place in further})
        behind = sum(min(1, end) for end in ends.values())
    with PlaneFeed(settings, 0) as feed:
        (sign,) = feed.signs()
    assert (sign.job, sign.alive) == ("correlate", True)
    # of acks nothing has been read, and declarations are no records to process
    assert [(lag.topic, lag.records) for lag in sign.lags] == [(kafka.topic("signals"), behind), (orders, 0)]


@pytest.mark.integration
def test_a_broker_without_any_topic_of_the_planes_shows_nothing(settings: Settings) -> None:
    planes = Planes(60_000)
    with PlaneFeed(settings, 0) as feed:
        feed.read_to_end(planes)
        feed.give(planes)
        assert feed.signs() == []


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


def test_a_broker_that_knows_no_newest_sign_for_a_moment_makes_correlate_no_less_alive() -> None:
    feed = LedgerFeed.__new__(LedgerFeed)
    feed._settings, feed._admin, feed._newest = Settings(), mock.MagicMock(), {}
    answers: list[object] = [UnknownTopicOrPartitionError(), -1, 7_000, -1, UnknownTopicOrPartitionError(), 8_000]
    signs = TopicPartition("correlate-lease", 0)
    feed._admin.list_partition_offsets.side_effect = [
        one if isinstance(one, Exception) else {signs: mock.MagicMock(timestamp=one)} for one in answers
    ]
    assert [feed.signed_at() for _ in answers] == [None, None, 7_000, 7_000, 7_000, 8_000]
