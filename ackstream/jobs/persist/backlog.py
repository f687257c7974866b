"""Acks that wait: for the sync destinations, batch by batch; and for their publisher, merged with others. Pure.

:class:`Backlog` has the batches whose messages a sync destination lacks (brokers.md 1.1 A12, A13), :class:`AckPacing`
the acks that are due after a third of the publisher's window, or an interval, or at once. Sources: seed002 (the
``ack_conflation`` of the logon, by default a second), seed004. Times are milliseconds of any clock that only goes
forward. The messages are durable: waiting changes the numbers that one ack covers, never its meaning.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from ackstream.observe.metrics import DESTINATION_LAG, DESTINATION_SYNC, WAITING_ACKS, Tally
from ackstream.protocol.messages import MAX_NUMBER, NO_BATCH, CommandAck
from ackstream.settings import Destination

LACKING_MS, MAX_LACKING = 1_000, 10_000
"""The coarsest resolution (at most a tenth of the ages in the settings) and the maximum number of the times since which
a destination lacks batches: it may be unavailable for weeks."""


class DestinationChange(NamedTuple):
    """A destination is no longer waited for, or is again; it is complete up to ``batch``."""

    destination: str
    batch: int
    mode: str
    cause: str
    age_ms: int


@dataclass
class _SyncDestination:
    settings: Destination
    reported: int = NO_BATCH
    sync: bool = True
    checks: int = 0


class Backlog:
    """The batches whose acks wait until each awaited destination has their messages (see ``protocol.messages``)."""

    def __init__(
        self,
        destinations: Iterable[Destination],
        *,
        acknowledged: int,
        stored: int,
        written: int = -1,
        deferred: Iterable[int] = (),
        replayed: int | None = None,
        now: int = 0,
    ) -> None:
        """Start after a restart, waiting for all sync destinations."""
        # batches: ``acknowledged`` up to which all acks were sent; ``stored`` and ``written`` the newest with messages
        # and with states, -1: none; ``deferred`` with unsent acks; ``replayed`` to replay, which waits once committed
        self.acknowledged = acknowledged
        self._written, self._deferred = written, frozenset(deferred)
        self._destinations = {one.name: _SyncDestination(one) for one in destinations if one.type == "sync"}
        self._stored = stored
        self._newest = acknowledged
        self._waiting: deque[tuple[int, int]] = deque()
        """Batches, and the batch with messages that each of them needs."""
        ages = (age for one in destinations for age in (one.downgrade_age, one.upgrade_age) if age is not None)
        self._exact = min([LACKING_MS, *(age // 10 for age in ages)])
        self._lacking: deque[tuple[int, int]] = deque()
        """Batches with messages that some destination lacks, and the times since when: of several in a second one."""
        for batch in sorted(self._deferred - {replayed}):
            self.add(batch, now, stored=False)

    def defers(self, batch: int) -> bool:
        """Return whether the acks of a batch wait: for a sync destination, or for acks before them that still do."""
        # those of a replayed batch wait only if its row has them
        if batch <= self.acknowledged or (batch <= self._written and batch not in self._deferred):
            return False
        return bool(self._destinations or self._waiting)

    def pass_over(self, batch: int) -> None:
        """Note a committed batch whose acks do not wait."""
        if not self._waiting:
            self.acknowledged, self._newest = max(batch, self.acknowledged), max(batch, self._newest)

    def add(self, batch: int, now: int, *, stored: bool = True) -> None:
        """Note a committed batch, and whether it added messages; a replayed one is ignored."""
        if batch <= self._newest:
            return
        self._newest = batch
        if stored:
            self._stored = max(self._stored, batch)
        # a batch without messages has no rows, so no destination ever reports it
        needed = min(batch, self._stored)
        self._waiting.append((batch, needed))
        if needed > self._everywhere:
            self._lack(needed, now)

    def _lack(self, batch: int, now: int) -> None:
        lacking = self._lacking
        if lacking and now - lacking[-1][1] < self._exact:
            lacking[-1] = batch, lacking[-1][1]
            return
        lacking.append((batch, now))
        if len(lacking) > MAX_LACKING:
            # the exact age of a missing batch matters only while it is small
            old = [lacking.popleft() for _ in range(MAX_LACKING // 2)]
            lacking.extendleft((last, since) for (_, since), (last, _) in zip(old[-2::-2], old[::-2], strict=True))

    def report(self, name: str, batch: int) -> None:
        """Note that a destination has all messages up to a batch; ignore async ones."""
        destination = self._destinations.get(name)
        if destination is None:
            return
        destination.reported = max(destination.reported, batch)
        while self._lacking and self._lacking[0][0] <= self._everywhere:
            self._lacking.popleft()

    @property
    def _everywhere(self) -> int:
        return min((one.reported for one in self._destinations.values()), default=MAX_NUMBER)

    def check(self, now: int) -> list[DestinationChange]:
        """Compare ages with the settings, once per check interval; return the changes of mode."""
        changes = []
        for name, destination in sorted(self._destinations.items()):
            rules = destination.settings
            checks = now // rules.check_interval
            if checks <= destination.checks:
                continue
            destination.checks = checks
            age = next((now - since for batch, since in self._lacking if batch > destination.reported), 0)
            downgraded = rules.downgrade_age is not None and age >= rules.downgrade_age
            upgraded = rules.upgrade_age is not None and age < rules.upgrade_age
            if downgraded if destination.sync else upgraded:
                destination.sync = not destination.sync
                mode = ("sync", "upgrade") if destination.sync else ("async", "downgrade")
                changes.append(DestinationChange(name, destination.reported, *mode, age))
        return changes

    def measure(self, tally: Tally) -> None:
        """Set the gauges of waiting batches, and of the lag of each sync destination."""
        tally.set(WAITING_ACKS, value=len(self._waiting))
        for name, destination in self._destinations.items():
            tally.set(DESTINATION_LAG, name, value=max(0, self._stored - destination.reported))
            tally.set(DESTINATION_SYNC, name, value=destination.sync)

    def ready(self, most: int) -> list[int]:
        """Return the batches, at most ``most``, whose acks may be sent now."""
        # between them there may be one that does not wait, as its messages are missing
        reported = (one.reported for one in self._destinations.values() if one.sync)
        durable = min(reported, default=MAX_NUMBER)
        return [batch for batch, _ in takewhile(lambda entry: entry[1] <= durable, islice(self._waiting, most))]

    def confirm(self, batch: int) -> None:
        """Note that the acks of all batches up to this one were sent."""
        self.acknowledged = max(batch, self.acknowledged)
        while self._waiting and self._waiting[0][0] <= batch:
            self._waiting.popleft()


class BatchAcks(NamedTuple):
    """The acks of a publisher in a batch, due within ``conflation`` milliseconds, or at once."""

    client: str
    acks: Sequence[CommandAck]
    conflation: int
    window: int = 0
    """The publisher's, with an ack for each third of it; 0: it has none."""
    urgent: bool = False
    """Send them with the next :meth:`AckPacing.take`, as always an ack that is not merged."""


class PacedAck(NamedTuple):
    """An ack that waits, and the batch that decided it: the first one, if several are merged."""

    client: str
    ack: CommandAck
    batch: int
    due: int


@dataclass
class _Waiting:
    """The acks of one publisher, in order; the first ``ready`` are sent at any time."""

    acks: list[PacedAck] = field(default_factory=list)
    ready: int = 0
    count: int = 0
    """Numbers that were decided since the last third of a window."""


class AckPacing:
    """Holds acks back and merges successes; keeps the order of each publisher's acks."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    def add(self, added: BatchAcks, batch: int, since: int) -> None:
        """Add acks of a publisher behind those that wait; their interval begins at ``since``."""
        waiting = self._waiting.setdefault(added.client, _Waiting())
        for ack in added.acks:
            for part in _thirds(waiting, ack, added.window):
                _append(waiting, PacedAck(added.client, part, batch, since + added.conflation))
                if ack.cid is not None or waiting.count == 0:
                    waiting.ready = len(waiting.acks)
        if added.urgent:
            waiting.ready = len(waiting.acks)

    def take(self, now: int) -> list[PacedAck]:
        """Return, once, the acks to send now."""
        found: list[PacedAck] = []
        for client, waiting in list(self._waiting.items()):
            # later ones have waited less, unless the publisher has since requested a shorter interval
            overdue = next((at for at in range(len(waiting.acks), 0, -1) if waiting.acks[at - 1].due <= now), 0)
            sent = max(overdue, waiting.ready)
            found += waiting.acks[:sent]
            del waiting.acks[:sent]
            waiting.ready = 0
            waiting.count = sum(map(_numbers, waiting.acks))
            if not waiting.acks:
                del self._waiting[client]
        return [paced._replace(ack=paced.ack.identified()) for paced in found]

    @property
    def oldest(self) -> int | None:
        """The first batch of which an ack waits; ``None`` if none does."""
        return min((waiting.acks[0].batch for waiting in self._waiting.values()), default=None)


def _numbers(paced: PacedAck) -> int:
    ack = paced.ack
    return 0 if ack.first is None or ack.seq is None else ack.seq - ack.first + 1


def _thirds(waiting: _Waiting, ack: CommandAck, window: int) -> Iterator[CommandAck]:
    """Divide an ack where a third of the window ends, rounded down, at least one; count its numbers."""
    # a client with more than its window under way does not wait for thirds: it gets one ack for all of them
    if ack.ack_type != "persisted" or ack.first is None or ack.seq is None:
        yield ack
        return
    third = max(1, window // 3) if window else ack.seq - ack.first + waiting.count + 2
    if (numbers := ack.seq - ack.first + 1) > window > 0:
        third *= max(1, (waiting.count + numbers) // third)
    first = ack.first
    while waiting.count + ack.seq - first + 1 >= third:
        # a publisher may have logged on with a smaller window since
        last = first + max(0, third - waiting.count - 1)
        waiting.count = 0
        yield msgspec.structs.replace(ack, first=first, seq=last)
        first = last + 1
    if first <= ack.seq:
        waiting.count += ack.seq - first + 1
        yield msgspec.structs.replace(ack, first=first)


def _append(waiting: _Waiting, paced: PacedAck) -> None:
    """Add an ack; a success that continues the last one is merged with it."""
    if len(waiting.acks) > waiting.ready:
        last = waiting.acks[-1]
        one, other = last.ack, paced.ack
        merged = _is_merged(one) and _is_merged(other) and one.session == other.session
        if merged and one.seq is not None and one.seq + 1 == other.first:
            waiting.acks[-1] = last._replace(
                ack=msgspec.structs.replace(one, seq=other.seq), due=min(last.due, paced.due)
            )
            return
    waiting.acks.append(paced)


def _is_merged(ack: CommandAck) -> bool:
    return ack.ack_type == "persisted" and ack.reason is None and ack.cid is None and ack.first is not None
