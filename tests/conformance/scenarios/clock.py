"""An ideal clock: what is planned happens at its time, in the order it was planned; nothing takes time."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """Milliseconds from the scenario's start."""

    def __init__(self) -> None:
        self.now = 0
        self._plans: list[tuple[int, int, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time: int, act: Callable[[], None], rank: int = 0) -> None:
        """Plan something; what has a lower rank comes first at its time."""
        heapq.heappush(self._plans, (max(time, self.now), rank, next(self._order), act))

    def run(self, until: int | None = None) -> None:
        """Let everything happen that is planned, and what is planned by that; at most to a time (included)."""
        while self._plans and (until is None or self._plans[0][0] <= until):
            self.now, _, _, act = heapq.heappop(self._plans)
            act()
