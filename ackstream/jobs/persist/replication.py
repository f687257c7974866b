"""Tracking the destinations that must have a message before it counts as persisted (brokers.md 1.1 A12, A13).

Positions are those of the local log: a message's number, or a count of batches. A destination reports the position up
to which it has everything.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.settings import Destination


class DestinationChange(NamedTuple):
    """A destination is no longer waited for, or is again; ``position``: up to where it has everything."""

    destination: str
    mode: Literal["sync", "async"]
    age_ms: int
    position: int


class _SyncDestination:
    """What a destination lacks, and whether it is waited for."""

    def __init__(self, settings: Destination) -> None:
        self.reported = 0
        self.sync = True
        self._settings = settings
        self._waiting: deque[tuple[int, int]] = deque()
        self._checks = 0

    def append(self, position: int, now: int) -> None:
        if position > self.reported:
            self._waiting.append((position, now))

    def report(self, position: int) -> None:
        self.reported = max(self.reported, position)
        while self._waiting and self._waiting[0][0] <= self.reported:
            self._waiting.popleft()

    def check(self, now: int) -> int | None:
        """Compare ages once per check interval; return the age that changed the mode."""
        checks = now // self._settings.check_interval
        if checks <= self._checks:
            return None
        self._checks = checks
        age = now - self._waiting[0][1] if self._waiting else 0
        downgrade, upgrade = self._settings.downgrade_age, self._settings.upgrade_age
        downgraded = downgrade is not None and age >= downgrade
        upgraded = upgrade is not None and age < upgrade
        if not (downgraded if self.sync else upgraded):
            return None
        self.sync = not self.sync
        return age


class Replication:
    """Tracks which destinations are waited for, and the position up to which all of those have everything."""

    def __init__(self, destinations: Iterable[Destination]) -> None:
        """Start at position 0, waiting for all sync destinations."""
        self._destinations = {one.name: _SyncDestination(one) for one in destinations if one.type == "sync"}
        self._appended = 0

    @property
    def durable(self) -> int:
        """The position up to which every destination that is waited for has everything."""
        reported = (destination.reported for destination in self._destinations.values() if destination.sync)
        return min(reported, default=self._appended)

    def append(self, position: int, now: int) -> None:
        """Note a new message; positions never decrease."""
        self._appended = position
        for destination in self._destinations.values():
            destination.append(position, now)

    def report(self, name: str, position: int) -> None:
        """Note that a destination has everything up to a position; async ones are ignored."""
        if name in self._destinations:
            self._destinations[name].report(position)

    def check(self, now: int) -> list[DestinationChange]:
        """Compare ages with the settings where a check is due; return the changes of mode."""
        return [
            DestinationChange(name, "sync" if destination.sync else "async", age, destination.reported)
            for name, destination in sorted(self._destinations.items())
            if (age := destination.check(now)) is not None
        ]


class Backlog:
    """The batches whose acks wait until every sync destination has their messages.

    A batch without messages waits for those before it, because no destination ever reports it.
    """

    def __init__(self, replication: Replication, *, acknowledged: int, stored: int) -> None:
        """Start after a restart.

        :param acknowledged: the batch up to which all acks were sent
        :param stored: the newest batch with messages, -1 for none
        """
        self.acknowledged = acknowledged
        self._replication = replication
        self._stored = stored
        self._newest = acknowledged
        self._waiting: deque[tuple[int, int]] = deque()

    def add(self, batch: int, now: int, *, stored: bool = True) -> None:
        """Note a committed batch; a replayed one is ignored.

        :param stored: whether it added messages
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
        """Note that a destination has all messages up to a batch."""
        self._replication.report(name, _position(batch))

    def check(self, now: int) -> list[DestinationChange]:
        """Return the changes of mode; their positions are batches."""
        return [change._replace(position=change.position - 1) for change in self._replication.check(now)]

    def ready(self, most: int) -> int:
        """Return the batch up to which acks may be sent now.

        :param most: how many batches at once
        """
        durable = self._replication.durable
        found = self.acknowledged
        for batch, position in islice(self._waiting, most):
            if position > durable:
                break
            found = batch
        return found

    def confirm(self, batch: int) -> None:
        """Note that the acks of all batches up to this one were sent."""
        self.acknowledged = batch
        while self._waiting and self._waiting[0][0] <= batch:
            self._waiting.popleft()


def _position(batch: int) -> int:
    """Count the batches up to this one; the first is 0."""
    return batch + 1
