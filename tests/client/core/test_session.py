from __future__ import annotations

from ackstream.client.core.session import Parts, Session
from ackstream.protocol.readers import KnownReaders, ReaderRemoved, ReaderState


def test_a_beginning_is_repeated_until_it_is_answered_then_signs_of_life_follow() -> None:
    session: Session[int] = Session(3.0)
    assert [session.due(now) for now in (0.0, 2.9, 3.0)] == ["begin", None, "begin"]
    session.begin(7, 10.0)
    assert [session.due(now) for now in (5.9, 6.0, 15.9, 16.0)] == [None, "alive", None, "alive"]


def test_a_record_that_was_sent_for_another_reason_is_a_sign_of_life() -> None:
    session: Session[int] = Session(3.0)
    session.begin(7, 10.0)
    session.sent(4.0)
    assert [session.due(now) for now in (13.9, 14.0)] == [None, "alive"]


def test_a_session_that_was_lost_begins_again_at_once() -> None:
    session: Session[int] = Session(3.0)
    session.begin(7, 10.0)
    session.sent(4.0)
    session.lapse()
    assert session.position is None
    assert session.due(4.1) == "begin"


def test_only_a_later_session_of_the_name_ends_one_that_has_begun() -> None:
    session: Session[int] = Session()
    assert not session.is_over(9)
    session.begin(7, 10.0)
    assert [session.is_over(position) for position in (6, 7, 8)] == [False, False, True]


def test_an_answer_is_whole_when_each_part_of_each_shard_is_there() -> None:
    parts: Parts[KnownReaders] = Parts()
    assert parts.whole is None
    first, second = KnownReaders("n", 0, 2, part=0, parts=2), KnownReaders("n", 0, 2, part=1, parts=2)
    other = KnownReaders("n", 1, 2)
    assert parts.add(first).add(other).whole is None
    assert parts.add(second).whole == [first, second, other]


def test_a_record_without_parts_is_the_whole_answer_of_its_shard() -> None:
    one, two = ReaderRemoved("r", 0, 2, 1), ReaderRemoved("r", 1, 2, 1)
    parts: Parts[ReaderRemoved] = Parts()
    assert parts.add(one).whole is None
    assert parts.add(two).whole == [one, two]


def test_a_later_answer_of_a_shard_replaces_its_earlier_one() -> None:
    parts: Parts[ReaderState] = Parts()
    early = ReaderState("r", 1, 0, 1, 100, part=0, parts=2)
    late = [ReaderState("r", 1, 0, 1, 200, part=part, parts=2) for part in (1, 0)]
    parts.add(early, early.as_of)
    for state in late:
        parts.add(state, state.as_of)
    assert parts.whole == late
