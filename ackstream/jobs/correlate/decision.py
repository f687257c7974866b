"""How acknowledgements, responses, errors and the deadline decide an open request.

Source of the rules: Eclipse Ditto, ``AcknowledgementAggregator`` and ``AcknowledgementAggregatorActor``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import msgspec

from ackstream.jobs.correlate.state import Pending, Received, Record
from ackstream.protocol.ditto import errors
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, response_to_ack, write_acks
from ackstream.protocol.ditto.envelopes import Envelope, error_envelope
from ackstream.protocol.ditto.labels import RESPONSE_LABELS
from ackstream.protocol.ditto.requests import response_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.jobs.correlate.reading import AckReading


COMMAND_TIMEOUT = "command.timeout"
REQUEST_TIMEOUT = 408
SINGLE = tuple((label,) for label in RESPONSE_LABELS.values())
"""A request for just one of these is answered with the plain response, or the plain error 408."""


Disposed: TypeAlias = tuple[Received, str]
"""One acknowledgement of a record, with its disposition."""

Entry = TypeVar("Entry", Acknowledgement, Received)


class Aggregation(Generic[Entry]):
    """Collects the acknowledgements of one request.

    Each requested label is expected once. The first acknowledgement of an expected label counts; later ones of that
    label, and those of labels that were not requested, change nothing. The result keeps the order of the request.
    """

    __slots__ = ("_received", "requested")

    def __init__(self, requested: Iterable[str], received: Iterable[Entry] = ()) -> None:
        """Expect ``requested`` (repeated labels collapse to the first), of which ``received`` have arrived already."""
        self.requested = tuple(dict.fromkeys(requested))
        self._received: dict[str | None, Entry] = {entry.label: entry for entry in received}

    def receive(self, entry: Entry) -> bool:
        """Add an acknowledgement; return ``False`` if its label is not, or no longer, expected."""
        if entry.label not in self.requested or entry.label in self._received:
            return False
        self._received[entry.label] = entry
        return True

    @property
    def complete(self) -> bool:
        """Whether all requested labels have arrived."""
        return len(self._received) == len(self.requested)

    def entries(self, timed_out: Callable[[str], Entry]) -> list[Entry]:
        """Return one entry per requested label, in the order of the request.

        :param timed_out: makes the entry of a label that did not arrive
        """
        received = self._received
        return [received[label] if label in received else timed_out(label) for label in self.requested]


def missing(entries: Iterable[Acknowledgement]) -> list[str]:
    """Return the labels that timed out (or were acknowledged with a 408), in order."""
    return [ack.label for ack in entries if ack.status == REQUEST_TIMEOUT]


def timed_out(label: str, correlation_id: str, timeout_ms: int) -> Acknowledgement:
    """Return the entry of a label that was not acknowledged in time."""
    return Acknowledgement(
        label=label,
        status=REQUEST_TIMEOUT,
        payload=_timeout_payload(timeout_ms),
        headers={"correlation-id": correlation_id, "response-required": False},
    )


@lru_cache(maxsize=1024)
def _timeout_payload(timeout_ms: int) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(errors.ack_request_timeout(timeout_ms).to_dict()))


class Decision(msgspec.Struct, frozen=True):
    """How a request ended: combined status, what completed it, the labels that timed out, and the reply."""

    status: int
    completed_by: str
    missing: list[str]
    reply: Envelope


def apply(pending: Pending, reading: AckReading, record: Record) -> tuple[list[Disposed], Decision | None]:
    """Apply a record to an open request, updating ``pending.received`` and ``pending.note``.

    :return: the acknowledgements with their dispositions, and the decision if the record completed the request
    """
    if reading.kind == "acks":
        return _acknowledge(pending, reading.acks, record)
    envelope = reading.envelope
    # a subscriber's error is a response to a live command, the twin's is not
    if reading.kind == "error" and not (pending.request.live and envelope.topic.channel == "live"):
        return _fail(pending, envelope, record)
    return _respond(pending, envelope, record)


def time_out(pending: Pending) -> Decision:
    """Decide a request whose deadline has passed from the acknowledgements received so far."""
    request = pending.request
    if request.waits_for_acks and request.awaited not in SINGLE:
        return _aggregate(pending, "timeout")
    error = errors.command_timeout(request.timeout_ms, pending.note)
    reply = error_envelope(error, thing_id=request.thing_id, channel=request.channel, headers=request.headers)
    return Decision(error.status, "timeout", list(request.awaited), reply)


def _acknowledge(
    pending: Pending, acks: list[Acknowledgement], record: Record
) -> tuple[list[Disposed], Decision | None]:
    aggregation = Aggregation(pending.request.awaited, pending.received)
    entries = []
    for index, ack in enumerate(acks):
        received = Received.of(ack, record, index)
        entries.append((received, _receive(pending, aggregation, received)))
    done = pending.request.waits_for_acks and aggregation.complete
    return entries, _aggregate(pending, "acknowledgements") if done else None


def _respond(pending: Pending, response: Envelope, record: Record) -> tuple[list[Disposed], Decision | None]:
    request = pending.request
    ack = response_to_ack(request, response)
    received = Received.of(ack, record, 0)
    invalid = response_matches(request, response) if request.live else None
    if invalid is not None:
        # not a response to this command; a later timeout gives the reason
        pending.note = invalid
        return [(received, "invalid")], None
    if not request.waits_for_acks:
        pending.received.append(received)
        return [(received, "accepted")], _plain(pending, ack.status, response)
    aggregation = Aggregation(request.awaited, pending.received)
    disposition = _receive(pending, aggregation, received)
    entries = [(received, disposition)]
    if disposition != "accepted" or not aggregation.complete:
        return entries, None
    if request.awaited in SINGLE:
        return entries, _plain(pending, ack.status, response)
    return entries, _aggregate(pending, "acknowledgements")


def _fail(pending: Pending, error: Envelope, record: Record) -> tuple[list[Disposed], Decision]:
    """End the request with an error of the infrastructure: no further acknowledgements are awaited."""
    received = Received.of_envelope(None, error, record)
    pending.received.append(received)
    if _error_code(error) == COMMAND_TIMEOUT:
        decided = time_out(pending)
    else:
        reply = msgspec.structs.replace(error, headers=_reply_headers(pending, error.headers))
        decided = Decision(received.status, "error", [], reply)
    return [(received, "accepted")], decided


def _receive(pending: Pending, aggregation: Aggregation[Received], received: Received) -> str:
    if aggregation.receive(received):
        pending.received.append(received)
        return "accepted"
    return "duplicate" if received.label in aggregation.requested else "unrequested"


def _aggregate(pending: Pending, completed_by: str) -> Decision:
    request = pending.request

    def late(label: str) -> Acknowledgement:
        return timed_out(label, pending.correlation_id, request.timeout_ms)

    arrived = [received.acknowledgement() for received in pending.received if received.label is not None]
    entries = Aggregation(request.awaited, arrived).entries(late)
    reply = write_acks(entries, thing_id=request.thing_id, channel=request.channel, headers=request.headers)
    return Decision(reply.status or 200, completed_by, missing(entries), reply)


def _plain(pending: Pending, status: int, response: Envelope) -> Decision:
    reply = msgspec.structs.replace(response, headers=_reply_headers(pending, response.headers))
    return Decision(status, "response", [], reply)


def _reply_headers(pending: Pending, headers: dict[str, object]) -> dict[str, object]:
    """Restore the request's own correlation-id, which subscribers may have seen with a suffix."""
    return {**headers, "correlation-id": pending.correlation_id, "response-required": False}


class _ErrorBody(msgspec.Struct):
    error: str | None = None


_decode_error = msgspec.json.Decoder(_ErrorBody).decode


def _error_code(error: Envelope) -> str | None:
    if error.value is msgspec.UNSET:
        return None
    try:
        return _decode_error(error.value).error
    except msgspec.MsgspecError:
        return None
