"""Messages that wait in a queue, in compressed segments within its state: a batch pays for the ones that it touches.

A queue keeps its first messages, and the latest, one by one (:meth:`Queue.put_aside`). The others need a few bytes and
no work: a segment is opened when its messages are the next ones, when the time to live of one ends, or when a message
is settled that nobody holds. What the queue does is the same wherever its messages are.
"""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ackstream.jobs.queues.model import MessageLocation, QueuedMessage, message_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Numbers = np.ndarray[tuple[int, int], np.dtype[np.int64]]
    Indices = np.ndarray[tuple[int], np.dtype[np.int64]]
    Row = tuple[QueuedMessage, MessageLocation]
    Coordinates = tuple[str, int, int]

SEGMENT = 2_000
"""Messages in a new segment. A batch decodes up to twice as many one by one, and the head of each segment."""

_BARRIER, _ELIGIBLE = 2, 1
_COLUMNS = 10
_ORDER, _PARTITION, _OFFSET, _RECEIVED_AT, _EXPIRES_AT = range(5)
"""Columns of numbers that are searched; an ``expires_at`` of 0 is none."""
_DIGITS = 19
"""No offset has more."""


class Segment(msgspec.Struct, array_like=True):
    """What is known of a segment that is not opened, beside its content.

    :ivar first: the order of its first message
    :ivar next_time: when the earliest time to live ends, epoch milliseconds; 0: none does
    :ivar received_at: of the first message
    :ivar subject_bytes: of all its messages
    :ivar offsets: by topic and partition the smallest and the greatest offset that it was made with
    """

    count: int
    first: int
    next_time: int
    received_at: int
    subject_bytes: int
    offsets: list[tuple[str, int, int, int]]
    content: bytes


_encode_texts = msgspec.msgpack.Encoder().encode
_decode_texts = msgspec.msgpack.Decoder(tuple[list[str], list[str | None], list[str | None]]).decode


def _close(rows: Sequence[Row]) -> Segment:
    """Return a segment of messages, which are in their order."""
    numbers = np.array([_numbers(*row) for row in rows], np.int64).T
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for _, at in rows:
        low, high = ranges.get((at.topic, at.partition), (at.offset, at.offset))
        ranges[at.topic, at.partition] = min(low, at.offset), max(high, at.offset)
    texts = [at.topic for _, at in rows], [at.subject for _, at in rows], [at.consumer for _, at in rows]
    # neighbours differ little
    steps = np.diff(numbers, axis=1, prepend=0).tobytes()
    return Segment(
        count=len(rows),
        first=rows[0][0].order,
        next_time=min((message.expires_at for message, _ in rows if message.expires_at), default=0),
        received_at=rows[0][1].received_at,
        subject_bytes=sum(at.subject_bytes for _, at in rows),
        offsets=[(*key, *span) for key, span in ranges.items()],
        content=zlib.compress(steps + _encode_texts(texts), 1),
    )


def _numbers(message: QueuedMessage, at: MessageLocation) -> tuple[int, ...]:
    flags = _ELIGIBLE * message.eligible + _BARRIER * message.barrier
    searched = message.order, at.partition, at.offset, at.received_at, message.expires_at or 0
    return *searched, at.batch, flags, message.deliveries, message.failures, at.count


class _Opened:
    """The messages of a segment, of which some may have been taken."""

    def __init__(self, segment: Segment) -> None:
        content = zlib.decompress(segment.content)
        size = _COLUMNS * segment.count * np.dtype(np.int64).itemsize
        steps = np.frombuffer(content[:size], np.int64).reshape(_COLUMNS, segment.count)
        self._numbers: Numbers = np.cumsum(steps, axis=1)
        self._topics, self._subjects, self._consumers = _decode_texts(content[size:])
        self._there = np.ones(segment.count, np.bool_)

    def all(self) -> list[Row]:
        """Return what is there."""
        return self._rows(np.flatnonzero(self._there))

    def due(self, now: int) -> list[Row]:
        """Take the messages whose time to live has ended."""
        ends = self._numbers[_EXPIRES_AT]
        return self._take(np.flatnonzero(self._there & (ends > 0) & (ends <= now)))

    def at(self, topic: str, partition: int, offset: int) -> list[Row]:
        """Take the message at an offset, if it is there."""
        same = (self._numbers[_OFFSET] == offset) & (self._numbers[_PARTITION] == partition)
        found = np.flatnonzero(self._there & same)
        return self._take(np.array([index for index in found.tolist() if self._topics[index] == topic], np.int64))

    def summarize(self, segment: Segment) -> None:
        """Update what is known of the segment beside its content."""
        left = np.flatnonzero(self._there)
        segment.count = len(left)
        if segment.count:
            first, ends = left[0], self._numbers[_EXPIRES_AT][left]
            segment.first, segment.received_at = self._numbers[[_ORDER, _RECEIVED_AT], first].tolist()
            segment.next_time = int(np.min(ends, where=ends > 0, initial=np.iinfo(np.int64).max)) if ends.any() else 0

    def _take(self, indices: Indices) -> list[Row]:
        self._there[indices] = False
        return self._rows(indices)

    def _rows(self, indices: Indices) -> list[Row]:
        return [self._row(index, *self._numbers[:, index].tolist()) for index in indices.tolist()]

    def _row(self, index: int, *numbers: int) -> Row:
        order, partition, offset, received_at, expires_at, batch, flags, deliveries, failures, count = numbers
        topic, subject, consumer = self._topics[index], self._subjects[index], self._consumers[index]
        name, eligible, barrier = message_id(topic, partition, offset), bool(flags & _ELIGIBLE), bool(flags & _BARRIER)
        message = QueuedMessage(name, order, expires_at or None, eligible, barrier, deliveries, failures)
        return message, MessageLocation(topic, partition, offset, batch, subject, received_at, count, consumer)


class _Part:
    """A segment, opened when it has to be."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._changed = False

    @cached_property
    def _opened(self) -> _Opened:
        return _Opened(self.segment)

    def take_all(self) -> list[Row]:
        """Take all messages."""
        found = self._opened.all()
        self.segment.count = 0
        return found

    def take_due(self, now: int) -> list[Row]:
        """Take the messages whose time to live has ended."""
        return self._note(self._opened.due(now))

    def take(self, at: Coordinates) -> list[Row]:
        """Take the message with these coordinates, if it is there."""
        return self._note(self._opened.at(*at))

    def close(self) -> Segment:
        """Return it as the state keeps it."""
        return _close(self._opened.all()) if self._changed else self.segment

    def _note(self, taken: list[Row]) -> list[Row]:
        if taken:
            self._changed = True
            self.segment.subject_bytes -= sum(at.subject_bytes for _, at in taken)
            self._opened.summarize(self.segment)
        return taken


class Segments:
    """The messages of a queue that are in segments; one that is given back is in none any more."""

    def __init__(self, locations: dict[str, MessageLocation]) -> None:
        """Begin empty.

        :param locations: of the messages that are in no segment, by their ids: kept up to date
        """
        self._locations = locations
        self.load(())

    def load(self, segments: Iterable[Segment]) -> None:
        """Restore what :meth:`dump` returned."""
        self._parts: list[_Part] = []
        self._spans: dict[tuple[str, int], list[tuple[int, int, _Part]]] = {}
        self._ends: dict[tuple[str, int], int] = {}
        for segment in segments:
            self._append(segment)
        self._look()

    def dump(self) -> list[Segment]:
        """Return the segments as the state keeps them, the first messages first."""
        return sorted((part.close() for part in self._parts), key=lambda segment: segment.first)

    def __len__(self) -> int:
        return sum(part.segment.count for part in self._parts)

    @property
    def subject_bytes(self) -> int:
        """What the topics of the messages count."""
        return sum(part.segment.subject_bytes for part in self._parts)

    @property
    def oldest(self) -> tuple[int, int] | None:
        """The order of the first message, and when it was received (epoch milliseconds); ``None``: there is none."""
        return min(((part.segment.first, part.segment.received_at) for part in self._parts), default=None)

    def add(self, messages: Iterable[QueuedMessage]) -> None:
        """Put messages into a segment, which wait, and are in their order."""
        self._append(_close([(message, self._locations.pop(message.id)) for message in messages]))
        self._look()

    def take_first(self) -> list[QueuedMessage]:
        """Give back the segment whose first message is the first of all."""
        part = min(self._parts, key=lambda part: part.segment.first)
        return self._give_back([(part, part.take_all())])

    def take_due(self, now: int) -> list[QueuedMessage]:
        """Give back the messages whose time to live has ended."""
        if self.next_time is None or self.next_time > now:
            return []
        due = [part for part in self._parts if 0 < part.segment.next_time <= now]
        return self._give_back([(part, part.take_due(now)) for part in due])

    def take(self, message: str) -> list[QueuedMessage]:
        """Give back a message, if it is there."""
        at = _coordinates(message)
        if at is None:
            return []
        topic, partition, offset = at
        # as a rule it has just arrived
        if offset > self._ends.get((topic, partition), -1):
            return []
        spans = self._spans[topic, partition]
        parts = [part for first, last, part in spans if first <= offset <= last and part.segment.count]
        return self._give_back([(part, part.take(at)) for part in parts])

    def _append(self, segment: Segment) -> None:
        part = _Part(segment)
        self._parts.append(part)
        for topic, partition, first, last in segment.offsets:
            key = topic, partition
            self._spans.setdefault(key, []).append((first, last, part))
            self._ends[key] = max(last, self._ends.get(key, last))

    def _give_back(self, taken: Iterable[tuple[_Part, list[Row]]]) -> list[QueuedMessage]:
        found = []
        for part, rows in taken:
            if not part.segment.count:
                self._parts.remove(part)
            for message, at in rows:
                self._locations[message.id] = at
                found.append(message)
        if found:
            self._look()
        return found

    def _look(self) -> None:
        segments = [part.segment for part in self._parts]
        self.first = min((segment.first for segment in segments), default=None)
        """The order of the first message."""
        self.next_time = min((segment.next_time for segment in segments if segment.next_time), default=None)
        """When the earliest time to live ends, epoch milliseconds."""


def _coordinates(message: str) -> Coordinates | None:
    """Return topic, partition and offset; ``None`` if it is no id that :func:`message_id` gives."""
    rest, _, offset = message.rpartition("-")
    topic, _, partition = rest.rpartition("-")
    if not all(number.isdecimal() and len(number) <= _DIGITS for number in (partition, offset)):
        return None
    found = topic, int(partition), int(offset)
    # several texts may be the same number, of which an id has one
    return found if message_id(*found) == message else None
