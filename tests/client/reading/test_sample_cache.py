from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.core.arguments import Retry
from ackstream.client.reading import _sample_cache as sample_cache
from ackstream.client.reading._sample_cache import FailedSamples, SampleCache, TimeBasedFilter
from ackstream.client.reading.samples import ReaderQos, Sample

ANY = 1_000


def _sample(seq: int, key: bytes | None = None, topic: str | None = None, at: int = 0, writer: str = "w1") -> Sample:
    return Sample(writer, topic, key, b"x" * seq, {}, at, seq, 0, seq)


def test_keep_last_keeps_some_samples_of_each_topic_and_key() -> None:
    cache = SampleCache(ReaderQos(history="keep-last", depth=1))
    for sample in (_sample(1, b"k", "a"), _sample(2, b"k", "b"), _sample(3, None, "a")):
        assert cache.add(sample) is None
    replaced = cache.add(_sample(4, b"k", "a"))
    assert replaced is not None
    assert (replaced.seq, [sample.seq for sample in cache.take(ANY)]) == (1, [2, 3, 4])


def test_a_sample_that_was_read_makes_room_silently_and_stays_open() -> None:
    cache = SampleCache(ReaderQos(history="keep-last", depth=2))
    cache.add(_sample(1))
    cache.read(1)
    cache.add(_sample(2))
    assert cache.add(_sample(3)) is None
    assert (cache.open("w1", 1), len(cache), cache.unread) == (_sample_like(cache, 1), 3, 2)
    replaced = cache.add(_sample(4))
    assert (None if replaced is None else replaced.seq) == 2


def _sample_like(cache: SampleCache, seq: int) -> Sample:
    (found,) = [sample for sample in cache.opened if sample.seq == seq]
    return found


steps = st.lists(
    st.tuples(st.sampled_from(["add", "read", "unread", "take", "acknowledge"]), st.integers(1, 3)), max_size=40
)


@given(steps, st.sampled_from(["keep-all", "keep-last"]), st.sampled_from(["protocol", "application-explicit"]))
def test_what_is_held_is_what_can_be_accessed_or_is_not_acknowledged_and_weighs_as_much(
    steps: list[tuple[str, int]], history: Any, kind: Any
) -> None:
    cache = SampleCache(ReaderQos(history=history, kind=kind))
    cached: dict[int, Sample] = {}
    unread: set[int] = set()
    opened: dict[int, Sample] = {}
    for number, (step, count) in enumerate(steps, 1):
        if step == "add":
            sample = _sample(number, b"%d" % count)
            older = [seq for seq, known in cached.items() if known.key == sample.key] if history == "keep-last" else []
            replaced = cache.add(sample)
            assert (None if replaced is None else replaced.seq) == next((seq for seq in older if seq in unread), None)
            cached = {seq: known for seq, known in cached.items() if seq not in older} | {number: sample}
            unread = (unread - set(older)) | {number}
        elif step == "acknowledge":
            for seq in list(opened)[:count]:
                cache.acknowledge(opened.pop(seq))
        else:
            candidates = [seq for seq in cached if seq in unread] if step == "unread" else list(cached)
            found = cache.take(count) if step == "take" else cache.read(count, unread=step == "unread")
            assert [sample.seq for sample in found] == candidates[:count]
            if kind != "protocol":
                opened |= {sample.seq: sample for sample in found if sample.seq in unread}
            unread -= {sample.seq for sample in found}
            if step == "take":
                cached = {seq: known for seq, known in cached.items() if seq not in candidates[:count]}
        held = cached | opened
        assert (len(cache), cache.bytes) == (len(held), sum(sample.size for sample in held.values()))
        assert (cache.has(), cache.has(unread=True), cache.unread) == (bool(cached), bool(unread), len(unread))
        assert sorted(sample.seq for sample in cache.opened) == sorted(opened)


def test_the_filter_passes_one_sample_of_an_instance_per_separation() -> None:
    separate = TimeBasedFilter(100)
    times = [(0, True), (99, False), (100, True), (150, False), (50, False), (300, True), (0, True), (350, False)]
    assert [separate.passes(_sample(1, b"a", at=at)) for at, _ in times] == [passes for _, passes in times]
    assert separate.passes(_sample(1, b"b", at=0))
    assert separate.passes(_sample(1, b"a", "other", at=300))


def test_without_a_separation_everything_passes() -> None:
    assert all(TimeBasedFilter(0).passes(_sample(seq)) for seq in (1, 2, 3))


@pytest.mark.parametrize("count", [3, 50])
def test_instances_that_are_long_past_are_forgotten(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_cache, "FEW_INSTANCES", 5)
    separate = TimeBasedFilter(100)
    for number in range(count):
        assert separate.passes(_sample(1, b"%d" % number, at=number * 50))
        assert not separate.passes(_sample(1, b"%d" % number, at=number * 50 + 40))
    assert len(separate._passed) <= 6


def test_the_pauses_of_a_sample_that_fails_again_and_again_double_up_to_a_minute() -> None:
    failed, now, pauses = FailedSamples(), 0.0, []
    for number in range(1, 10):
        assert failed.add(_sample(1), now) == (number == 1), "the first failure is reported"
        pause = failed.wait(now)
        assert pause is not None
        assert failed.take(now + pause - 0.1) is None
        now += pause
        assert (found := failed.take(now)) is not None
        assert found.seq == 1
        pauses.append(pause)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert failed.wait(now) is None


def test_failed_samples_are_due_in_the_order_of_their_times_and_one_that_is_done_begins_anew() -> None:
    failed = FailedSamples()
    failed.add(_sample(1), 0.0)
    failed.take(1.0)
    failed.add(_sample(1), 1.0)
    failed.add(_sample(2), 1.0)
    assert [sample and sample.seq for sample in (failed.take(3.0), failed.take(3.0), failed.take(3.0))] == [2, 1, None]
    failed.forget(_sample(1))
    assert failed.add(_sample(1), 3.0)


def test_with_a_retry_failed_samples_of_a_writer_follow_one_another_and_the_last_failure_of_each_is_reported() -> None:
    failed, w1, w2 = FailedSamples(Retry(2, 1.0)), [_sample(1), _sample(2)], _sample(3, writer="w2")
    assert [failed.add(sample, 0.0) for sample in (*w1, w2)] == [False, False, False]
    assert sorted(failed.writers) == ["w1", "w2"]
    assert [failed.take(0.9), failed.take(1.0), failed.take(1.0), failed.take(1.0)] == [None, w1[0], w2, None]
    failed.forget(w2)
    assert failed.writers == {"w1"}
    assert failed.add(w1[0], 1.0), "it is given up"
    assert (failed.wait(1.0), failed.take(1.0)) == (0.0, w1[1])
    assert failed.add(w1[1], 1.0)
    assert (failed.writers, failed.wait(1.0)) == (set(), None)


@given(
    st.lists(st.tuples(st.sampled_from(["w1", "w2"]), st.integers(0, 4)), max_size=12),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_with_a_retry_every_sample_has_its_attempts_one_after_the_other_in_the_order_of_its_writer(
    plan: list[tuple[str, int]], attempts: int, batch: int
) -> None:
    cache, failed, now = SampleCache(ReaderQos()), FailedSamples(Retry(attempts, 1.0)), 0.0
    fails = dict(enumerate((fails for _, fails in plan), 1))
    for seq, (writer, _) in enumerate(plan, 1):
        cache.add(_sample(seq, writer=writer))
    calls: dict[str, list[int]] = {"w1": [], "w2": []}
    reported: list[int] = []

    def handle(samples: list[Sample]) -> None:
        # of a batch all fail, or none
        bad = [sample for sample in samples if calls[sample.publisher].count(sample.seq) < fails[sample.seq]]
        for sample in samples:
            calls[sample.publisher].append(sample.seq)
            if not bad:
                failed.forget(sample)
            elif failed.add(sample, now):
                reported.append(sample.seq)

    while (taken := _take(cache, failed, batch)) or failed.wait(now) is not None:
        if taken:
            handle(taken)
        elif (again := failed.take(now)) is not None:
            handle([again])
        else:
            now += failed.wait(now) or 0.0
    for writer, seen in calls.items():
        assert list(dict.fromkeys(seen)) == [seq for seq, (name, _) in enumerate(plan, 1) if name == writer]
        # behind the batch that it failed with, each one comes to its end before the next one
        alone = [seq for at, seq in enumerate(seen) if seq in seen[:at]]
        assert alone == sorted(alone)
        assert all(seen.count(seq) <= attempts for seq in seen)
    assert all(seen.count(seq) == attempts for seen in calls.values() for seq in seen if seq in reported)
    assert (list(failed.writers), len(reported)) == ([], len(set(reported)))


def _take(cache: SampleCache, failed: FailedSamples, limit: int) -> list[Sample]:
    cache.hold(failed.writers)
    return cache.take(limit)


def test_samples_of_other_writers_can_be_accessed_while_those_of_one_wait() -> None:
    cache = SampleCache(ReaderQos())
    for seq, writer in ((1, "w1"), (2, "w1"), (3, "w2")):
        cache.add(_sample(seq, writer=writer))
    cache.hold({"w1"})
    cache.add(_sample(4))
    assert [sample.seq for sample in cache.take(ANY)] == [3]
    assert (cache.has(), cache.unread, len(cache)) == (False, 3, 4)
    cache.hold(set())
    assert (cache.has(), [sample.seq for sample in cache.take(ANY)]) == (True, [1, 2, 4])


class _Counted(str):
    """A writer's name that counts how often it is looked at."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        _Counted.looks += 1
        return super().__hash__()

    __eq__ = str.__eq__


def test_an_access_does_not_look_at_the_samples_of_writers_that_wait() -> None:
    cache = SampleCache(ReaderQos())
    for seq in range(1, 1_001):
        cache.add(_sample(seq, writer=_Counted("w1")))
    for seq in range(1, 11):
        cache.add(_sample(seq, writer="w2"))
    cache.hold({"w1"})
    _Counted.looks = 0
    for seq in range(1, 11):
        cache.hold({"w1"})
        assert cache.has()
        assert [sample.seq for sample in cache.take(1)] == [seq]
    assert not cache.has()
    assert _Counted.looks < 100


@given(
    st.lists(st.tuples(st.sampled_from(["add", "hold", "take"]), st.integers(0, 3)), max_size=40),
    st.sampled_from(["keep-all", "keep-last"]),
)
def test_samples_that_were_set_aside_come_in_the_order_of_their_writer(
    steps: list[tuple[str, int]], history: Any
) -> None:
    writers = ["w0", "w1", "w2"]
    cache, held, taken, gone = SampleCache(ReaderQos(history=history, depth=2)), set[str](), list[Sample](), set[int]()
    for seq, (step, number) in enumerate(steps, 1):
        if step == "add":
            replaced = cache.add(_sample(seq, b"k%d" % (number % 2), writer=writers[number % 3]))
            gone |= {replaced.seq} if replaced else set()
        elif step == "hold":
            held = set(writers[:number])
            cache.hold(held)
        else:
            found = cache.take(number)
            assert not held & {sample.publisher for sample in found}
            taken += found
    cache.hold(set())
    taken += cache.take(ANY)
    added = [seq for seq, (step, _) in enumerate(steps, 1) if step == "add"]
    assert sorted(sample.seq for sample in taken) == [seq for seq in added if seq not in gone]
    for writer in writers:
        numbers = [sample.seq for sample in taken if sample.publisher == writer]
        assert numbers == sorted(numbers)
    for sample in taken:
        cache.acknowledge(sample)
    assert (len(cache), cache.bytes, cache.has(), cache.unread) == (0, 0, False, 0)
