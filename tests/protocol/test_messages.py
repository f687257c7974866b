from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol import messages
from ackstream.protocol.json import RecordError
from ackstream.protocol.messages import (
    SUPPORTED,
    AckType,
    ClientCommand,
    CommandAck,
    Replicated,
    SessionRuns,
    StoredRange,
    completed,
    decode_ack,
    encode_ack,
    opening,
    refusal,
)

# brokers.md 1.2 without deltas, column by column: received, processed, persisted, completed, stats
MATRIX = {
    "logon": "yy---",
    "publish": "yyyy-",
    "subscribe": "yyyy-",
    "sow": "yy-yy",
    "sow_and_subscribe": "yy-yy",
    "sow_delete": "yyyyy",
    "unsubscribe": "yy---",
    "flush": "yyyy-",
    "heartbeat": "yy---",
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_matrix_is_that_of_the_command_reference(name: str) -> None:
    found = "".join("y" if ack_type in SUPPORTED[name] else "-" for ack_type in get_args(AckType))
    assert found == MATRIX[name]


def test_an_ack_on_the_wire() -> None:
    ack = CommandAck(ack_type="persisted", client="p1", first=1, seq=5, effective_conflation_ms=1000)
    text = b'{"c":"ack","a":"persisted","client":"p1","first":1,"s":5,"effective_conflation_ms":1000}'
    assert encode_ack(ack) == text
    assert decode_ack(text) == ack


def test_the_id_of_an_ack_follows_from_what_it_says() -> None:
    ack = CommandAck(ack_type="persisted", client="p1", first=1, seq=5)
    assert ack.identified() == ack.identified()
    assert ack.identified().ack_id != CommandAck(ack_type="persisted", client="p2", first=1, seq=5).identified().ack_id


ALL = " ".join(get_args(AckType))


def _command(name: str = "sow", asked: str = ALL, search: str | None = None) -> ClientCommand:
    return ClientCommand(name, "c", frozenset(asked.split()), filter=search)


def test_a_type_that_a_command_cannot_answer_fails_processed_whether_or_not_that_was_asked_for() -> None:
    command = _command(asked="persisted")
    reason = refusal(command)
    assert opening(command, reason) == [
        CommandAck(ack_type="processed", status="failure", cid="c", reason="not supported")
    ]


def test_what_fails_at_storing_was_processed_all_right() -> None:
    processed = opening(_command("publish", "received processed"), "duplicate")
    assert [(ack.ack_type, ack.status) for ack in processed] == [("received", "success"), ("processed", "success")]


def test_deleting_is_completed_with_a_filter_only() -> None:
    assert completed(_command("sow_delete")) == []
    assert completed(_command("sow_delete", search="/x"))[0].ack_type == "completed"


def test_a_record_of_stored_messages() -> None:
    record = StoredRange("p1", 3, 9, 7, ((3, 4), (6, 6)))
    written = b'{"type":"stored","client":"p1","first":3,"last":9,"batch":7,"refused":[[3,4],[6,6]]}'
    assert messages.write_stored(record) == written
    assert messages.read_stored(written) == record
    assert messages.read_stored(b'{"type":"stored","client":"p1","first":3,"last":9,"batch":7}').refused == ()


@pytest.mark.parametrize(
    "value", [None, b"", b"\xff", b"{}", b'{"type":"stored","client":"p1"}', b'{"type":"app_ack"}']
)
def test_an_unreadable_record_of_stored_messages_is_refused_with_the_reason(value: bytes | None) -> None:
    with pytest.raises(RecordError, match=r"^This is not a record of stored messages: "):
        messages.read_stored(value)


def test_a_record_of_a_destination() -> None:
    record = Replicated("standby", "t-1", 7)
    written = b'{"type":"replicated","destination":"standby","source":"t-1","batch":7}'
    assert messages.write_replicated(record) == written
    assert messages.read_replicated(written) == record


@pytest.mark.parametrize("value", [None, b"", b"\xff", b"7", b'{"type":"replicated","destination":"standby"}'])
def test_an_unreadable_record_of_a_destination_is_refused_with_the_reason(value: bytes | None) -> None:
    with pytest.raises(RecordError, match=r"^This is not a record of a destination: "):
        messages.read_replicated(value)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6), st.sampled_from(["a", "b", "", None])), max_size=12))
def test_each_number_has_the_session_that_was_noted_last(steps: list[tuple[int, int, str | None]]) -> None:
    known: dict[int, str | None] = {}
    runs = SessionRuns()
    for first, more, session in steps:
        known |= dict.fromkeys(range(first, first + more + 1), session)
        runs.add(first, first + more, session)
    found = list(runs)
    assert {seq: session for first, last, session in found for seq in range(first, last + 1)} == known
    # neighbours differ, and none overlap
    assert all(after[0] > run[1] and (after[0] > run[1] + 1 or after[2] != run[2]) for run, after in pairwise(found))
    part = [(max(first, 5), min(last, 9), session) for first, last, session in found if first <= 9 and last >= 5]
    assert runs.within(5, 9) == part
    assert [runs.at(seq) for seq in range(30)] == [known.get(seq) for seq in range(30)]
    parts = runs.divided(5, 9)
    assert [seq for first, last, _ in parts for seq in range(first, last + 1)] == [5, 6, 7, 8, 9]
    assert all(known.get(seq, session) == session for first, last, session in parts for seq in range(first, last + 1))
    assert all(part[2] != after[2] for part, after in pairwise(parts))
    assert runs.divided(9, 8) == []
    runs.forget(7)
    assert [run[2] for run in runs] == [run[2] for run in found if run[1] > 7]
    assert list(SessionRuns(runs)) == list(runs)
