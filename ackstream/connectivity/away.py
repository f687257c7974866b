"""Which message the other system never accepts while it accepts others: it would hold back all behind it for ever."""

from __future__ import annotations

import threading
from collections import Counter

ROUNDS = 20
"""How often in a row a message may fail alone: with the pauses in between some ten minutes, in which a full queue gets
room again."""

Place = tuple[str, int, int, str]
"""A message to a target: topic, partition and offset of its signal, and the address."""


class AloneAway:
    """Counts the rounds in which a message failed, and then one to the same address was accepted. Thread-safe.

    A round is the time of one worker, which ends with the first message that fails. Others are in flight with it: what
    becomes of them shows whether the other system is away, or only does not take this message. Only the address can
    tell: another one may be a queue that is not full.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rounds: Counter[Place] = Counter()
        # of this round: what failed, by address, and what failed alone
        self._failed: dict[str, list[Place]] = {}
        self._alone: set[Place] = set()

    def begin(self) -> None:
        """Begin a round."""
        with self._lock:
            failed = {place for places in self._failed.values() for place in places}
            counts = {place: self._rounds[place] + (place in self._alone) for place in failed | self._alone}
            self._rounds = Counter(counts)
            self._failed.clear()
            self._alone.clear()

    def failed(self, place: Place) -> bool:
        """Note that a message failed; return whether it has failed alone too often."""
        with self._lock:
            self._failed.setdefault(place[3], []).append(place)
            return self._rounds[place] >= ROUNDS

    def accepted(self, place: Place) -> None:
        """Note that a message was accepted."""
        with self._lock:
            self._alone.update(self._failed.pop(place[3], ()))
