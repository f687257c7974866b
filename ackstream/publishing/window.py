"""A producer's window: how much is on its way, what waits, and what is sent again (brokers.md 3.1 S3, S4, S7, S13)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from ackstream.errors import AckstreamError

AckMode: TypeAlias = Literal["PER_MESSAGE", "WINDOWED"]

DEFAULT_WINDOW = 50
DEFAULT_ACK_TIME_MS = 2000


class WindowError(AckstreamError, ValueError):
    """A window in which nothing can be sent."""


@dataclass
class _Sent:
    at: int
    transmissions: int = 1


class Republish(NamedTuple):
    """What happens to unacknowledged messages when the broker no longer knows the flow."""

    resend: list[int]
    returned: list[int]

    @property
    def duplicates_max(self) -> int:
        """How many of them may be stored twice: the broker cannot recognise what it numbered for another flow."""
        return len(self.resend)


class PublishWindow:
    """For one flow; messages have rising ids, time is in milliseconds."""

    def __init__(self, size: int = DEFAULT_WINDOW, ack_time_ms: int = DEFAULT_ACK_TIME_MS) -> None:
        """Begin.

        :param size: messages that may be sent and not acknowledged; Solace has 1 to 255, more is allowed here
        :param ack_time_ms: without an answer in that time a message is sent again, without limit
        :raises WindowError: nothing could ever be sent
        """
        if size < 1:
            raise WindowError(f"A publish window of {size} lets nothing through: give one of 1 or more.")
        if ack_time_ms < 1:
            raise WindowError(f"An ack timer of {ack_time_ms} ms would send without end: give one of 1 ms or more.")
        self._size = size
        self._ack_time_ms = ack_time_ms
        self._in_flight: dict[int, _Sent] = {}
        self._blocked: deque[int] = deque()
        self.closures = 0

    @property
    def in_flight(self) -> list[int]:
        """What was sent and is not answered."""
        return list(self._in_flight)

    @property
    def blocked(self) -> list[int]:
        """What waits for room."""
        return list(self._blocked)

    @property
    def full(self) -> bool:
        """Whether the next message would wait."""
        return len(self._in_flight) >= self._size or bool(self._blocked)

    def offer(self, message: int, now: int) -> bool:
        """Return whether a message is sent now; otherwise it waits for its turn."""
        if self.full:
            self.closures += not self._blocked
            self._blocked.append(message)
            return False
        self._in_flight[message] = _Sent(now)
        return True

    def withdraw(self, message: int) -> None:
        """Let a message that waits for room go."""
        self._blocked.remove(message)

    def acknowledged(self, up_to: int) -> list[int]:
        """Take a cumulative ack; return the messages that it is about, none for one that came before."""
        done = [message for message in self._in_flight if message <= up_to]
        for message in done:
            del self._in_flight[message]
        return done

    def refused(self, message: int) -> bool:
        """Take a NACK; return whether it is news."""
        return self._in_flight.pop(message, None) is not None

    def admit(self, now: int) -> list[int]:
        """Return the waiting messages for which there is room now; they are sent."""
        admitted = []
        while self._blocked and len(self._in_flight) < self._size:
            message = self._blocked.popleft()
            self._in_flight[message] = _Sent(now)
            admitted.append(message)
        return admitted

    @property
    def deadline(self) -> int | None:
        """When :meth:`overdue` has something to do next."""
        return min((sent.at + self._ack_time_ms for sent in self._in_flight.values()), default=None)

    def overdue(self, now: int) -> list[int]:
        """Return the messages that are sent again now, because no answer has come in time."""
        late = [message for message, sent in self._in_flight.items() if sent.at + self._ack_time_ms <= now]
        for message in late:
            sent = self._in_flight[message]
            sent.at = now
            sent.transmissions += 1
        return late

    def flow_lost(self, action: Literal["AUTO_RETRY", "DISCONNECT"], now: int) -> Republish:
        """Take the news that the broker does not know the flow any more.

        ``AUTO_RETRY`` sends everything again under new numbers; ``DISCONNECT`` gives it back to the application.
        """
        unacknowledged = self.in_flight
        if action == "DISCONNECT":
            self._in_flight.clear()
            return Republish([], unacknowledged)
        for message in unacknowledged:
            self._in_flight[message] = _Sent(now)
        return Republish(unacknowledged, [])


def notified(messages: list[int], mode: AckMode) -> list[int]:
    """Return for which of the messages of one ack the application is called."""
    return messages[-1:] if mode == "WINDOWED" else messages
