"""Publishers, readers, queues, things and dead letters, as their topics show them: for the live page and the terminal.

Each record of the topics is processed once, in about the order of time; a view covers the time since the feed began.
Times are in epoch milliseconds by the broker's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import msgspec

from ackstream.observe.outcomes import BAR_MS, BARS, Trend
from ackstream.observe.progress import SLICES, PublisherLine, QueueLine, QueueView, ReaderLine, SampleProgress
from ackstream.protocol import messages, queues, readers, record_headers
from ackstream.protocol.json import RecordError

Plane = Literal["publishers", "readers", "queues", "twin", "dead letters", "destinations"]

SHOWN = 15
"""Maximum number of labels, parties, publishers, readers and queues shown; a fleet may have thousands."""

LETTERS, LETTER_CHARACTERS = 20, 2_000


class DestinationLine(msgspec.Struct, frozen=True):
    """A further lake, and its lag in batches of messages; ``None``: unknown."""

    destination: str
    behind: int | None
    at: int


class DeadLetter(msgspec.Struct, frozen=True):
    """A dead letter, with the beginning of its content as text; ``size`` is in bytes, ``origin`` a topic or queue."""

    # that of the tables; empty: they do not have it
    id: str
    at: int
    reason: str
    origin: str
    key: str
    content: str
    size: int


class PlanesView(msgspec.Struct, frozen=True):
    """All planes at one moment, with changes of things in the window; ``in_all`` counts publishers, readers, queues."""

    publishers: list[PublisherLine]
    readers: list[ReaderLine]
    queues: list[QueueLine]
    destinations: list[DestinationLine]
    dead_letters: list[DeadLetter]
    changes: int
    in_all: dict[str, int]
    # counts of the last ten minutes in bars of ten seconds, the oldest first
    trends: dict[str, list[int]]
    # the time of the newest record of each plane that has one
    newest: dict[str, int]


class Planes:
    """The state of all planes, from the records read so far."""

    def __init__(self, window: int) -> None:
        self._samples = SampleProgress(window)
        self._queues = QueueView(window)
        self._destinations: dict[str, tuple[int, int]] = {}
        self._letters: deque[DeadLetter] = deque(maxlen=LETTERS)
        self._changes = Trend(max(1, window // SLICES), SLICES)
        self._trends: dict[str, Trend] = {
            name: Trend(BAR_MS, BARS) for name in ("messages", "acknowledged", "delivered", "changes", "dead letters")
        }
        self._newest: dict[str, int] = {}
        self._batch = -1

    def take(self, topic: str, record: Any) -> None:
        """Take a record of one of :attr:`TOPICS` (without the prefix); unreadable ones are ignored."""
        plane, take = self.TOPICS[topic]
        try:
            take(self, record)
        except ValueError:
            # no such record, or one that contradicts itself
            return
        self._newest[plane] = max(self._newest.get(plane, 0), record.timestamp)

    def view(self, now: int) -> PlanesView:
        """Return the current state."""
        lines = self._queues.lines(now)
        destinations = [
            DestinationLine(name, max(0, self._batch - batch) if self._batch >= 0 else None, at)
            for name, (batch, at) in sorted(self._destinations.items())
        ]
        counts = {**self._samples.known, "queues": len(lines)}
        people = self._samples.publisher_lines(now, SHOWN), self._samples.reader_lines(now, SHOWN)
        letters, changes = list(reversed(self._letters)), self._changes.total(now)
        trends = {name: trend.counts(now) for name, trend in self._trends.items()}
        return PlanesView(*people, lines[:SHOWN], destinations, letters, changes, counts, trends, dict(self._newest))

    def _stored(self, record: Any) -> None:
        decided = messages.read_stored(record.value)
        self._batch = max(self._batch, decided.batch)
        self._trends["messages"].add(record.timestamp, self._samples.decided(decided, record.timestamp))

    def _destination(self, record: Any) -> None:
        replicated = messages.read_replicated(record.value)
        self._destinations[replicated.destination] = (replicated.batch, record.timestamp)

    def _report(self, record: Any) -> None:
        try:
            report = readers.read(record.value or b"")
        except RecordError:
            self._queues.request(queues.read(record.value or b""), record.timestamp)
            self._newest["queues"] = max(self._newest.get("queues", 0), record.timestamp)
            return
        self._trends["acknowledged"].add(record.timestamp, self._samples.report(report, record.timestamp))

    def _delivery(self, record: Any) -> None:
        if self._queues.answer(queues.read_answer(record.value or b""), record.timestamp):
            self._trends["delivered"].add(record.timestamp)

    def _event(self, record: Any) -> None:
        self._changes.add(record.timestamp)
        self._trends["changes"].add(record.timestamp)

    def _letter(self, record: Any) -> None:
        headers = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
        value, queue = record.value or b"", headers.get(record_headers.QUEUE)
        reason = headers.get(record_headers.REASON, "")
        origin = f"queue {queue}" if queue else headers.get(record_headers.TOPIC, "")
        identity, texts = record_headers.letter_id(headers), (_beginning(record.key or b""), _beginning(value))
        self._letters.append(DeadLetter(identity, record.timestamp, reason, origin, *texts, len(value)))
        self._trends["dead letters"].add(record.timestamp)
        if queue:
            self._queues.dead(queue, record.timestamp)

    TOPICS: ClassVar[dict[str, tuple[Plane, Callable[[Planes, Any], None]]]] = {
        "stored": ("publishers", _stored),
        "destinations": ("destinations", _destination),
        "app-acks": ("readers", _report),
        "queue-deliveries": ("queues", _delivery),
        "events": ("twin", _event),
        "dead-letters": ("dead letters", _letter),
    }
    """Topics to read, without the prefix, the plane whose newest record they have, and its consumer."""


def _beginning(value: bytes) -> str:
    return value[: 4 * LETTER_CHARACTERS].decode("utf-8", "replace")[:LETTER_CHARACTERS]
