"""Correlation-ids that are free: the service takes a repeated one for a retry, web clients use theirs again."""

from __future__ import annotations

from collections import OrderedDict


class CorrelationIds:
    """Hands out ids; one that was used a moment ago gets a suffix ``#0``, ``#1`` and so on, as in Ditto.

    Time is seconds of any clock that only goes forward.
    """

    def __init__(self, seconds: float) -> None:
        """Remember an id for so long: as the service does."""
        self._seconds = seconds
        self._used: OrderedDict[str, float] = OrderedDict()
        self._suffixes: dict[str, int] = {}

    def free(self, wanted: str, now: float) -> str:
        """Return the id itself, or with a suffix, and remember it."""
        while self._used and next(iter(self._used.values())) <= now:
            self._suffixes.pop(self._used.popitem(last=False)[0], None)
        found = wanted
        while found in self._used:
            number = self._suffixes.get(wanted, 0)
            self._suffixes[wanted] = number + 1
            found = f"{wanted}#{number}"
        self._used[found] = now + self._seconds
        return found
