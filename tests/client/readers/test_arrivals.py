""""""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.readers.arrivals import Arrivals, Beginning
from ackstream.protocol.readers import KnownWriter, ReaderState


def _arrivals(*numbers: int) -> Arrivals[int]:
    arrivals: Arrivals[int] = Arrivals()
    arrivals.begin(0)
    for number in numbers:
        arrivals.arrive(number, number)
    return arrivals


def test_nothing_is_handed_on_before_it_is_stored() -> None:
    arrivals = _arrivals(1, 2, 3)
    assert list(arrivals.ready()) == []
    arrivals.decide(1, 2)
    assert list(arrivals.ready()) == [1, 2]
    assert len(arrivals) == 1


def test_what_was_refused_is_never_handed_on_and_nobody_waits_for_it() -> None:
    arrivals = _arrivals(1, 2, 4)
    arrivals.decide(1, 4, [(2, 3)])
    assert list(arrivals.ready()) == [1, 4]
    assert not arrivals.arrive(3, 3)


def test_a_writers_samples_keep_their_order_whatever_comes_first() -> None:
    arrivals = _arrivals(3, 2)
    arrivals.decide(1, 3)
    assert (list(arrivals.ready()), arrivals.missing()) == ([], [(1, 1)])
    arrivals.arrive(1, 1)
    assert (list(arrivals.ready()), arrivals.missing()) == ([1, 2, 3], [])


def test_a_copy_is_not_taken_before_nor_after_the_first_was_handed_on() -> None:
    arrivals = _arrivals(1)
    assert not arrivals.arrive(1, 1)
    arrivals.decide(1, 1)
    assert list(arrivals.ready()) == [1]
    assert not arrivals.arrive(1, 1)


def test_a_reader_that_begins_again_wants_exactly_what_is_undelivered_and_what_comes() -> None:
    arrivals: Arrivals[int] = Arrivals()
    arrivals.begin(8, [(3, 4), (7, 7)])
    assert [number for number in range(1, 11) if arrivals.arrive(number, number)] == [3, 4, 7, 9, 10]
    assert list(arrivals.ready()) == [3, 4, 7]
    arrivals.decide(9, 10)
    assert list(arrivals.ready()) == [9, 10]


def test_only_what_others_wait_for_is_missing() -> None:
    arrivals = _arrivals(1, 4)
    arrivals.decide(1, 6, [(5, 5)])
    assert arrivals.missing() == []
    assert list(arrivals.ready()) == [1]
    assert arrivals.missing() == [(2, 3), (6, 6)]
    arrivals.pass_over(2, 3)
    assert list(arrivals.ready()) == [4]


def test_what_is_let_go_of_is_missed_once_it_is_stored() -> None:
    arrivals = _arrivals(1, 2, 3)
    arrivals.decide(1, 1)
    assert arrivals.forget() == 2
    assert list(arrivals.ready()) == [1]
    arrivals.decide(2, 3)
    assert arrivals.missing() == [(2, 3)]


@given(
    st.permutations(range(1, 13)),
    st.lists(st.integers(1, 12), max_size=4),
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
)
def test_whatever_the_order_each_stored_sample_comes_once_in_the_writers_order(
    order: list[int], refused: list[int], cuts: list[int]
) -> None:
    arrivals: Arrivals[int] = Arrivals()
    arrivals.begin(0)
    handed: list[int] = []
    ends = [*sorted(set(cuts) - {12}), 12]
    first = 1
    for step, number in enumerate(order):
        arrivals.arrive(number, number)
        arrivals.arrive(number, number)
        if step < len(ends):
            last = ends[step]
            arrivals.decide(first, last, [(seq, seq) for seq in set(refused) if first <= seq <= last])
            first = last + 1
        handed += arrivals.ready()
    assert handed == [number for number in range(1, 13) if number not in refused]


def _state(shard: int, writer: str, part: int = 0, parts: int = 1, as_of: int = 100) -> ReaderState:
    return ReaderState("R1", 1, shard, 2, as_of, (KnownWriter(writer, 1, 9),), part, parts)


def test_it_is_complete_with_every_part_of_every_shard() -> None:
    beginning = Beginning()
    complete = []
    for state in (_state(0, "a", part=1, parts=2), _state(1, "b", as_of=90), _state(0, "c", part=0, parts=2)):
        complete.append(beginning.complete)
        beginning.add(state)
    assert [*complete, beginning.complete] == [False, False, False, True]
    assert beginning.as_of == 90
    assert {known.writer for known in beginning.writers} == {"a", "b", "c"}


def test_a_later_answer_of_a_shard_replaces_the_earlier_one_whole() -> None:
    beginning = Beginning()
    for state in (_state(0, "a", part=0, parts=2), _state(1, "b"), _state(0, "c", as_of=120)):
        beginning.add(state)
    assert beginning.complete
    assert sorted(known.writer for known in beginning.writers) == ["b", "c"]


def test_the_runs_of_a_writer_may_come_in_several_records() -> None:
    beginning = Beginning()
    several = (KnownWriter("a", 1, 9, ((1, 2),), ((3, 3),)), KnownWriter("a", 1, 9, (), ((5, 9),)))
    beginning.add(ReaderState("R1", 1, 0, 1, 100, several))
    assert beginning.writers == [KnownWriter("a", 1, 9, ((1, 2),), ((3, 3), (5, 9)))]


def test_nothing_is_not_complete() -> None:
    assert not Beginning().complete


def test_the_shortest_lease_of_all_shards_counts() -> None:
    beginning = Beginning()
    for shard, lease_ms in enumerate((30_000, 6_000)):
        beginning.add(ReaderState("R1", 1, shard, 2, 100, lease_ms=lease_ms))
    assert beginning.lease_ms == 6_000
