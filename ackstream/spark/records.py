"""The records of a batch: their order, the net around each (:func:`guarded`), and the memory that they may take.

A shard's memory has a budget: its :class:`Share` of a batch comes in parts, in order; records that wait for later
batches, on a :class:`Shelf`, are put aside in pieces. Spark delivers the partitions of a batch in any order, and a
broker's clock may be set back. So the time of a record is the latest up to it in its partition: sorting by it never
reorders a partition, and a batch that is cut in two yields each partition's records in the same order.
"""

import heapq
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain, pairwise
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from ackstream.spark.pieces import Numbers, PieceEntry, PieceList, Pieces, PieceStore, Place, by_time

Outputs = Sequence[list[Any]]

R = TypeVar("R")
BUDGET = 32 * 1024 * 1024
"""Maximum bytes that a shard processes, hands over, or puts aside at once; it keeps up to twice as many in memory."""
RECORD_BYTES = 256
"""The bytes of a record in memory beside its value."""
COORDINATES = attrgetter("timestamp", "source", "partition", "offset")
"""The time of a record in epoch milliseconds, numbers that name its partition, and its offset there."""

LOOKS = 2
"""Ticks in a lease that settle and queues request. If more time passes between two of them (in queues, and in query,
which has no ticks, also between records), no client could write: the excess does not count as silence."""


def in_order(records: Sequence[R], coordinates: Callable[[R], tuple[Any, ...]] = COORDINATES) -> Sequence[R]:
    """Sort records by their coordinates: the time first, the offset last, and the partition in between."""
    if len(records) < 2:  # noqa: PLR2004 - nothing to sort
        return records
    return [records[index] for index in _sort(records, coordinates)[0].tolist()]


def timed(records: Sequence[R], coordinates: Callable[[R], tuple[int, ...]] = COORDINATES) -> list[tuple[int, R]]:
    """Sort as :func:`in_order` does; return each record with its time in that order."""
    if not records:
        return []
    order, times = _sort(records, coordinates)
    return [(time, records[index]) for index, time in zip(order.tolist(), times.tolist(), strict=True)]


def guarded(
    record: R, decide: Callable[[R], object], refuse: Callable[[R, Exception], object], outputs: Outputs = ()
) -> None:
    """Decide a record; if that fails, remove its output and refuse the record. No record stops a job.

    :param decide: appends to ``outputs``, which alone are rolled back: it must compute all that can fail before it
        changes any state
    :param refuse: makes a dead letter (or a row or an answer in its place). An error of the protocol is the reason; any
        other error is a defect, which is logged
    """
    lengths = [*map(len, outputs)]
    try:
        decide(record)
    except Exception as error:  # noqa: BLE001 - the batch would fail, and every later start with it
        for output, length in zip(outputs, lengths, strict=True):
            del output[length:]
        refuse(record, error)


def excused(before: int, now: int, lease: int, since: int = 0) -> int:
    """Return the time after ``since`` that is not silence in a lease: no record came from ``before`` to ``now``."""
    return max(0, now - max(before + lease // LOOKS, since))


def read_state(state: type[R], own: int, version: int, blob: bytes, *, oldest: int | None = None) -> R:
    """Decode the blob of a shard's state. Raises ValueError for another version than ``oldest`` to ``own``."""
    if not (own if oldest is None else oldest) <= version <= own:
        raise ValueError(f"The state has version {version}; this release reads version {own}.")
    return msgspec.msgpack.decode(blob, type=state)


class Share(Generic[R]):
    """A shard's records of a batch, in order (:func:`in_order`), in parts of about :data:`BUDGET`.

    Spark hands them over by shard alone, and a sort that has spilled mixes the records of a partition. So all are read
    before the first is processed; those beyond twice the budget wait in a temporary file.
    """

    def __init__(self, records: Sequence[R] = (), size: int = 0) -> None:
        """Begin with records; ``size``: the bytes of their values."""
        self._records: list[R] = []
        self._size = 0
        self._places: list[tuple[int, ...]] = []
        self._file: Any = None
        # there is one part
        self.whole = True
        self.add(records, size)

    def add(self, records: Sequence[R], size: int) -> None:
        """Add records, whose values have ``size`` bytes."""
        self._records += records
        self._size += size + RECORD_BYTES * len(records)
        if self._size > 2 * BUDGET:
            self._put_aside()

    def __iter__(self) -> Iterator[Sequence[R]]:
        """Yield the parts, one at least; records that are added meanwhile may be missing."""
        if self._file is None:
            yield in_order(self._records)
            return
        self._put_aside()
        self._file.flush()
        part: list[R] = []
        size = 0
        for *_, start, length in in_order(self._places, itemgetter(slice(-2))):
            part.append(pickle.loads(os.pread(self._file.fileno(), length, start)))  # noqa: S301 - written below
            size += length + RECORD_BYTES
            if size > BUDGET:
                yield part
                part, size = [], 0
        yield part

    def _put_aside(self) -> None:
        if self._file is None:
            directory = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - it goes with the last reference
            self.whole = False
        for record in self._records:
            data = pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
            self._places.append((*COORDINATES(record), self._file.tell(), len(data)))
            self._file.write(data)
        self._records, self._size = [], 0


_NONE = np.array([], np.int64)


class Shelved(msgspec.Struct, array_like=True):
    """The entries of a shelf in a state: those that were added last, and the pieces with the others."""

    entries: list[PieceEntry] = []
    pieces: PieceList = msgspec.field(default_factory=PieceList)

    def __bool__(self) -> bool:
        return bool(self.entries or self.pieces.named or self.pieces.dropped)


class Shelf:
    """Entries that wait for a record with their hash, or for their time; all but the latest are in pieces."""

    def __init__(self, store: PieceStore | None = None, shelved: Shelved | None = None) -> None:
        """Continue with the result of :meth:`dump`; without a store all entries stay in the state."""
        shelved = Shelved() if shelved is None else shelved
        self._store = store
        self._pieces = Pieces(store, shelved.pieces)
        self._hot: dict[int, list[PieceEntry]] = {}
        self._hashes = _NONE
        self._places: dict[int, list[Place]] = {}
        self.add(shelved.entries)

    def __len__(self) -> int:
        return sum(map(len, self._hot.values())) + len(self._pieces)

    def add(self, entries: Iterable[PieceEntry]) -> None:
        """Append entries."""
        hot = self._hot
        for entry in entries:
            if (found := hot.get(entry.hash)) is None:
                hot[entry.hash] = [entry]
            else:
                found.append(entry)

    def look_up(self, hashes: Numbers) -> None:
        """Find the entries with these hashes; :meth:`take` accepts only these."""
        self._hashes = hashes
        self._places = self._pieces.find(hashes)

    def take(self, hash: int) -> Sequence[PieceEntry]:  # noqa: A002 - an entry's field
        """Remove and return the entries with a hash that was looked up."""
        hot = self._hot.pop(hash, ())
        if hash not in self._places:
            return hot
        return [*hot, *self._pieces.take(self._places.pop(hash))]

    def due(self, before: int) -> Iterator[PieceEntry]:
        """Remove and yield the entries with an earlier time, in their order; meanwhile none of them may be taken."""
        hot = sorted((entry for own in self._hot.values() for entry in own if entry.time < before), key=by_time)
        if hot:
            kept = [entry for own in self._hot.values() for entry in own if entry.time >= before]
            self._hot = {}
            self.add(kept)
        return heapq.merge(hot, self._pieces.due(before), key=by_time)

    def trim(self, limit: int) -> None:
        """Put the oldest entries aside if those in the state have more bytes than a limit; half as many stay."""
        size = sum(len(entry.body) for entry in chain.from_iterable(self._hot.values()))
        if self._store is None or size <= limit:
            return
        aside: list[PieceEntry] = []
        for found in list(self._hot):
            if size <= limit // 2:
                break
            entries = self._hot.pop(found)
            size -= sum(len(entry.body) for entry in entries)
            aside += entries
        self._pieces.add(aside)
        self.look_up(self._hashes)

    @property
    def next_time(self) -> int | None:
        """A lower bound for the times of the entries; ``None`` without entries."""
        first = min(map(attrgetter("time"), chain.from_iterable(self._hot.values())), default=None)
        return min((time for time in (first, self._pieces.next_time) if time is not None), default=None)

    def first(self, few: int) -> Iterator[PieceEntry]:
        """Yield the entry with the earliest time of each piece and of the state, whose entries are all, if ``few``."""
        hot = list(chain.from_iterable(self._hot.values()))
        yield from hot if len(hot) <= few else [min(hot, key=by_time)]
        yield from self._pieces.first()

    def entries(self) -> list[PieceEntry]:
        """Return all entries, without removing them."""
        return [*chain.from_iterable(self._hot.values()), *self._pieces.entries()]

    def dump(self, limit: int) -> Shelved:
        """Return the entries for a state, after those beyond a limit have been put aside (see :meth:`trim`)."""
        self._hashes = _NONE
        self.trim(limit)
        return Shelved(list(chain.from_iterable(self._hot.values())), self._pieces.dump())


def _sort(records: Sequence[R], coordinates: Callable[[R], tuple[int, ...]]) -> tuple[Numbers, Numbers]:
    """Return the indices of the records in order, and their times in that order."""
    # a tenth of a microsecond per record; an array of the tuples takes a third more
    flat = np.fromiter(chain.from_iterable(map(coordinates, records)), np.int64)
    times, *numbers, offsets = flat.reshape(len(records), -1).T
    partitions = reduce(lambda name, number: name << 32 | number, numbers)
    by_partition = np.lexsort((offsets, partitions))
    ordered, sorted_partitions = times[by_partition], partitions[by_partition]
    same = sorted_partitions[1:] == sorted_partitions[:-1]
    if np.any(same & (ordered[1:] < ordered[:-1])):
        bounds = [0, *(np.flatnonzero(~same) + 1).tolist(), len(ordered)]
        for start, end in pairwise(bounds):
            ordered[start:end] = np.maximum.accumulate(ordered[start:end])
    # stable: records of one time stay sorted by partition and offset
    order = np.argsort(ordered, kind="stable")
    return by_partition[order], ordered[order]
