"""Further places that must have a message before it counts as persisted (brokers.md 1.1 A12, A13).

Positions are those of the local log, whatever it is: a message's number, or a table's version. A destination reports up
to which position it has everything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from ackstream.publishing.conflation import Beat

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class AgeRule:
    """Every so often the age of the oldest message that a destination lacks is compared with ``age_ms``."""

    every_ms: int
    age_ms: int


class Change(NamedTuple):
    """A destination is waited for no longer, or again."""

    destination: str
    mode: Literal["sync", "async"]
    age_ms: int


class _Destination:
    def __init__(self) -> None:
        self.reported = 0
        self.waiting: deque[tuple[int, int]] = deque()

    def report(self, position: int) -> None:
        self.reported = max(self.reported, position)
        while self.waiting and self.waiting[0][0] <= self.reported:
            self.waiting.popleft()

    def age(self, now: int) -> int:
        return now - self.waiting[0][1] if self.waiting else 0


class Replication:
    """Which destinations are waited for, and up to where all of those have everything."""

    def __init__(
        self,
        sync: Iterable[str] = (),
        asynchronous: Iterable[str] = (),
        *,
        downgrade: AgeRule | None = None,
        upgrade: AgeRule | None = None,
    ) -> None:
        """Begin at position 0.

        :param downgrade: when a sync destination becomes async, so that what waits for it alone is persisted at once
        :param upgrade: when a downgraded one becomes sync again: its oldest lacking message is younger than that
        """
        self._destinations = {name: _Destination() for name in (*sync, *asynchronous)}
        self._configured = frozenset(sync)
        self._sync = set(self._configured)
        self._downgrade, self._upgrade = _Rule(downgrade), _Rule(upgrade)
        self._appended = 0

    @property
    def waiting(self) -> bool:
        """Whether a destination that is waited for lacks something."""
        return any(self._destinations[name].waiting for name in self._sync)

    @property
    def durable(self) -> int:
        """The position up to which every sync destination has everything."""
        return min((self._destinations[name].reported for name in self._sync), default=self._appended)

    def append(self, position: int, now: int) -> None:
        """Note that a message has come; positions rise."""
        self._appended = position
        for destination in self._destinations.values():
            destination.waiting.append((position, now))

    def report(self, name: str, position: int) -> None:
        """Take a destination's word that it has everything up to a position."""
        self._destinations[name].report(position)

    def check(self, now: int) -> list[Change]:
        """Apply the rules whose time has come; return what has changed."""
        downgrade, upgrade = self._downgrade.due(now), self._upgrade.due(now)
        changes = []
        for name in sorted(self._configured):
            age = self._destinations[name].age(now)
            if name in self._sync and downgrade is not None and age >= downgrade.age_ms:
                self._sync.remove(name)
                changes.append(Change(name, "async", age))
            elif name not in self._sync and upgrade is not None and age < upgrade.age_ms:
                self._sync.add(name)
                changes.append(Change(name, "sync", age))
        return changes


class _Rule:
    """A rule and its beat; without a rule nothing is ever due."""

    def __init__(self, rule: AgeRule | None) -> None:
        self._rule = rule
        self._beat = Beat(rule.every_ms if rule else 0)

    def due(self, now: int) -> AgeRule | None:
        return self._rule if self._beat.due(now) else None
