"""A reader's cache: samples to access, and unacknowledged ones, with the offsets of messages still needed. Pure.

The samples of one topic and key are about one instance. Rules: brokers.md R2 to R5; Connext 31.12.1.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from itertools import count, islice
from sys import maxsize
from typing import Any, TypeAlias

from ackstream.client.core.arguments import Retry
from ackstream.client.reading._writer_history import AckReports, ReorderBuffer
from ackstream.client.reading.samples import ReaderQos, Sample
from ackstream.protocol.messages import MAX_NUMBER

SampleId: TypeAlias = tuple[str, int]
"""Writer and number."""

Instance: TypeAlias = tuple[str | None, bytes | None]
"""Topic and key."""

RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
"""The first and the longest pause before a handler is called again with a sample for which it has failed."""

FEW_INSTANCES = 1_000
"""Number that is remembered without a check whether they still matter."""


class SampleCache:
    """The samples of one reader that are stored and wanted, in the order in which they became available.

    A sample is in the cache until it is taken, or replaced under KEEP_LAST; reading it leaves it there. Once accessed
    it is open until it is acknowledged. A sample that is neither is no longer held.
    """

    def __init__(self, qos: ReaderQos) -> None:
        """Begin empty; a reader of the kind ``protocol`` has no open samples, as its library acknowledges them."""
        self.bytes = self._held = 0
        self._opens = qos.kind != "protocol"
        self._depth = qos.depth if qos.history == "keep-last" else None
        self._cached: dict[SampleId, Sample] = {}
        # instead of there: those of writers that are held back, by writer
        self._aside: dict[str, dict[SampleId, Sample]] = {}
        self._unread: dict[SampleId, Sample] = {}
        self._open: dict[SampleId, Sample] = {}
        # with KEEP_LAST: the cached samples of each instance, the oldest first
        self._instances: dict[Instance, dict[SampleId, Sample]] = {}

    def __len__(self) -> int:
        return self._held

    @property
    def unread(self) -> int:
        return len(self._unread)

    def has(self, *, unread: bool = False) -> bool:
        return bool(self._unread if unread else self._cached)

    def hold(self, writers: AbstractSet[str]) -> None:
        """Set the samples of these writers aside until a later call is without them; they follow the others then."""
        for writer in self._aside.keys() - writers:
            self._cached |= self._aside.pop(writer)
        if new := writers - self._aside.keys():
            self._aside |= {writer: {} for writer in new}
            for identity in [each for each in self._cached if each[0] in new]:
                self._aside[identity[0]][identity] = self._cached.pop(identity)

    def _line(self, writer: str) -> dict[SampleId, Sample]:
        return self._aside.get(writer, self._cached)

    def add(self, sample: Sample) -> Sample | None:
        """Add a sample; return the one that it replaces unread, which the application will never acknowledge."""
        identity = _id(sample)
        self._line(sample.publisher)[identity] = self._unread[identity] = sample
        self.bytes += sample.size
        self._held += 1
        if self._depth is None:
            return None
        same = self._instances.setdefault(instance_of(sample), {})
        same[identity] = sample
        if len(same) <= self._depth:
            return None
        oldest = next(iter(same.values()))
        was_unread = _id(oldest) in self._unread
        self._remove(oldest)
        return oldest if was_unread else None

    def read(self, limit: int, *, unread: bool = False) -> list[Sample]:
        """Access samples, in order."""
        found = list(islice((self._unread if unread else self._cached).values(), limit))
        for sample in found:
            if self._unread.pop(_id(sample), None) is not None and self._opens:
                self._open[_id(sample)] = sample
        return found

    def take(self, limit: int) -> list[Sample]:
        taken = self.read(limit)
        for sample in taken:
            self._remove(sample)
        return taken

    def open(self, writer: str, seq: int) -> Sample | None:
        return self._open.get((writer, seq))

    @property
    def opened(self) -> list[Sample]:
        return list(self._open.values())

    def acknowledge(self, sample: Sample) -> None:
        """Close a sample; it may stay in the cache."""
        if self._open.pop(_id(sample), None) is not None:
            self._drop(sample)

    def _remove(self, sample: Sample) -> None:
        identity, instance = _id(sample), instance_of(sample)
        del self._line(sample.publisher)[identity]
        self._unread.pop(identity, None)
        if (same := self._instances.get(instance)) is not None:
            del same[identity]
            if not same:
                del self._instances[instance]
        self._drop(sample)

    def _drop(self, sample: Sample) -> None:
        if _id(sample) not in self._line(sample.publisher) and _id(sample) not in self._open:
            self.bytes -= sample.size
            self._held -= 1


class FailedSamples:
    """Samples for which the handler has failed, and when it is called again: after 1 s, each time twice as long.

    With ``retry`` as often as that allows, and in the order of each writer: all later samples of :attr:`writers` wait.
    """

    def __init__(self, retry: Retry | None = None) -> None:
        self._ordered, self._retry = retry is not None, retry or Retry(maxsize, RETRY_SECONDS, MAX_RETRY_SECONDS)
        # a line for each writer if they are ordered, else for each sample: its first one is due
        self._lines: dict[Hashable, deque[Sample]] = {}
        self._due: list[tuple[float, int, Hashable]] = []
        self._order = count()
        # how often it has failed
        self._failures: dict[SampleId, int] = {}

    @property
    def writers(self) -> AbstractSet[Any]:
        """The writers whose later samples wait."""
        return self._lines.keys() if self._ordered else frozenset()

    def add(self, sample: Sample, now: float) -> bool:
        """Note a failure; return whether to report it: the first one, or with ``retry`` the last. Times: seconds."""
        failures = self._failures[_id(sample)] = self._failures.get(_id(sample), 0) + 1
        if (pause := self._retry.pause(failures)) is None:
            self.forget(sample)
            return True
        line = self._lines.setdefault(self._line_of(sample), deque())
        if not line or _id(line[0]) != _id(sample):
            # another one of its batch may be before it
            line.append(sample)
        if _id(line[0]) == _id(sample):
            self._plan(sample, now + pause)
        return failures == 1 and not self._ordered

    def wait(self, now: float) -> float | None:
        return max(0.0, self._due[0][0] - now) if self._due else None

    def take(self, now: float) -> Sample | None:
        return self._lines[heappop(self._due)[2]][0] if self._due and self._due[0][0] <= now else None

    def forget(self, sample: Sample) -> None:
        """Finish with a sample; the next one of its line is due at once."""
        self._failures.pop(_id(sample), None)
        line = self._lines.get(self._line_of(sample))
        if line and _id(line[0]) == _id(sample):
            line.popleft()
            if line:
                self._plan(line[0], 0.0)
            else:
                del self._lines[self._line_of(sample)]

    def _line_of(self, sample: Sample) -> Hashable:
        return sample.publisher if self._ordered else _id(sample)

    def _plan(self, sample: Sample, at: float) -> None:
        heappush(self._due, (at, next(self._order), self._line_of(sample)))


class OpenOffsets:
    """The offsets of messages to be read again: after a restart, or because they were dropped to make room."""

    def __init__(self) -> None:
        # by partition and offset
        self._open: dict[int, dict[int, tuple[str, int]]] = {}
        # by writer: the first and the last number that were dropped, and the first offset by partition
        self._dropped: dict[str, tuple[int, int, dict[int, int]]] = {}

    def add(self, sample: Sample) -> None:
        self._open.setdefault(sample.partition, {})[sample.offset] = (sample.publisher, sample.seq)

    def drop(self, writer: str, dropped: Iterable[Sample]) -> None:
        """Note messages of a writer that were dropped; they are remembered as one range."""
        first, last, offsets = self._dropped.get(writer, (MAX_NUMBER, 0, {}))
        for sample in dropped:
            first, last = min(first, sample.seq), max(last, sample.seq)
            offsets[sample.partition] = min(sample.offset, offsets.get(sample.partition, sample.offset))
            self._open.get(sample.partition, {}).pop(sample.offset, None)
        self._dropped[writer] = (first, last, offsets)

    def take_dropped(self, missing: Mapping[str, int]) -> dict[int, int]:
        """Return by partition where to read again, by the first missing number of each writer, if it was dropped."""
        found: dict[int, int] = {}
        for writer, number in missing.items():
            first, last, offsets = self._dropped.get(writer, (MAX_NUMBER, 0, {}))
            for partition, offset in offsets.items() if first <= number <= last else ():
                found[partition] = min(offset, found.get(partition, offset))
        for writer, (first, last, offsets) in list(self._dropped.items()):
            # samples of others that were dropped after these offsets are read again, too
            rest = {part: offset for part, offset in offsets.items() if part not in found or offset < found[part]}
            self._dropped[writer] = (first, last, rest)
            if not rest:
                del self._dropped[writer]
        return found

    def first(
        self, partition: int, position: int, reports: Mapping[str, AckReports], arrived: Mapping[str, ReorderBuffer]
    ) -> int:
        """Return the first offset of a partition to be read again; ``position`` is read next anyway."""
        self._open[partition] = {
            offset: (writer, seq)
            for offset, (writer, seq) in self._open.get(partition, {}).items()
            if writer not in reports or not reports[writer].settled(seq)
        }
        self._dropped = {
            writer: (first, last, offsets)
            for writer, (first, last, offsets) in self._dropped.items()
            if not arrived[writer].has_passed(last)
        }
        dropped = [offsets[partition] for _, _, offsets in self._dropped.values() if partition in offsets]
        return min([position, *self._open[partition], *dropped])


class TimeBasedFilter:
    """Passes one sample of each instance per ``separation_ms``, by the broker's times: by when they were published.

    As in Connext the samples between are dropped, the last one of a burst too. Where one writer of an instance is read
    later than another, its samples from before the last one that passed all pass.
    """

    def __init__(self, separation_ms: int) -> None:
        """Pass everything if the separation is 0."""
        self._separation = separation_ms
        # by instance the time of the last one that passed
        self._passed: dict[Instance, int] = {}
        self._prune_at = FEW_INSTANCES

    def passes(self, sample: Sample) -> bool:
        if not self._separation:
            return True
        instance, now = instance_of(sample), sample.timestamp_ms
        last = self._passed.get(instance)
        if last is not None and abs(now - last) < self._separation:
            return False
        self._passed[instance] = now if last is None else max(now, last)
        if len(self._passed) > self._prune_at:
            # those long past pass without being remembered
            self._passed = {known: at for known, at in self._passed.items() if at > now - self._separation}
            self._prune_at = max(FEW_INSTANCES, 2 * len(self._passed))
        return True


def instance_of(sample: Sample) -> Instance:
    return sample.topic, sample.key


def _id(sample: Sample) -> SampleId:
    return sample.publisher, sample.seq
