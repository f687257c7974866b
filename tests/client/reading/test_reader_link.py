from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError, LeaderNotAvailableError, TopicAuthorizationFailedError

from ackstream.client.core.lifetime import ConnectionState, Lifetime, Parts
from ackstream.client.errors import SamplesGoneError, TakenOverError
from ackstream.client.reading import _reader_offsets as reader_offsets
from ackstream.client.reading._reader_history import ReaderHistory
from ackstream.client.reading._reader_link import ReaderLink
from ackstream.client.reading._reader_offsets import LOOKBACK_MS, merged
from ackstream.client.reading.samples import ReaderQos, Sample
from ackstream.errors import UnreachableError
from ackstream.protocol import messages, readers
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.readers import (
    SKEW_MS,
    AppAckConf,
    KnownWriter,
    ProtocolAck,
    ReaderRemoved,
    ReaderStart,
    ReaderState,
    ReaderStop,
)
from ackstream.settings import Lake
from tests.client.connections import FakeConnection


def _state(shard: int, writer: str, part: int = 0, parts: int = 1, as_of: int = 100) -> ReaderState:
    return ReaderState("R1", 1, shard, 2, as_of, (KnownWriter(writer, 1, 9),), part, parts)


def _whole(*states: ReaderState) -> ReaderState:
    parts: Parts[ReaderState] = Parts()
    for state in states:
        assert parts.whole is None
        parts.add(state, state.as_of)
    assert parts.whole is not None
    return merged(parts.whole)


def test_a_session_state_is_whole_with_every_part_of_every_shard() -> None:
    whole = _whole(_state(0, "a", part=1, parts=2), _state(1, "b", as_of=90), _state(0, "c", part=0, parts=2))
    assert whole.as_of == 90
    assert {known.writer for known in whole.writers} == {"a", "b", "c"}


def test_a_later_answer_of_a_shard_replaces_the_earlier_one_whole() -> None:
    whole = _whole(_state(0, "a", part=0, parts=2), _state(1, "b"), _state(0, "c", as_of=120))
    assert sorted(known.writer for known in whole.writers) == ["b", "c"]


def test_the_runs_of_a_writer_may_arrive_in_several_records() -> None:
    several = (KnownWriter("a", 1, 9, ((1, 2),), ((3, 3),)), KnownWriter("a", 1, 9, (), ((5, 9),)))
    whole = _whole(ReaderState("R1", 1, 0, 1, 100, several))
    assert whole.writers == (KnownWriter("a", 1, 9, ((1, 2),), ((3, 3), (5, 9))),)


def test_the_shortest_lease_of_all_shards_counts() -> None:
    states = [ReaderState("R1", 1, shard, 2, 100, lease_ms=lease) for shard, lease in enumerate((30_000, 6_000))]
    assert _whole(*states).lease_ms == 6_000


# -- a session on a log that is played

MESSAGES, STORED = TopicPartition("messages", 0), TopicPartition("stored", 0)
NOW = 10_000_000
TURN, POLL = 0.02, 500


class _Consumer:
    """Reads the messages of one partition: (writer, number) by offset, all of them newer than those before."""

    def __init__(self, log: Sequence[tuple[str, int]], *, committed: int | None, deleted: int, apart_ms: int) -> None:
        self.log = list(log)
        self.most = POLL
        self.at = {MESSAGES: 0, STORED: 0}
        self.sought: list[int] = []
        self.paused = True
        self._committed, self._deleted, self._apart_ms = committed, deleted, apart_ms
        self.asked_stored = 0

    def pause(self, *_: Any) -> None:
        self.paused = True

    def resume(self, *_: Any) -> None:
        self.paused = False

    def seek(self, partition: Any, offset: int) -> None:
        self.at[partition] = max(offset, self._deleted)
        self.sought += [offset] if partition == MESSAGES else []

    def position(self, partition: Any, timeout_ms: int) -> int:
        assert timeout_ms
        return self.at[partition]

    def committed(self, _partition: Any) -> int | None:
        return self._committed

    def beginning_offsets(self, partitions: Iterable[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, self._deleted)

    def end_offsets(self, partitions: Iterable[Any]) -> dict[Any, int]:
        return {partition: len(self.log) if partition == MESSAGES else 0 for partition in partitions}

    def offsets_for_times(self, wanted: dict[Any, int]) -> dict[Any, Any]:
        found = {}
        for partition, moment in wanted.items():
            if partition == STORED:
                self.asked_stored = moment
            older = [at for at in range(len(self.log)) if NOW - (len(self.log) - at) * self._apart_ms >= moment]
            found[partition] = SimpleNamespace(offset=older[0]) if partition == MESSAGES and older else None
        return found

    def commit_async(self, _offsets: Any) -> None: ...

    def poll(self) -> list[Any]:
        if self.paused:
            return []
        first = self.at[MESSAGES]
        self.at[MESSAGES] = min(len(self.log), first + self.most)
        return [
            SimpleNamespace(
                topic="messages",
                partition=0,
                offset=offset,
                timestamp=0,
                value=b"x",
                headers=[("client", self.log[offset][0].encode()), ("seq", b"%d" % self.log[offset][1])],
            )
            for offset in range(first, self.at[MESSAGES])
        ]


class _Link:
    """In the place of the connection; what settle answers to a start is in ``answers``."""

    def __init__(self, consumer: _Consumer, answers: Iterable[ReaderState]) -> None:
        self.consumer, self.answers = consumer, deque(answers)
        self.assignment = SimpleNamespace(of=lambda topic: [MESSAGES] if topic == "messages" else [STORED])
        self.stop = threading.Event()
        self.unreadable = 0
        self.producer = self
        self.sent: list[Any] = []
        self.failures: deque[Exception] = deque()
        self.stores = True
        self.pending: deque[Any] = deque()

    def start(self, _name: str, receive: Any, step: Any, *, guard: Any, **_limits: int) -> None:
        assert guard
        self.receive, self.step = receive, step
        for _ in range(3):
            self.turn(0.0)

    def turn(self, now: float) -> None:
        while self.pending:
            answer = self.pending.popleft()
            self.receive(SimpleNamespace(topic="publisher-acks", value=readers.write(answer)))
        for record in self.consumer.poll():
            self.receive(record)
        self.step(now)

    def send(self, topic: str, *, value: bytes, key: bytes) -> Any:
        assert (topic, key) == ("app-acks", b"billing")
        self.sent.append(readers.read(value))
        if isinstance(self.sent[-1], ReaderStart) and self.answers:
            self.pending.append(self.answers.popleft())
        failure = self.failures.popleft() if self.failures else None
        return SimpleNamespace(
            add_callback=lambda stored: stored(None) if self.stores and failure is None else None,
            add_errback=lambda fail: failure and fail(failure),
        )


def suppressed(turn: Callable[[float], None], now: float) -> None:
    """Let a step fail, as the connection does, which tries it again."""
    with suppress(KafkaError):
        turn(now)


def _session(
    link: _Link,
    history: ReaderHistory,
    errors: list[Exception],
    lake: Lake | None = None,
    states: list[ConnectionState] | None = None,
) -> ReaderLink:
    nobody: Any = None  # only samples know the reader
    life = Lifetime(history.end, errors.append, None if states is None else states.append)
    connection = FakeConnection(link=link)
    return ReaderLink(connection, history, nobody, life=life, lake=lake, after_poll=lambda _: None)


class _World:
    """A reader on a log; by default without a table."""

    def __init__(
        self,
        log: Sequence[tuple[str, int]],
        *answers: ReaderState,
        committed: int | None = None,
        deleted: int = 0,
        apart_ms: int = 1,
        max_samples: int = 1_000,
        durable: bool = True,
        lake: Lake | None = None,
        poll: int = POLL,
    ) -> None:
        self.consumer = _Consumer(log, committed=committed, deleted=deleted, apart_ms=apart_ms)
        self.consumer.most = poll
        self.link = _Link(self.consumer, answers)
        self.errors: list[Exception] = []
        start = ReaderStart("billing", 1, durable=durable)
        self.history = ReaderHistory(
            ReaderQos(kind="application-auto"),
            start,
            wanted=lambda _: True,
            on_acknowledged=lambda *_: None,
            max_samples=max_samples,
        )
        self.states: list[ConnectionState] = []
        self.session = _session(self.link, self.history, self.errors, lake, self.states)
        self.session.begin(0.0)
        self.now = 0.0
        self.handled: list[tuple[str, int]] = []

    def stored(self, writer: str, first: int, last: int, *refused: tuple[int, int]) -> None:
        value = messages.write_stored(StoredRange(writer, first, last, 0, refused))
        self.link.receive(SimpleNamespace(topic="stored", offset=0, value=value))

    def run(self, seconds: float, *, per_turn: int = 10**6, turn: float = TURN) -> None:
        """Let time pass, in which the application handles so many samples per turn."""
        end = self.now + seconds
        while self.now < end:
            self.now += turn
            self.link.turn(self.now)
            if per_turn:
                self.handled += [(sample.publisher, sample.seq) for sample in self.history.take(per_turn, 0)]

    @property
    def lost(self) -> int:
        return self.history.counts["lost"]


def _answer(*known: KnownWriter, epoch: int = 1) -> ReaderState:
    return ReaderState("billing", epoch, 0, 1, NOW, known)


def _all(last: int, first: int = 1, writer: str = "w") -> list[tuple[str, int]]:
    return [(writer, seq) for seq in range(first, last + 1)]


def test_an_application_that_is_slower_than_the_log_gets_every_sample() -> None:
    world = _World(_all(5_000), _answer(KnownWriter("w", 1, 5_000, (), ((1, 5_000),))))
    world.run(80, per_turn=2)
    assert 1_000 < len(world.handled) <= 2 * 80 / TURN
    world.run(20)
    assert (world.handled, world.lost) == (_all(5_000), 0)


def test_a_reader_waits_for_a_persist_job_that_is_away_and_passes_over_nothing() -> None:
    world = _World([], _answer(), max_samples=10_000)
    world.stored("w", 1, 1)
    for second in range(22):
        world.consumer.log = _all(min(30_000, 1_500 * (second + 1)))
        world.run(1, turn=0.1)
    assert world.handled == _all(1)
    for last in (20_000, 30_000):
        world.stored("w", len(world.handled) + 1 if last == 20_000 else 20_001, last)
        world.run(1, turn=0.1)
    world.run(30, turn=0.1)
    assert (world.handled, world.lost) == (_all(30_000), 0)


def test_a_durable_reader_begins_where_it_stopped_however_far_persist_is_behind() -> None:
    known = KnownWriter("w", 1, 100, ((1, 100),))
    world = _World(_all(1_000), _answer(known), committed=100, apart_ms=1_000)
    world.stored("w", 101, 1_000)
    world.run(5)
    assert (world.handled, world.lost) == (_all(1_000, 101), 0)
    assert world.consumer.sought == [100], "nothing had to be looked for"


@pytest.mark.parametrize("committed", [None, 100])
def test_a_temporary_reader_looks_further_back_for_what_was_stored_late(committed: int | None) -> None:
    known = KnownWriter("w", 101, 100)
    world = _World(_all(8_000), _answer(known), committed=committed, apart_ms=1_000, durable=False)
    assert world.consumer.sought == [8_000 - LOOKBACK_MS // 1_000]
    world.stored("w", 101, 8_000)
    world.run(60)
    assert (world.handled, world.lost) == (_all(8_000, 101), 0)
    assert world.consumer.sought[-1] == 0


def test_a_message_that_was_sent_again_far_behind_is_found_with_a_buffer_of_any_size() -> None:
    log = [*_all(3_000, 2), ("w", 1)]
    world = _World(log, _answer(KnownWriter("w", 1, 3_000, (), ((1, 3_000),))), max_samples=100)
    world.run(120)
    assert (world.handled, world.lost) == (_all(3_000), 0)


def test_a_writer_with_a_gap_that_is_never_filled_holds_up_no_other_and_is_read_again_once_it_is() -> None:
    log = [*_all(2_000, 2, "gap"), *_all(500), ("gap", 1)]
    world = _World(log, _answer(), max_samples=1_000)
    world.run(1)
    world.stored("w", 1, 100)
    world.run(60)
    world.stored("w", 101, 500)
    world.run(60)
    assert world.handled == _all(500)
    world.stored("gap", 1, 2_000)
    world.run(60)
    assert (world.handled, world.lost) == ([*_all(500), *_all(2_000, 1, "gap")], 0)


def test_a_reader_that_lacks_what_kafka_has_no_longer_ends_with_an_error_and_skips_nothing() -> None:
    world = _World(_all(100), _answer(KnownWriter("w", 1, 100, (), ((1, 100),))), committed=50, deleted=20)
    with pytest.raises(SamplesGoneError, match="Messages 1 to 20 of w are not acknowledged and no longer in Kafka"):
        world.run(10)
    assert (world.handled, world.lost, len(world.errors)) == ([], 0, 1)


@given(
    st.permutations([*_all(12), *_all(12, 1, "v")]),
    st.integers(1, 30),
    st.lists(st.tuples(st.sampled_from("vw"), st.integers(1, 12), st.integers(0, 15)), max_size=8),
    st.none() | st.integers(0, 24),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
)
def test_whatever_the_order_the_pace_and_the_buffer_every_stored_sample_is_handed_out_once_in_order(
    log: list[tuple[str, int]],
    max_samples: int,
    stored: list[tuple[str, int, int]],
    committed: int | None,
    per_turn: int,
    durable: bool,  # noqa: FBT001 - drawn
    table: bool,  # noqa: FBT001 - drawn
) -> None:
    options: dict[str, Any] = {"committed": committed, "durable": durable, "lake": Lake() if table else None, "poll": 3}
    world = _World(log, _answer(), max_samples=max_samples, **options)
    last = Counter[str]()

    def read(_lake: Lake, writer: str, runs: Sequence[tuple[int, int]], limit: int, _reader: Any) -> Any:
        numbers = [seq for first, end in runs for seq in range(first, end + 1)][:limit]
        assert numbers[-1] <= last[writer], "it is in the table once it is stored"
        return [Sample(writer, None, None, b"", {}, 0, seq, 0, log.index((writer, seq))) for seq in numbers], []

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reader_offsets, "read_stored", read)
        for writer, end, seconds in [*stored, ("v", 12, 1), ("w", 12, 1)]:
            world.run(seconds, per_turn=per_turn, turn=0.5)
            if end > last[writer]:
                first, last[writer] = last[writer] + 1, end
                world.stored(writer, first, end)
        world.run(300, turn=0.5)
    assert [sample for sample in world.handled if sample[0] == "w"] == _all(12)
    assert [sample for sample in world.handled if sample[0] == "v"] == _all(12, 1, "v")
    assert world.lost == 0
    for writer in "vw":
        world.history.reports[writer].confirm(AppAckConf("billing", writer, 1, world.history.reports[writer]._count))
    assert world.history.restart_offset(0, len(log)) == len(log)


def test_records_of_stored_are_read_from_before_the_state_as_far_as_clocks_may_differ() -> None:
    assert _World([], _answer()).consumer.asked_stored == NOW - SKEW_MS


def test_a_missed_record_of_stored_is_asked_for_again() -> None:
    later = KnownWriter("w", 1, 30, ((1, 10),), ((11, 14), (16, 30)))
    world = _World(_all(30), _answer(KnownWriter("w", 1, 10, ((1, 10),))), _answer(later))
    world.stored("w", 21, 30)
    world.run(1)
    assert world.handled == []
    world.run(10)
    assert world.handled == [seq for seq in _all(30, 11) if seq != ("w", 15)]
    assert sum(isinstance(record, ReaderStart) for record in world.link.sent) == 2


def test_an_unreadable_record_of_stored_is_made_up_for() -> None:
    world = _World(_all(5), _answer(), _answer(KnownWriter("w", 1, 5, (), ((1, 5),))))
    world.link.receive(SimpleNamespace(topic="stored", offset=0, value=b"?"))
    world.run(10)
    assert world.handled == _all(5)


def test_a_reader_whose_clock_is_behind_takes_a_later_epoch_than_settle_knows() -> None:
    class Settle(deque[ReaderState]):
        """Answers with the latest epoch."""

        def popleft(self) -> ReaderState:
            return _answer(epoch=max(9_000, link.sent[-1].epoch))

    link = _Link(_Consumer([], committed=None, deleted=0, apart_ms=1), ())
    link.answers = Settle([_answer()])
    history = ReaderHistory(
        ReaderQos(), ReaderStart("billing", 1), wanted=lambda _: True, on_acknowledged=lambda *_: None
    )
    session = _session(link, history, [])
    session.begin(0.0)
    assert 9_000 < history.start.epoch <= 10_000
    history.mark_stored(StoredRange("w", 1, 1, 0))
    assert history.reports["w"]._reader.epoch == history.start.epoch


def test_a_reader_whose_name_has_the_greatest_epoch_ends_with_the_way_out() -> None:
    link = _Link(_Consumer([], committed=None, deleted=0, apart_ms=1), ())
    link.answers = deque([_answer(epoch=2**63 - 1)])
    history = ReaderHistory(
        ReaderQos(), ReaderStart("billing", 1), wanted=lambda _: True, on_acknowledged=lambda *_: None
    )
    errors: list[Exception] = []
    with pytest.raises(TakenOverError, match="readers forget"):
        _session(link, history, errors).begin(0.0)


@pytest.mark.parametrize(
    ("answer", "text"),
    [(_answer(epoch=2), "Another reader has started as billing"), (ReaderRemoved("billing", 0, 1, 1), "was removed")],
)
def test_a_reader_that_was_taken_over_or_removed_ends_with_that_error(answer: Any, text: str) -> None:
    world = _World([], _answer())
    world.link.pending.append(answer)
    world.link.turn(1.0)
    assert [text in str(error) for error in world.errors] == [True]
    with pytest.raises(TakenOverError, match=text):
        world.history.take(1, None)


def test_a_reader_that_has_started_after_its_name_was_removed_goes_on() -> None:
    """A settle job that begins anew, or repeats a batch, says again what it did before the start."""
    world = _World([], _answer())
    world.link.pending.append(ReaderRemoved("billing", 0, 1, 0))
    world.link.turn(1.0)
    assert world.errors == []


def test_only_a_reader_that_leaves_says_so() -> None:
    for leave in (False, True):
        world = _World([], _answer())
        world.link.__dict__ |= dict.fromkeys(("end", "flush", "close"), lambda: None)
        world.consumer.commit = lambda *_, **__: None  # type: ignore[attr-defined]
        world.link.stores = False
        assert world.session.close(leave=leave) is not leave, "Kafka has not stored it"
        assert isinstance(world.link.sent[-1], ReaderStop) is leave


@pytest.mark.parametrize("error", [KafkaTimeoutError("120 s"), TopicAuthorizationFailedError("app-acks")])
def test_a_report_of_a_protocol_reader_that_kafka_rejects_is_sent_again(error: Exception) -> None:
    link = _Link(_Consumer(_all(2), committed=None, deleted=0, apart_ms=1), [_answer()])
    history = ReaderHistory(
        ReaderQos(kind="protocol"), ReaderStart("billing", 1), wanted=lambda _: True, on_acknowledged=lambda *_: None
    )
    _session(link, history, []).begin(0.0)
    history.mark_stored(StoredRange("w", 1, 2, 0))
    link.failures.append(error)
    link.turn(1.0)
    link.turn(time.monotonic())
    reports = [record for record in link.sent if isinstance(record, ProtocolAck)]
    assert [report.up_to for report in reports] == [2]
    link.turn(time.monotonic() + 10.0)
    link.turn(time.monotonic() + 20.0)
    assert [record for record in link.sent if isinstance(record, ProtocolAck)] == 2 * reports


def test_a_reader_is_disconnected_while_kafka_does_not_store_its_records() -> None:
    world = _World([], _answer())
    assert world.states == ["connected"]
    world.link.failures.append(KafkaTimeoutError("120 s"))
    world.run(12)
    assert world.states == ["connected", "disconnected"]
    world.run(12)
    assert world.states == ["connected", "disconnected", "connected"]


def test_a_reader_whose_reports_are_not_confirmed_is_disconnected_until_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = _World([], _answer())
    for unanswered in (True, False):
        monkeypatch.setattr(type(world.history), "unanswered", unanswered)
        world.run(12)
    assert world.states == ["connected", "disconnected", "connected"]


def test_a_reader_whose_application_acknowledges_nothing_says_so_once_until_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = _World(_all(30), _answer(KnownWriter("w", 1, 30, (), ((1, 30),))), max_samples=5, poll=5)
    held: list[Sample] = []

    def texts() -> list[str]:
        return [record.getMessage() for record in caplog.records if "reads nothing" in record.getMessage()]

    for times in (1, 2):
        world.run(0.1, per_turn=0)
        held += world.history.loan(99, 0)
        world.run(9, per_turn=0)
        assert len(texts()) == times - 1
        world.run(30, per_turn=0)
        assert len(texts()) == times
        world.history.return_loan(held)
    assert texts()[0].startswith("The reader billing reads nothing: the application has 5 samples")
    world.run(1)
    assert not world.errors


def test_a_reader_whose_samples_wait_for_the_next_attempt_of_a_retry_is_not_stuck(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = _World(_all(30), _answer(KnownWriter("w", 1, 30, (), ((1, 30),))), max_samples=5, poll=5)
    world.run(0.1, per_turn=0)
    assert len(world.history.loan(1, 0)) == 1
    assert world.history.loan(1, 0, {"w"}) == []
    world.run(30, per_turn=0)
    assert "reads nothing" not in caplog.text


def test_a_reader_that_cannot_begin_for_a_partition_without_a_leader_names_it() -> None:
    consumer = _Consumer([], committed=None, deleted=0, apart_ms=1)
    consumer.committed = lambda _: (_ for _ in ()).throw(  # type: ignore[method-assign]
        LeaderNotAvailableError("Partition 1 of messages has no leader")
    )
    link = _Link(consumer, [_answer()])
    turn = link.turn
    link.turn = lambda now: suppressed(turn, now)  # type: ignore[method-assign]
    history = ReaderHistory(
        ReaderQos(), ReaderStart("billing", 1), wanted=lambda _: True, on_acknowledged=lambda *_: None
    )
    with pytest.raises(UnreachableError, match="Partition 1 of messages has no leader"):
        _session(link, history, []).begin(0.0)


def test_a_lake_without_the_table_ends_a_reader_that_needs_it(tmp_path: Path) -> None:
    answer = _answer(KnownWriter("w", 1, 5, (), ((1, 5),)))
    world = _World(_all(5, 4), answer, lake=Lake(path=str(tmp_path)))
    world.run(5, per_turn=0)
    (error,) = world.errors
    assert str(error).startswith(f"There is no table messages at {tmp_path}/messages, although messages are stored")
