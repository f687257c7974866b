"""Requests from the ledger: acknowledgements and latencies per label, recent failures, and the history of each."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.lake import reading
from ackstream.observe.meter import percentiles, verdict
from ackstream.protocol import ledger
from ackstream.protocol.ditto.acknowledgements import is_success
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.protocol.record_headers import trace_id, trace_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from ackstream.observe.meter import LedgerEntry
    from ackstream.settings import Lake

Event = Literal["request", "acknowledgement", "outcome", "dead letter"]
EVENTS: tuple[Event, ...] = ("request", "acknowledgement", "outcome", "dead letter")

MAX_SEEN = 200_000
"""Maximum number of acknowledgements counted, keeping the latest."""

FAILURES = 50
STORY_RECORDS = 200
"""Maximum number of records kept per correlation-id, which a client may reuse endlessly."""

STORY_BYTES = 8_000_000
"""Bytes of the ledger kept for histories; the tables have older requests."""


class Happening(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of a request or a message; ``at`` is in epoch milliseconds, ``content`` is JSON.

    For a message the ``label`` is the publisher, reader or consumer. A request has the ``traceparent`` it came with.
    ``request`` is the correlation-id on the wire:
    different for two requests whose clients chose the same id.
    """

    at: int
    event: str
    id: str
    label: str | None = None
    status: int | None = None
    detail: str | None = None
    thing_id: str | None = None
    traceparent: str | None = None
    content: Raw | UnsetType = UNSET
    request: str = ""


class TracedRequest(msgspec.Struct, frozen=True):
    """A request of a trace; ``at`` is in epoch milliseconds, ``detail`` is the command."""

    at: int
    correlation_id: str
    thing_id: str | None
    detail: str
    traceparent: str


class FailureEntry(msgspec.Struct, frozen=True):
    """A request that did not succeed; times in (epoch) milliseconds."""

    correlation_id: str
    thing_id: str | None
    status: int
    completed_by: str
    missing: list[str]
    at: int
    latency: int


class LabelTally(msgspec.Struct, frozen=True):
    """Counts of a label, or of all labels of a party; latencies are in milliseconds."""

    name: str
    acknowledged: int = 0
    refused: int = 0
    missing: int = 0
    p50: int | None = None
    p95: int | None = None


class _Seen(msgspec.Struct, frozen=True):
    at: int
    label: str
    status: int | None
    latency: int | None


class Journal:
    """Counts acknowledgements over a window (in ms) and keeps recent failures and histories; times are epoch ms."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._seen: deque[_Seen] = deque(maxlen=MAX_SEEN)
        self._failures: OrderedDict[str, FailureEntry] = OrderedDict()
        self._stories: OrderedDict[str, list[bytes]] = OrderedDict()
        self._bytes = 0

    def take(self, entry: LedgerEntry) -> None:
        """Process a record of the ledger."""
        record, written_at = entry.content, entry.at
        if not self._keep(entry.correlation_id, entry.value):
            # a copy written by a replayed batch
            return
        outcome = record.outcome
        if outcome is None:
            return
        used = {ack.label: ack for ack in record.accepted}
        for label in outcome.requested:
            ack = used.get(label)
            status, latency = (None, None) if ack is None else (ack.status, ack.latency_ms)
            self._seen.append(_Seen(written_at, label, status, latency))
        self._forget(written_at)
        if verdict(outcome.status, outcome.completed_by) != "answered":
            self._failures[record.id] = FailureEntry(
                entry.correlation_id,
                outcome.thing_id,
                outcome.status,
                outcome.completed_by,
                outcome.missing,
                written_at,
                max(0, written_at - outcome.started_at),
            )
            if len(self._failures) > FAILURES:
                self._failures.popitem(last=False)

    def _forget(self, now: int) -> None:
        # without waiting for the next view of the page
        while self._seen and self._seen[0].at <= now - self._window:
            self._seen.popleft()

    def failures(self) -> list[FailureEntry]:
        """Return recent failures, latest first."""
        return list(reversed(self._failures.values()))

    def story(self, correlation_id: str) -> list[Happening]:
        """Return the remembered history of the requests of a correlation-id, which may have a suffix, in time order."""
        start = f"{correlation_id}#"
        names = [name for name in self._stories if name == correlation_id or name.startswith(start)]
        values = [value for name in names for value in self._stories[name]]
        return in_order(happening for value in values for happening in _happenings(value))

    def trace(self, wanted: str) -> list[TracedRequest]:
        """Return the remembered requests of a trace, by its id, in time order."""
        text = wanted.encode()
        values = [value for story in self._stories.values() for value in story if text in value]
        return traced(wanted, in_order(happening for value in values for happening in _happenings(value)))

    def _keep(self, correlation_id: str, value: bytes) -> bool:
        story = self._stories.setdefault(correlation_id, [])
        if value in story:
            return False
        self._stories.move_to_end(correlation_id)
        if len(story) == STORY_RECORDS:
            return True
        story.append(value)
        self._bytes += len(value)
        while self._bytes > STORY_BYTES and len(self._stories) > 1:
            self._bytes -= sum(map(len, self._stories.popitem(last=False)[1]))
        return True

    def tallies(self, now: int, *, parties: bool = False) -> list[LabelTally]:
        """Return the counts in the window per label, or per party (its part before the colon), most failures first."""
        self._forget(now)
        groups: dict[str, list[_Seen]] = defaultdict(list)
        for seen in self._seen:
            groups[seen.label.partition(":")[0] if parties else seen.label].append(seen)
        tallies = []
        for name, group in groups.items():
            statuses = [seen.status for seen in group if seen.status is not None]
            good = sum(map(is_success, statuses))
            spans = percentiles([seen.latency for seen in group if seen.latency is not None], 0.5, 0.95)
            tallies.append(LabelTally(name, good, len(statuses) - good, len(group) - len(statuses), *spans))
        return sorted(tallies, key=lambda tally: (-(tally.missing + tally.refused), -tally.acknowledged, tally.name))


def in_order(happenings: Iterable[Happening]) -> list[Happening]:
    """Sort a history by time and drop duplicates."""
    once = {(happening.event, happening.id): happening for happening in happenings}
    return sorted(once.values(), key=lambda happening: (happening.at, EVENTS.index(happening.event), happening.id))


def traced(wanted: str, happenings: Iterable[Happening]) -> list[TracedRequest]:
    """Return the requests of a trace, by its id, among other events."""
    return [
        TracedRequest(one.at, shown_id(one.request), one.thing_id, one.detail or "", one.traceparent)
        for one in happenings
        if one.traceparent is not None and trace_id(one.traceparent) == wanted
    ]


def stored(lake: Lake, correlation_id: str) -> list[Happening]:
    """Return the history of a request from the tables, empty without them; errors are those of the storage."""
    return [_stored(row) for row in reading.rows(lake, "story", {"correlation_id": correlation_id})]


def _stored(row: dict[str, Any]) -> Happening:
    at, detail, request = _milliseconds(row["occurred_at"]), row["detail"] or "", row["correlation_id"] or ""
    content = UNSET if row["content"] is None else Raw(row["content"].encode())
    named = {name: row[name] for name in ("event", "id", "label", "status", "thing_id", "traceparent")}
    return Happening(at, detail=detail, content=content, request=request, **named)


def stored_message(lake: Lake, values: Mapping[str, Any]) -> list[Happening]:
    """Return the history of the message of a question ``message_story``; as :func:`stored` for the rest."""
    found = []
    for row in reading.rows(lake, "message_story", values):
        at, detail = _milliseconds(row["occurred_at"]), _words(row["place"], row["detail"])
        found.append(Happening(at, row["event"], row["id"] or "", label=row["party"], detail=detail))
    return found


def stored_trace(lake: Lake, wanted: str) -> list[TracedRequest]:
    """Return at most 10,000 requests of a trace from the tables, as :func:`stored`: clients choose their traces."""
    found = []
    for row in reading.rows(lake, "trace", {"trace_id": wanted}):
        at, name, trace = _milliseconds(row["received_at"]), shown_id(row["correlation_id"]), row["traceparent"]
        if trace_id(trace) == wanted:
            found.append(TracedRequest(at, name, row["thing_id"], row["asked"], trace))
    return found


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
