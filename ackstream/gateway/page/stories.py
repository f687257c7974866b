"""The stories of requests, messages and traces: of late requests from memory, of all from the tables."""

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from ackstream.lake import reading
from ackstream.observe.outcomes import LedgerEntry
from ackstream.protocol import ledger
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.protocol.record_headers import trace_id, trace_of
from ackstream.protocol.rql.patterns import matches_any
from ackstream.settings import Lake

log = logging.getLogger(__name__)

T = TypeVar("T")

EVENTS = ("request", "acknowledgement", "outcome", "dead letter")

STORY_RECORDS = 200
"""Maximum number of records kept per correlation-id, which a client may reuse endlessly."""

STORY_BYTES = 8_000_000
"""Bytes of the ledger kept for histories; the tables have older requests."""

TABLE_ROWS, TABLE_BYTES, TABLE_SECONDS, TABLE_MEMORY = 1_000, 8_000_000, 20, "512MB"
"""Limits of reading the tables once: rows, bytes of their contents, time, and memory."""

TRACED = 100
"""Maximum number of requests of a trace shown."""

_LONG = "concat('\"Left out: ', strlen(content), ' bytes; ackstream outcomes story has them.\"')"


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
    """The history of a request or a message; ``note``: the tables could not be read, or have more."""

    of: str
    happenings: list[Happening]
    note: str = ""


class Trace(msgspec.Struct, frozen=True):
    """The first requests of a trace, and how many were found; ``note`` as in a :class:`Story`."""

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

    def story(self, correlation_id: str, things: Collection[str]) -> Story:
        """Return the history of those requests of a correlation-id that concern only things of these patterns."""
        found, note = self._read("story", {"correlation_id": correlation_id}, things, _stored)
        happenings = in_order([*self.remembered(correlation_id), *found])
        named: dict[str, set[str]] = {}
        for happening in happenings:
            named.setdefault(happening.request, set()).update(filter(None, (happening.thing_id,)))
        seen = {request for request, ids in named.items() if all(may_see(things, one) for one in ids or (None,))}
        return Story(correlation_id, [replace(one, request="") for one in happenings if one.request in seen], note)

    def message(self, argument: str, things: Collection[str]) -> Story:
        """Return the history of a message, ``CLIENT/SEQ`` (or ``InputError``), for clients that may see all things."""
        values = reading.parameters("message_story", argument)
        if not may_see(things, None):
            return Story(argument, [])
        return Story(argument, *self._read("message_story", values, things, _stored_message))

    def trace(self, argument: str, things: Collection[str]) -> Trace:
        """Return the requests of a trace, by its id or traceparent (or ``InputError``), to things of these patterns."""
        values = reading.parameters("trace", argument)
        wanted = values["trace_id"]
        found, note = self._read("trace", values, things, _stored_request)
        own = (one for one in found if trace_id(one.traceparent) == wanted)
        seen = {one for one in (*self.remembered_trace(wanted), *own) if may_see(things, one.thing_id)}
        requests = sorted(seen, key=lambda one: (one.at, one.correlation_id))
        return Trace(wanted, requests[:TRACED], len(requests), note)

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
        self, question: str, values: dict[str, Any], things: Collection[str], convert: Callable[[dict[str, Any]], T]
    ) -> tuple[list[T], str]:
        """Return the answer of the tables, empty without them, and a note if it is not the whole."""
        try:
            found = rows(self._lake, question, values, things)
        except Exception as error:  # noqa: BLE001 - it is in the note
            log.warning("The tables of %s cannot be read: %s", self._lake.path, error)
            # an error may have names of places
            return [], "The tables cannot be read" + (f": {error}" if may_see(things, None) else ".")
        note = f"The tables have more: only {TABLE_ROWS:,} rows are shown." if len(found) > TABLE_ROWS else ""
        return list(map(convert, found[:TABLE_ROWS])), note


def may_see(things: Collection[str], thing_id: str | None) -> bool:
    """Return whether a thing is among the patterns of those that a client may read; ``None``: whether all are."""
    return "*" in things if thing_id is None else matches_any(things, thing_id)


def rows(lake: Lake, name: str, values: dict[str, Any], things: Collection[str]) -> list[dict[str, Any]]:
    """Return the latest rows of an answer, or the first of a trace, and one more if there is; none without a table.

    Requests to a thing that matches none of the patterns are not read. Raises beyond the limits of time and memory.
    """
    question = reading.QUESTIONS[name]
    with reading.database(lake, question.tables) as connection, ExitStack() as stack:
        if not (present := reading.views(connection)):
            return []
        connection.execute(f"SET memory_limit = '{TABLE_MEMORY}'; SET temp_directory = ''")
        timer = threading.Timer(TABLE_SECONDS, connection.interrupt)
        stack.callback(timer.cancel)
        timer.start()
        source = f"FROM ({reading.for_duckdb(question.over(present, lake)).rpartition('ORDER BY')[0]}) WHERE true"
        if not may_see(things, None):
            seen = "bool_and(regexp_full_match(thing_id, $things, 's'))"
            source += f" AND correlation_id IN (SELECT correlation_id {source} GROUP BY ALL HAVING {seen})"
            values = values | {"things": "|".join(".*".join(map(re.escape, one.split("*"))) for one in things)}
        columns, latest = "*", "ASC" if name == "trace" else "DESC"
        if "content" in question.columns:
            # each has its share of the bytes; of older ones none is read
            times = f"SELECT occurred_at {source} ORDER BY ALL DESC LIMIT {TABLE_ROWS + 1}"
            counted = f"SELECT count(*), min(occurred_at) FROM ({times})"  # noqa: S608 - all of it is ours
            number, values["since"] = connection.execute(counted, values).fetchall()[0]
            share, source = TABLE_BYTES // max(1, number), f"{source} AND occurred_at >= $since"
            columns = f"* REPLACE (CASE WHEN strlen(content) > {share} THEN {_LONG} ELSE content END AS content)"
        found = connection.execute(f"SELECT {columns} {source} ORDER BY ALL {latest} LIMIT {TABLE_ROWS + 1}", values)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


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
