from __future__ import annotations

from ackstream.client.reader_session import SessionState
from ackstream.protocol.readers import KnownWriter, ReaderState


def _state(shard: int, writer: str, part: int = 0, parts: int = 1, as_of: int = 100) -> ReaderState:
    return ReaderState("R1", 1, shard, 2, as_of, (KnownWriter(writer, 1, 9),), part, parts)


def _whole(*states: ReaderState) -> ReaderState:
    session = SessionState()
    for state in states:
        assert session.whole is None
        session.add(state)
    assert session.whole is not None
    return session.whole


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
