"""One writer's samples on their way to the application: each once, in the writer's order, and only what is stored.

A message in Kafka may still be refused, so that it waits for the topic ``stored`` to name it; what ``stored`` names may
not be there yet, or be in the table alone. Pure; rules: brokers.md R7, S19, 4 rule 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.protocol.intervals import Interval

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
