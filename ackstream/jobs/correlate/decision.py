"""What an acknowledgement, a response, an error or the deadline means for an open request.

Source of the rules: Eclipse Ditto, ``AcknowledgementAggregatorActor``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from ackstream.jobs.correlate.state import Pending, Received, Record
from ackstream.protocol.ditto import errors
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, combined_status, response_to_ack, write_acks
from ackstream.protocol.ditto.envelopes import Envelope, error_envelope
from ackstream.protocol.ditto.errors import ack_request_timeout
from ackstream.protocol.ditto.labels import LIVE_RESPONSE, TWIN_PERSISTED
from ackstream.protocol.ditto.responses import response_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.jobs.correlate.reading import AckReading


COMMAND_TIMEOUT = "command.timeout"
SINGLE = ((TWIN_PERSISTED,), (LIVE_RESPONSE,))
"""A request for just one of these is answered with the plain response, or the plain error 408."""


class AckEntry(msgspec.Struct, frozen=True):
    """One acknowledgement of a record and what became of it."""

    received: Received
    disposition: str


class Decision(msgspec.Struct, frozen=True):
    """The end of a request: combined status, how it came about, the labels that timed out, and the reply."""

    status: int
    completed_by: str
    missing: list[str]
    reply: Envelope


def apply(pending: Pending, reading: AckReading, record: Record) -> tuple[list[AckEntry], Decision | None]:
    """Let a record count for an open request; ``pending.received`` and ``pending.note`` are brought up to date.

    :return: the entries with their dispositions, and the answer if that ended the request
    """
    if reading.kind == "acks":
        return _acknowledge(pending, reading.acks, record)
    if reading.kind == "error" and not _live_error(pending, reading.envelope):
        return _fail(pending, reading.envelope, record)
    return _respond(pending, reading.envelope, record)


def time_out(pending: Pending) -> Decision:
    """Answer a request whose deadline has passed, with what is there."""
    request = pending.request
    if request.waits_for_acks and request.awaited not in SINGLE:
        return _aggregate(pending, "timeout")
    error = errors.command_timeout(request.timeout_ms, pending.note)
    return Decision(error.status, "timeout", list(request.awaited), _error(pending, error))


def _acknowledge(
    pending: Pending, acks: list[Acknowledgement], record: Record
) -> tuple[list[AckEntry], Decision | None]:
    aggregation = Aggregation(pending.request.awaited, pending.received)
    entries = []
    for index, ack in enumerate(acks):
        received = Received.of(ack, record, index)
        entries.append(AckEntry(received, _receive(pending, aggregation, received)))
    done = pending.request.waits_for_acks and aggregation.complete
    return entries, _aggregate(pending, "acknowledgements") if done else None


def _respond(pending: Pending, response: Envelope, record: Record) -> tuple[list[AckEntry], Decision | None]:
    request = pending.request
    ack = response_to_ack(request, response)
    received = Received.of(ack, record, 0)
    invalid = response_matches(request, response) if request.live else None
    if invalid is not None:
        # not an answer to this command; the text of a later timeout tells
        pending.note = invalid
        return [AckEntry(received, "invalid")], None
    if not request.waits_for_acks:
        pending.received.append(received)
        return [AckEntry(received, "accepted")], _plain(pending, ack.status, response)
    aggregation = Aggregation(request.awaited, pending.received)
    disposition = _receive(pending, aggregation, received)
    if disposition != "accepted" or not aggregation.complete:
        return [AckEntry(received, disposition)], None
    answer = (
        _plain(pending, ack.status, response) if request.awaited in SINGLE else _aggregate(pending, "acknowledgements")
    )
    return [AckEntry(received, disposition)], answer


def _fail(pending: Pending, error: Envelope, record: Record) -> tuple[list[AckEntry], Decision]:
    """End the wait with an error of the infrastructure: nothing else is awaited."""
    received = Received.of_envelope(None, error, record)
    pending.received.append(received)
    if _code(error) == COMMAND_TIMEOUT:
        answer = time_out(pending)
    else:
        reply = msgspec.structs.replace(error, headers=_addressed(pending, error.headers))
        answer = Decision(received.status, "error", [], reply)
    return [AckEntry(received, "accepted")], answer


def _receive(pending: Pending, aggregation: Aggregation[Received], received: Received) -> str:
    if aggregation.receive(received):
        pending.received.append(received)
        return "accepted"
    return "duplicate" if received.label in aggregation.requested else "unrequested"


def _aggregate(pending: Pending, completed_by: str) -> Decision:
    request = pending.request

    def late(label: str) -> Acknowledgement:
        return timed_out(label, pending.correlation_id, request.timeout_ms)

    taken = [received.acknowledgement() for received in pending.received if received.label is not None]
    entries = Aggregation(request.awaited, taken).entries(late)
    reply = write_acks(entries, thing_id=request.thing_id, channel=request.channel, headers=request.headers)
    return Decision(reply.status or 200, completed_by, missing(entries), reply)


def _plain(pending: Pending, status: int, response: Envelope) -> Decision:
    reply = msgspec.structs.replace(response, headers=_addressed(pending, response.headers))
    return Decision(status, "response", [], reply)


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


# -- The decision itself: which acknowledgements answer a request, and what the whole then says.
# Source of the rules: Eclipse Ditto, ``AcknowledgementAggregator`` and ``AcknowledgementAggregatorActor``.


REQUEST_TIMEOUT = 408


class Labelled(Protocol):
    """Whatever stands for an acknowledgement."""

    @property
    def label(self) -> str | None:
        """The acknowledgement's label."""


Entry = TypeVar("Entry", bound=Labelled)


class Aggregation(Generic[Entry]):
    """Collects the acknowledgements of one request.

    Every requested label is expected once. The first acknowledgement of an expected label takes its place; what comes
    later for that label, or for a label nobody requested, changes nothing. The result keeps the order of the request.
    """

    __slots__ = ("_received", "requested")

    def __init__(self, requested: Iterable[str], received: Iterable[Entry] = ()) -> None:
        """Expect ``requested`` (repeats collapse to their first position), with ``received`` taken already."""
        self.requested = tuple(dict.fromkeys(requested))
        self._received = {entry.label: entry for entry in received}

    def expects(self, label: str | None) -> bool:
        """Tell whether an acknowledgement with this label would still be taken."""
        return label in self.requested and label not in self._received

    def receive(self, entry: Entry) -> bool:
        """Take an acknowledgement; ``False`` where its label is not (or no longer) expected."""
        if not self.expects(entry.label):
            return False
        self._received[entry.label] = entry
        return True

    @property
    def complete(self) -> bool:
        """Tell whether nothing is expected any more."""
        return len(self._received) == len(self.requested)

    def entries(self, timed_out: Callable[[str], Entry]) -> list[Entry]:
        """Return one entry a requested label, in order of the request.

        :param timed_out: makes the entry of a label that was not received
        """
        received = self._received
        return [received[label] if label in received else timed_out(label) for label in self.requested]


def missing(entries: Iterable[Acknowledgement]) -> list[str]:
    """Return the labels that timed out (or said so themselves with a 408), in order."""
    return [ack.label for ack in entries if ack.status == REQUEST_TIMEOUT]


def status(entries: Iterable[Acknowledgement]) -> int:
    """Return the combined HTTP status: one entry's own; of several 200 where all are 2xx, else 424; of none 200."""
    return combined_status([ack.status for ack in entries])


def timed_out(label: str, correlation_id: str, timeout_ms: int) -> Acknowledgement:
    """Return the entry of a label nobody acknowledged in time."""
    return Acknowledgement(
        label=label,
        status=REQUEST_TIMEOUT,
        payload=_timeout_payload(timeout_ms),
        headers={"correlation-id": correlation_id, "response-required": False},
    )


@lru_cache(maxsize=1024)
def _timeout_payload(timeout_ms: int) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(ack_request_timeout(timeout_ms).to_dict()))
