"""Tracking the destinations that must have a batch before its acks are sent (brokers.md 1.1 A12, A13)."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.settings import Destination


class DestinationChange(NamedTuple):
    """A destination is no longer waited for, or is again; it has everything up to ``batch``."""

    destination: str
    mode: Literal["sync", "async"]
    age_ms: int
    batch: int


class _SyncDestination:
    """The batches that a destination lacks, and whether it is waited for."""

    def __init__(self, settings: Destination) -> None:
        self.reported = -1
        self.sync = True
        self._settings = settings
        self._lacking: deque[tuple[int, int]] = deque()
        self._checks = 0

    def add(self, batch: int, now: int) -> None:
        if batch > self.reported:
            self._lacking.append((batch, now))

    def report(self, batch: int) -> None:
        self.reported = max(self.reported, batch)
        while self._lacking and self._lacking[0][0] <= self.reported:
            self._lacking.popleft()

    def check(self, now: int) -> int | None:
        """Compare ages once per check interval; return the age that changed the mode."""
        checks = now // self._settings.check_interval
        if checks <= self._checks:
            return None
        self._checks = checks
        age = now - self._lacking[0][1] if self._lacking else 0
        downgrade, upgrade = self._settings.downgrade_age, self._settings.upgrade_age
        downgraded = downgrade is not None and age >= downgrade
        upgraded = upgrade is not None and age < upgrade
        if not (downgraded if self.sync else upgraded):
            return None
        self.sync = not self.sync
        return age


class Backlog:
    """The batches whose acks wait until every destination that is waited for has their messages.

    A batch without messages waits for those before it, because no destination ever reports it.
    """

    def __init__(self, destinations: Iterable[Destination], *, acknowledged: int, stored: int) -> None:
        """Start after a restart, waiting for all sync destinations.

        :param acknowledged: the batch up to which all acks were sent
        :param stored: the newest batch with messages, -1 for none
        """
        self.acknowledged = acknowledged
        self._destinations = {one.name: _SyncDestination(one) for one in destinations if one.type == "sync"}
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
        needed = min(batch, self._stored)
        self._waiting.append((batch, needed))
        for destination in self._destinations.values():
            destination.add(needed, now)

    def report(self, name: str, batch: int) -> None:
        """Note that a destination has all messages up to a batch; async ones are ignored."""
        if name in self._destinations:
            self._destinations[name].report(batch)

    def check(self, now: int) -> list[DestinationChange]:
        """Compare ages with the settings where a check is due; return the changes of mode."""
        return [
            DestinationChange(name, "sync" if destination.sync else "async", age, destination.reported)
            for name, destination in sorted(self._destinations.items())
            if (age := destination.check(now)) is not None
        ]

    def ready(self, most: int) -> int:
        """Return the batch up to which acks may be sent now.

        :param most: how many batches at once
        """
        reported = (destination.reported for destination in self._destinations.values() if destination.sync)
        durable = min(reported, default=None)
        found = self.acknowledged
        for batch, needed in islice(self._waiting, most):
            if durable is not None and needed > durable:
                break
            found = batch
        return found

    def confirm(self, batch: int) -> None:
        """Note that the acks of all batches up to this one were sent."""
        self.acknowledged = batch
        while self._waiting and self._waiting[0][0] <= batch:
            self._waiting.popleft()
