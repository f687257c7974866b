"""Publishers, readers, queues, things and dead letters, as their topics show them: for the live page and the terminal.

Each record of the topics is taken once, in about the order of time; what is shown is what has happened since the feed
began. Times are in epoch milliseconds by the broker's clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ackstream.gateway.consumers import QueueLine, QueueView
from ackstream.gateway.meter import BAR_MS, BARS
from ackstream.gateway.trends import Latest, Trend
from ackstream.protocol import messages, queues, readers, record_headers
from ackstream.protocol.json import RecordError
from ackstream.protocol.readers import AppAck, ProtocolAck, ReaderAlive, ReaderStart, ReaderStop

if TYPE_CHECKING:
    from collections.abc import Callable

Plane = Literal["publishers", "readers", "queues", "twin", "dead letters", "destinations"]

TOPICS: dict[str, Plane] = {
    "stored": "publishers",
    "destinations": "destinations",
    "app-acks": "readers",
    "queue-deliveries": "queues",
    "events": "twin",
    "dead-letters": "dead letters",
}
"""The topics that are read, without the prefix, and the plane that the age of their newest record is shown for."""

SHOWN = 15
"""Maximum number of publishers, readers and queues shown; those that have done something last."""

KEPT = 1_000
"""Maximum number of each that is known."""

LETTERS, LETTER_CHARACTERS = 20, 2_000
SLICES = 12
"""In as many parts the window of recent counts moves on."""


class PublisherLine(msgspec.Struct, frozen=True):
    """A publisher: its highest decided number, and messages stored and refused in the window."""

    client: str
    last: int
    stored: int
    refused: int
    at: int


class ReaderLine(msgspec.Struct, frozen=True):
    """A reader: of how many writers it has acknowledged something, and how many numbers it is behind them in all.

    :ivar behind: decided numbers after those that it has acknowledged without gaps; ``None``: nothing is known
    :ivar at: its last record
    """

    reader: str
    role: str | None
    durable: bool
    writers: int
    acknowledged: int
    behind: int | None
    at: int


class DestinationLine(msgspec.Struct, frozen=True):
    """A further lake: by how many batches of messages it is behind; ``None``: nothing is known."""

    destination: str
    behind: int | None
    at: int


class DeadLetter(msgspec.Struct, frozen=True):
    """A record of the topic of dead letters, with the beginning of its content as text.

    :ivar origin: the topic that it came from, or the queue
    :ivar size: bytes of its value
    """

    at: int
    reason: str
    origin: str
    key: str
    content: str
    size: int


class PlanesView(msgspec.Struct, frozen=True):
    """All planes at one moment.

    :ivar in_all: how many publishers, readers and queues are known, beside those that are shown
    :ivar trends: counts of the last ten minutes in bars of ten seconds, the oldest first
    :ivar newest: the time of the newest record of each plane that has one
    :ivar changes: changes of things in the window
    """

    publishers: list[PublisherLine]
    readers: list[ReaderLine]
    queues: list[QueueLine]
    destinations: list[DestinationLine]
    dead_letters: list[DeadLetter]
    changes: int
    in_all: dict[str, int]
    trends: dict[str, list[int]]
    newest: dict[str, int]


class _Publisher:
    def __init__(self, client: str, window: int) -> None:
        self.client = client
        self.last = self.at = 0
        self.stored, self.refused = (Trend(max(1, window // SLICES), SLICES) for _ in range(2))


class _Reader:
    def __init__(self, reader: str, window: int) -> None:
        self.reader = reader
        self.role: str | None = None
        self.durable = False
        self.at = 0
        self.writers: dict[str, int] = {}
        self.total: dict[str, int] = {}
        self.acknowledged = Trend(max(1, window // SLICES), SLICES)


class Planes:
    """What the topics of all planes have shown so far."""

    def __init__(self, window: int) -> None:
        """Count what is recent in a window of so many milliseconds."""
        self._publishers: Latest[str, _Publisher] = Latest(lambda client: _Publisher(client, window), KEPT)
        self._readers: Latest[str, _Reader] = Latest(lambda reader: _Reader(reader, window), KEPT)
        self._queues = QueueView(window)
        self._destinations: dict[str, tuple[int, int]] = {}
        self._letters: deque[DeadLetter] = deque(maxlen=LETTERS)
        self._changes = Trend(max(1, window // SLICES), SLICES)
        self._trends: dict[str, Trend] = {
            name: Trend(BAR_MS, BARS) for name in ("messages", "acknowledged", "delivered", "changes", "dead letters")
        }
        self._newest: dict[str, int] = {}
        self._batch = -1
        self._take: dict[str, Callable[[Any], None]] = {
            "stored": self._stored,
            "destinations": self._destination,
            "app-acks": self._report,
            "queue-deliveries": self._delivery,
            "events": self._event,
            "dead-letters": self._letter,
        }

    def take(self, topic: str, record: Any) -> None:
        """Take a record of one of :data:`TOPICS`; unreadable ones are ignored.

        :param topic: its name without the prefix
        :param record: with ``key``, ``value``, ``headers`` and ``timestamp``
        """
        try:
            self._take[topic](record)
        except RecordError:
            return
        plane = TOPICS[topic]
        self._newest[plane] = max(self._newest.get(plane, 0), record.timestamp)

    def view(self, now: int) -> PlanesView:
        """Return what is shown."""
        publishers = [
            PublisherLine(one.client, one.last, one.stored.total(now), one.refused.total(now), one.at)
            for one, _ in zip(self._publishers, range(SHOWN), strict=False)
        ]
        lines = self._queues.lines(now)
        destinations = [
            DestinationLine(name, max(0, self._batch - batch) if self._batch >= 0 else None, at)
            for name, (batch, at) in sorted(self._destinations.items())
        ]
        counts = {"publishers": len(self._publishers), "readers": len(self._readers), "queues": len(lines)}
        return PlanesView(
            publishers,
            [self._reader_line(one, now) for one, _ in zip(self._readers, range(SHOWN), strict=False)],
            lines[:SHOWN],
            destinations,
            list(reversed(self._letters)),
            self._changes.total(now),
            counts,
            {name: trend.counts(now) for name, trend in self._trends.items()},
            dict(self._newest),
        )

    def _reader_line(self, one: _Reader, now: int) -> ReaderLine:
        known = [
            max(0, publisher.last - through)
            for writer, through in one.writers.items()
            if (publisher := self._publishers.get(writer)) is not None
        ]
        behind = sum(known) if known else None
        return ReaderLine(
            one.reader, one.role, one.durable, len(one.writers), one.acknowledged.total(now), behind, one.at
        )

    # -- publishers and destinations -----------------------------------------------------------------------------------

    def _stored(self, record: Any) -> None:
        decided = messages.read_stored(record.value)
        one = self._publishers.touch(decided.client)
        self._batch = max(self._batch, decided.batch)
        if decided.last <= one.last:
            # repeated by a replayed batch
            return
        refused = sum(last - first + 1 for first, last in decided.refused)
        stored = decided.last - decided.first + 1 - refused
        one.last, one.at = decided.last, record.timestamp
        one.stored.add(record.timestamp, stored)
        one.refused.add(record.timestamp, refused)
        self._trends["messages"].add(record.timestamp, stored)

    def _destination(self, record: Any) -> None:
        replicated = messages.read_replicated(record.value)
        self._destinations[replicated.destination] = (replicated.batch, record.timestamp)

    # -- readers and queues --------------------------------------------------------------------------------------------

    def _report(self, record: Any) -> None:
        try:
            report: Any = readers.read(record.value or b"")
        except RecordError:
            self._queues.request(queues.read(record.value or b""), record.timestamp)
            self._newest["queues"] = max(self._newest.get("queues", 0), record.timestamp)
            return
        if isinstance(report, ReaderStop):
            self._readers.drop(report.reader)
        elif isinstance(report, (AppAck, ProtocolAck, ReaderStart, ReaderAlive)):
            one = self._readers.touch(report.reader)
            one.at = record.timestamp
            if isinstance(report, ReaderStart):
                one.role, one.durable = report.role, report.durable
            elif isinstance(report, AppAck):
                runs = sorted((interval.first, interval.last) for interval in report.intervals)
                through = report.start - 1
                for first, last in runs:
                    through = max(through, last) if first <= through + 1 else through
                total = sum(last - first + 1 for first, last in runs)
                fresh = sum(each.last - each.first + 1 for each in report.intervals if not each.reported)
                self._acknowledge(one, report.writer, through, (total, fresh), record.timestamp)
            elif isinstance(report, ProtocolAck):
                count = report.up_to - report.start + 1
                self._acknowledge(one, report.writer, report.up_to, (count, 0), record.timestamp)

    def _acknowledge(self, one: _Reader, writer: str, through: int, counts: tuple[int, int], at: int) -> None:
        """Note what a reader has acknowledged of a writer, which each report repeats.

        :param counts: of all samples, and of those that a report has for the first time
        """
        total, fresh = counts
        if writer not in one.writers and len(one.writers) >= KEPT:
            return
        new = max(0, total - one.total[writer]) if writer in one.total else fresh
        one.writers[writer] = max(through, one.writers.get(writer, through))
        one.total[writer] = max(total, one.total.get(writer, 0))
        one.acknowledged.add(at, new)
        self._trends["acknowledged"].add(at, new)

    def _delivery(self, record: Any) -> None:
        if self._queues.answer(queues.read_answer(record.value or b""), record.timestamp):
            self._trends["delivered"].add(record.timestamp)

    # -- things and dead letters ---------------------------------------------------------------------------------------

    def _event(self, record: Any) -> None:
        self._changes.add(record.timestamp)
        self._trends["changes"].add(record.timestamp)

    def _letter(self, record: Any) -> None:
        headers = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
        value = record.value or b""
        queue = headers.get("queue")
        letter = DeadLetter(
            record.timestamp,
            headers.get(record_headers.REASON, ""),
            f"queue {queue}" if queue else headers.get("topic", ""),
            (record.key or b"").decode("utf-8", "replace")[:LETTER_CHARACTERS],
            value[: 4 * LETTER_CHARACTERS].decode("utf-8", "replace")[:LETTER_CHARACTERS],
            len(value),
        )
        self._letters.append(letter)
        self._trends["dead letters"].add(record.timestamp)
        if queue:
            self._queues.dead(queue, record.timestamp)
