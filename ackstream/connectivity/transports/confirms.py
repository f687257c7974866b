"""Which message to send next to a broker that ends a channel or link for a message, and what that means for each.

The reason names no message: all that the broker has not confirmed are in doubt, and most of them it has. Only a message
that was sent alone is known to be the reason.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackstream.connectivity.transport import Confirm, OutgoingMessage

REMEMBERED = 10_000
"""How many exchanges that took a message, and addresses that refused one, are remembered."""


class Unconfirmed:
    """A message to send, and who learns what became of it."""

    def __init__(self, message: OutgoingMessage, done: Confirm) -> None:
        self.message = message
        self.done = done
        self.in_doubt = False

    @property
    def exchange(self) -> str:
        """The exchange of its address, ``exchange/routing-key``; with AMQP 1.0 as good as the address."""
        return self.message.address.partition("/")[0]


class Confirms:
    """The messages of a publisher, in order, over all channels of its connection, or all links of an address.

    The first message to an exchange is sent alone, and so is the next one to an address that refused one, and every
    message that was in doubt.
    """

    def __init__(self) -> None:
        self._waiting: deque[Unconfirmed] = deque()
        # by delivery tag, in order
        self._open: dict[int | str, Unconfirmed] = {}
        self._open_alone = False
        self._proven: dict[str, None] = {}
        self._refusing: dict[str, None] = {}

    @property
    def idle(self) -> bool:
        """Whether every message is confirmed."""
        return not (self._waiting or self._open)

    @property
    def sending(self) -> bool:
        """Whether a message is on its way."""
        return bool(self._open)

    def add(self, message: OutgoingMessage, done: Confirm) -> None:
        """Accept a message to send."""
        self._waiting.append(Unconfirmed(message, done))

    def take(self) -> Unconfirmed | None:
        """Return the next message if it may be sent now; then call :meth:`sent`, unless it cannot be."""
        if not self._waiting:
            return None
        first = self._waiting[0]
        alone = first.in_doubt or first.exchange not in self._proven or first.message.address in self._refusing
        if self._open and (alone or self._open_alone):
            return None
        self._open_alone = alone
        return self._waiting.popleft()

    def sent(self, tag: int | str, sending: Unconfirmed) -> None:
        """Record a message as sent."""
        self._open[tag] = sending

    def tags(self, tag: int, *, multiple: bool) -> list[int]:
        """Return the delivery tags, numbers here, that a confirm is about."""
        numbers = (each for each in self._open if isinstance(each, int))
        return list(takewhile(lambda each: each <= tag, numbers)) if multiple else [tag]

    def confirm(self, tag: int | str, *, stored: bool) -> Unconfirmed | None:
        """Return the message that the broker answered, with a positive confirm if ``stored``."""
        sending = self._open.pop(tag, None)
        if sending is not None and stored:
            _remember(self._proven, sending.exchange)
            self._refusing.pop(sending.message.address, None)
        return sending

    def channel_closed(self) -> Unconfirmed | None:
        """Return the message for which the broker ended the channel or link, if known; the others are sent again."""
        left = list(self._open.values())
        self._open.clear()
        if len(left) == 1:
            _remember(self._refusing, left[0].message.address)
            self._proven.pop(left[0].exchange, None)
            return left[0]
        for sending in reversed(left):
            sending.in_doubt = True
            self._waiting.appendleft(sending)
        return None

    def give_up(self) -> list[Unconfirmed]:
        """Return what is not confirmed, in order, and forget it."""
        left = [*self._open.values(), *self._waiting]
        self._open.clear()
        self._waiting.clear()
        return left


def _remember(names: dict[str, None], name: str) -> None:
    """Add a name, and forget the oldest beyond the limit."""
    names.pop(name, None)
    names[name] = None
    if len(names) > REMEMBERED:
        del names[next(iter(names))]
