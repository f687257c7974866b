"""The figures from the replies of any contender: right or wrong, rate, time to recover."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.json import decode

from benchmarks.progress import percentiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.workload import Workload

TARDY = 2.0
"""A reply after a kill is late if it took this many times the p95 of those before it, or longer than
:data:`TARDY_SECONDS` more."""
TARDY_SECONDS = 0.5


class Verdicts:
    """Counts replies: right, wrong, repeated, contradicted by a repeat."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._numbers = {key.encode(): number for number, key in enumerate(workload.ids)}
        self._seen: dict[int, int] = {}
        self.counts: Counter[str] = Counter()

    def take(self, key: bytes, completed_by: bytes, value: bytes) -> int | None:
        """Count a reply; return its request's number if it is the first."""
        number = self._numbers.get(key)
        if number is None:
            self.counts["unknown"] += 1
            return None
        found = hash((completed_by, value))
        if number in self._seen:
            self.counts["repeated" if self._seen[number] == found else "contradicted"] += 1
            return None
        self._seen[number] = found
        self.counts[completed_by.decode()] += 1
        right = completed_by.decode() == self._workload.completed_by(number)
        if not right or decode(value) != self._workload.reply(number):
            self.counts["wrong"] += 1
        return number

    @property
    def answered(self) -> int:
        """How many requests have a reply."""
        return len(self._seen)

    @property
    def right(self) -> bool:
        """Whether each request has its reply, and no other."""
        wrong = self.counts.keys() & {"unknown", "contradicted", "wrong"}
        return self.answered == self._workload.requests and not wrong


def slope(times: Sequence[float]) -> float:
    """Return events a second by least squares: those that come in batches count as those that come evenly."""
    numbers = np.arange(len(times), dtype=float)
    moments = np.asarray(times) - times[0]
    return float(np.polyfit(moments, numbers, 1)[0])


def recovery(replies: Iterable[tuple[float, float]], killed: float) -> dict[str, Any]:
    """Return how long a kill has an effect.

    :param replies: (when it could have come at the earliest, when it came) of each reply
    :returns: seconds of the longest silence that began or lasted after the kill, and from the kill until the last late
        reply
    """
    found = sorted(replies, key=lambda pair: pair[1])
    before = [came - due for due, came in found if came < killed]
    usual = percentiles(before)["p95"] or 0.0
    limit = max(TARDY * usual, usual + TARDY_SECONDS)
    came = [pair[1] for pair in found]
    after = came[max(bisect_left(came, killed) - 1, 0) :]
    silences = [later - earlier for earlier, later in pairwise(after)]
    late = [came - killed for due, came in found if came > killed and came - due > limit]
    return {"silent": max(silences, default=None), "caught_up": max(late, default=0.0), "late_beyond": limit}
