"""The stories of requests, messages and traces: of late requests from memory, of all from the tables."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.lake import questions, reading
from ackstream.protocol import ledger
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.protocol.record_headers import trace_id, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from ackstream.observe.outcomes import LedgerEntry
    from ackstream.settings import Lake

log = logging.getLogger(__name__)

T = TypeVar("T")

EVENTS = ("request", "acknowledgement", "outcome", "dead letter")

STORY_RECORDS = 200
"""Maximum number of records kept per correlation-id, which a client may reuse endlessly."""

STORY_BYTES = 8_000_000
"""Bytes of the ledger kept for histories; the tables have older requests."""


class Happening(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of a request or a message; ``at`` is in epoch milliseconds, ``content`` is JSON."""

    at: int
    event: str
    id: str
    # of a message: the publisher, reader or consumer
    label: str | None = None
    status: int | None = None
    detail: str | None = None
    thing_id: str | None = None
    traceparent: str | None = None
    content: Raw | UnsetType = UNSET
    # the correlation-id on the wire: different for two requests whose clients chose the same id
    request: str = ""


class TracedRequest(msgspec.Struct, frozen=True):
    """A request of a trace; ``at`` is in epoch milliseconds, ``detail`` is the command."""

    at: int
    correlation_id: str
    thing_id: str | None
    detail: str
    traceparent: str


class Story(msgspec.Struct, frozen=True):
    """The history of a request or a message; ``note`` is set if the tables could not be read."""

    of: str
    happenings: list[Happening]
    note: str = ""


class Trace(msgspec.Struct, frozen=True):
    """The first requests of a trace, and how many there are; ``note`` is set if the tables could not be read."""

    of: str
    requests: list[TracedRequest]
    in_all: int
    note: str = ""


class Stories:
    """Remembers the latest requests of the ledger, and reads the tables, which takes a moment; for any thread."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._stories: OrderedDict[str, list[bytes]] = OrderedDict()
        self._bytes = 0

    def take(self, entry: LedgerEntry) -> bool:
        """Remember a record of the ledger; return whether it is new, not a copy written by a replayed batch."""
        with self._lock:
            story = self._stories.setdefault(entry.correlation_id, [])
            if entry.value in story:
                return False
            self._stories.move_to_end(entry.correlation_id)
            if len(story) < STORY_RECORDS:
                story.append(entry.value)
                self._bytes += len(entry.value)
            while self._bytes > STORY_BYTES and len(self._stories) > 1:
                self._bytes -= sum(map(len, self._stories.popitem(last=False)[1]))
            return True

    def story(self, correlation_id: str) -> Story:
        """Return the history of the requests of a correlation-id."""
        found, note = self._read("story", {"correlation_id": correlation_id}, _stored)
        return Story(correlation_id, in_order([*self.remembered(correlation_id), *found]), note)

    def message(self, argument: str) -> Story:
        """Return the history of a message, ``CLIENT/SEQ`` (or ``InputError``), from the tables."""
        values = questions.parameters("message_story", argument)
        return Story(argument, *self._read("message_story", values, _stored_message))

    def trace(self, wanted: str) -> Trace:
        """Return the requests of a trace, by its id: clients choose theirs, so at most 10,000 of the tables."""
        found, note = self._read("trace", {"trace_id": wanted}, _stored_request)
        own = (one for one in found if trace_id(one.traceparent) == wanted)
        requests = sorted({*self.remembered_trace(wanted), *own}, key=lambda one: (one.at, one.correlation_id))
        return Trace(wanted, requests, len(requests), note)

    def remembered(self, correlation_id: str) -> list[Happening]:
        """Return the remembered history of the requests of a correlation-id, which may have a suffix, in time order."""
        start = f"{correlation_id}#"
        with self._lock:
            names = [name for name in self._stories if name == correlation_id or name.startswith(start)]
            values = [value for name in names for value in self._stories[name]]
        return in_order(happening for value in values for happening in _happenings(value))

    def remembered_trace(self, wanted: str) -> list[TracedRequest]:
        """Return the remembered requests of a trace, by its id, in time order."""
        text = wanted.encode()
        with self._lock:
            values = [value for story in self._stories.values() for value in story if text in value]
        happenings = in_order(happening for value in values for happening in _happenings(value))
        return [
            TracedRequest(one.at, shown_id(one.request), one.thing_id, one.detail or "", one.traceparent)
            for one in happenings
            if one.traceparent is not None and trace_id(one.traceparent) == wanted
        ]

    def _read(
        self, question: str, values: Mapping[str, Any], convert: Callable[[dict[str, Any]], T]
    ) -> tuple[list[T], str]:
        """Return the answer of the tables, empty without them, and a note if they cannot be read."""
        try:
            return [convert(row) for row in reading.rows(self._lake, question, values)], ""
        except Exception as error:
            log.exception("The tables of %s cannot be read.", self._lake.path)
            return [], f"The tables cannot be read: {error}"


def in_order(happenings: Iterable[Happening]) -> list[Happening]:
    """Sort a history by time and drop duplicates."""
    once = {(happening.event, happening.id): happening for happening in happenings}
    return sorted(once.values(), key=lambda happening: (happening.at, EVENTS.index(happening.event), happening.id))


def _stored(row: dict[str, Any]) -> Happening:
    at, detail, request = _milliseconds(row["occurred_at"]), row["detail"] or "", row["correlation_id"] or ""
    content = UNSET if row["content"] is None else Raw(row["content"].encode())
    named = {name: row[name] for name in ("event", "id", "label", "status", "thing_id", "traceparent")}
    return Happening(at, detail=detail, content=content, request=request, **named)


def _stored_message(row: dict[str, Any]) -> Happening:
    at, detail = _milliseconds(row["occurred_at"]), _words(row["place"], row["detail"])
    return Happening(at, row["event"], row["id"] or "", label=row["party"], detail=detail)


def _stored_request(row: dict[str, Any]) -> TracedRequest:
    at, name = _milliseconds(row["received_at"]), shown_id(row["correlation_id"])
    return TracedRequest(at, name, row["thing_id"], row["asked"], row["traceparent"])


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _words(*words: str | None) -> str:
    return " ".join(filter(None, words))


def _happenings(value: bytes) -> Iterator[Happening]:
    """Yield the events in a record of the ledger, as the question ``story`` has them."""
    record, named = ledger.decode(value), dict[str, Any]()
    for ack in record.acks or ():
        detail, named = _words(ack.disposition, ack.reason), {"content": ack.payload, "request": ack.correlation_id}
        yield Happening(ack.received_at, "acknowledgement", ack.id, ack.label, ack.status, detail, **named)
    if (signal := record.signal) is not None:
        detail = _words(signal.channel, signal.criterion, signal.action, signal.path)
        trace = trace_of(msgspec.json.encode(signal.headers))
        named = {"thing_id": signal.thing_id, "content": signal.value, "request": signal.correlation_id}
        named["traceparent"] = None if trace is None else trace.decode()
        yield Happening(signal.received_at, "request", record.id, detail=detail, **named)
    if (outcome := record.outcome) is not None:
        named = {"thing_id": outcome.thing_id, "content": outcome.reply, "request": outcome.correlation_id}
        detail = outcome.completed_by
        yield Happening(outcome.decided_at, "outcome", record.id, status=outcome.status, detail=detail, **named)
    if (letter := record.dead_letter) is not None:
        at, request = letter.received_at, letter.correlation_id or ""
        yield Happening(at, "dead letter", record.id, detail=letter.reason, request=request)
