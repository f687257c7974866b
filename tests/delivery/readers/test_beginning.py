from __future__ import annotations

from ackstream.delivery.readers.beginning import Beginning
from ackstream.protocol.app_acks import KnownWriter, ReaderState


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
