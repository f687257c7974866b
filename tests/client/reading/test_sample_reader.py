from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.client.core.arguments import Retry
from ackstream.client.core.connection import Producer
from ackstream.client.errors import ReaderClosedError
from ackstream.client.reading import _sample_cache as sample_cache
from ackstream.client.reading import sample_reader
from ackstream.client.reading.sample_reader import SampleReader
from ackstream.client.reading.samples import Kind, ReaderQos, Sample, usable_lake
from ackstream.errors import BadParameterError, InconsistentQosError, StartError, UnreachableError
from ackstream.protocol.messages import StoredRange
from ackstream.settings import Kafka, Lake
from tests.harness.waiting import eventually

PATIENCE_SECONDS = 30.0


class _Session:
    """Reads nothing; notes how it is closed."""

    producer: Any = None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.link = SimpleNamespace(unreadable=0, stop=threading.Event())
        self.left: list[bool] = []
        self.takes_leave = True
        self.closed: Callable[[], None] = lambda: None

    def begin(self, _timeout: float) -> None: ...

    def close(self, *, leave: bool = False) -> bool:
        if not self.left:
            self.closed()
        self.left = self.left or [leave]
        return not leave or self.takes_leave


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(sample_reader, "ReaderLink", _Session)
    return lambda **options: SampleReader(Kafka(), name="r1", **options)


def _publish(reader: Any, *numbers: int) -> None:
    for number in numbers:
        reader._history.add(Sample("w1", None, None, b"", {}, 0, number, 0, number))
    reader._history.mark_stored(StoredRange("w1", min(numbers), max(numbers), 0))


@pytest.mark.parametrize("options", [{}, {"role": "Logger"}, {"durable": False}, {"durable": False, "role": "Logger"}])
def test_a_reader_stays_known_when_it_closes_unless_it_is_temporary(
    make: Callable[..., Any], options: dict[str, Any]
) -> None:
    with make(**options) as reader:
        pass
    reader.close()
    temporary = "durable" in options
    assert (reader._link.left, reader._history.start.durable) == ([temporary], not temporary)


def test_a_durable_reader_that_is_unregistered_leaves_for_good(make: Callable[..., Any]) -> None:
    reader = make()
    reader.unregister()
    assert reader._link.left == [True]
    with pytest.raises(ReaderClosedError):
        reader.take()


def test_a_leave_that_kafka_does_not_store_is_an_error(make: Callable[..., Any]) -> None:
    reader = make()
    reader._link.takes_leave = False
    with pytest.raises(UnreachableError, match="ackstream readers forget"):
        reader.unregister()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_cache, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(sample_cache, "MAX_RETRY_SECONDS", 0.002)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["application-auto", "application-explicit"])
def test_a_handler_that_failed_is_called_again_until_it_has_done_its_work(
    make: Callable[..., Any], kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def handle(sample: Sample) -> None:
        seen.append(sample.seq)
        if sample.seq % 2 and seen.count(sample.seq) < 4:
            raise ValueError("no")
        reader.acknowledge_sample(sample)

    # more fail than the reader may keep
    reader = make(handler=handle, max_samples=2, qos=ReaderQos(kind=kind))
    _publish(reader, *range(1, 9))
    eventually(lambda: reader.statistics.acknowledged == 8, "all")
    assert [seen.count(seq) for seq in range(1, 9)] == [4, 1] * 4
    assert (reader.statistics.failed, caplog.text.count("ValueError: no"), reader.alive) == (12, 12, True)
    reader.close()


@pytest.mark.parametrize("batches", [False, True])
def test_with_a_retry_later_samples_of_the_writer_wait_and_those_of_others_are_handled(
    make: Callable[..., Any], caplog: pytest.LogCaptureFixture, *, batches: bool
) -> None:
    seen: list[tuple[str, int]] = []
    reported: list[int] = []

    def handle(sample: Sample) -> None:
        seen.append((sample.publisher, sample.seq))
        if sample.publisher == "w1" and sample.seq < 3 and seen.count(("w1", sample.seq)) < 4:
            raise ValueError("no")

    def handle_all(samples: list[Sample]) -> None:
        for sample in samples:
            handle(sample)

    options: dict[str, Any] = {"batch_handler": handle_all, "max_batch": 1} if batches else {"handler": handle}
    reader = make(retry=Retry(3, backoff=0.001), **options)
    reader._label_acks.failed = lambda sample, _error: reported.append(sample.seq)
    with reader._history.changed:
        _publish(reader, 1, 2, 3, 4)
        for number in range(1, 21):
            reader._history.add(Sample("w2", None, None, b"", {}, 0, number, 0, 100 + number))
        reader._history.mark_stored(StoredRange("w2", 1, 20, 0))
    eventually(lambda: reader.statistics.acknowledged == 22, "all but those that are given up")
    reader.close()
    assert [seq for writer, seq in seen if writer == "w1"] == [1, 1, 1, 2, 2, 2, 3, 4]
    assert [seq for writer, seq in seen if writer == "w2"] == [*range(1, 21)]
    assert seen.index(("w2", 1)) < seen.index(("w1", 2)), "others go on"
    assert (reported, reader.statistics.failed, caplog.text.count("ValueError: no")) == ([1, 2], 6, 6)


def test_a_reader_is_closed_at_once_between_two_attempts(make: Callable[..., Any]) -> None:
    failed = threading.Event()

    def handle(_sample: Sample) -> None:
        failed.set()
        raise ValueError("no")

    reader = make(handler=handle, retry=Retry(2, backoff=3_600, longest=3_600))
    _publish(reader, 1, 2)
    assert failed.wait(PATIENCE_SECONDS)
    reader.close()
    assert (reader.wait_closed(0), reader.statistics.failed, reader.statistics.acknowledged) == (True, 1, 0)


@pytest.mark.parametrize(
    "options", [{"retry": Retry(2)}, {"retry": Retry(2), "handler": print, "qos": ReaderQos(kind="protocol")}]
)
def test_a_retry_that_would_have_no_effect_is_refused(make: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(InconsistentQosError, match="retry is for samples whose handler fails"):
        make(**options)


@pytest.mark.usefixtures("impatient")
def test_a_sample_of_a_batch_that_failed_is_handled_again_alone(make: Callable[..., Any]) -> None:
    seen: list[list[int]] = []

    def handle(samples: list[Sample]) -> None:
        seen.append([sample.seq for sample in samples])
        if any(sample.seq == 2 for sample in samples) and len(seen) < 6:
            raise ValueError("no")

    reader = make(batch_handler=handle, max_batch=3)
    _publish(reader, 1, 2, 3)
    eventually(lambda: reader.statistics.acknowledged == 3, "all")
    reader.close()
    assert seen[:4] == [[1, 2, 3], [1], [2], [3]]


@pytest.mark.usefixtures("impatient")
def test_a_sample_that_was_acknowledged_after_its_handler_failed_is_not_handled_again(make: Callable[..., Any]) -> None:
    seen: list[int] = []

    def handle(sample: Sample) -> None:
        seen.append(sample.seq)
        if sample.seq == 1:
            reader.acknowledge_sample(sample)
            raise ValueError("no")
        if seen.count(2) < 3:
            raise ValueError("no")

    reader = make(handler=handle, qos=ReaderQos(kind="application-explicit"))
    _publish(reader, 1, 2)
    eventually(lambda: seen.count(2) == 3, "the other")
    reader.close()
    assert seen == [1, 2, 2, 2]


def test_a_handler_that_closes_its_reader_has_its_sample_acknowledged_before(make: Callable[..., Any]) -> None:
    def handle(_sample: Sample) -> None:
        reader.close()

    reader = make(handler=handle)
    acknowledged: list[int] = []
    reader._link.closed = lambda: acknowledged.append(reader.statistics.acknowledged)
    _publish(reader, 1, 2)
    assert reader.wait_closed(PATIENCE_SECONDS)
    reader.close()
    assert acknowledged == [1], "and the next sample is for the next run"


def test_a_reader_whose_handler_has_ended_it_is_closed_by_its_callback(make: Callable[..., Any]) -> None:
    reader = make(handler=lambda _sample: sys.exit(1), on_error=lambda _error: reader.close())
    closed = threading.Event()
    reader._link.closed = closed.set
    _publish(reader, 1)
    assert closed.wait(PATIENCE_SECONDS)


def test_a_reader_that_another_thread_of_it_closes_is_finished_behind_its_handler(make: Callable[..., Any]) -> None:
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def handle(_sample: Sample) -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    reader = make(handler=handle, on_error=lambda _error: reader.close())
    reader._link.closed = closed.set
    _publish(reader, 1)
    assert begun.wait(PATIENCE_SECONDS)
    failing = threading.Thread(target=reader._life.fail, args=(ReaderClosedError("gone"),))
    failing.start()
    failing.join(PATIENCE_SECONDS)
    assert (failing.is_alive(), closed.is_set()) == (False, False)
    go_on.set()
    assert closed.wait(PATIENCE_SECONDS)


def test_a_reader_that_is_closed_cannot_be_unregistered(make: Callable[..., Any]) -> None:
    reader = make()
    reader.close()
    with pytest.raises(ReaderClosedError, match="ackstream readers forget"):
        reader.unregister()


def test_samples_that_are_read_stay_in_the_reader_and_those_not_accessed_can_be_waited_for(
    make: Callable[..., Any],
) -> None:
    with make(max_samples=2) as reader:
        _publish(reader, 1, 2)
        assert [sample.seq for sample in reader.read(1)] == [1]
        assert [sample.seq for sample in reader.read(unread=True)] == [2]
        assert [sample.seq for sample in reader.read(timeout=None)] == [1, 2]
        assert (reader.statistics.acknowledged, reader.full) == (2, True)
        assert [sample.seq for sample in reader.take()] == [1, 2]
        assert (reader.full, reader.read()) == (False, [])


def test_an_application_that_acknowledges_later_is_waited_for(make: Callable[..., Any]) -> None:
    taken: list[Sample] = []
    reader = make(handler=taken.append, qos=ReaderQos(kind="application-explicit"), max_samples=1)
    _publish(reader, 1)
    assert not reader.wait_closed(0.1)
    assert reader.alive
    reader.close()
    assert reader.wait_closed(0)


def test_a_sample_that_is_acknowledged_while_the_lease_of_the_labels_has_lapsed_has_its_label_acknowledged_later(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = SimpleNamespace(ready=False, taken=False, issued=frozenset({"a-ack"}), keep=lambda _now: None)
    monkeypatch.setattr(sample_reader, "Labels", lambda *_: labels)
    sent: list[dict[str, Any]] = []
    future = SimpleNamespace(add_callback=lambda _: None, add_errback=lambda _: None)
    producer = SimpleNamespace(send=lambda *_, **record: sent.append(record) or future)
    monkeypatch.setattr(_Session, "producer", Producer(Kafka(), producer))
    with make(labels=["a-ack"]) as reader:
        headers = {"correlation-id": b"c", "requested-acks": b'["a-ack"]'}
        reader._history.add(Sample("w1", None, b"ns:n", b"", headers, 0, 1, 0, 1))
        reader._history.mark_stored(StoredRange("w1", 1, 1, 0))
        assert len(reader.take()) == 1
        reader._after_poll(math.inf)
        assert (reader.statistics.acknowledged, sent) == (1, [])
        labels.ready = True
        reader._after_poll(math.inf)
    assert [(record["key"], record["headers"]) for record in sent] == [(b"ns:n", [("correlation-id", b"c")])]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_samples": 0}, "max_samples is 0"),
        ({"max_bytes": 0}, "max_bytes is 0"),
        ({"role": ""}, "role has 0"),
        # settle could not read the start
        ({"writers": [f"w{number}" for number in range(101)]}, r"writers has 101 names: give 100, or patterns with \*"),
        ({"writers": ["w" * 256]}, "writers has 256 characters"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_connected(options: dict[str, Any], reason: str) -> None:
    with pytest.raises((BadParameterError, InconsistentQosError), match=reason):
        SampleReader(Kafka(), name="r1", **options)


def test_a_batch_is_handled_and_acknowledged_as_a_whole_or_not_at_all(make: Callable[..., Any]) -> None:
    batches: list[list[int]] = []
    first, handled = threading.Event(), threading.Event()

    def handle(samples: list[Sample]) -> None:
        assert first.wait(PATIENCE_SECONDS)
        batches.append([sample.seq for sample in samples])
        if samples[-1].seq == 6:
            handled.set()
        if 4 in batches[-1]:
            raise LookupError

    with make(batch_handler=handle, max_batch=3) as reader:
        _publish(reader, *range(1, 7))
        first.set()
        assert handled.wait(PATIENCE_SECONDS)
    assert [seq for batch in batches for seq in batch] == [1, 2, 3, 4, 5, 6]
    assert max(map(len, batches)) == 3
    failed = next(batch for batch in batches if 4 in batch)
    assert (reader.statistics.failed, reader.statistics.acknowledged) == (len(failed), 6 - len(failed))


@pytest.mark.parametrize(
    ("options", "reason"), [({"handler": print}, "give one of them"), ({"max_batch": 0}, "max_batch is 0")]
)
def test_there_is_one_handler_and_a_batch_has_messages(
    make: Callable[..., Any], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InconsistentQosError, match=reason):
        make(batch_handler=print, **options)


def test_a_lake_that_cannot_be_read_is_an_error_of_the_constructor_with_its_cause(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    log = tmp_path / "messages" / "_delta_log"
    make(lake=Lake(path=str(tmp_path))).close()
    assert usable_lake(Lake(path=str(tmp_path))) is not None
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("these are my notes")
    lake = Lake(path=str(tmp_path))
    with pytest.raises(StartError, match=rf"The table messages at {tmp_path}.* cannot be read: "):
        make(lake=lake)
    assert usable_lake(lake) is None
