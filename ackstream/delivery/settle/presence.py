"""Which readers are there: by what they say and when, in the time of the records alone.

A reader that was silent for longer than its lease had left when the lease was over, whenever that is noticed: by the
clock, or by the next thing it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.protocol.patterns import matches_any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Presence(msgspec.Struct, array_like=True):
    """What is known of one reader; ``seen`` in epoch milliseconds, the time of its last record.

    :ivar writers: patterns of the writers whose samples it reads; none where it never said that it begins
    """

    epoch: int
    role: str | None
    seen: int
    durable: bool = False
    writers: tuple[str, ...] = ()
    there: bool = True

    def reads(self, writer: str) -> bool:
        """Tell whether it reads a writer's samples."""
        return matches_any(self.writers, writer)


class Presences:
    """The readers of a shard."""

    def __init__(self, lease_ms: int, memory_ms: int, known: dict[str, Presence] | None = None) -> None:
        """Begin, or go on with what was ``known``."""
        self._lease_ms = lease_ms
        self._memory_ms = memory_ms
        self.known = {} if known is None else known

    def stale(self, reader: str, epoch: int) -> bool:
        """Tell whether a newer reader of this name has spoken."""
        known = self.known.get(reader)
        return known is not None and epoch < known.epoch

    def of(self, writer: str) -> Iterator[tuple[str, Presence]]:
        """Return the readers that are there and read a writer's samples."""
        for name, reader in self.known.items():
            if reader.there and reader.reads(writer):
                yield name, reader

    def lapsed(self, now: int, *names: str) -> list[str]:
        """Return who has left without a word before a time: of some readers, or of all."""
        return [name for name, reader in self._some(names) if reader.there and self._end(reader) < now]

    def forgotten(self, now: int, *names: str) -> list[str]:
        """Return who has been away for so long that its name means nothing any more: of some readers, or of all."""
        return [name for name, reader in self._some(names) if not reader.there and self._end(reader) < now]

    @property
    def deadline(self) -> int | None:
        """The time behind which :meth:`lapsed` or :meth:`forgotten` finds somebody."""
        ends = [self._end(reader) for reader in self.known.values() if not (reader.there and reader.durable)]
        return min(ends, default=None)

    def _some(self, names: tuple[str, ...]) -> list[tuple[str, Presence]]:
        if not names:
            return list(self.known.items())
        return [(name, self.known[name]) for name in names if name in self.known]

    def _end(self, reader: Presence) -> int:
        if reader.there:
            return _NEVER if reader.durable else reader.seen + self._lease_ms
        return reader.seen + self._memory_ms


_NEVER = 2**63 - 1
