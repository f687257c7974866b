"""What goes into a queue's operator and what comes out of it, besides the records of the wire."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


class Arrival(msgspec.Struct, frozen=True):
    """A message of the table ``messages``; its id in a queue are its Kafka coordinates."""

    timestamp: int
    topic: str
    partition: int
    offset: int
    batch: int
    subject: str | None = None
    ttl_ms: int = 0
    eligible: bool = True
    barrier: bool = False

    @property
    def id(self) -> str:
        """Its name in the queue."""
        return f"{self.topic}-{self.partition}-{self.offset}"


class Said(msgspec.Struct, frozen=True):
    """A record of a consumer as it came."""

    timestamp: int
    partition: int
    offset: int
    key: bytes | None
    value: bytes


class Unreadable(msgspec.Struct, frozen=True):
    """A record of no use, and why."""

    key: bytes | None
    value: bytes
    reason: str


Happened: TypeAlias = Literal["delivered", "returned", "refused", "left"]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to a message: a row of ``queue_events``. Times are epoch milliseconds.

    :ivar consumer: who got it, had it or spoke of it
    :ivar count: how often it has been delivered
    :ivar outcome: how it was settled; of a message that left, what became of it
    :ivar reason: why it was given back, refused, or left
    """

    queue: str
    message: str
    at: int
    event: Happened
    consumer: str | None = None
    count: int = 0
    outcome: str | None = None
    reason: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    batch: int | None = None
    subject: str | None = None
    received_at: int | None = None


def in_order(arrivals: Iterable[Arrival], said: Iterable[Said]) -> list[tuple[int, Arrival | Said]]:
    """Return the records of a batch with the times they count with, by those times.

    A broker's clock may be set back: a partition's records then count with the latest time seen before them.
    """
    timed: list[tuple[int, Arrival | Said]] = []
    latest: dict[tuple[bool, int], int] = {}
    for records in (sorted(arrivals, key=_place), sorted(said, key=_place)):
        for record in records:
            place = (isinstance(record, Said), record.partition)
            latest[place] = max(record.timestamp, latest.get(place, 0))
            timed.append((latest[place], record))
    # stable: of one time, messages come first, and a partition keeps its order
    return sorted(timed, key=_time)


def _time(entry: tuple[int, Arrival | Said]) -> int:
    return entry[0]


_place = attrgetter("partition", "offset")
