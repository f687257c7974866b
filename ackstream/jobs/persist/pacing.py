"""When acks that are due to publishers are sent: after a third of the window, or an interval, or at once.

Sources: seed002 (merged about once a second; ``ack_conflation`` of the logon), seed004 (a third of the window, or a
second after the message, or immediately if the message asks for it). Pure; times are milliseconds of any clock that
only goes forward. What waits here is about messages that are durable already: waiting changes which numbers one ack is
about, never what it says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackstream.protocol.messages import CommandAck


class PacedAck(NamedTuple):
    """An ack that waits, and the batch that decided it: the first one, if several are merged."""

    client: str
    ack: CommandAck
    batch: int
    due: int


@dataclass
class _Waiting:
    """The acks of one publisher, in order.

    :ivar ready: how many of the first ones are sent whatever the time is
    :ivar count: how many numbers have been decided since the last third of a window
    """

    acks: list[PacedAck] = field(default_factory=list)
    ready: int = 0
    count: int = 0


class AckPacing:
    """Holds acks back and merges successes; keeps the order of each publisher's acks."""

    def __init__(self) -> None:
        """Begin without acks."""
        self._waiting: dict[str, _Waiting] = {}

    def add(
        self, client: str, acks: Sequence[CommandAck], *, batch: int, due: int, window: int = 0, urgent: bool = False
    ) -> None:
        """Add acks of a publisher behind those that wait.

        :param due: when to send them at the latest
        :param window: of the publisher: there is an ack for each third of it; 0: it has none
        :param urgent: send them with the next :meth:`take`; an ack that is not merged with others always is
        """
        waiting = self._waiting.setdefault(client, _Waiting())
        for ack in acks:
            for part in _thirds(waiting, ack, window):
                _append(waiting, PacedAck(client, part, batch, due))
                if ack.cid is not None or waiting.count == 0:
                    waiting.ready = len(waiting.acks)
        if urgent:
            waiting.ready = len(waiting.acks)

    def take(self, now: int) -> list[PacedAck]:
        """Return, once, the acks to send now."""
        found: list[PacedAck] = []
        for client, waiting in list(self._waiting.items()):
            # later ones have waited less, unless the publisher asked for a shorter interval since
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
    """Divide an ack where a third of the window ends, rounded down, at least one; count its numbers.

    A client with more than its window under way does not wait for thirds: it gets one ack for all of them.
    """
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
    """Add an ack; a success that goes on where the last one ends becomes one with it."""
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
