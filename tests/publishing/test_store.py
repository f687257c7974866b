from __future__ import annotations

import pytest

from ackstream.client.store import MemoryMessages
from ackstream.publishing.acks import Ack
from ackstream.publishing.store import FailedWrite, GapError, PublishStore, SequenceError


def _store(*numbers: int, **options: bool) -> PublishStore:
    store = PublishStore(MemoryMessages(), **options)
    for seq in numbers:
        store.add(seq, b"m%d" % seq)
    return store


def _ack(seq: int | None, reason: str | None = None, status: str | None = None) -> Ack:
    return Ack(ack_type="persisted", seq=seq, reason=reason, status=status or ("failure" if reason else "success"))  # type: ignore[arg-type]


def test_an_ack_drops_everything_up_to_its_number() -> None:
    store = _store(1, 2, 3)
    assert store.acknowledged(_ack(2)) is None
    assert store.unpersisted == [3]
    assert store.acknowledged(_ack(1)) is None
    assert store.unpersisted_count == 1


def test_a_refused_message_is_given_back_and_never_sent_again() -> None:
    store = _store(1, 2, 3)
    assert store.acknowledged(_ack(2, "not entitled")) == FailedWrite(2, "not entitled", b"m2")
    assert [seq for seq, _ in store.logged_on(0)] == [3]


@pytest.mark.parametrize("reason", ["duplicate", "not entitled"])
def test_two_reasons_are_told_whatever_the_status_says(reason: str) -> None:
    assert _store(1).acknowledged(_ack(1, reason, "success")) == FailedWrite(1, reason, b"m1")


def test_a_failure_of_a_message_that_is_not_kept_has_no_copy() -> None:
    assert _store(1).acknowledged(_ack(9, "bad topic")) == FailedWrite(9, "bad topic", None)


def test_an_ack_without_a_number_is_not_about_messages() -> None:
    store = _store(1)
    assert store.acknowledged(_ack(None)) is None
    assert store.unpersisted == [1]


def test_the_logon_tells_what_is_sent_again_in_order() -> None:
    store = _store(1, 2, 3, 4, 5)
    assert store.logged_on(3) == [(4, b"m4"), (5, b"m5")]
    assert store.unpersisted_count == 2


def test_a_server_that_lacks_what_was_dropped_is_refused_where_gaps_are_errors() -> None:
    store = _store(*range(1, 12), error_on_gap=True)
    store.acknowledged(_ack(10))
    with pytest.raises(GapError, match="8 to 10 are missing") as caught:
        store.logged_on(7)
    assert list(caught.value.missing) == [8, 9, 10]
    assert store.unpersisted == [11]


def test_a_gap_is_let_through_where_it_is_no_error() -> None:
    store = _store(*range(1, 12))
    store.acknowledged(_ack(10))
    assert list(store.missing_at(7)) == [8, 9, 10]
    assert store.logged_on(7) == [(11, b"m11")]


def test_a_number_that_goes_back_is_refused() -> None:
    store = _store(1, 2)
    with pytest.raises(SequenceError, match="from 3 on"):
        store.add(2, b"")
    store.acknowledged(_ack(2))
    with pytest.raises(SequenceError):
        store.add(2, b"")


def test_numbers_go_on_after_those_the_server_knows() -> None:
    store = _store()
    store.logged_on(41)
    assert store.next_seq == 42
