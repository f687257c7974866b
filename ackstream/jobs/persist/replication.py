"""Further places that must have a message before it counts as persisted (brokers.md 1.1 A12, A13).

Positions are those of the local log, whatever it is: a message's number, or a count of batches. A destination reports
up to which position it has everything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from ackstream.jobs.persist.conflation import Beat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class AgeRule:
    """Every so often the age of the oldest message that a destination lacks is compared with ``age_ms``."""

    every_ms: int
    age_ms: int


@dataclass(frozen=True)
class AgeRules:
    """When a sync destination is waited for no longer, so that what waits for it alone is persisted at once.

    :ivar downgrade: it lacks a message as old as that
    :ivar upgrade: it is waited for again when all that it lacks is younger than that
    """

    downgrade: AgeRule | None = None
    upgrade: AgeRule | None = None


class DestinationChange(NamedTuple):
    """A destination is waited for no longer, or again; ``position``: up to where it has everything."""

    destination: str
    mode: Literal["sync", "async"]
    age_ms: int
    position: int


class _Destination:
    def __init__(self, rules: AgeRules) -> None:
        self.reported = 0
        self._waiting: deque[tuple[int, int]] = deque()
        self._downgrade, self._upgrade = _AgeRule(rules.downgrade), _AgeRule(rules.upgrade)
        self.sync = True

    @property
    def lacking(self) -> bool:
        return bool(self._waiting)

    def append(self, position: int, now: int) -> None:
        if position > self.reported:
            self._waiting.append((position, now))

    def report(self, position: int) -> None:
        self.reported = max(self.reported, position)
        while self._waiting and self._waiting[0][0] <= self.reported:
            self._waiting.popleft()

    def check(self, now: int) -> int | None:
        """Apply the rules whose time has come; return the age that has changed the mode."""
        downgrade, upgrade = self._downgrade.due(now), self._upgrade.due(now)
        age = now - self._waiting[0][1] if self._waiting else 0
        if self.sync:
            changes = downgrade is not None and age >= downgrade.age_ms
        else:
            changes = upgrade is not None and age < upgrade.age_ms
        self.sync ^= changes
        return age if changes else None


class Replication:
    """Which destinations are waited for, and up to where all of those have everything."""

    def __init__(self, sync: Mapping[str, AgeRules]) -> None:
        """Begin at position 0.

        :param sync: the destinations that are waited for, and the rules of each
        """
        self._destinations = {name: _Destination(rules) for name, rules in sync.items()}
        self._appended = 0

    @property
    def waiting(self) -> bool:
        """Whether a destination that is waited for lacks something."""
        return any(destination.lacking for destination in self._waited_for())

    @property
    def durable(self) -> int:
        """The position up to which every sync destination has everything."""
        return min((destination.reported for destination in self._waited_for()), default=self._appended)

    def append(self, position: int, now: int) -> None:
        """Note that a message has come; positions do not fall."""
        self._appended = position
        for destination in self._destinations.values():
            destination.append(position, now)

    def report(self, name: str, position: int) -> None:
        """Take a destination's word that it has everything up to a position; only sync ones matter."""
        if name in self._destinations:
            self._destinations[name].report(position)

    def check(self, now: int) -> list[DestinationChange]:
        """Apply the rules whose time has come; return what has changed."""
        return [
            DestinationChange(name, "sync" if destination.sync else "async", age, destination.reported)
            for name, destination in sorted(self._destinations.items())
            if (age := destination.check(now)) is not None
        ]

    def _waited_for(self) -> Iterable[_Destination]:
        return (destination for destination in self._destinations.values() if destination.sync)


class Backlog:
    """The batches of which something is told only when every sync destination has their messages.

    A batch that brought no messages waits for those before it, for no destination ever reports it.
    """

    def __init__(self, replication: Replication, *, told: int, stored: int) -> None:
        """Begin.

        :param told: the batch up to which everything is told
        :param stored: the newest batch that brought messages, -1 for none
        """
        self.told = told
        self._replication = replication
        self._stored = stored
        self._newest = told
        self._waiting: deque[tuple[int, int]] = deque()

    def add(self, batch: int, now: int, *, stored: bool = True) -> None:
        """Note a batch that is committed; one that runs again is known already.

        :param stored: whether it brought messages
        """
        if batch <= self._newest:
            return
        self._newest = batch
        if stored:
            self._stored = max(self._stored, batch)
        position = _position(min(batch, self._stored))
        self._waiting.append((batch, position))
        self._replication.append(position, now)

    def report(self, name: str, batch: int) -> None:
        """Take a destination's word that it has all messages up to a batch."""
        self._replication.report(name, _position(batch))

    def check(self, now: int) -> list[DestinationChange]:
        """Apply the rules whose time has come; positions of changes are batches."""
        return [change._replace(position=change.position - 1) for change in self._replication.check(now)]

    def ready(self, most: int) -> int:
        """Return the batch up to which everything may be told now.

        :param most: how many batches at once
        """
        durable = self._replication.durable
        found = self.told
        for batch, position in islice(self._waiting, most):
            if position > durable:
                break
            found = batch
        return found

    def confirm(self, batch: int) -> None:
        """Note that everything up to a batch is told."""
        self.told = batch
        while self._waiting and self._waiting[0][0] <= batch:
            self._waiting.popleft()


def _position(batch: int) -> int:
    """Count the batches up to one, the first of which is 0."""
    return batch + 1


class _AgeRule:
    """A rule and its beat; without a rule nothing is ever due."""

    def __init__(self, rule: AgeRule | None) -> None:
        self._rule = rule
        self._beat = Beat(rule.every_ms if rule else 0)

    def due(self, now: int) -> AgeRule | None:
        return self._rule if self._beat.due(now) else None
