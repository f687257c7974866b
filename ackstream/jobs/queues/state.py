"""The state of a queue: its messages, one by one or in compressed segments, and its consumers.

A queue keeps its first messages, and the latest, one by one (:meth:`Queue.put_aside`). The others are in segments,
which need few bytes. A segment is opened when its messages are the next ones, when the time to live of one ends, or
when a message is settled that no consumer holds.
"""

import zlib
from collections.abc import Collection, Iterable
from functools import cached_property
from itertools import compress

import msgspec
import numpy as np

from ackstream.jobs.queues.records import message_id
from ackstream.protocol.messages import read_number
from ackstream.protocol.readers import SampleOutcome
from ackstream.settings.jobs import QueueSettings

Numbers = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Row = tuple["QueuedMessage", "MessageLocation"]


class QueuedMessage(msgspec.Struct, array_like=True, gc=False):
    """A message in the queue.

    :ivar deliveries: those that the application of a consumer got, or may still get
    :ivar holders: its consumers, with the ends of the leases that have begun
    :ivar unreadable: the consumers that cannot read it; ``given_up_at``: the end of its wait for one that can, 0: none
    """

    id: str
    order: int
    expires_at: int | None
    eligible: bool
    barrier: bool
    deliveries: int = 0
    failures: int = 0
    not_before: int = 0
    holders: dict[str, int | None] = {}
    unreadable: frozenset[str] = frozenset()
    given_up_at: int = 0


class MessageLocation(msgspec.Struct, array_like=True, gc=False):
    """Where a queued message is stored, and its last delivery."""

    topic: str
    partition: int
    offset: int
    batch: int
    subject: str | None
    received_at: int
    count: int = 0
    consumer: str | None = None

    @property
    def subject_bytes(self) -> int:
        """The share of its topic in the size of the queue."""
        return len(self.subject or "")


class Consumer(msgspec.Struct, array_like=True):
    """A bound consumer; a ``backlog`` of 0 is unlimited, and one that is ``stopped`` wants no messages."""

    name: str
    backlog: int
    outcomes: frozenset[SampleOutcome]
    held: dict[str, int | bool | None] = {}
    """Its messages, in the order of deliveries, and since when its application has them (version 5: ``True``)."""
    stopped: bool = False

    @property
    def has_room(self) -> bool:
        """Whether it may hold one more message, and wants one."""
        return not self.stopped and (not self.backlog or len(self.held) < self.backlog)


class QueueState(msgspec.Struct, array_like=True):
    """The state of a queue: messages oldest first, consumers in the order in which they bound.

    :ivar drained: the times of the latest orders to drain it, by their numbers (new in version 7)
    """

    messages: list[QueuedMessage]
    consumers: list[Consumer]
    early: dict[str, int]
    order: int
    turn: str | None
    drained: dict[int, int] = {}


def choose(
    message: QueuedMessage, bound: Collection[Consumer], rules: QueueSettings, last: str | None
) -> list[Consumer]:
    """Choose, of consumers in the order of their binds, that of a message, if one has room (A37, AMPS-38)."""
    if message.barrier:
        return list(bound)
    if rules.max_total_backlog and sum(len(consumer.held) for consumer in bound) >= rules.max_total_backlog:
        return []
    consumers = [consumer for consumer in bound if consumer.name not in message.unreadable]
    if rules.type == "exclusive":
        del consumers[1:]
    turn = 0
    if rules.fairness == "round-robin":
        turn = next((index for index, consumer in enumerate(consumers, 1) if consumer.name == last), 0)
    free = [consumer for consumer in (*consumers[turn:], *consumers[:turn]) if consumer.has_room]
    if rules.fairness == "proportional":
        free.sort(key=lambda one: len(one.held) / one.backlog if one.backlog else 0.0)
    return free[:1]


SEGMENT = 2_000
"""Messages in a new segment. A batch decodes up to twice as many one by one, and the head of each segment."""

_BARRIER, _ELIGIBLE = 2, 1
_COLUMNS = 10
_ORDER, _PARTITION, _OFFSET, _RECEIVED_AT, _EXPIRES_AT = range(5)
"""Columns of numbers that are searched; an ``expires_at`` of 0 is no limit."""
_LAST = np.iinfo(np.int64).max


class Segment(msgspec.Struct, array_like=True):
    """A segment: a summary that is known without opening it, and its content.

    :ivar first: the order of its first message, which was ``received_at``
    :ivar next_time: when the earliest time to live ends, epoch milliseconds; 0: none does
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


Texts = tuple[list[str], list[str | None], list[str | None]]
"""The topics, subjects and last consumers of messages."""

_encode_texts = msgspec.msgpack.Encoder().encode
_decode_texts = msgspec.msgpack.Decoder(Texts).decode


def _packed(numbers: Numbers, texts: Texts, there: Flags) -> Segment:
    """Return a segment of the messages that are there, at least one; numbers and texts are in their order."""
    kept = numbers[:, there]
    topics, subjects, consumers = [list(compress(column, there.tolist())) for column in texts]
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, partition, offset in zip(topics, *kept[[_PARTITION, _OFFSET]].tolist(), strict=True):
        low, high = spans.get((topic, partition), (offset, offset))
        spans[topic, partition] = min(low, offset), max(high, offset)
    # neighbours differ little
    steps = np.diff(kept, axis=1, prepend=0).tobytes()
    packed = zlib.compress(steps + _encode_texts((topics, subjects, consumers)), 1)
    subject_bytes = sum(len(subject or "") for subject in subjects)
    offsets = [(*place, *span) for place, span in spans.items()]
    return Segment(*_summary(numbers, there), subject_bytes, offsets, packed)


def _summary(numbers: Numbers, there: Flags) -> tuple[int, int, int, int]:
    """Return the first fields of that segment."""
    left = np.flatnonzero(there)
    first, received_at = numbers[[_ORDER, _RECEIVED_AT], left[0]].tolist()
    ends = numbers[_EXPIRES_AT][left]
    return len(left), first, int(ends[ends > 0].min(initial=_LAST)) if ends.any() else 0, received_at


def _numbers(message: QueuedMessage, at: MessageLocation) -> tuple[int, ...]:
    flags = _ELIGIBLE * message.eligible + _BARRIER * message.barrier
    searched = message.order, at.partition, at.offset, at.received_at, message.expires_at or 0
    return *searched, at.batch, flags, message.deliveries, message.failures, at.count


def _row(topic: str, subject: str | None, consumer: str | None, *numbers: int) -> Row:
    order, partition, offset, received_at, expires_at, batch, flags, deliveries, failures, count = numbers
    name, eligible, barrier = message_id(topic, partition, offset), bool(flags & _ELIGIBLE), bool(flags & _BARRIER)
    message = QueuedMessage(name, order, expires_at or None, eligible, barrier, deliveries, failures)
    return message, MessageLocation(topic, partition, offset, batch, subject, received_at, count, consumer)


class _Part:
    """A segment, opened when it has to be; some of its messages may have been taken."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._changed = False

    @cached_property
    def _content(self) -> tuple[Numbers, Texts, Flags]:
        """The messages in columns, in their order, and which of them are there."""
        content, count = zlib.decompress(self.segment.content), self.segment.count
        size = _COLUMNS * count * np.dtype(np.int64).itemsize
        steps = np.frombuffer(content[:size], np.int64).reshape(_COLUMNS, count)
        return np.cumsum(steps, axis=1), _decode_texts(content[size:]), np.ones(count, np.bool_)

    def close(self) -> Segment:
        """Return it as the state keeps it."""
        return _packed(*self._content) if self._changed else self.segment

    def take_all(self) -> list[Row]:
        """Take all messages that are left."""
        return self._take(self._content[-1])

    def take_due(self, now: int) -> list[Row]:
        """Take the messages whose time to live has ended."""
        numbers, _, there = self._content
        ends = numbers[_EXPIRES_AT]
        return self._take(there & (ends > 0) & (ends <= now))

    def take_received(self, until: int) -> list[Row]:
        """Take the messages that were received up to a time."""
        numbers, _, there = self._content
        return self._take(there & (numbers[_RECEIVED_AT] <= until))

    def take(self, topic: str, partition: int, offset: int) -> list[Row]:
        """Take the message at an offset, if it is there."""
        numbers, (topics, *_), there = self._content
        same = there & (numbers[_OFFSET] == offset) & (numbers[_PARTITION] == partition)
        for index in np.flatnonzero(same).tolist():
            same[index] = topics[index] == topic
        return self._take(same)

    def _take(self, wanted: Flags) -> list[Row]:
        numbers, (topics, subjects, consumers), there = self._content
        indices = np.flatnonzero(wanted)
        there[indices] = False
        taken = [
            _row(topics[index], subjects[index], consumers[index], *found)
            for index, found in zip(indices.tolist(), numbers[:, indices].T.tolist(), strict=True)
        ]
        known = self.segment
        if len(taken) == known.count:
            known.count = 0
        elif taken:
            self._changed = True
            known.count, known.first, known.next_time, known.received_at = _summary(numbers, there)
            known.subject_bytes -= sum(at.subject_bytes for _, at in taken)
        return taken


class Segments:
    """The messages of a queue that are in segments; one that is given back is in none any more."""

    def __init__(self, locations: dict[str, MessageLocation]) -> None:
        """Begin empty. ``locations``: of the messages that are in no segment, by their ids: kept up to date."""
        self.locations = locations
        self.load(())

    def load(self, segments: Iterable[Segment]) -> None:
        """Restore what :meth:`dump` returned."""
        self._parts: list[_Part] = []
        # by the ids of messages up to their offsets: which offsets a segment may have, and the greatest of all
        self._spans: dict[str, list[tuple[int, int, _Part]]] = {}
        self._ends: dict[str, int] = {}
        for segment in segments:
            self._append(segment)
        self._look()

    def dump(self) -> list[Segment]:
        """Return the segments as the state keeps them, the first messages first."""
        return sorted((part.close() for part in self._parts), key=lambda segment: segment.first)

    def __len__(self) -> int:
        return self._count

    @property
    def subject_bytes(self) -> int:
        """The size of the topics of all messages."""
        return sum(part.segment.subject_bytes for part in self._parts)

    @property
    def oldest(self) -> tuple[int, int] | None:
        """The order of the first message, and when it was received (epoch milliseconds); ``None`` without messages."""
        return min(((part.segment.first, part.segment.received_at) for part in self._parts), default=None)

    def add(self, messages: Iterable[QueuedMessage]) -> None:
        """Put messages into a segment, which wait, and are in their order."""
        rows = [(message, self.locations.pop(message.id)) for message in messages]
        texts = [at.topic for _, at in rows], [at.subject for _, at in rows], [at.consumer for _, at in rows]
        numbers = np.array([_numbers(*row) for row in rows], np.int64).T
        self._append(_packed(numbers, texts, np.ones(len(rows), np.bool_)))
        self._look()

    def take_first(self) -> list[QueuedMessage]:
        """Give back the segment whose first message is the first of all."""
        part = min(self._parts, key=lambda part: part.segment.first)
        return self._give_back(part.take_all())

    def take_due(self, now: int) -> list[QueuedMessage]:
        """Give back the messages whose time to live has ended."""
        due = [part for part in self._parts if 0 < part.segment.next_time <= now]
        return self._give_back(row for part in due for row in part.take_due(now))

    def take_received(self, until: int) -> list[QueuedMessage]:
        """Give back messages that were received up to a time, of one segment; none if no segment has any."""
        return next(filter(None, (self._give_back(part.take_received(until)) for part in self._parts)), [])

    def take(self, message: str) -> list[QueuedMessage]:
        """Give back a message, if it is there."""
        place, _, digits = message.rpartition("-")
        spans = self._spans.get(place, ())
        offset = read_number(digits) if spans else None
        # as a rule it has just arrived; several texts may be the same number, of which an id has one
        if offset is None or offset > self._ends[place] or str(offset) != digits:
            return []
        topic, _, partition = place.rpartition("-")
        parts = [part for first, last, part in spans if first <= offset <= last and part.segment.count]
        return self._give_back(row for part in parts for row in part.take(topic, int(partition), offset))

    def _append(self, segment: Segment) -> None:
        part = _Part(segment)
        self._parts.append(part)
        for topic, partition, first, last in segment.offsets:
            place = f"{topic}-{partition}"
            self._spans.setdefault(place, []).append((first, last, part))
            self._ends[place] = max(last, self._ends.get(place, last))

    def _give_back(self, rows: Iterable[Row]) -> list[QueuedMessage]:
        found = []
        for message, at in rows:
            self.locations[message.id] = at
            found.append(message)
        if found:
            self._parts = [part for part in self._parts if part.segment.count]
            self._look()
        return found

    def _look(self) -> None:
        segments = [part.segment for part in self._parts]
        self._count = sum(segment.count for segment in segments)
        self.first = min((segment.first for segment in segments), default=None)
        """The order of the first message."""
        self.next_time = min((segment.next_time for segment in segments if segment.next_time), default=None)
        """When the earliest time to live ends, epoch milliseconds."""
