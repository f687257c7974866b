"""Which readers of a shard are present, by their records and the records' timestamps alone.

A reader that was silent for longer than its lease left when the lease ended, whether the watermark or its own next
record reveals that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.protocol.patterns import matches_any

if TYPE_CHECKING:
    from collections.abc import Iterator

NEVER = 2**63 - 1
"""Later than every timestamp."""


class Presence(msgspec.Struct, array_like=True):
    """What is known of one reader.

    :ivar seen: the timestamp of its last record, epoch milliseconds
    :ivar writers: patterns of the writers it reads; empty if it never sent a start record
    """

    epoch: int
    role: str | None
    seen: int
    durable: bool = False
    writers: tuple[str, ...] = ()
    present: bool = True

    def reads(self, writer: str) -> bool:
        """Return whether it reads a writer's samples."""
        return matches_any(self.writers, writer)


class ReaderPresences:
    """The readers of a shard, by name."""

    def __init__(self, lease_ms: int, memory_ms: int, known: dict[str, Presence] | None = None) -> None:
        """Begin empty, or with a saved state.

        :param lease_ms: how long a plain reader may be silent before it counts as gone
        :param memory_ms: how long a reader may be silent before it is forgotten
        """
        self._lease_ms = lease_ms
        self._memory_ms = memory_ms
        self.known = {} if known is None else known

    def is_stale(self, reader: str, epoch: int) -> bool:
        """Return whether a later epoch of a reader is known."""
        known = self.known.get(reader)
        return known is not None and epoch < known.epoch

    def of(self, writer: str) -> Iterator[tuple[str, Presence]]:
        """Yield the present readers of a writer's samples."""
        for name, reader in self.known.items():
            if reader.present and reader.reads(writer):
                yield name, reader

    def lapsed(self, now: int, *names: str) -> list[str]:
        """Return the present readers, of the named or of all, whose lease ended before a time."""
        return [name for name, reader in self._find(names) if reader.present and self._end(reader) < now]

    def forgotten(self, now: int, *names: str) -> list[str]:
        """Return the absent readers, of the named or of all, whose memory ended before a time."""
        return [name for name, reader in self._find(names) if not reader.present and self._end(reader) < now]

    @property
    def deadline(self) -> int | None:
        """The time after which :meth:`lapsed` or :meth:`forgotten` next finds a reader."""
        ends = [self._end(reader) for reader in self.known.values() if not (reader.present and reader.durable)]
        return min(ends, default=None)

    def _find(self, names: tuple[str, ...]) -> list[tuple[str, Presence]]:
        if not names:
            return list(self.known.items())
        return [(name, self.known[name]) for name in names if name in self.known]

    def _end(self, reader: Presence) -> int:
        if reader.present:
            return NEVER if reader.durable else reader.seen + self._lease_ms
        return reader.seen + self._memory_ms
