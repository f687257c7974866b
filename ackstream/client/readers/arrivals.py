"""One writer's samples on their way to the application: each once, in the writer's order, and only what is stored.

A message in Kafka may still be refused, so that it waits for the topic ``stored`` to name it; what ``stored`` names may
not be there yet, or be in the table alone. Pure; rules: brokers.md R7, S19, 4 rule 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.protocol.intervals import Interval
    from ackstream.protocol.readers import KnownWriter, ReaderState


T = TypeVar("T")


class Arrivals(Generic[T]):
    """What has come of a writer, and what may be handed on.

    Use: :meth:`begin`, :meth:`arrive` and :meth:`decide` as the topics bring it, then hand on what is :meth:`ready`;
    fetch what is :meth:`missing`, or :meth:`pass_over` it.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        # stored or refused, as far as is known
        self._decided = Intervals(start=0)
        # handed on, or not to be handed on
        self._over = Intervals(start=0)
        self._held: dict[int, T] = {}

    def __len__(self) -> int:
        """Return how many samples are held."""
        return len(self._held)

    def begin(self, written: int, undelivered: Iterable[Interval] = ()) -> None:
        """Want only ``undelivered`` of the samples up to ``written``, which are stored."""
        self._decided.add(0, written)
        position = 0
        for first, last in [*undelivered, (written + 1, written + 1)]:
            if position < first:
                self.pass_over(position, first - 1)
            position = last + 1

    def arrive(self, seq: int, sample: T) -> bool:
        """Hold a sample; ``False`` for a copy, and for what is not wanted."""
        if seq in self._held or seq in self._over:
            return False
        self._held[seq] = sample
        return True

    def decide(self, first: int, last: int, refused: Iterable[Interval] = ()) -> None:
        """Take what is stored; the runs ``refused`` of it are no samples. Saying it again changes nothing."""
        self._decided.add(first, last)
        for run in refused:
            self.pass_over(*run)

    def pass_over(self, first: int, last: int) -> None:
        """Note that these are not to be handed on."""
        for low, high in self._over.add(first, last):
            for seq in [seq for seq in self._held if low <= seq <= high]:
                del self._held[seq]

    def ready(self) -> Iterator[T]:
        """Yield what may be handed on now, which is done with it."""
        while (seq := self._over.first_hole) <= self._decided.watermark and seq in self._held:
            self._over.add(seq)
            yield self._held.pop(seq)

    def missing(self) -> list[Interval]:
        """Return the runs that are stored and wanted, but have not come; what came behind them waits for them."""
        first, last = self._over.first_hole, self._decided.watermark
        if first > last or first in self._held:
            return []
        known = Intervals(self._over, start=self._over.start)
        known.merge((seq, seq) for seq in self._held)
        return known.missing(first, last)

    def forget(self) -> int:
        """Let go of what is held and not known to be stored, and return how much that was; it may be fetched later."""
        kept = {seq: sample for seq, sample in self._held.items() if seq <= self._decided.watermark}
        count, self._held = len(self._held) - len(kept), kept
        return count


# -- The answers of all shards to a reader's start.


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
