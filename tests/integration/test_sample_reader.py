"""Readers and publishers on the real broker; persist and settle are played by their pure parts, without tables."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client.errors import ReaderClosedError, ReaderTimeout, SettleTimeout, TakenOverError
from ackstream.client.publishing.publisher import Publisher
from ackstream.client.reading._reader_link import delete_durable_subscription, known_readers
from ackstream.client.reading.sample_reader import SampleReader
from ackstream.client.reading.samples import ReaderQos, Sample, WriterQos
from ackstream.errors import BadParameterError, InconsistentQosError, PreconditionNotMetError
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Settings
from tests.harness import pages
from tests.harness.acknowledging import TOPICS, Acknowledging
from tests.harness.kafka import records
from tests.harness.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ackstream.client.publishing._acks import Callback

pytestmark = pytest.mark.integration

EXPLICIT = ReaderQos(kind="application-explicit", max_response_length=100)


@pytest.fixture
def service(kafka: Kafka) -> Iterator[Acknowledging]:
    ensure_topics(Settings(kafka=kafka), TOPICS)
    with Acknowledging(kafka) as started:
        yield started


@pytest.fixture
def topics(service: Acknowledging, kafka: Kafka) -> Kafka:
    """Return topics that are served."""
    assert not service.silent.is_set()
    return kafka


def _publisher(kafka: Kafka, **options: Any) -> Publisher:
    return Publisher(kafka, **({"name": "w1", "writer_qos": WriterQos(), "logon_timeout": PATIENCE_SECONDS} | options))


def _until(look: Callable[[], Any], what: str) -> Any:
    limit = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < limit:
        if found := look():
            return found
        time.sleep(0.01)  # leaves the processor to what is waited for
    raise AssertionError(f"not within {PATIENCE_SECONDS} s: {what}")


def _take(reader: SampleReader, count: int) -> list[Sample]:
    found: list[Sample] = []
    while len(found) < count:
        more = reader.take(count - len(found), PATIENCE_SECONDS)
        assert more, f"only {len(found)} of {count} samples came"
        found += more
    return found


def test_a_handler_gets_a_writers_messages_in_order_and_its_return_acknowledges(topics: Kafka) -> None:
    seen: list[Sample] = []
    with SampleReader(topics, name="r1", handler=seen.append) as reader, _publisher(topics) as publisher:
        for number in range(1, 51):
            publisher.publish(b"%d" % number, topic="orders", key=b"k", headers=[("colour", b"red")])
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        assert [(sample.seq, sample.value) for sample in seen] == [(n, b"%d" % n) for n in range(1, 51)]
        first = seen[0]
        assert (first.publisher, first.topic, first.key, first.headers) == ("w1", "orders", b"k", {"colour": b"red"})
        assert publisher.is_sample_app_acknowledged(50)
        assert (publisher.first_unacknowledged, publisher.waiting_for(PATIENCE_SECONDS)) == (None, ())
        assert (reader.statistics.received, reader.statistics.acknowledged) == (50, 50)


def test_a_handler_that_raises_acknowledges_nothing_and_gets_the_message_again(topics: Kafka) -> None:
    seen: list[int] = []

    def handle(sample: Sample) -> None:
        seen.append(sample.seq)
        if sample.seq == 2:
            raise ValueError("no")

    def again(sample: Sample) -> None:
        seen.append(sample.seq)
        if seen.count(2) < 4:
            raise ValueError("no")

    with _publisher(topics) as publisher:
        with SampleReader(topics, name="r1", handler=handle) as reader:
            for _ in range(3):
                publisher.publish(b"x")
            _until(lambda: reader.statistics.acknowledged == 2, "two acknowledgements")
            assert seen[:3] == [1, 2, 3]
            with pytest.raises(ReaderTimeout, match=r"Message 2 .* the oldest waits for r1"):
                publisher.wait_for_acknowledgments(0.5)
        tried = seen.count(2)
        with SampleReader(topics, name="r1", handler=again):
            publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
    assert seen.count(2) == max(4, tried + 1)


def test_explicit_acknowledgements_come_in_any_order_and_bring_their_responses_to_the_publisher(topics: Kafka) -> None:
    told: list[Callback] = []
    with (
        SampleReader(topics, name="r1", qos=EXPLICIT) as reader,
        _publisher(topics, on_application_acknowledgment=told.append) as publisher,
    ):
        for number in range(1, 4):
            publisher.publish(b"%d" % number)
        one, two, three = _take(reader, 3)
        two.acknowledge(b"second")
        _until(lambda: publisher.is_sample_app_acknowledged(2), "sample 2")
        assert (publisher.first_unacknowledged, publisher.waiting_for(PATIENCE_SECONDS)) == (1, ("r1",))
        threading.Thread(target=three.acknowledge).start()
        with pytest.raises(BadParameterError):
            one.acknowledge(b"x" * 101)
        reader.acknowledge_all(b"rest")
        two.acknowledge()
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        _until(lambda: len(told) == 3, "three callbacks")
    found = {callback.seq: (callback.reader, callback.response) for callback in told}
    assert found.keys() == {1, 2, 3}
    assert (found[1], found[2]) == (("r1", b"rest"), ("r1", b"second"))


def test_only_what_was_handed_out_can_be_acknowledged(topics: Kafka) -> None:
    with SampleReader(topics, name="r1", qos=EXPLICIT) as reader, _publisher(topics) as publisher:
        publisher.publish(b"1")
        publisher.publish(b"2")
        (one,) = _take(reader, 1)
        _until(lambda: reader.statistics.received == 2, "the second")
        reader.acknowledge_all()
        _until(lambda: publisher.is_sample_app_acknowledged(1), "sample 1")
        with pytest.raises(PreconditionNotMetError, match="cannot acknowledge sample 2 of w1"):
            reader.acknowledge_sample(Sample("w1", None, None, None, {}, 0, 2, 0, 0))
        assert one.seq == 1
        assert not publisher.is_sample_app_acknowledged(2)


def test_a_loan_acknowledges_when_it_comes_back_and_not_where_its_block_raises(topics: Kafka) -> None:
    with SampleReader(topics, name="r1") as reader, _publisher(topics) as publisher:
        publisher.publish(b"1")
        with reader.loan(timeout=PATIENCE_SECONDS) as samples:
            assert [sample.value for sample in samples] == [b"1"]
            assert not publisher.is_sample_app_acknowledged(1)
            assert reader.statistics.acknowledged == 0
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        publisher.publish(b"2")
        with pytest.raises(ValueError, match="no"), reader.loan(timeout=PATIENCE_SECONDS):
            raise ValueError("no")
        assert reader.statistics.acknowledged == 1


def test_what_a_reader_does_not_want_is_acknowledged_as_filtered(topics: Kafka) -> None:
    told: list[Callback] = []
    with (
        SampleReader(
            topics, name="r1", topics=["orders", "or*"], filter=lambda sample: sample.value != b"2", writers=["w*"]
        ) as reader,
        _publisher(topics, on_application_acknowledgment=told.append) as publisher,
        _publisher(topics, name="other") as unread,
    ):
        unread.publish(b"0", topic="orders")
        publisher.publish(b"1", topic="orders")
        publisher.publish(b"2", topic="orders")
        publisher.publish(b"3", topic="news")
        publisher.publish(b"4", topic="or")
        assert [sample.value for sample in _take(reader, 2)] == [b"1", b"4"]
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        unread.wait_for_acknowledgments(PATIENCE_SECONDS)
        _until(lambda: len(told) == 4, "four callbacks")
        assert reader.statistics.filtered == 2
    assert {callback.seq: callback.auto for callback in told} == {1: None, 2: "filtered", 3: "filtered", 4: None}


def test_a_message_that_is_refused_or_not_stored_yet_is_never_shown(topics: Kafka, service: Acknowledging) -> None:
    with SampleReader(topics, name="r1") as reader, _publisher(topics) as publisher:
        service.holding.set()
        publisher.publish(b"1")
        publisher.publish(b"2", topic="secret")
        publisher.publish(b"3")
        _until(lambda: reader.statistics.waiting == 3, "the messages")
        assert reader.take() == []
        service.holding.clear()
        assert [sample.value for sample in _take(reader, 2)] == [b"1", b"3"]
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)


def test_a_copy_on_the_wire_never_reaches_the_application(topics: Kafka, service: Acknowledging) -> None:
    with SampleReader(topics, name="r1") as reader, _publisher(topics, ack_timeout=0.1) as publisher:
        service.holding.set()
        publisher.publish(b"1")
        _until(lambda: publisher.statistics.resent >= 3, "repeats")
        service.holding.clear()
        publisher.publish_flush(PATIENCE_SECONDS)
        publisher.publish(b"2")
        assert [sample.value for sample in _take(reader, 2)] == [b"1", b"2"]
        assert reader.statistics.repeats >= 3
        assert reader.take() == []


def test_required_roles_are_waited_for_with_their_quorum_whether_they_are_there_or_not(kafka: Kafka) -> None:
    ensure_topics(Settings(kafka=kafka), TOPICS)
    with Acknowledging(kafka, Logger=2), _publisher(kafka) as publisher:
        publisher.publish(b"1")
        publisher.publish_flush(PATIENCE_SECONDS)
        # settle may read the question before it reads that the message is stored
        _until(lambda: publisher.waiting_for(PATIENCE_SECONDS) == ("Logger",), "the role to be waited for")
        with SampleReader(kafka, name="l1", handler=lambda _: None, role="Logger") as first:
            _until(lambda: first.statistics.acknowledged == 1, "the first logger")
            with pytest.raises(ReaderTimeout, match="waits for Logger"):
                publisher.wait_for_acknowledgments(0.5)
        with SampleReader(kafka, name="l2", handler=lambda _: None, role="Logger"):
            publisher.wait_for_acknowledgments(PATIENCE_SECONDS)


def test_a_publisher_names_roles_that_its_own_messages_need_also_while_it_is_away(topics: Kafka) -> None:
    own = WriterQos(required={"Auditor": 1})
    with _publisher(topics, writer_qos=own) as publisher, _publisher(topics, name="other") as other:
        publisher.publish(b"1")
        other.publish(b"1")
        other.wait_for_acknowledgments(PATIENCE_SECONDS)
        publisher.publish_flush(PATIENCE_SECONDS)
        _until(lambda: publisher.waiting_for(PATIENCE_SECONDS) == ("Auditor",), "the role to be waited for")
    with SampleReader(topics, name="a1", role="Auditor", start_timeout=PATIENCE_SECONDS) as reader:
        assert [(sample.publisher, sample.seq) for sample in _take(reader, 1)] == [("w1", 1)]
    with _publisher(topics, writer_qos=own) as publisher:
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)


def test_what_is_read_is_acknowledged_and_stays_until_it_is_taken(topics: Kafka) -> None:
    with SampleReader(topics, name="r1") as reader, _publisher(topics) as publisher:
        publisher.publish(b"1")
        assert [sample.value for sample in reader.read(timeout=PATIENCE_SECONDS)] == [b"1"]
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        publisher.publish(b"2")
        assert [sample.value for sample in reader.read(timeout=PATIENCE_SECONDS, unread=True)] == [b"2"]
        assert [sample.value for sample in _take(reader, 2)] == [b"1", b"2"]
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
    with SampleReader(topics, name="r1") as reader, _publisher(topics) as publisher:
        publisher.publish(b"3")
        assert [sample.value for sample in _take(reader, 1)] == [b"3"]


def test_a_time_based_filter_acknowledges_what_it_drops(topics: Kafka) -> None:
    told: list[Callback] = []
    qos = ReaderQos(minimum_separation_ms=3_600_000)
    with (
        SampleReader(topics, name="r1", qos=qos) as reader,
        _publisher(topics, on_application_acknowledgment=told.append) as publisher,
    ):
        for key in (b"a", b"a", b"b", b"a"):
            publisher.publish(b"x", key=key)
        assert [sample.seq for sample in _take(reader, 2)] == [1, 3]
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        _until(lambda: len(told) == 4, "four callbacks")
    assert {callback.seq: callback.auto for callback in told} == {1: None, 2: "filtered", 3: None, 4: "filtered"}


def test_nobody_waits_for_a_temporary_reader_that_has_left(topics: Kafka) -> None:
    with _publisher(topics) as publisher:
        with SampleReader(topics, name="r1", qos=EXPLICIT, durable=False) as reader:
            publisher.publish(b"1")
            _take(reader, 1)
            with pytest.raises(ReaderTimeout):
                publisher.wait_for_acknowledgments(0.3)
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)


def test_a_reader_is_waited_for_until_it_is_removed_by_itself_or_by_its_name(topics: Kafka) -> None:
    with _publisher(topics) as publisher:
        for name in ("r1", "r2"):
            SampleReader(topics, name=name).close()
        publisher.publish(b"1")
        publisher.publish_flush(PATIENCE_SECONDS)
        _until(lambda: publisher.waiting_for(PATIENCE_SECONDS) == ("r1", "r2"), "both to be waited for")
        SampleReader(topics, name="r1", qos=EXPLICIT).unregister()
        _until(lambda: publisher.waiting_for(PATIENCE_SECONDS) == ("r2",), "the removal of r1")
        (known,) = [found for found in known_readers(topics, timeout=PATIENCE_SECONDS) if found.durable]
        assert (known.reader, known.unacknowledged) == ("r2", 1)
        delete_durable_subscription(topics, name="r2", timeout=PATIENCE_SECONDS)
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)


def test_a_reader_whose_clock_is_behind_starts_nevertheless(topics: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    SampleReader(topics, name="r1").close()
    clock = SimpleNamespace(time_ns=lambda: 1_000_000, monotonic=time.monotonic)
    monkeypatch.setattr("ackstream.client.reading.sample_reader.time", clock)
    with SampleReader(topics, name="r1", start_timeout=PATIENCE_SECONDS) as reader, _publisher(topics) as publisher:
        publisher.publish(b"1")
        assert [sample.value for sample in _take(reader, 1)] == [b"1"]
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)


def test_a_protocol_reader_acknowledges_before_any_code_has_seen_it(topics: Kafka) -> None:
    with (
        SampleReader(topics, name="r1", qos=ReaderQos(kind="protocol")) as reader,
        _publisher(topics) as publisher,
    ):
        publisher.publish(b"1")
        publisher.publish(b"2")
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        assert [sample.value for sample in _take(reader, 2)] == [b"1", b"2"]


def test_keep_last_gives_the_place_of_what_nobody_has_read_to_what_is_newer(topics: Kafka) -> None:
    told: list[Callback] = []
    qos = ReaderQos(kind="application-auto", history="keep-last", depth=1)
    with (
        SampleReader(topics, name="r1", qos=qos) as reader,
        _publisher(topics, on_application_acknowledgment=told.append) as publisher,
    ):
        for number in (1, 2, 3):
            publisher.publish(b"%d" % number, key=b"a")
        publisher.publish(b"4", key=b"b")
        _until(lambda: reader.statistics.received == 4, "all")
        assert [sample.value for sample in reader.take()] == [b"3", b"4"]
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        _until(lambda: len(told) == 4, "four callbacks")
    assert {callback.seq: callback.auto for callback in told} == {1: "replaced", 2: "replaced", 3: None, 4: None}


def test_a_writer_writes_no_more_than_its_readers_keep_up_with(topics: Kafka) -> None:
    qos = WriterQos(max_samples=2, max_blocking_ms=200)
    with SampleReader(topics, name="r1", qos=EXPLICIT) as reader, _publisher(topics, writer_qos=qos) as publisher:
        publisher.publish(b"1")
        publisher.publish(b"2")
        began = time.monotonic()
        with pytest.raises(ReaderTimeout, match="2 messages wait for readers"):
            publisher.publish(b"3")
        assert 0.2 <= time.monotonic() - began < PATIENCE_SECONDS
        _take(reader, 2)
        reader.acknowledge_all()
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        assert publisher.publish(b"3").result(PATIENCE_SECONDS).seq == 3


def test_a_publisher_that_starts_again_still_waits_for_what_it_wrote_before(topics: Kafka) -> None:
    with SampleReader(topics, name="r1", qos=EXPLICIT) as reader:
        with _publisher(topics) as publisher:
            publisher.publish(b"1")
            publisher.publish(b"2")
            publisher.publish_flush(PATIENCE_SECONDS)
            _one, two = _take(reader, 2)
            two.acknowledge()
            _until(lambda: publisher.is_sample_app_acknowledged(2), "sample 2")
        with _publisher(topics) as publisher:
            assert publisher.first_unacknowledged == 1
            assert publisher.is_sample_app_acknowledged(2)
            reader.acknowledge_all()
            publisher.wait_for_acknowledgments(PATIENCE_SECONDS)


def test_reading_stops_while_the_application_has_too_much_and_goes_on(
    topics: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what is missing is looked for often while reading is paused, as with an application that is slow for minutes
    monkeypatch.setattr("ackstream.client.reading._reader_link.RECOVER_SECONDS", 0.01)
    with SampleReader(topics, name="r1", qos=EXPLICIT, max_samples=10) as reader, _publisher(topics) as publisher:
        taken = 0
        for number in range(1_200):
            publisher.publish(b"%d" % number)
        publisher.publish_flush(PATIENCE_SECONDS)
        # what one poll brought is here, the rest is not
        _until(lambda: reader.statistics.received >= 10, "the first ones")
        assert reader.statistics.received < 1_200
        while taken < 1_200:
            taken += len(_take(reader, 1)) + len(reader.take())
            reader.acknowledge_all()
        publisher.wait_for_acknowledgments(PATIENCE_SECONDS)
        assert (taken, reader.statistics.lost) == (1_200, 0)


def test_a_requested_label_of_the_reader_is_acknowledged_with_the_response(topics: Kafka) -> None:
    def headers(identity: str) -> list[tuple[str, bytes]]:
        return [
            ("correlation-id", identity.encode()),
            ("requested-acks", b'["shop:done", "other:done"]'),
            ("ditto-entity-id", b"thing:org.acme:lamp"),
        ]

    def handle(sample: Sample) -> None:
        if sample.value == b"raise":
            raise ValueError("broken")
        if sample.value == b"reject":
            sample.reject("sold out", 409)
        else:
            sample.acknowledge(b'{"ok":true}')

    with (
        SampleReader(
            topics, name="r1", handler=handle, qos=EXPLICIT, labels=["shop:done"], topics=["orders"]
        ) as reader,
        _publisher(topics) as publisher,
    ):
        assert reader.labels == {"shop:done"}
        for value in (b"accept", b"reject", b"raise"):
            publisher.publish(value, topic="orders", headers=headers(value.decode()))
        publisher.publish(b"unwanted", topic="news", headers=headers("unwanted"))
        publisher.publish(b"unasked", topic="orders")
        _until(lambda: reader.statistics.acknowledged == 2, "the acknowledgements")
        answers = _until(
            lambda: len(found := records(topics, "acks")) >= 4 and found, "the acknowledgements of the label"
        )
    found = {dict(record.headers)["correlation-id"].decode(): json.loads(record.value) for record in answers}
    assert {record.key for record in answers} == {b"org.acme:lamp"}
    assert {answer["topic"] for answer in found.values()} == {"org.acme/lamp/things/twin/acks/shop:done"}
    assert {identity: answer["status"] for identity, answer in found.items()} == {
        "accept": 200,
        "reject": 409,
        "raise": 500,
        "unwanted": 200,
    }
    assert (found["accept"]["value"], found["reject"]["value"]) == ({"ok": True}, "sold out")
    assert found["unwanted"]["headers"]["ditto-weak-ack"] is True


def test_a_reader_that_starts_again_gets_exactly_what_it_had_not_acknowledged(topics: Kafka) -> None:
    with _publisher(topics) as publisher:
        with SampleReader(topics, name="r1", qos=EXPLICIT) as reader:
            for number in range(1, 8):
                publisher.publish(b"%d" % number)
            for sample in _take(reader, 5):
                if sample.seq in (1, 2, 4):
                    sample.acknowledge()
            _until(lambda: publisher.is_sample_app_acknowledged(4), "sample 4")
        publisher.publish(b"8")
        with SampleReader(topics, name="r1", qos=EXPLICIT) as reader:
            publisher.publish(b"9")
            assert [sample.seq for sample in _take(reader, 6)] == [3, 5, 6, 7, 8, 9]
            assert reader.take() == []
            reader.acknowledge_all()
            publisher.wait_for_acknowledgments(PATIENCE_SECONDS)


def test_a_second_reader_of_a_name_ends_the_first(topics: Kafka) -> None:
    told: list[Exception] = []
    with (
        SampleReader(topics, name="r1", handler=lambda _: None, on_error=told.append) as first,
        SampleReader(topics, name="r1"),
    ):
        with pytest.raises(TakenOverError, match="started as r1"):
            first.wait_closed(PATIENCE_SECONDS)
        with pytest.raises(TakenOverError, match="started as r1"):
            first.take(1, PATIENCE_SECONDS)
    assert len(told) == 1


def test_without_settle_neither_a_reader_nor_a_publisher_that_asks_begins(
    topics: Kafka, service: Acknowledging
) -> None:
    service.silent.set()
    with pytest.raises(SettleTimeout, match="ackstream submit settle"):
        SampleReader(topics, name="r1", start_timeout=0.3)
    with pytest.raises(SettleTimeout, match="ackstream submit settle"):
        _publisher(topics, logon_timeout=1.0)


def test_a_closed_reader_says_so(topics: Kafka) -> None:
    reader = SampleReader(topics, name="r1")
    reader.close()
    reader.close()
    with pytest.raises(ReaderClosedError):
        reader.take()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"qos": ReaderQos(kind="protocol", reliable=False)}, "reliable"),
        ({"qos": ReaderQos(kind="protocol"), "labels": ["a-a"]}, "application kind"),
        ({"max_samples": 0}, "at least 1"),
        ({"name": ""}, "name has 0 characters: give 1 to 255"),
        ({"role": "x" * 256}, "role has 256 characters: give 1 to 255"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(kafka: Kafka, options: dict[str, Any], reason: str) -> None:
    with pytest.raises((BadParameterError, InconsistentQosError), match=reason):
        SampleReader(kafka, **({"name": "r1"} | options))


def test_without_a_qos_a_publisher_knows_no_readers(topics: Kafka) -> None:
    with (
        _publisher(topics, writer_qos=None) as publisher,
        pytest.raises(InconsistentQosError, match="does not track its readers"),
    ):
        publisher.wait_for_acknowledgments(1)


def test_the_examples_of_the_guide_run_one_after_the_other(
    topics: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for example in pages.examples("docs/guides/who-has-finished.md"):
        pages.run(example, Settings(kafka=topics), tmp_path, monkeypatch)
    told = capsys.readouterr().out
    assert "booking shop-1 1 b'{\"price\": 7}'\nall have finished" in told
    assert "audited [b'{\"price\": 8}']" in told
    assert "[('carrier', 1, b'at the door')]" in told
