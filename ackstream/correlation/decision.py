"""What an acknowledgement, a response, an error or the deadline means for an open request.

Source of the rules: Eclipse Ditto, ``AcknowledgementAggregatorActor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.correlation.aggregation import Aggregation, missing, timed_out
from ackstream.correlation.pending import Pending, Received, Record
from ackstream.protocol import errors
from ackstream.protocol.acknowledgements import Acknowledgement, response_to_ack, write_acks
from ackstream.protocol.envelopes import Envelope, error_envelope
from ackstream.protocol.labels import LIVE_RESPONSE, TWIN_PERSISTED
from ackstream.protocol.responses import response_matches

if TYPE_CHECKING:
    from ackstream.correlation.reading import AckReading

COMMAND_TIMEOUT = "command.timeout"
SINGLE = ((TWIN_PERSISTED,), (LIVE_RESPONSE,))
"""A request for just one of these is answered with the plain response, or the plain error 408."""


class Entry(msgspec.Struct, frozen=True):
    """One acknowledgement of a record and what became of it."""

    received: Received
    disposition: str


class Answer(msgspec.Struct, frozen=True):
    """The end of a request: combined status, how it came about, the labels that timed out, and the reply."""

    status: int
    completed_by: str
    missing: list[str]
    reply: Envelope


def apply(pending: Pending, reading: AckReading, record: Record) -> tuple[list[Entry], Answer | None]:
    """Let a record count for an open request; ``pending.received`` and ``pending.note`` are brought up to date.

    :return: the entries with their dispositions, and the answer if that ended the request
    """
    if reading.kind == "acks":
        return _acknowledge(pending, reading.acks, record)
    if reading.kind == "error" and not _live_error(pending, reading.envelope):
        return _fail(pending, reading.envelope, record)
    return _respond(pending, reading.envelope, record)


def time_out(pending: Pending) -> Answer:
    """Answer a request whose deadline has passed, with what is there."""
    request = pending.request
    if request.waits_for_acks and request.awaited not in SINGLE:
        return _aggregate(pending, "timeout")
    error = errors.command_timeout(request.timeout_ms, pending.note)
    return Answer(error.status, "timeout", list(request.awaited), _error(pending, error))


def _acknowledge(pending: Pending, acks: list[Acknowledgement], record: Record) -> tuple[list[Entry], Answer | None]:
    aggregation = Aggregation(pending.request.awaited, pending.received)
    entries = []
    for index, ack in enumerate(acks):
        received = Received.of(ack, record, index)
        entries.append(Entry(received, _receive(pending, aggregation, received)))
    done = pending.request.waits_for_acks and aggregation.complete
    return entries, _aggregate(pending, "acknowledgements") if done else None


def _respond(pending: Pending, response: Envelope, record: Record) -> tuple[list[Entry], Answer | None]:
    request = pending.request
    ack = response_to_ack(request, response)
    received = Received.of(ack, record, 0)
    invalid = response_matches(request, response) if request.live else None
    if invalid is not None:
        # not an answer to this command; the text of a later timeout tells
        pending.note = invalid
        return [Entry(received, "invalid")], None
    if not request.waits_for_acks:
        pending.received.append(received)
        return [Entry(received, "accepted")], _plain(pending, ack.status, response)
    aggregation = Aggregation(request.awaited, pending.received)
    disposition = _receive(pending, aggregation, received)
    if disposition != "accepted" or not aggregation.complete:
        return [Entry(received, disposition)], None
    answer = (
        _plain(pending, ack.status, response) if request.awaited in SINGLE else _aggregate(pending, "acknowledgements")
    )
    return [Entry(received, disposition)], answer


def _fail(pending: Pending, error: Envelope, record: Record) -> tuple[list[Entry], Answer]:
    """End the wait with an error of the infrastructure: nothing else is awaited."""
    received = Received.of_envelope(None, error, record)
    pending.received.append(received)
    if _code(error) == COMMAND_TIMEOUT:
        answer = time_out(pending)
    else:
        reply = msgspec.structs.replace(error, headers=_addressed(pending, error.headers))
        answer = Answer(received.status, "error", [], reply)
    return [Entry(received, "accepted")], answer


def _receive(pending: Pending, aggregation: Aggregation[Received], received: Received) -> str:
    if aggregation.receive(received):
        pending.received.append(received)
        return "accepted"
    return "duplicate" if received.label in aggregation.requested else "unrequested"


def _aggregate(pending: Pending, completed_by: str) -> Answer:
    request = pending.request

    def late(label: str) -> Acknowledgement:
        return timed_out(label, pending.correlation_id, request.timeout_ms)

    taken = [received.acknowledgement() for received in pending.received if received.label is not None]
    entries = Aggregation(request.awaited, taken).entries(late)
    reply = write_acks(entries, thing_id=request.thing_id, channel=request.channel, headers=request.headers)
    return Answer(reply.status or 200, completed_by, missing(entries), reply)


def _plain(pending: Pending, status: int, response: Envelope) -> Answer:
    reply = msgspec.structs.replace(response, headers=_addressed(pending, response.headers))
    return Answer(status, "response", [], reply)


def _error(pending: Pending, error: errors.DittoError) -> Envelope:
    request = pending.request
    return error_envelope(error, thing_id=request.thing_id, channel=request.channel, headers=request.headers)


def _addressed(pending: Pending, headers: dict[str, object]) -> dict[str, object]:
    """Put the request's own correlation-id back (a subscriber may have seen it with a suffix)."""
    return {**headers, "correlation-id": pending.correlation_id, "response-required": False}


def _live_error(pending: Pending, error: Envelope) -> bool:
    """Tell a subscriber's error response to a live command, which is a response like others, from a twin's error."""
    return pending.request.live and error.topic.channel == "live"


def _code(error: Envelope) -> str | None:
    if error.value is msgspec.UNSET:
        return None
    try:
        return msgspec.json.decode(error.value, type=_ErrorBody).error
    except msgspec.MsgspecError:
        return None


class _ErrorBody(msgspec.Struct):
    error: str | None = None
