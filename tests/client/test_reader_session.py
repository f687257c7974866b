from __future__ import annotations

from ackstream.client.reader_session import SessionState
from ackstream.protocol.readers import KnownWriter, ReaderState


def _state(shard: int, writer: str, part: int = 0, parts: int = 1, as_of: int = 100) -> ReaderState:
    return ReaderState("R1", 1, shard, 2, as_of, (KnownWriter(writer, 1, 9),), part, parts)


def test_a_session_state_is_complete_with_every_part_of_every_shard() -> None:
    session = SessionState()
    complete = []
    for state in (_state(0, "a", part=1, parts=2), _state(1, "b", as_of=90), _state(0, "c", part=0, parts=2)):
        complete.append(session.complete)
        session.add(state)
    assert [*complete, session.complete] == [False, False, False, True]
    assert session.as_of == 90
    assert {known.writer for known in session.writers} == {"a", "b", "c"}


def test_a_later_answer_of_a_shard_replaces_the_earlier_one_whole() -> None:
    session = SessionState()
    for state in (_state(0, "a", part=0, parts=2), _state(1, "b"), _state(0, "c", as_of=120)):
        session.add(state)
    assert session.complete
    assert sorted(known.writer for known in session.writers) == ["b", "c"]


def test_the_runs_of_a_writer_may_arrive_in_several_records() -> None:
    session = SessionState()
    several = (KnownWriter("a", 1, 9, ((1, 2),), ((3, 3),)), KnownWriter("a", 1, 9, (), ((5, 9),)))
    session.add(ReaderState("R1", 1, 0, 1, 100, several))
    assert session.writers == [KnownWriter("a", 1, 9, ((1, 2),), ((3, 3), (5, 9)))]


def test_a_session_state_without_answers_is_not_complete() -> None:
    assert not SessionState().complete


def test_the_shortest_lease_of_all_shards_counts() -> None:
    session = SessionState()
    for shard, lease_ms in enumerate((30_000, 6_000)):
        session.add(ReaderState("R1", 1, shard, 2, 100, lease_ms=lease_ms))
    assert session.lease_ms == 6_000
