from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from ackstream.protocol import ledger
from ackstream.protocol.ditto.envelopes import raw
from ackstream.protocol.ledger import AckRow, DeadLetterRow, LedgerRecord, OutcomeRow, SignalRow

SIGNAL = SignalRow(
    "c-1", "org.acme:lamp", "twin", "commands", "modify", "/attributes/a", ("a:b",), True, 1_000, {"x": 1}, 100,  # noqa: FBT003
    "signals", 0, 3, raw({"any": ["thing", 1.0]}),
)  # fmt: skip
ACK = AckRow("c-1", "a:b", 200, False, 150, 50, "accepted", "acks", 0, 7, 0, raw([1]))  # noqa: FBT003
OUTCOME = OutcomeRow(
    "c-1", None, 424, "timeout", ("a:b", "c:d"), ["c:d"], 100, 180, 80, "r-1", None, raw({"topic": "t"})
)
LETTER = DeadLetterRow("no use", None, "signals", 0, 9, 90, None, b"\0\1", False)  # noqa: FBT003


@pytest.mark.parametrize(
    "record",
    [
        LedgerRecord("signal", "r-1", "q", 1, signal=SIGNAL),
        LedgerRecord("outcome", "r-1", "q", 1, signal=SIGNAL, acks=[ACK], outcome=OUTCOME),
        LedgerRecord("dead-letter", "signals-0-9", "q", 1, dead_letter=LETTER),
    ],
    ids=lambda record: record.kind,
)
def test_a_record_is_read_as_it_was_written(record: LedgerRecord) -> None:
    written = ledger.encode(record)
    assert ledger.decode(written) == record
    assert ledger.encode(ledger.decode(written)) == written


def test_a_record_is_written_with_its_parts_alone_and_json_values_as_they_came() -> None:
    signal = msgspec.structs.replace(SIGNAL, value=msgspec.Raw(b'{"b": 1.0, "a":[ ]}'))
    written = ledger.encode(LedgerRecord("signal", "r-1", "q", 1, signal=signal))
    assert written == (
        b'{"kind":"signal","id":"r-1","query_id":"q","batch_id":1,"signal":{"correlation_id":"c-1",'
        b'"thing_id":"org.acme:lamp","channel":"twin","criterion":"commands","action":"modify","path":"/attributes/a",'
        b'"requested_acks":["a:b"],"response_required":true,"timeout_ms":1000,"headers":{"x":1},"received_at":100,'
        b'"topic":"signals","partition":0,"offset":3,"value":{"b": 1.0, "a":[ ]}}}'
    )


def _divided(limit: int) -> list[LedgerRecord]:
    sizes = (300, 500, 400)
    acks = [msgspec.structs.replace(ACK, offset=n, payload=raw("x" * size)) for n, size in enumerate(sizes)]
    outcome = msgspec.structs.replace(OUTCOME, reply=raw({"value": "y" * 1_200}))
    signal = msgspec.structs.replace(SIGNAL, value=raw("z" * 500))
    record = LedgerRecord("outcome", "r-1", "q", 1, signal=signal, acks=acks, outcome=outcome)
    parts = list(ledger.divide(record, limit))
    assert all(len(part) <= limit for part in parts)
    return [ledger.decode(part) for part in parts]


@pytest.mark.parametrize(
    ("limit", "with_reply", "referenced"),
    [(3_500, True, []), (2_300, False, []), (2_000, False, [1]), (1_500, False, [1, 2]), (1_100, False, [0, 1, 2])],
)
def test_a_record_that_is_too_large_is_divided_and_loses_what_is_elsewhere(
    limit: int, referenced: list[int], *, with_reply: bool
) -> None:
    signal, outcome = _divided(limit)
    assert (signal.kind, signal.id, signal.query_id, signal.batch_id) == ("signal", "r-1", "q", 1)
    assert (signal.signal is not None, signal.acks, signal.outcome) == (True, None, None)
    assert (outcome.kind, outcome.signal, outcome.outcome is not None) == ("outcome", None, True)
    assert outcome.outcome is not None
    assert (outcome.outcome.reply is not msgspec.UNSET) is with_reply
    assert outcome.acks is not None
    payloads = [msgspec.json.decode(bytes(ack.payload)) for ack in outcome.acks if ack.payload is not msgspec.UNSET]
    sizes = (302, 502, 402)
    assert [number for number, payload in enumerate(payloads) if isinstance(payload, dict)] == referenced
    for number in referenced:
        assert payloads[number] == {"reference": f"acks-0-{number}-0", "bytes": sizes[number]}


def test_no_part_is_larger_than_the_limit_whatever_it_is() -> None:
    for limit in range(1_080, 3_000):
        _divided(limit)


def test_only_accepted_acknowledgements_belong_to_the_outcome() -> None:
    late = msgspec.structs.replace(ACK, disposition="late", offset=8)
    assert LedgerRecord("outcome", "r-1", "q", 1, acks=[ACK, late]).accepted == [ACK]
    assert LedgerRecord("outcome", "r-1", "q", 1).accepted == []


@pytest.mark.parametrize(
    ("value", "kept", "truncated"),
    [
        (None, None, False),
        (b"\xff", b"\xff", False),
        (b"x" * (ledger.DEAD_LETTER_BYTES + 1), b"x" * ledger.DEAD_LETTER_BYTES, True),
    ],
    ids=["none", "short", "long"],
)
def test_a_dead_letter_keeps_the_beginning_of_its_value(value: bytes | None, kept: Any, *, truncated: bool) -> None:
    letter = DeadLetterRow("no use", None, "signals", 0, 9, 90, b"k", value, truncated=False).cut()
    assert letter.truncated is truncated
    assert (letter.topic, letter.partition, letter.offset) == ("signals", 0, 9)
    written = msgspec.json.decode(msgspec.json.encode(letter))
    assert (written["key"], written["value"]) == ("aw==", None if kept is None else base64.b64encode(kept).decode())


def test_the_id_of_a_reply_follows_from_the_request() -> None:
    assert ledger.reply_id("c-1", "signals", 0, 3) == ledger.reply_id("c-1", "signals", 0, 3)
    others = {ledger.reply_id(*parts) for parts in [("c-1", "signals", 0, 4), ("c-2", "signals", 0, 3)]}
    assert ledger.reply_id("c-1", "signals", 0, 3) not in others
