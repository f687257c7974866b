"""Which consumer gets the next message (brokers.md A37, AMPS-38)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.delivery.queues.queued import Consumer
    from ackstream.delivery.queues.rules import Fairness


def choose(consumers: Sequence[Consumer], fairness: Fairness, last: str | None) -> Consumer | None:
    """Return the consumer for a message, of those that have room; ``None`` where none has.

    :param consumers: in the order they came
    :param last: who got the message before, for ``round-robin``
    """
    free = [consumer for consumer in consumers if consumer.has_room]
    if not free:
        return None
    if fairness == "fast":
        return free[0]
    if fairness == "proportional":
        return min(free, key=_load)
    names = [consumer.name for consumer in consumers]
    turn = names.index(last) + 1 if last in names else 0
    in_turn = {name: index for index, name in enumerate(names[turn:] + names[:turn])}
    return min(free, key=lambda consumer: in_turn[consumer.name])


def _load(consumer: Consumer) -> float:
    return len(consumer.held) / consumer.backlog if consumer.backlog else 0.0
