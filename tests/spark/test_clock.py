"""The clock of a query: no tick passes an unread record, and one run alone ticks."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.errors import StartError, StoppedError
from ackstream.spark import clock
from ackstream.spark.clock import CLAIM, KafkaBroker, Pace, QueryClock, next_tick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NOW = 1_000


@pytest.mark.parametrize(
    ("consumed", "ends", "unread", "tick"),
    [
        ({}, {}, {}, NOW),
        ({"a": 5}, {"a": 5}, {}, NOW),
        ({}, {"a": 0}, {}, NOW),
        ({"a": 3}, {"a": 5}, {("a", 3, 5): 700}, 700),
        ({"a": 3, "b": 1}, {"a": 5, "b": 2}, {("a", 3, 5): 700, ("b", 1, 2): 600}, 600),
        # a partition that was added is read from its beginning
        ({"a": 5}, {"a": 5, "new": 1}, {("new", 0, 1): 900}, 900),
        # the clock of a broker was set back: a record is later than now
        ({"a": 3}, {"a": 5}, {("a", 3, 5): 1_500}, NOW),
        # what was not read has been deleted: it holds nothing up
        ({"a": 3, "b": 1}, {"a": 5, "b": 2}, {("a", 3, 5): None, ("b", 1, 2): 600}, 600),
    ],
)
def test_time_is_that_of_the_oldest_unread_record(consumed: Any, ends: Any, unread: Any, tick: int) -> None:
    assert next_tick(consumed, ends, NOW, lambda *place: unread[place]) == tick


# -- a model of a cluster, in which anything may happen between two requests -------------------------------------------


class Log:
    """The topic of the ticks; ``time`` is the broker's, in milliseconds."""

    def __init__(self) -> None:
        self.time = 1_000_000
        self.ticks: list[Any] = []

    def append(self, key: bytes, value: bytes | None) -> tuple[int, int]:
        headers = [("owner", b"host, process 7")]
        record = SimpleNamespace(offset=len(self.ticks), key=key, value=value, timestamp=self.time, headers=headers)
        self.ticks.append(record)
        return record.offset, record.timestamp

    def send(self, key: bytes, value: bytes | None) -> None:
        self.append(key, value)

    def since(self, time_ms: int) -> int | None:
        return next((record.offset for record in self.ticks if record.timestamp >= time_ms), None)

    def end(self) -> int:
        return len(self.ticks)

    def between(self, first: int, end: int) -> list[Any]:
        return self.ticks[first:end]

    def ends(self) -> tuple[dict[Any, int], bool]:
        return {}, False

    def timestamp_at(self, partition: Any, offset: int, end: int) -> int | None:
        raise AssertionError((partition, offset, end))


class Cluster(Log):
    """Partitions with records, and a query that reads them. Each request lets some of the events happen first.

    :ivar counted: by partition, for each record the time that a tick must not pass before it is read
    """

    def __init__(self, events: Iterable[tuple[str, int, int]], slack: int = 0) -> None:
        super().__init__()
        self.events, self.slack = list(events), slack
        self.elapsed = self.latest = self.time
        self.stamps: list[list[int]] = [[]]
        self.counted: list[list[int]] = [[]]
        self.visible_at: list[list[int]] = [[]]
        self.read, self.beginnings = [0], [0]

    def happen(self) -> None:
        while self.events:
            kind, number, amount = self.events.pop()
            partition = number % len(self.stamps)
            if kind == "request":
                return
            if kind == "time":
                self.time, self.elapsed = self.time + amount, self.elapsed + amount
                self.latest = max(self.latest, self.time)
            elif kind == "set back":
                self.time -= amount
            elif kind == "record":
                # a broker that is behind the one of the ticks, and a follower that is slow
                skew = partition % (self.slack + 1)
                self.stamps[partition].append(self.time - skew)
                self.counted[partition].append(self.latest - skew)
                self.visible_at[partition].append(self.elapsed + self.slack - skew)
            elif kind == "read":
                self.read[partition] = min(self.read[partition] + amount, self._end(partition))
            elif kind == "partition":
                for lists in (self.stamps, self.counted, self.visible_at):
                    lists.append([])
                self.read.append(0)
                self.beginnings.append(0)
            elif kind == "delete":
                self.beginnings[partition] = min(self.beginnings[partition] + amount, self._end(partition))

    def _end(self, partition: int) -> int:
        visible = self.visible_at[partition]
        return next((offset for offset, at in enumerate(visible) if at > self.elapsed), len(visible))

    def append(self, key: bytes, value: bytes | None) -> tuple[int, int]:
        self.happen()
        if value:
            for partition, counted in enumerate(self.counted):
                first = max(self.read[partition], self.beginnings[partition])
                assert int(value) <= min(counted[first:], default=int(value)), "time passed an unread record"
        return super().append(key, value)

    def ends(self) -> tuple[dict[int, int], bool]:
        self.happen()
        return {partition: self._end(partition) for partition in range(len(self.stamps))}, self.slack > 0

    def timestamp_at(self, partition: int, offset: int, end: int) -> int | None:
        self.happen()
        first = max(offset, self.beginnings[partition])
        return self.stamps[partition][first] if first < end else None

    def consumed(self) -> dict[int, int]:
        self.happen()
        return {partition: offset for partition, offset in enumerate(self.read) if offset}


def _events(*kinds: str) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    return st.lists(st.tuples(st.sampled_from(("request", *kinds)), st.integers(0, 9), st.integers(0, 40)), max_size=80)


COMMON = ("time", "record", "read", "partition", "delete")


def _tick(own: QueryClock, cluster: Cluster) -> list[int]:
    """Tick until all events have happened and once more; return all ticks so far."""
    while cluster.events:
        own.step(cluster)  # type: ignore[arg-type]
    own.step(cluster)  # type: ignore[arg-type]
    return [int(record.value) for record in cluster.ticks if record.value]


@contextmanager
def _clock(cluster: Cluster) -> Iterator[QueryClock]:
    own = QueryClock("clock", cluster.slack, 6.0)
    with mock.patch.object(clock, "passing", side_effect=lambda: cluster.elapsed / 1000):
        own.claim(cluster)  # type: ignore[arg-type]
        own.follow(cluster.consumed, lambda: None)
        yield own


@given(_events(*COMMON, "set back"))
def test_no_tick_passes_an_unread_record(events: list[tuple[str, int, int]]) -> None:
    cluster = Cluster(events)
    with _clock(cluster) as own:
        ticks = _tick(own, cluster)
    assert ticks == sorted(ticks)


@given(_events(*COMMON), st.integers(1, 9))
def test_no_tick_passes_a_record_of_a_broker_that_is_behind_or_that_waits_for_a_follower(
    events: list[tuple[str, int, int]], slack: int
) -> None:
    cluster = Cluster(events, slack)
    with _clock(cluster) as own:
        _tick(own, cluster)


@given(_events(*COMMON))
def test_time_reaches_the_present_once_everything_is_read(events: list[tuple[str, int, int]]) -> None:
    cluster = Cluster(events)
    with _clock(cluster) as own:
        _tick(own, cluster)
        cluster.read = [len(stamps) for stamps in cluster.stamps]
        assert _tick(own, cluster)[-1] == cluster.time


@given(st.lists(st.integers(0, 5_000), min_size=1), st.data())
def test_the_time_of_a_record_that_python_cannot_unpack_is_asked_of_the_broker(
    times: list[int], data: st.DataObject
) -> None:
    def list_partition_offsets(wanted: dict[str, int]) -> dict[str, Any]:
        ((partition, since),) = wanted.items()
        first = next((offset for offset, time in enumerate(times) if time >= since), -1)
        return {partition: SimpleNamespace(offset=first)}

    class Reader:
        consumer, unreadable = mock.Mock(), 0

        def read(self, *_: int) -> list[Any]:
            self.unreadable += 1
            return []

    broker: Any = KafkaBroker.__new__(KafkaBroker)
    broker._admin, broker._reader = SimpleNamespace(list_partition_offsets=list_partition_offsets), Reader()
    offset = data.draw(st.integers(0, len(times) - 1))
    # a record counts with the latest time seen up to it
    assert broker.timestamp_at("p", offset, len(times)) == max(times[: offset + 1])
    assert broker.timestamp_at("p", len(times), len(times)) is None


# -- a broker's clock --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 500), st.integers(0, 500)), min_size=1))
def test_a_clock_that_goes_as_time_passes_is_believed_whatever_the_network_does(
    steps: list[tuple[int, int, int]],
) -> None:
    pace, now = Pace(), 5_000_000
    for pause, to, back in steps:
        asked = now + pause
        now = asked + to + back
        assert pace.follow(asked + to, asked / 1000, now / 1000) == asked + to


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(-100_000, 100_000)), min_size=1))
def test_no_leap_of_a_clock_lets_time_pass_faster_than_it_does(steps: list[tuple[int, int]]) -> None:
    pace, elapsed, leapt = Pace(), 0, 0
    for pause, leap in steps:
        elapsed, leapt = elapsed + pause, leapt + leap
        believed = pace.follow(9_000_000 + elapsed + leapt, elapsed / 1000, elapsed / 1000)
        assert believed <= 9_000_000 + elapsed + leapt
        first = 9_000_000 + steps[0][0] + steps[0][1]
        assert believed <= first + (elapsed - steps[0][0]) * 1.1 + 1


def test_a_leap_is_caught_up_slowly_and_a_clock_that_was_set_back_for_a_moment_is_believed_again() -> None:
    pace, leap = Pace(), 10_000
    assert pace.follow(0, 0.0, 0.0) == 0
    believed = [pace.follow(second * 1_000 + leap, float(second), float(second)) for second in range(1, 200)]
    assert believed[:2] == [1_100, 2_200]
    assert believed[-1] == 199_000 + leap
    assert pace.follow(100_000, 200.0, 200.0) == 100_000
    assert 201_000 + leap - pace.follow(201_000 + leap, 201.0, 201.0) < 200


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    log = Log()
    monkeypatch.setattr(clock, "passing", lambda: log.time / 1000)
    return log  # type: ignore[return-value]


def _waiting(log: Log, *others: QueryClock) -> Callable[[float], None]:
    """Return a wait in which other runs tick."""

    def wait(seconds: float) -> None:
        log.time += round(seconds * 1000)
        for other in others:
            other.step(log)  # type: ignore[arg-type]

    return wait


def _running(log: Any) -> QueryClock:
    own = QueryClock("x-clock", 0, 6.0)
    own.claim(log, _waiting(log))
    own.step(log)
    return own


def test_a_run_is_named_by_its_claim(log: Any) -> None:
    log.append(b"k", b"v")
    own = _running(log)
    assert (own.run, log.ticks[1].key) == ("1", CLAIM)
    assert [record.key for record in log.ticks[2:]] == [b"1"]


def test_a_second_run_is_refused_while_the_first_ticks_which_goes_on(log: Any) -> None:
    first = _running(log)
    second, began = QueryClock("x-clock", 0, 6.0), log.time
    with pytest.raises(StartError) as refused:
        second.claim(log, _waiting(log, first))
    assert str(refused.value) == (
        "Another process (host, process 7) runs this job on the same system: it ticks on the topic x-clock. Stop it "
        "first, or give this one a kafka.topic_prefix of its own."
    )
    assert log.time - began < 1_000
    first.step(log)
    # what was refused leaves nothing to wait for
    first.end(log)
    _running(log)
    assert log.time - began < 1_000


@pytest.mark.parametrize("silent", [0, 4_000, 5_999, 6_000, 60_000])
def test_a_run_that_was_killed_is_replaced_once_its_lease_has_ended(log: Any, silent: int) -> None:
    _running(log)
    began, log.time = log.time, log.time + silent
    _running(log)
    assert log.time - began <= max(6_000, silent) + 200


def test_a_run_that_ended_in_order_is_replaced_at_once(log: Any) -> None:
    first = _running(log)
    first.end(log)
    began = log.time
    _running(log)
    assert log.time == began


def test_a_run_that_ends_while_another_one_claims_is_replaced(log: Any) -> None:
    first = _running(log)
    second, began = QueryClock("x-clock", 0, 6.0), log.time

    def end(seconds: float) -> None:
        log.time += round(seconds * 1000)
        first.end(log)

    second.claim(log, end)
    assert log.time - began < 1_000


def test_a_run_that_is_alone_reads_no_ticks(log: Any) -> None:
    own = _running(log)
    own.follow(dict, lambda: None)
    with mock.patch.object(log, "between") as read:
        for _ in range(3):
            log.time += 1_000
            own.step(log)
    assert not read.called


def test_of_two_that_start_at_once_the_first_claim_wins(log: Any) -> None:
    first, second = QueryClock("x-clock", 0, 6.0), QueryClock("x-clock", 0, 6.0)
    first.claim(log, _waiting(log))
    with pytest.raises(StartError):
        second.claim(log, _waiting(log, first))
    first.step(log)


def test_a_run_that_was_paused_ends_when_it_finds_its_successor(log: Any) -> None:
    first = _running(log)
    log.time += 40_000
    second = _running(log)
    with pytest.raises(StoppedError, match=r"^Another process \(host, process 7\) runs this job"):
        first.step(log)
    second.step(log)


def test_a_lease_gives_signs_of_life_alone_and_ends_its_job_when_another_one_has_it(log: Any) -> None:
    first, stopped = _running(log), []
    first.follow(None, lambda: stopped.append(True))
    with mock.patch.object(log, "ends") as looked_up:
        first.step(log)
    assert not looked_up.called
    assert [(record.key, record.value) for record in log.ticks[1:]] == [(b"0", b"0")] * 2
    log.time += 40_000
    _running(log)
    with pytest.raises(StoppedError, match="it ticks on the topic x-clock"):
        first.step(log)
    first.give_up()
    assert stopped


@pytest.mark.parametrize("key", [None, b"", b"clock", b"claim", b"-1", "²".encode(), b"999", b"9" * 5_000, b"\xff"])
def test_records_of_others_on_the_topic_end_nothing(log: Any, key: bytes | None) -> None:
    first = _running(log)
    log.append(key, b"4102444800000")
    first.step(log)
    log.append(key, None)
    first.step(log)
    first.end(log)
    log.append(key, b"4102444800000")
    _running(log)


def test_a_clock_that_gave_up_before_its_query_started_stops_it() -> None:
    own, stopped = QueryClock("x-clock", 0, 6.0), []
    own.give_up()
    own.follow(dict, lambda: stopped.append(True))
    assert stopped
