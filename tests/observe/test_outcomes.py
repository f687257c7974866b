from __future__ import annotations

import msgspec
import pytest

from ackstream.observe.outcomes import RequestOutcome, read_outcome
from ackstream.protocol import ledger
from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.protocol.ditto.envelopes import encode, error_envelope, raw
from ackstream.protocol.ditto.thing_errors import thing_not_found

ERROR = raw(thing_not_found("a:b").to_dict())


def record(completed_by: str, status: int, *acks: tuple[str | None, int, str], reply: object = msgspec.UNSET) -> bytes:
    """Write what the correlation writes to its ledger."""
    rows = [
        ledger.AckRow("c-1", label, code, False, 0, 0, disposition, "acks", 0, 0, 0, ERROR)  # noqa: FBT003
        for label, code, disposition in acks
    ]
    outcome = ledger.OutcomeRow(
        "c-1",
        "a:b",
        status,
        completed_by,
        ("x-ack", "y-ack"),
        [],
        0,
        0,
        0,
        "r",
        None,
        reply,  # type: ignore[arg-type]
    )
    return ledger.encode(ledger.LedgerRecord("outcome", "r", "q", 1, acks=rows, outcome=outcome))


def test_an_outcome_has_an_entry_for_each_label_in_the_order_of_the_request() -> None:
    value = record("timeout", 424, ("y-ack", 204, "accepted"), ("x-ack", 500, "late"))
    assert read_outcome(value, "a:b") == RequestOutcome(
        424, "timeout", [Acknowledgement("x-ack", 408), Acknowledgement("y-ack", 204)]
    )


def test_an_error_of_the_twin_is_the_last_that_was_used() -> None:
    found = read_outcome(record("error", 404, ("y-ack", 204, "accepted"), (None, 404, "accepted")), "a:b")
    assert found is not None
    assert (found.status, found.error) == (404, ERROR)


def test_why_a_request_was_refused_stands_in_its_reply() -> None:
    refusal = encode(error_envelope(thing_not_found("a:b"), thing_id="a:b", channel="twin", headers={}))
    found = read_outcome(record("invalid", 404, reply=msgspec.Raw(refusal)), "a:b")
    assert found is not None
    assert found.error == ERROR


def test_the_outcome_of_a_request_about_another_thing_is_not_the_one() -> None:
    assert read_outcome(record("timeout", 424), "a:b") is not None
    assert read_outcome(record("timeout", 424), "a:other") is None


def test_other_records_of_the_ledger_have_no_outcome() -> None:
    assert read_outcome(ledger.encode(ledger.LedgerRecord("signal", "r", "q", 1)), "a:b") is None
    with pytest.raises(msgspec.MsgspecError):
        read_outcome(b"nonsense", "a:b")
