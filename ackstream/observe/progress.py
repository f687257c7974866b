"""Progress of publishers, readers and queues, from the records of persist, reports, deliveries and settlements."""

from __future__ import annotations

from itertools import islice

import msgspec

from ackstream.observe.outcomes import Trend
from ackstream.protocol import messages, queues, readers
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.protocol.intervals import Intervals

KEPT, HELD = 1_000, 100_000
"""Maximum number of publishers, readers, queues, and writers per reader; and of messages held per queue."""

RUNS = 1_000
"""Maximum number of runs kept per publisher or reader: the length of a report is chosen by its writer."""

SLICES = 12
"""Number of steps in which the window of recent counts moves."""


class PublisherLine(msgspec.Struct, frozen=True):
    """A publisher: its highest decided number, and messages stored and refused in the window."""

    client: str
    last: int
    stored: int
    refused: int
    at: int


class ReaderLine(msgspec.Struct, frozen=True):
    """A reader: the writers it has acknowledged messages of, acknowledgements in the window, lag and last record."""

    reader: str
    role: str | None
    durable: bool
    writers: int
    acknowledged: int
    # stored messages not acknowledged, as far as the feed goes back; ``None``: unknown
    behind: int | None
    at: int


class _Publisher:
    def __init__(self, client: str, window: int) -> None:
        self.client = client
        # numbers below were decided before the feed began
        self.since: int | None = None
        self.last = self.at = 0
        self.gone = Intervals()
        self.stored, self.refused = (Trend(max(1, window // SLICES), SLICES) for _ in range(2))

    def lacking(self, acknowledged: Intervals) -> int:
        # refused ones before the feed are unknown: those numbers count only after the highest acknowledged one
        first = max(acknowledged.start, min(self.since or 0, acknowledged.highest + 1))
        if first > self.last:
            return 0
        holes = acknowledged.missing(first, self.last)
        return sum(high - low + 1 for hole in holes for low, high in self.gone.missing(*hole))


class _Reader:
    def __init__(self, reader: str, window: int) -> None:
        self.reader = reader
        self.role: str | None = None
        self.durable = False
        self.at = 0
        # None: in too many runs
        self.writers: dict[str, Intervals | None] = {}
        self.acknowledged = Trend(max(1, window // SLICES), SLICES)


class SampleProgress:
    """Progress of publishers and readers. Times are in epoch milliseconds."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._publishers: Latest[str, _Publisher] = Latest(KEPT)
        self._readers: Latest[str, _Reader] = Latest(KEPT)

    @property
    def known(self) -> dict[str, int]:
        """How many publishers and readers are known."""
        return {"publishers": len(self._publishers), "readers": len(self._readers)}

    def decided(self, decided: messages.StoredRange, at: int) -> int:
        """Process a decision of persist; return the number of stored messages, 0 for a repeated record."""
        one = self._publishers.touch(decided.client, lambda: _Publisher(decided.client, self._window))
        if decided.last <= one.last or decided.last < decided.first:
            return 0
        if one.since is None or len(one.gone) > RUNS:
            one.since, one.gone = decided.first, Intervals()
        one.gone.merge(decided.refused)
        refused = sum(last - first + 1 for first, last in decided.refused)
        stored = decided.last - decided.first + 1 - refused
        one.last, one.at = decided.last, at
        one.stored.add(at, stored)
        one.refused.add(at, refused)
        return stored

    def report(self, report: readers.ConsumerRecord, at: int) -> int:
        """Process a report of a reader; return the number of newly acknowledged samples."""
        if isinstance(report, readers.ReaderStop):
            self._readers.pop(report.reader, None)
            return 0
        if isinstance(report, (readers.WriterStateRequest, readers.ReadersRequest)):
            return 0
        one = self._readers.touch(report.reader, lambda: _Reader(report.reader, self._window))
        one.at = at
        new = 0
        if isinstance(report, readers.ReaderStart):
            one.role, one.durable = report.role, report.durable
        elif isinstance(report, readers.AppAck):
            new = sum(each.last - each.first + 1 for each in report.intervals if not each.reported)
            few = len(report.intervals) <= RUNS
            runs = [(each.first, each.last) for each in report.intervals] if few else []
            self._acknowledge(one, report.writer, Intervals(runs, start=report.start) if few else None)
        elif isinstance(report, readers.ProtocolAck):
            before = one.writers.get(report.writer)
            new = 0 if before is None else max(0, report.up_to - before.highest)
            # the next number is the first that it expects
            self._acknowledge(one, report.writer, Intervals(start=report.up_to + 1))
        one.acknowledged.add(at, new)
        return new

    def publisher_lines(self, now: int, most: int) -> list[PublisherLine]:
        """Return the publishers that have stored something last."""
        return [
            PublisherLine(one.client, one.last, one.stored.total(now), one.refused.total(now), one.at)
            for one in islice(reversed(self._publishers.values()), most)
        ]

    def reader_lines(self, now: int, most: int) -> list[ReaderLine]:
        """Return the readers that have reported something last."""
        return [self._line(one, now) for one in islice(reversed(self._readers.values()), most)]

    @staticmethod
    def _acknowledge(one: _Reader, writer: str, acknowledged: Intervals | None) -> None:
        if writer in one.writers or len(one.writers) < KEPT:
            one.writers[writer] = acknowledged

    def _line(self, one: _Reader, now: int) -> ReaderLine:
        lacking = [
            publisher.lacking(acknowledged)
            for writer, acknowledged in one.writers.items()
            if acknowledged is not None and (publisher := self._publishers.get(writer)) is not None
        ]
        recent = one.acknowledged.total(now)
        behind = sum(lacking) if lacking else None
        return ReaderLine(one.reader, one.role, one.durable, len(one.writers), recent, behind, one.at)


class QueueLine(msgspec.Struct, frozen=True):
    """A queue: events in the window, messages ``held`` by consumers and not settled, and its last record."""

    queue: str
    consumers: int
    held: int
    # milliseconds since the oldest held message was delivered, ``None`` without one
    oldest: int | None
    # highest number of deliveries of a held message
    most: int
    delivered: int
    redelivered: int
    settled: int
    dead: int
    at: int


class _Held(msgspec.Struct):
    consumer: str
    since: int
    count: int
    worked: int


class _Queue:
    def __init__(self, queue: str, window: int) -> None:
        self.queue = queue
        self.at = self.lease = 0
        self.held: dict[str, _Held] = {}
        self.consumers: dict[str, int] = {}
        self.recent = tuple(Trend(max(1, window // SLICES), SLICES) for _ in range(4))
        self.delivered, self.redelivered, self.settled, self.dead = self.recent

    def release(self, consumer: str) -> None:
        self.consumers.pop(consumer, None)
        self.held = {message: one for message, one in self.held.items() if one.consumer != consumer}


class QueueView:
    """Messages held by the consumers of all queues. Times are in epoch milliseconds."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._queues: Latest[str, _Queue] = Latest(KEPT)
        # of the past, the settlements may be read before the deliveries, which are on another topic
        self._settled: Latest[tuple[str, str], int] = Latest(HELD)

    def request(self, request: queues.QueueRequest, at: int) -> None:
        """Process a request of a consumer."""
        one = self._touch(request.queue, at)
        if isinstance(request, queues.SettleMessages):
            for message in request.messages:
                held = one.held.get(message)
                if request.outcome == "working":
                    if held is not None:
                        held.worked = at
                else:
                    one.settled.add(at)
                    self._settled[request.queue, message] = at
                    if held is not None and held.since <= at:
                        del one.held[message]
        elif isinstance(request, (queues.Bind, queues.Alive)):
            one.consumers[request.consumer] = at
        elif isinstance(request, queues.Unbind):
            one.release(request.consumer)

    def answer(self, answer: queues.QueueAnswer, at: int) -> bool:
        """Process an answer of a queue; return whether it is a new delivery."""
        one = self._touch(answer.queue, at)
        if isinstance(answer, queues.Unbound):
            one.release(answer.consumer)
        elif isinstance(answer, queues.Drained):
            one.held.clear()
        elif isinstance(answer, queues.Bound):
            one.consumers[answer.consumer], one.lease = at, answer.lease_ms
        elif isinstance(answer, queues.MessageDelivered):
            before = one.held.get(answer.message)
            if before is not None and before.count >= answer.count and before.consumer == answer.consumer:
                # repeated after a crash, or because it did not arrive
                return False
            if (before is not None or len(one.held) < HELD) and self._settled.get((one.queue, answer.message), 0) < at:
                one.held[answer.message] = _Held(answer.consumer, at, answer.count, at)
            one.delivered.add(at)
            if answer.redelivered:
                one.redelivered.add(at)
            return True
        return False

    def dead(self, queue: str, at: int) -> None:
        """Count a dead letter of a queue."""
        self._touch(queue, at).dead.add(at)

    def lines(self, now: int) -> list[QueueLine]:
        """Return the queues, those with most messages held first."""
        found = []
        for one in reversed(self._queues.values()):
            # a lease, which begins soon after the delivery, takes the message back
            one.held = {
                message: held for message, held in one.held.items() if not one.lease or held.worked + one.lease > now
            }
            since = min((held.since for held in one.held.values()), default=None)
            oldest = None if since is None else max(0, now - since)
            most = max((held.count for held in one.held.values()), default=0)
            recent = [*(trend.total(now) for trend in one.recent), one.at]
            found.append(QueueLine(one.queue, len(one.consumers), len(one.held), oldest, most, *recent))
        return sorted(found, key=lambda line: (-line.held, -line.delivered, line.queue))

    def _touch(self, queue: str, at: int) -> _Queue:
        one = self._queues.touch(queue, lambda: _Queue(queue, self._window))
        one.at = max(one.at, at)
        return one
