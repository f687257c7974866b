"""The clock of a query: no tick passes an unread record, and none is sent while nothing waits for time."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.errors import StoppedError
from ackstream.settings import Settings
from ackstream.spark import clock
from ackstream.spark.clock import REST_SECONDS, RETRY_SECONDS, ClockBroker, QueryClock, Watched, next_tick
from ackstream.spark.lease import Lease, LeaseLog, Pace
from ackstream.spark.operator import Told
from tests.harness.lease import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


class Cluster(Log):
    """Partitions with records, and a query that reads them. Each request lets some of the events happen first.

    :ivar counted: by partition, for each record the time that a tick must not pass before it is read
    """

    def __init__(self, events: Iterable[tuple[str, int, int]], slack: int = 0) -> None:
        super().__init__()
        self.lease, self.ticks = self, list[int]()
        self.events, self.slack = list(events), slack
        self.elapsed = self.latest = self.time
        self.stamps: list[list[int]] = [[]]
        self.counted: list[list[int]] = [[]]
        self.visible_at: list[list[int]] = [[]]
        self.read, self.beginnings = [0], [0]
        self.forgets = False

    def happen(self) -> None:
        while self.events:
            kind, number, amount = self.events.pop()
            partition = number % len(self.stamps)
            # two batches: the query knows of none
            self.forgets = kind == "between"
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

    def append(self, key: bytes | None, value: bytes | None) -> tuple[int, int]:
        self.happen()
        return super().append(key, value)

    def tick(self, key: bytes, time_ms: int) -> int:
        self.happen()
        assert key == b"0"
        for partition, counted in enumerate(self.counted):
            first = max(self.read[partition], self.beginnings[partition])
            assert time_ms <= min(counted[first:], default=time_ms), "time passed an unread record"
        # the query counts it up to its append time
        self.ticks.append(min(time_ms, self.time))
        return self.time

    def ends(self) -> tuple[dict[int, int], bool]:
        self.happen()
        return {partition: self._end(partition) for partition in range(len(self.stamps))}, self.slack > 0

    def timestamp_at(self, partition: int, offset: int, end: int) -> int | None:
        self.happen()
        first = max(offset, self.beginnings[partition])
        return self.stamps[partition][first] if first < end else None

    def consumed(self) -> dict[int, int]:
        self.happen()
        forgets, self.forgets = self.forgets, False
        return {partition: offset for partition, offset in enumerate(self.read) if offset and not forgets}


def _events(*kinds: str) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    return st.lists(st.tuples(st.sampled_from(("request", *kinds)), st.integers(0, 9), st.integers(0, 40)), max_size=80)


ASKING, UNTOLD = Told(), Told({0: 1}, {1: 1})
"""Shards that have told nothing; one whose deadline the first tick has passed, and whose next one is not known."""

COMMON = ("time", "record", "read", "partition", "delete", "between")


def _tick(own: QueryClock, cluster: Cluster) -> list[int]:
    """Tick until all events have happened and once more; return all ticks so far."""
    while cluster.events:
        own.step(cluster)  # type: ignore[arg-type]
    own.step(cluster)  # type: ignore[arg-type]
    return cluster.ticks


@contextmanager
def _clock(cluster: Cluster, behind: int = 0, retry: float = 0, told: Told = ASKING) -> Iterator[QueryClock]:
    """Return a clock that looks at what is unread in each step, or with pauses of ``retry`` seconds.

    :param behind: when it looks at the records
    :param told: what its shards tell
    """
    lease = Lease("lease", 6.0)
    own = QueryClock(lease, cluster.slack, 0)
    with (
        mock.patch.object(clock, "passing", side_effect=lambda: cluster.elapsed / 1000),
        mock.patch.multiple(clock, RETRY_SECONDS=retry, BEHIND_MS=behind - 1, LOOK_PAUSES=0),
    ):
        lease.claim(cluster)  # type: ignore[arg-type]
        own.follow(Watched(cluster.consumed, lambda: told), lambda: None)
        yield own


BEHIND, RETRY, TOLD = st.sampled_from([0, 20, 500]), st.sampled_from([0, 0.02]), st.sampled_from([ASKING, UNTOLD])


@given(_events(*COMMON, "set back"), BEHIND, RETRY, TOLD)
def test_no_tick_passes_an_unread_record(
    events: list[tuple[str, int, int]], behind: int, retry: float, told: Told
) -> None:
    cluster = Cluster(events)
    with _clock(cluster, behind, retry, told) as own:
        ticks = _tick(own, cluster)
    assert ticks == sorted(ticks)


@given(_events(*COMMON), st.integers(1, 9), BEHIND, RETRY, TOLD)
def test_no_tick_passes_a_record_of_a_broker_that_is_behind_or_that_waits_for_a_follower(
    events: list[tuple[str, int, int]], slack: int, behind: int, retry: float, told: Told
) -> None:
    cluster = Cluster(events, slack)
    with _clock(cluster, behind, retry, told) as own:
        _tick(own, cluster)


@given(_events(*COMMON))
def test_time_reaches_the_present_once_everything_is_read(events: list[tuple[str, int, int]]) -> None:
    cluster = Cluster(events)
    with _clock(cluster) as own:
        _tick(own, cluster)
        cluster.read, cluster.forgets = [len(stamps) for stamps in cluster.stamps], False
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

    log: Any = LeaseLog.__new__(LeaseLog)
    log.admin, log.reader = SimpleNamespace(list_partition_offsets=list_partition_offsets), Reader()
    broker: Any = ClockBroker(log, Settings(), None, ())
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


LEAPS = st.just(0) | st.integers(-100_000, -2_001) | st.integers(2_001, 100_000)


@given(st.lists(st.tuples(st.integers(0, 40_000), LEAPS), min_size=1))
def test_no_leap_of_a_clock_lets_time_pass_faster_than_it_does_until_the_clock_was_steady_for_a_minute(
    steps: list[tuple[int, int]],
) -> None:
    pace, elapsed, leapt, last, most = Pace(), 0, 0, 0, 0.0
    for number, (pause, leap) in enumerate(steps):
        elapsed, leapt = elapsed + pause, leapt + leap
        last = elapsed if leap else last
        broker_time = 9_000_000 + elapsed + leapt
        believed = pace.follow(broker_time, elapsed / 1000, elapsed / 1000)
        assert believed <= broker_time
        if not number or elapsed - last >= 60_000:
            most = max(most, broker_time - elapsed * 1.1)
        assert believed <= most + elapsed * 1.1 + 1


@given(st.integers(10_000, 86_400_000), st.integers(500, 9_000), st.integers(0, 900))
def test_a_correction_is_believed_once_the_clock_was_steady_for_a_minute(leap: int, pause: int, jitter: int) -> None:
    pace, now = Pace(), 0
    assert pace.follow(0, 0.0, 0.0) == 0
    while now <= 61_000 + 2 * pause:
        now += pause
        believed = pace.follow(now + leap + (now // pause % 2) * jitter, now / 1000, (now + jitter) / 1000)
    assert believed >= now + leap - 1_000


def test_a_clock_that_keeps_leaping_is_not_believed() -> None:
    pace = Pace()
    for second in range(600):
        # 30 s ahead, and back, and 30 s ahead again
        broker_time = second * 1_000 + 30_000 * (second // 20 % 2)
        assert pace.follow(broker_time, float(second), float(second)) <= second * 1_100


def test_a_timeout_right_after_a_correction_by_an_hour_is_late_by_a_minute() -> None:
    pace, leap, timeout = Pace(), 3_600_000, 10_000
    assert pace.follow(0, 0.0, 0.0) == 0
    passed = next(at for at in range(1, 4_000) if pace.follow(at * 1_000 + leap, float(at), float(at)) > leap + timeout)
    assert passed == 61


def test_a_leap_is_caught_up_slowly_and_a_clock_that_was_set_back_for_a_moment_is_believed_again() -> None:
    pace, leap = Pace(), 10_000
    assert pace.follow(0, 0.0, 0.0) == 0
    believed = [pace.follow(second * 1_000 + leap, float(second), float(second)) for second in range(1, 200)]
    assert believed[:2] == [1_100, 2_200]
    assert believed[-1] == 199_000 + leap
    assert pace.follow(100_000, 200.0, 200.0) == 100_000
    assert 201_000 + leap - pace.follow(201_000 + leap, 201.0, 201.0) < 200


# -- when it ticks -----------------------------------------------------------------------------------------------------


class Calm(Cluster):
    """A query that has read everything, and what it waits for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__([])
        monkeypatch.setattr(clock, "passing", lambda: self.elapsed / 1000)
        self.waits: list[int] = []
        self.ticks_read = {-1: 1}
        self.stopped = self.looks = 0
        self.lease_of_run = Lease("x-lease", 6.0)
        self.clock = QueryClock(self.lease_of_run, 0, 1.0)
        self.lease_of_run.claim(self)  # type: ignore[arg-type]
        self.clock.follow(Watched(self.consumed, self._told), self._stop)

    def _told(self) -> Told:
        return Told(dict(enumerate(self.waits)), self.ticks_read)

    def _stop(self) -> None:
        self.stopped += 1

    def ends(self) -> tuple[dict[int, int], bool]:
        self.looks += 1
        return super().ends()

    def arrive(self, time: int) -> None:
        """Append a record with a time of its own, which stays unread."""
        self.stamps[0].append(time)
        self.counted[0].append(time)
        self.visible_at[0].append(self.elapsed)

    def add(self) -> None:
        """Append a record, which is read at once."""
        self.events = [("read", 0, 1), ("record", 0, 0)]
        self.happen()

    def run(self, seconds: float) -> None:
        """Let time pass, and the clock look every 50 ms."""
        for _ in range(round(seconds * 20)):
            self.time, self.elapsed = self.time + 50, self.elapsed + 50
            self.latest = self.time
            self.clock.step(self)  # type: ignore[arg-type]


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> Calm:
    found = Calm(monkeypatch)
    found.run(2 * REST_SECONDS)
    found.ticks.clear()
    return found


def test_nothing_but_signs_of_life_is_sent_while_nothing_waits_and_nothing_is_read(calm: Calm) -> None:
    signs = len(calm.records)
    calm.run(60)
    assert calm.ticks == []
    assert len(calm.records) - signs == 60


def test_a_reading_says_how_long_ago_it_signed_and_for_how_long_a_deadline_has_been_due(calm: Calm) -> None:
    assert calm.clock.reading().overdue_ms == 0
    assert 0 <= (calm.clock.reading().signed_ago or 0) <= 1
    calm.waits = [calm.time + 500]
    # the clock does not look meanwhile
    calm.elapsed += 2_500
    assert calm.clock.reading().overdue_ms == pytest.approx(2_000, abs=1)
    assert 2.5 <= (calm.clock.reading().signed_ago or 0) <= 3.5
    calm.time += 2_500
    calm.run(0.2)
    assert calm.clock.reading().tick_ms == calm.ticks[-1]


def test_a_clock_that_has_not_begun_has_no_sign() -> None:
    assert QueryClock(Lease("x-lease", 6.0), 0, 1.0).reading() == (None, 0, 0, 0)


def test_a_deadline_is_overdue_by_the_clock_of_the_broker_while_time_follows_a_leap(calm: Calm) -> None:
    calm.time += 3_600_000
    calm.waits = [calm.time + 500]
    calm.run(20)
    reading = calm.clock.reading()
    assert calm.ticks == []
    assert reading.overdue_ms == pytest.approx(19_500, abs=1_500)
    assert reading.ahead_ms == pytest.approx(3_598_000, abs=2_000)
    calm.run(60)
    assert calm.ticks[-1] > calm.waits[0]
    assert calm.clock.reading().ahead_ms == 0


def test_a_clock_that_was_set_back_shows_how_long_time_will_stand_still(calm: Calm) -> None:
    calm.waits = [calm.time + 500]
    calm.run(2)
    calm.waits = []
    assert calm.clock.reading().ahead_ms == 0
    calm.time -= 60_000
    # the model's records of the past are read
    for _ in range(40):
        calm.time, calm.elapsed = calm.time + 50, calm.elapsed + 50
        calm.clock.step(calm)  # type: ignore[arg-type]
    assert calm.clock.reading().ahead_ms == pytest.approx(-57_000, abs=3_000)


def test_a_deadline_is_passed_as_soon_as_it_has_come(calm: Calm) -> None:
    calm.waits = [calm.time + 3_030, calm.time + 9_000]
    calm.run(3)
    assert calm.ticks == []
    calm.run(0.1)
    assert [tick - calm.waits[0] for tick in calm.ticks] == [20]


def test_a_tick_that_the_broker_did_not_take_is_sent_again(calm: Calm) -> None:
    calm.waits = [calm.time + 1_000]
    with mock.patch.object(calm, "tick", side_effect=TimeoutError), pytest.raises(TimeoutError):
        calm.run(2)
    assert calm.clock.reading().overdue_ms == pytest.approx(0, abs=50)
    calm.run(1)
    assert max(calm.ticks) > calm.waits[0]


def test_a_deadline_is_due_until_the_query_has_passed_it(calm: Calm) -> None:
    calm.waits = [calm.time + 500]
    calm.run(3)
    # the batch that reads the tick hangs: its shards tell nothing new
    assert len(calm.ticks) == 1
    assert calm.clock.reading().overdue_ms == pytest.approx(2_500, abs=100)


def test_a_tick_counts_up_to_the_brokers_time_of_it(calm: Calm) -> None:
    calm.waits = [calm.time + 1_000]
    tick = calm.tick

    def set_back(key: bytes, time_ms: int) -> int:
        calm.time -= 5_000
        return tick(key, time_ms)

    with mock.patch.object(calm, "tick", set_back):
        calm.run(1.1)
    assert max(calm.ticks) < calm.waits[0]
    calm.run(30)
    assert max(calm.ticks) > calm.waits[0]


def test_a_deadline_that_was_passed_is_not_passed_again_while_the_batch_that_reads_the_tick_runs(calm: Calm) -> None:
    calm.waits = [calm.time + 30, calm.time + 1_000]
    calm.run(3)
    assert [tick > due for tick, due in zip(calm.ticks, calm.waits, strict=True)] == [True, True]


def test_until_shards_have_told_their_next_deadline_each_batch_that_reads_records_gets_a_tick(calm: Calm) -> None:
    calm.waits = [calm.time + 500]
    calm.run(0.6)
    assert len(calm.ticks) == 1
    for batch in range(2, 12):
        calm.add()
        calm.run(2 * RETRY_SECONDS)
        assert len(calm.ticks) == batch
        assert calm.time - calm.ticks[-1] <= 3_000 * RETRY_SECONDS
    # a batch without records gets none, or ticks would go on by themselves
    calm.run(5)
    assert len(calm.ticks) == 11


def test_what_comes_after_a_tick_passes_at_once_when_it_is_told_although_something_new_is_unread(calm: Calm) -> None:
    calm.waits = [calm.time + 500]
    calm.run(1)
    assert len(calm.ticks) == 1
    calm.waits = [calm.ticks[-1] + 20]
    calm.events = [("record", 0, 0)]
    calm.happen()
    calm.run(0.05)
    assert len(calm.ticks) == 2
    calm.waits = [calm.time + 9_000]
    calm.run(1)
    assert len(calm.ticks) == 2


def test_a_deadline_before_the_last_tick_is_due_at_the_next_one_if_its_shard_has_read_that_tick(calm: Calm) -> None:
    calm.waits = [calm.time + 500]
    calm.run(0.6)
    # a broker's clock was set back by a moment, within the second of the watermark
    calm.waits = [calm.ticks[-1] - 20]
    calm.run(5)
    assert len(calm.ticks) == 1
    calm.ticks_read = {0: calm.ticks[-1]}
    calm.run(5)
    # one, however long its batch takes
    assert len(calm.ticks) == 2


def test_a_deadline_before_the_last_tick_waits_for_what_is_unread(calm: Calm) -> None:
    calm.waits = [calm.time + 500]
    calm.run(0.6)
    calm.ticks_read = {0: (last := calm.ticks[-1])}
    calm.time -= 300
    calm.arrive(last - 100)
    calm.waits = [last - 50]
    calm.run(5)
    assert len(calm.ticks) == 1
    calm.read = [1]
    calm.run(0.5)
    assert len(calm.ticks) == 2


def test_a_record_of_a_clock_that_leapt_for_a_moment_lets_no_time_pass_what_comes_after_it(calm: Calm) -> None:
    calm.run(2)
    calm.arrive(calm.time + 3_600_000)
    calm.read = [1]
    calm.run(5)
    calm.waits = [calm.time + 500]
    calm.run(0.4)
    calm.arrive(unread := calm.time)
    calm.run(5)
    assert all(tick <= unread for tick in calm.ticks)


def test_a_deadline_waits_for_what_is_unread_and_is_looked_at_now_and_then(calm: Calm) -> None:
    calm.waits = [calm.time + 1_000]
    calm.events = [("record", 0, 0)]
    calm.happen()
    signs = len(calm.records)
    calm.run(5)
    assert calm.ticks == []
    assert len(calm.records) - signs <= 1 + 4 / RETRY_SECONDS
    calm.read = [1]
    calm.run(2 * RETRY_SECONDS)
    assert max(calm.ticks) > calm.waits[0]


def test_signs_of_life_are_sent_while_the_oldest_records_of_many_partitions_are_read(calm: Calm) -> None:
    def slow(partition: int, offset: int, end: int) -> int | None:
        calm.elapsed, calm.time = calm.elapsed + 900, calm.time + 900
        return Cluster.timestamp_at(calm, partition, offset, end)

    calm.events = [event for number in range(1, 10) for event in (("record", number, 0), ("partition", 0, 0))]
    while calm.events:
        calm.happen()
    calm.waits = [calm.time + 500]
    with mock.patch.object(calm, "timestamp_at", slow):
        calm.run(5)
    times = [record.timestamp for record in calm.records]
    assert times[-1] - times[0] > 9 * 900
    assert max(later - before for before, later in pairwise(times)) < 2_000


def test_a_deadline_passes_without_another_look_once_a_batch_reads_what_was_there_at_the_last_one(calm: Calm) -> None:
    calm.waits = [calm.time + 1_000]
    calm.events = [("record", 0, 0)]
    calm.happen()
    calm.run(1)
    calm.looks = 0
    while not calm.looks:
        calm.run(0.05)
    assert calm.ticks == []
    calm.read = [1]
    calm.run(0.05)
    assert max(calm.ticks) > calm.waits[0]
    assert calm.looks == 1


def test_between_two_batches_it_knows_what_the_last_one_has_read(calm: Calm) -> None:
    calm.add()
    calm.waits = [calm.time + 500]
    calm.run(0.5)
    calm.forgets = True
    calm.run(0.1)
    assert calm.ticks
    assert max(calm.ticks) > calm.waits[0]


def test_time_moves_on_now_and_then_while_records_are_read(calm: Calm) -> None:
    for _ in range(30):
        calm.add()
        calm.run(1)
    assert len(calm.ticks) == 30 / REST_SECONDS
    calm.run(2 * REST_SECONDS)
    calm.ticks.clear()
    calm.run(60)
    assert calm.ticks == []


def test_shards_are_asked_by_ticks_what_they_wait_for(calm: Calm) -> None:
    calm.ticks_read = {}
    calm.run(10)
    assert len(calm.ticks) == 10
    calm.ticks_read = {0: 1}
    calm.ticks.clear()
    calm.run(5)
    assert calm.ticks == []


def test_a_job_without_event_time_gives_signs_of_life_alone_and_ends_when_another_one_has_its_lease(
    calm: Calm,
) -> None:
    calm.clock.follow(None, calm._stop)
    with mock.patch.object(calm, "ends") as looked_up:
        calm.add()
        calm.run(60)
    assert not looked_up.called
    assert calm.ticks == []
    other = Lease("x-lease", 6.0)
    calm.time, calm.elapsed = calm.time + 40_000, calm.elapsed + 40_000
    other.claim(calm, lambda _: None)  # type: ignore[arg-type]
    other.sign(calm)  # type: ignore[arg-type]
    with pytest.raises(StoppedError, match="signs of life on the topic x-lease"):
        calm.run(2)
    calm.clock.give_up()
    assert calm.stopped == 1


def test_a_clock_that_gave_up_before_its_query_started_stops_it() -> None:
    own, stopped = QueryClock(Lease("x-lease", 6.0), 0, 1.0), []
    own.give_up()
    own.follow(None, lambda: stopped.append(True))
    assert stopped
