"""How acknowledgements, responses, errors and the deadline decide an open request, and which of these count for it.

Source of the rules: Eclipse Ditto, ``AcknowledgementAggregator`` and ``AcknowledgementAggregatorActor``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypeVar

import msgspec

from ackstream.jobs.correlate.readings import AckReading
from ackstream.jobs.correlate.state import TWIN_ACKS, Pending, Received, Record
from ackstream.protocol import errors
from ackstream.protocol.dispositions import AckDisposition, Completion
from ackstream.protocol.ditto.acknowledgements import OK, PROCESSING, extension, is_success, response_to_ack
from ackstream.protocol.ditto.aggregates import FAILED_DEPENDENCY, AckText, read_text, write_aggregate, write_text
from ackstream.protocol.ditto.envelopes import Envelope, encode, error_envelope, raw
from ackstream.protocol.ditto.labels import RESPONSE_LABELS
from ackstream.protocol.ditto.requests import Request, foreign_to, quorum_reached, response_matches
from ackstream.protocol.ditto.signal_defaults import TWIN_KINDS
from ackstream.protocol.errors import REQUEST_TIMEOUT, DittoError
from ackstream.protocol.json import optional_reader
from ackstream.protocol.record_headers import CANCEL

COMMAND_TIMEOUT = "command.timeout"
FOREIGN = "A response did not count: only the twin answers twin commands, and it answers no others."
"""Part of the text of a later timeout."""

SINGLE = tuple((label,) for label in RESPONSE_LABELS.values())
"""A request for just one of these is answered with the plain response, or the plain error 408."""

Ack: TypeAlias = "AckText | Received"
A = TypeVar("A", bound=Ack)

Disposed: TypeAlias = "tuple[Received, AckDisposition]"
"""One acknowledgement of a record, with its disposition."""

Decide: TypeAlias = "Callable[[Pending], Decision]"


def disposition(
    label: str | None, awaited: Sequence[str], arrived: Iterable[Received] | Iterable[AckText]
) -> AckDisposition:
    """Return ``accepted`` for the first acknowledgement of an awaited label, else ``duplicate`` or ``unrequested``."""
    if label not in awaited:
        return "unrequested"
    return "duplicate" if label in [entry.label for entry in arrived] else "accepted"


def entries(awaited: Iterable[str], arrived: Iterable[A], correlation_id: str, timeout_ms: int) -> list[A | AckText]:
    """Return one entry per awaited label, in the order of the request; 408 for a missing acknowledgement."""
    known: dict[str | None, A] = {ack.label: ack for ack in arrived}
    return [
        known.get(label) or AckText(label, REQUEST_TIMEOUT, _timeout_payload(timeout_ms), _own_headers(correlation_id))
        for label in awaited
    ]


def _own_headers(correlation_id: str) -> bytes:
    return bytes(raw({"correlation-id": correlation_id, "response-required": False}))


@lru_cache(maxsize=1024)
def _timeout_payload(timeout_ms: int) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(errors.ack_request_timeout(timeout_ms).to_dict()))


class Decision(msgspec.Struct, frozen=True):
    """How a request ended: combined status, cause, labels that timed out, and text of the reply."""

    status: int
    completed_by: Completion
    missing: list[str]
    reply: bytes
    aggregate: bool = False
    unneeded: list[str] = []


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The effect of a record on an open request, which is unchanged; the accepted ones of ``received`` are added to it.

    :ivar note: why a response does not count, for the text of a later timeout
    :ivar decide: decides the completed request; ``None``: it stays open
    :ivar extended: the deadlines of labels whose parties requested more time
    """

    received: list[Disposed]
    note: str | None = None
    decide: Decide | None = None
    extended: dict[str, int] = {}


def apply(pending: Pending, reading: AckReading, record: Record, longest_ms: int) -> Applied:
    """Apply a record to an open request. Raises DittoError if a header of a response has the wrong type."""
    # ``longest_ms``: no label is awaited for longer
    answer, of_twin = reading.envelope, record.source == TWIN_ACKS
    reason = foreign_to(pending.request, reading.topic, {} if answer is None else answer.headers)
    if reading.kind != "acks" and of_twin != (pending.request.kind in TWIN_KINDS):
        reason = FOREIGN
    if reason is not None:
        return Applied([(received, "invalid") for received in reading.received], reason)
    if answer is None:
        return acknowledge(pending, reading.received, longest_ms)
    # a subscriber's error is a response, the twin's is not
    if reading.kind == "error" and of_twin:
        return _fail(answer, *reading.received)
    return _respond(pending, answer, record, longest_ms)


def count(pending: Pending, applied: Applied) -> Decide | None:
    """Add the acknowledgements that count to a request; return how it is decided if they complete it."""
    pending.received += [received for received, found in applied.received if found == "accepted"]
    return applied.decide


def time_out(pending: Pending) -> Decision:
    """Decide a request whose deadline has passed from the acknowledgements received so far."""
    request = pending.request
    if request.waits_for_acks and request.awaited not in SINGLE:
        return _aggregate(pending, "timeout")
    error = errors.command_timeout(request.timeout_ms, pending.note)
    return _refuse(pending, "timeout", list(request.awaited), error, read_text(pending.headers))


def may_cancel(pending: Pending, record: Record) -> bool:
    """Return whether a cancellation is for a request: it names its reply-id in its own topic, in time."""
    named = record.headers[CANCEL].decode() == pending.reply_id
    return named and record.source == pending.source and record.timestamp <= pending.deadline


def cancel(pending: Pending) -> Decision:
    """Decide a request that its requester has cancelled."""
    return _refuse(pending, "cancelled", pending.missing, errors.request_cancelled(), read_text(pending.headers))


def acknowledge(pending: Pending, acks: list[Received], longest_ms: int) -> Applied:
    """Count the first acknowledgement of each awaited label, and give time to those that report progress."""
    request, arrived, extended = pending.request, list(pending.received), pending.extended.copy()
    disposed: list[Disposed] = []
    for received in acks:
        found, label = disposition(received.label, request.awaited, arrived), received.label or ""
        at, until = received.timestamp, extended.get(label, pending.deadline_of(label))
        if found == "accepted" and at > until:
            found = "late"
        elif found == "accepted" and received.status == PROCESSING:
            found = "progress"
            if received.extend:
                extended[label] = max(until, min(at + received.extend, pending.started_at + longest_ms))
        elif found == "accepted":
            arrived.append(received)
        disposed.append((received, found))
    if not request.waits_for_acks:
        return Applied(disposed, extended=extended)
    complete = len(arrived) == len(request.awaited) or _reached(request, arrived) is not None
    return Applied(disposed, None, ACKNOWLEDGED if complete else None, extended)


def _reached(request: Request, arrived: Iterable[Received]) -> bool | None:
    """Return whether the quorum of a request is reached (``False``: never); ``None``: open, or no quorum."""
    if request.quorum is None:
        return None
    # a weak one is not from the party itself
    positive = {ack.label or "": is_success(ack.status) and not ack.weak for ack in arrived}
    return quorum_reached(request.quorum, request.awaited, positive)


def _respond(pending: Pending, response: Envelope, record: Record, longest_ms: int) -> Applied:
    request = pending.request
    ack = response_to_ack(request, response)
    invalid = response_matches(request, response) if request.live else None
    received = Received.of(record, write_text(ack), 0, None, extension(ack))
    if invalid is not None:
        # not a response to this command; a later timeout gives the reason
        return Applied([(received, "invalid")], invalid)
    plain = partial(_plain, status=ack.status, response=response)
    if not request.waits_for_acks:
        found: AckDisposition = "progress" if ack.status == PROCESSING else "accepted"
        return Applied([(received, found)], None, None if found == "progress" else plain)
    applied = acknowledge(pending, [received], longest_ms)
    if applied.decide is not None and request.awaited in SINGLE:
        return Applied(applied.received, None, plain)
    return applied


class _ErrorBody(msgspec.Struct):
    error: str | None = None


_read_error: Callable[[bytes | None], _ErrorBody | None] = optional_reader(_ErrorBody)


def _fail(error: Envelope, received: Received) -> Applied:
    """End the request with an error of the infrastructure: no further acknowledgements are awaited."""
    body = None if error.value is msgspec.UNSET else _read_error(bytes(error.value))
    decide: Decide = partial(_plain, status=received.status, response=error, completed_by="error")
    if body is not None and body.error == COMMAND_TIMEOUT:
        decide = time_out
    return Applied([(received, "accepted")], None, decide)


def fail(pending: Pending, error: Exception) -> Decision:
    """Decide a request that cannot be answered normally: 500, without the received acknowledgements."""
    own = {"correlation-id": pending.correlation_id}
    return _refuse(pending, "error", [], errors.internal_error(type(error).__name__), own)


Amended: TypeAlias = "tuple[Pending, Decision, int]"
"""A request that has timed out and succeeds nevertheless, its decision, and when that was made."""


def amend(pending: Pending, decide: Decide, at: int) -> Amended | None:
    """Decide a request again that late acknowledgements complete; ``None`` if it does not succeed."""
    decision = decide(pending)
    succeeds = is_success(decision.status)
    return (pending, msgspec.structs.replace(decision, completed_by="amended"), at) if succeeds else None


def update(pending: Pending, acks: Sequence[Received], limit: int) -> bytes | None:
    """Write acknowledgements of different labels, shortened as in a reply; ``None``: still above ``limit`` bytes."""
    _, text = _write(pending, acks, PROCESSING)
    if len(text) > limit:
        _, text = _write(pending, _left_out(pending, acks, len(text) - limit), PROCESSING)
    return text if len(text) <= limit else None


def shorten(pending: Pending, decision: Decision, limit: int) -> Decision:
    """Return a decision whose reply has at most ``limit`` bytes: else 424 for an aggregate, 413 otherwise."""
    if len(decision.reply) <= limit:
        return decision
    if decision.aggregate:
        acks = _left_out(pending, _entries(pending), len(decision.reply) - limit)
        # one that was amended stays a success
        wanted = decision.status if decision.completed_by == "amended" else _quorum_status(pending)
        status, reply = _write(pending, acks, wanted)
        if len(reply) <= limit:
            return msgspec.structs.replace(decision, status=status, reply=reply)
    error, headers = errors.reply_too_large(len(decision.reply), limit), {"correlation-id": pending.correlation_id}
    return _refuse(pending, decision.completed_by, decision.missing, error, headers)


def _left_out(pending: Pending, acks: Sequence[Ack], excess: int) -> list[Ack]:
    """Replace the largest of acknowledgements, as few as it takes, by entries with 413: ``excess`` bytes fewer."""
    notes = {}
    for ack in sorted(acks, key=_weight, reverse=True):
        if excess <= 0:
            break
        where = ""
        if isinstance(ack, Received) and ack.topic:
            where = f", and is the record {ack.topic}-{ack.partition}-{ack.offset}"
        error = errors.acknowledgement_left_out(ack.status, _weight(ack), where)
        own = _own_headers(pending.correlation_id)
        notes[ack.label] = note = AckText(ack.label or "", error.status, raw(error.to_dict()), own)
        excess -= _weight(ack) - _weight(note)
    return [notes.get(ack.label, ack) for ack in acks]


def _refuse(
    pending: Pending, completed_by: Completion, missing: list[str], error: DittoError, headers: dict[str, Any]
) -> Decision:
    request = pending.request
    reply = error_envelope(error, thing_id=request.thing_id, channel=request.channel, headers=headers)
    return Decision(error.status, completed_by, missing, encode(reply))


def _weight(ack: Ack) -> int:
    """Return about how many bytes an acknowledgement adds to a reply."""
    return len(ack.headers) + len(ack.payload or b"")


def _aggregate(pending: Pending, completed_by: Completion) -> Decision:
    found = _entries(pending)
    status, reply = _write(pending, found, _quorum_status(pending))
    # a label that was acknowledged with a 408 counts as missing, too
    missing = [ack.label or "" for ack in found if ack.status == REQUEST_TIMEOUT]
    unneeded = pending.missing if len(found) < len(pending.request.awaited) else []
    return Decision(status, completed_by, missing, reply, aggregate=True, unneeded=unneeded)


ACKNOWLEDGED = partial(_aggregate, completed_by="acknowledgements")


def _entries(pending: Pending) -> list[Ack]:
    request, awaited = pending.request, pending.request.awaited
    if _reached(request, pending.received) is not None:
        # the others are not needed
        arrived = {ack.label for ack in pending.received}
        awaited = tuple([label for label in awaited if label in arrived])
    return entries(awaited, pending.received, pending.correlation_id, request.timeout_ms)


def _quorum_status(pending: Pending) -> int | None:
    if pending.request.quorum is None or len(pending.request.awaited) == 1:
        return None
    return OK if _reached(pending.request, pending.received) else FAILED_DEPENDENCY


def _write(pending: Pending, acks: Sequence[Ack], status: int | None) -> tuple[int, bytes]:
    request = pending.request
    thing_id, channel = request.thing_id, request.channel
    return write_aggregate(acks, thing_id=thing_id, channel=channel, headers=pending.headers, status=status)


def _plain(pending: Pending, status: int, response: Envelope, completed_by: Completion = "response") -> Decision:
    # the request's own correlation-id, which subscribers may have seen with a suffix
    headers = {**response.headers, "correlation-id": pending.correlation_id, "response-required": False}
    return Decision(status, completed_by, [], encode(msgspec.structs.replace(response, headers=headers)))
