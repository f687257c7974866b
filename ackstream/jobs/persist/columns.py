"""What records of the messages topic say besides their values, one by one or in runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackstream.protocol.messages import read_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


DAY_MS = 86_400_000


class Fact(msgspec.Struct, frozen=True, gc=False):
    """What a record says besides its value; ``timestamp`` is the broker's, in epoch milliseconds."""

    partition: int
    offset: int
    timestamp: int
    size: int
    client: str | None
    seq: str | None = None
    command: str | None = None
    cid: str | None = None
    ack: str | None = None
    topic: str | None = None
    ttl: str | None = None
    first: str | None = None
    conflation: str | None = None


class MessageRun(NamedTuple):
    """Messages of one client with consecutive numbers that differ in nothing else that matters."""

    fact: Fact
    """The first one."""
    numbers: range
    total: int
    """Bytes of all."""
    largest: int
    """Bytes of the largest."""
    newest: int
    """The latest of their times."""
    members: Callable[[], list[Fact]]
    """Returns them one by one."""


def milliseconds(text: str | None) -> int | None:
    """Read a duration in milliseconds, with or without its unit."""
    return read_number((text or "").removesuffix("ms"))


# -- The facts of a batch in columns, and the runs in them: most messages are like the one before, one number on.


Integers: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.integer]]"
Booleans: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"

NUMBER = r"^(\d{1,18}|[1-8]\d{18})$"
"""What fits 64 bits for certain."""


@dataclass(frozen=True)
class Columns:
    """A table with the fields of :class:`Fact` as its columns, ordered by client, partition and offset."""

    table: pa.Table

    @classmethod
    def of(cls, table: pa.Table) -> Columns:
        """Order a table."""
        order = [("client", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
        return cls(table.sort_by(order).combine_chunks())

    def __iter__(self) -> Iterator[Fact | MessageRun]:
        """Iterate over the facts, those of a run at once; of each client in the order of its offsets."""
        if not self.table.num_rows:
            return
        numbers = self._numbers()
        starts = np.flatnonzero(~self._follows(numbers))
        ends = np.append(starts[1:], self.table.num_rows)
        sizes, times = self._array("size"), self._array("timestamp")
        totals, largest = np.add.reduceat(sizes, starts), np.maximum.reduceat(sizes, starts)
        newest = np.maximum.reduceat(times, starts)
        for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            if end - start == 1:
                yield from self._facts(start, 1)
                continue
            (fact,) = self._facts(start, 1)
            first = int(numbers[start])
            yield MessageRun(
                fact,
                range(first, first + end - start),
                int(totals[index]),
                int(largest[index]),
                int(newest[index]),
                partial(self._facts, start, end - start),
            )

    def _follows(self, numbers: Integers) -> Booleans:
        """Tell of each row whether it goes on where the row before it was."""
        plain: Booleans = numbers >= 0
        for name in ("command", "cid", "ttl"):
            plain &= self.table.column(name).is_null().to_numpy(zero_copy_only=False)
        follows: Booleans = plain.copy()
        follows[0] = False
        follows[1:] &= plain[:-1] & (numbers[1:] == numbers[:-1] + 1)
        for same in (*map(self._codes, ("client", "ack", "topic")), self._array("partition"), self._days()):
            follows[1:] &= same[1:] == same[:-1]
        return follows

    def _numbers(self) -> Integers:
        text = self.table.column("seq")
        valid = pc.fill_null(pc.match_substring_regex(text, NUMBER), False)  # noqa: FBT003 - Arrow's way
        numbers = pc.cast(pc.if_else(valid, text, None), pa.int64())
        found: Integers = pc.fill_null(numbers, -1).to_numpy()
        return found

    def _codes(self, name: str) -> Integers:
        encoded = self.table.column(name).combine_chunks().dictionary_encode()
        array = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        found: Integers = pc.fill_null(array.indices, -1).to_numpy()
        return found

    def _days(self) -> Integers:
        return self._array("timestamp") // DAY_MS

    def _array(self, name: str) -> Integers:
        found: Integers = self.table.column(name).to_numpy()
        return found

    def _facts(self, start: int, count: int) -> list[Fact]:
        columns = [column.to_pylist() for column in self.table.slice(start, count).columns]
        return [Fact(*row) for row in zip(*columns, strict=True)]
