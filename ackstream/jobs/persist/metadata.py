"""The metadata of a batch of messages (everything but their values), record by record or in runs."""

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


class MessageMetadata(msgspec.Struct, frozen=True, gc=False):
    """The coordinates, size and headers of a record; ``timestamp`` is the broker's, in epoch milliseconds."""

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

    first: MessageMetadata
    numbers: range
    total: int
    """Bytes of all."""
    largest: int
    """Bytes of the largest."""
    newest: int
    """The latest of their timestamps."""
    members: Callable[[], list[MessageMetadata]]
    """Returns them one by one."""


def milliseconds(text: str | None) -> int | None:
    """Read a duration in milliseconds, with or without its unit."""
    return read_number((text or "").removesuffix("ms"))


Integers: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.integer]]"
Booleans: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"

NUMBER = r"^(\d{1,18}|[1-8]\d{18})$"
"""Matches only what certainly fits 64 bits."""


@dataclass(frozen=True)
class MetadataTable:
    """An Arrow table with the fields of :class:`MessageMetadata`, ordered by client, partition and offset.

    Iterating finds the runs in it: most messages equal the one before but for the next number.
    """

    table: pa.Table

    @classmethod
    def of(cls, table: pa.Table) -> MetadataTable:
        """Order a table."""
        order = [("client", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
        return cls(table.sort_by(order).combine_chunks())

    def __iter__(self) -> Iterator[MessageMetadata | MessageRun]:
        """Iterate over single messages and runs; those of one client in the order of their offsets."""
        if not self.table.num_rows:
            return
        numbers = self._numbers()
        starts = np.flatnonzero(~self._continues(numbers))
        ends = np.append(starts[1:], self.table.num_rows)
        sizes, times = self._array("size"), self._array("timestamp")
        totals, largest = np.add.reduceat(sizes, starts), np.maximum.reduceat(sizes, starts)
        newest = np.maximum.reduceat(times, starts)
        for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            (message,) = self._messages(start, 1)
            if end - start == 1:
                yield message
                continue
            first = int(numbers[start])
            yield MessageRun(
                message,
                range(first, first + end - start),
                int(totals[index]),
                int(largest[index]),
                int(newest[index]),
                partial(self._messages, start, end - start),
            )

    def _continues(self, numbers: Integers) -> Booleans:
        """Return for each row whether it continues the run of the row before it."""
        plain: Booleans = numbers >= 0
        for name in ("command", "cid", "ttl"):
            plain &= self.table.column(name).is_null().to_numpy(zero_copy_only=False)
        continues: Booleans = plain.copy()
        continues[0] = False
        continues[1:] &= plain[:-1] & (numbers[1:] == numbers[:-1] + 1)
        days = self._array("timestamp") // DAY_MS
        for same in (*map(self._codes, ("client", "ack", "topic")), self._array("partition"), days):
            continues[1:] &= same[1:] == same[:-1]
        return continues

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

    def _array(self, name: str) -> Integers:
        found: Integers = self.table.column(name).to_numpy()
        return found

    def _messages(self, start: int, count: int) -> list[MessageMetadata]:
        columns = [column.to_pylist() for column in self.table.slice(start, count).columns]
        return [MessageMetadata(*row) for row in zip(*columns, strict=True)]
