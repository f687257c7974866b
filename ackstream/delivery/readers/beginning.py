"""The answers of all shards to a reader's start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.protocol.app_acks import KnownWriter, ReaderState


class Beginning:
    """Collects the :class:`ReaderState` records of one start. Of two answers of a shard the later one counts."""

    def __init__(self) -> None:
        """Begin with none."""
        self._answers: dict[int, dict[int, ReaderState]] = {}

    def add(self, state: ReaderState) -> None:
        """Take a record."""
        parts = self._answers.setdefault(state.shard, {})
        if any((part.as_of, part.parts) != (state.as_of, state.parts) for part in parts.values()):
            parts.clear()
        parts[state.part] = state

    @property
    def complete(self) -> bool:
        """Whether every part of every shard is there."""
        shards = next((state.shards for state in self._states()), None)
        return shards is not None and all(
            any(len(parts) == part.parts for part in parts.values())
            for parts in (self._answers.get(shard, {}) for shard in range(shards))
        )

    @property
    def as_of(self) -> int:
        """From when on the topic ``stored`` is to be read."""
        return min(state.as_of for state in self._states())

    @property
    def lease_ms(self) -> int:
        """How long the reader may be silent."""
        return min(state.lease_ms for state in self._states())

    @property
    def writers(self) -> list[KnownWriter]:
        """What there is to know of the writers, of each one record: those with many runs come in several."""
        found: dict[str, KnownWriter] = {}
        for known in (writer for state in self._states() for writer in state.writers):
            before = found.get(known.writer)
            found[known.writer] = known if before is None else _joined(before, known)
        return list(found.values())

    def _states(self) -> Iterator[ReaderState]:
        for parts in self._answers.values():
            yield from parts.values()


def _joined(one: KnownWriter, other: KnownWriter) -> KnownWriter:
    return msgspec.structs.replace(
        one,
        acknowledged=tuple(sorted(one.acknowledged + other.acknowledged)),
        undelivered=tuple(sorted(one.undelivered + other.undelivered)),
    )
