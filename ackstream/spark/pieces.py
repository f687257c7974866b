"""Entries of a shard that no batch touches, in immutable files beside the checkpoint.

Spark passes a shard's whole state to Python and back in each batch, but a batch should cost only the entries it
touches. So a shard keeps the entries that were touched last in its state, and the others in pieces, with an index by
hash and one by time. Entries that a batch looks up, or that are due, return to the state, which marks them. A piece is
written before the state that names it, and its name derives from its content: a repeated batch writes the same file. It
is deleted when no state that could still be read names it.
"""

from __future__ import annotations

import hashlib
import heapq
import mmap
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ackstream.local.machine import make_directory, write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = bytearray

_DIRECTORY = "pieces"
"""The directory in a checkpoint with a directory for each shard."""

LARGEST = 32 * 1024 * 1024
"""Bytes: a larger piece is rewritten only when most of its entries are gone."""

RETAINED = "spark.sql.streaming.minBatchesToRetain"
_OPEN_FILES = 64
"""Open files of a worker. The space of a deleted file is free once no worker has it mapped."""
_MAPPED_ENTRIES = 512
"""Entries mapped at a time: Linux maps 64 kB for each that is read, 32 MB for all."""
_INT, _NUMBERS = 8, 4
"""The bytes of a number, and the numbers in a piece for each entry."""


class PieceEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of a piece: ``body`` is found by ``hash``, and once its ``time`` (epoch milliseconds) has come.

    The ``body`` of an entry that comes from a piece is a view of the file, whose bytes are not in memory yet.
    """

    hash: int
    time: int
    body: bytes


def by_time(entry: PieceEntry) -> tuple[int, int, bytes]:
    """Return the sort key of due entries; the body of a record begins with its coordinates."""
    return entry.time, entry.hash, bytes(entry.body)


class Piece:
    """The content of a file: hashes in order, with each hash a time and a body, and the order of the times."""

    def __init__(self, data: memoryview) -> None:
        """Read the output of :func:`encode`; raise a ValueError if it is cut off."""
        self.count = count = int.from_bytes(data[:_INT], "little")
        bodies = _INT * (_NUMBERS * count + 2)
        if len(data) < bodies:
            raise ValueError("It is cut off.")
        numbers = np.frombuffer(data[_INT:bodies], np.int64)
        self.hashes, self.times, self._order = (numbers[part * count : (part + 1) * count] for part in range(3))
        self._starts = numbers[3 * count :]
        self._data = data
        self._bodies: Any = data[bodies:]
        if len(self._bodies) != self._starts[-1]:
            raise ValueError("It is cut off.")

    def release(self) -> None:
        """Give the pages of a mapped file that have been read back to the operating system."""
        if isinstance(self._data.obj, mmap.mmap):
            self._data.obj.madvise(mmap.MADV_DONTNEED)

    def find(self, hashes: Numbers) -> Numbers:
        """Return the indices of the entries with one of the hashes."""
        first, last = (np.searchsorted(self.hashes, hashes, side) for side in ("left", "right"))
        spans = np.flatnonzero(last > first).tolist()
        return np.array([index for span in spans for index in range(first[span], last[span])], np.int64)

    def due(self, passed: int, before: int) -> Numbers:
        """Return the indices of entries with an earlier time than ``before``, without the ``passed`` earliest."""
        return self._order[passed : int(np.searchsorted(self.times, before, sorter=self._order))]

    def first(self, passed: int, gone: Flags) -> Numbers:
        """Return the index of the remaining entry with the earliest time, after the ``passed`` earliest, if any."""
        order = self._order[passed:]
        return order[~np.frombuffer(gone, np.bool_)[order]][:1]

    def entries(self, indices: Numbers) -> Iterator[PieceEntry]:
        """Return entries by their indices."""
        columns = (self.hashes, self.times, self._starts[:-1], self._starts[1:])
        numbers = zip(*(column[indices].tolist() for column in columns), strict=True)
        return (PieceEntry(found, time, self._bodies[start:end]) for found, time, start, end in numbers)


def encode(entries: Iterable[PieceEntry]) -> bytes:
    """Return the content of a piece; the order of the entries does not matter."""
    ordered = sorted((entry.hash, entry.time, bytes(entry.body)) for entry in entries)
    hashes, times, bodies = zip(*ordered, strict=True)
    starts = np.zeros(len(ordered) + 1, np.int64)
    np.cumsum(list(map(len, bodies)), out=starts[1:])
    numbers = np.concatenate([hashes, times, np.argsort(times, kind="stable"), starts])
    return b"".join([len(ordered).to_bytes(_INT, "little"), numbers.tobytes(), *bodies])


class PieceStore:
    """The pieces of a shard in a directory of its own."""

    def __init__(self, directory: str, batch: int, keep: int) -> None:
        """Begin a batch; ``keep`` is the number of batches back to the oldest state that may be read again."""
        self.batch, self.keep = batch, keep
        self._directory = directory

    def write(self, data: bytes) -> str:
        """Keep a piece, unless it is kept as a whole; return its name, which derives from the batch and the content."""
        name = f"{max(self.batch, 0)}-{hashlib.blake2b(data, digest_size=12).hexdigest()}"
        path = Path(self._directory, name)
        if not path.exists() or path.stat().st_size != len(data):
            make_directory(path.parent)
            write_file(path, data)
        return name

    def within(self, name: str) -> PieceStore:
        """Return the store of other entries of the shard, in a directory of theirs."""
        return PieceStore(f"{self._directory}/{name}", self.batch, self.keep)

    def read(self, name: str) -> Piece:
        """Return a piece, mapped into memory; raise an OSError if it is missing or damaged."""
        return _mapped(f"{self._directory}/{name}")

    def clear(self, named: set[str]) -> None:
        """Delete the pieces that are older than ``keep`` batches and not named."""
        directory = Path(self._directory)
        for path in directory.iterdir() if directory.is_dir() else ():
            batch = path.name.partition("-")[0]
            if path.name not in named and batch.isdecimal() and int(batch) + self.keep < self.batch:
                path.unlink(missing_ok=True)


@lru_cache(_OPEN_FILES)
def _mapped(path: str) -> Piece:
    # files never change: a worker maps each once
    try:
        with Path(path).open("rb") as file:
            return Piece(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except (FileNotFoundError, ValueError) as error:
        raise OSError(
            f"The checkpoint is damaged: its file {path} is missing or cut off ({error}). Restore the checkpoint from"
            " one backup, or start with a new one."
        ) from error


class Aside(NamedTuple):
    """The location of a checkpoint's pieces; without a ``directory`` (no local disk), all entries stay in the state."""

    directory: str | None = None
    keep: int = 0

    @classmethod
    def of(cls, spark: SparkSession, location: str) -> Aside:
        """Return the location beside a checkpoint."""
        # shards also run without Spark
        from ackstream.spark.session import local_directory  # noqa: PLC0415

        # absolute: executors have their own working directory
        directory = local_directory(spark, f"{location}/{_DIRECTORY}")
        return cls() if directory is None else cls(str(directory), int(spark.conf.get(RETAINED)))

    def store(self, shard: Any, batch: int = 0) -> PieceStore | None:
        """Return the pieces of a shard; reading does not need the batch."""
        return None if self.directory is None else PieceStore(f"{self.directory}/{shard}", batch, self.keep)


class Reference(msgspec.Struct, array_like=True):
    """A piece in a state.

    :ivar size: of its content, in bytes
    :ivar count: the number of its entries
    :ivar live: the number of entries that have not returned to the state
    :ivar passed: the number of its earliest entries that have returned because their time has come
    :ivar next_time: a lower bound for the times of live entries, epoch milliseconds
    :ivar gone: a bit for each returned entry; empty without one
    """

    name: str
    size: int
    count: int
    live: int
    passed: int
    next_time: int
    gone: bytes = b""

    @property
    def live_size(self) -> int:
        """The estimated bytes of its live entries."""
        return self.size * self.live // max(self.count, 1)


Place = tuple["Reference", "Flags", int, PieceEntry]
"""An entry of a piece that a state names, with its index in the flags of those that have returned."""


class PieceList(msgspec.Struct, array_like=True):
    """The pieces that a state names, and those that it named before, each with the batch that dropped it."""

    named: list[Reference] = []
    dropped: list[tuple[int, str]] = []


class Pieces:
    """The entries that a shard has moved to pieces, for which it needs a store."""

    def __init__(self, store: PieceStore | None, kept: PieceList | None = None) -> None:
        """Continue with the result of :meth:`dump`; raise a ValueError for pieces without a store."""
        self._store = store
        self._kept = PieceList() if kept is None else kept
        self._added = False
        self._gone: dict[str, Flags] = {}
        if store is None and self._kept.named:
            raise ValueError("The state has pieces beside its checkpoint, which must be on a disk of this machine.")

    def __len__(self) -> int:
        return sum(reference.live for reference in self._kept.named)

    @property
    def next_time(self) -> int | None:
        """A lower bound for the times of the entries; ``None`` without entries."""
        return min((reference.next_time for reference in self._kept.named), default=None)

    def find(self, hashes: Numbers) -> dict[int, list[Place]]:
        """Return the places of the entries with these hashes; :meth:`add` may move entries."""
        found: dict[int, list[Place]] = {}
        for reference in self._kept.named:
            piece = self._read(reference)
            if len(indices := piece.find(hashes)):
                for place in self._places(reference, piece, indices):
                    found.setdefault(place[-1].hash, []).append(place)
        return found

    def _places(self, reference: Reference, piece: Piece, indices: Numbers) -> Iterator[Place]:
        return zip(repeat(reference), repeat(self._flags(reference)), indices.tolist(), piece.entries(indices))

    def take(self, places: Iterable[Place]) -> Iterator[PieceEntry]:
        """Return the entries at these places to the state, one by one; those that have returned are skipped."""
        for reference, gone, index, entry in places:
            if not gone[index]:
                gone[index] = True
                reference.live -= 1
                if not reference.live:
                    self._drop(reference)
                yield entry

    def due(self, before: int) -> Iterator[PieceEntry]:
        """Return the entries with an earlier time than ``before`` to the state, by time and hash, one by one."""
        named = [reference for reference in self._kept.named if reference.next_time < before]
        return heapq.merge(*(self._due(reference, before) for reference in named), key=by_time)

    def _due(self, reference: Reference, before: int) -> Iterator[PieceEntry]:
        piece = self._read(reference)
        # by time, and by index and so by hash where times are equal
        due = piece.due(reference.passed, before)
        for start in range(0, len(due), _MAPPED_ENTRIES):
            yield from self.take(self._places(reference, piece, due[start : start + _MAPPED_ENTRIES]))
            piece.release()
        reference.passed += len(due)
        # entries that returned earlier left their times in the piece
        for index in piece.first(reference.passed, self._flags(reference)):
            reference.next_time = int(piece.times[index])

    def first(self) -> Iterator[PieceEntry]:
        """Yield the entry with the earliest time of each piece; it stays there."""
        for reference in self._kept.named:
            piece = self._read(reference)
            yield from piece.entries(piece.first(reference.passed, self._flags(reference)))

    def entries(self) -> Iterator[PieceEntry]:
        """Yield all entries; they stay in the pieces."""
        for reference in self._kept.named:
            yield from self._live(reference)

    def _live(self, reference: Reference) -> Iterator[PieceEntry]:
        left = np.flatnonzero(~np.frombuffer(self._flags(reference), np.bool_))
        return self._read(reference).entries(left)

    def add(self, entries: Sequence[PieceEntry]) -> None:
        """Put entries aside, merged with pieces that are not much larger: pieces stay few, and are rarely rewritten."""
        found, size = list(entries), sum(len(entry.body) + _NUMBERS * _INT for entry in entries)
        for reference in sorted(self._kept.named, key=lambda reference: (reference.live_size, reference.name)):
            half_gone = 2 * reference.live < reference.count
            if (half_gone or reference.live_size <= 2 * size) and size + reference.live_size < LARGEST:
                found += self._live(reference)
                size += reference.live_size
                self._drop(reference)
        data = encode(found)
        earliest = min(entry.time for entry in found)
        name = self._where.write(data)
        # entries that have returned in this batch and are put aside again may have the name of their former piece
        self._gone.pop(name, None)
        self._kept.named.append(Reference(name, len(data), len(found), len(found), 0, earliest))
        self._added = True

    def dump(self) -> PieceList:
        """Return the list for the state; delete the pieces that no readable state names."""
        for reference in self._kept.named:
            gone = self._gone.get(reference.name)
            if gone is not None and reference.live < reference.count:
                reference.gone = np.packbits(np.frombuffer(gone, np.bool_)).tobytes()
        if self._store is not None:
            since = self._store.batch - self._store.keep
            recent = [(batch, name) for batch, name in self._kept.dropped if batch >= since]
            if self._added or len(recent) < len(self._kept.dropped):
                self._kept.dropped = recent
                self._store.clear({reference.name for reference in self._kept.named} | {name for _, name in recent})
        return self._kept

    def _flags(self, reference: Reference) -> Flags:
        """Return a flag for each entry, which :meth:`dump` writes: whether it has returned."""
        if reference.name not in self._gone:
            packed = np.frombuffer(reference.gone or bytes(-(-reference.count // 8)), np.uint8)
            self._gone[reference.name] = bytearray(np.unpackbits(packed, count=reference.count))
        return self._gone[reference.name]

    def _drop(self, reference: Reference) -> None:
        if reference in self._kept.named:
            self._kept.named.remove(reference)
            self._kept.dropped.append((self._where.batch, reference.name))

    def _read(self, reference: Reference) -> Piece:
        return self._where.read(reference.name)

    @property
    def _where(self) -> PieceStore:
        assert self._store is not None, "there are no pieces without a store"  # noqa: S101 - for the type alone
        return self._store
