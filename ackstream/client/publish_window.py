"""A producer's window: how much is on its way, what waits, and what is sent again (brokers.md 3.1 S3, S4, S7, S13)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from ackstream.errors import AckstreamError
from ackstream.protocol.messages import DUPLICATE, NOT_ENTITLED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.protocol.messages import CommandAck


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


# -- What a publisher keeps until it is answered, so that nothing is lost between it and the server.
# The rules are those of the AMPS publish store (brokers.md 1.1 A14 to A17): an ack for n drops everything up to n, a
# failure too; what was refused is handed to the application and never sent again; after a reconnect the server says the
# last number it has, and the rest is sent again in order.


TOLD_IN_ANY_CASE = frozenset({DUPLICATE, NOT_ENTITLED})
"""Reasons that go to the failed-write handler whatever the status says."""


class GapError(AckstreamError):
    """The server lacks messages that this publisher has dropped, because they had been acknowledged elsewhere."""

    def __init__(self, first: int, last: int) -> None:
        """Name the numbers that are missing."""
        super().__init__(
            f"The server has everything up to {first - 1}, but this store has dropped everything up to {last}: {first} "
            f"to {last} are missing there. Log on to a server that has them, or allow gaps."
        )
        self.missing = range(first, last + 1)


class SequenceError(AckstreamError, ValueError):
    """A sequence number that does not follow those before it."""


class Messages(Protocol):
    """Where messages are kept, by sequence number; what a call has returned from survives a crash (or does not)."""

    @property
    def discarded(self) -> int:
        """The number up to which everything was dropped; also after everything is gone."""

    @property
    def last(self) -> int:
        """The highest number that was ever added; ``discarded`` where there is none above it."""

    def add(self, seq: int, message: bytes) -> None:
        """Keep a message."""

    def get(self, seq: int) -> bytes | None:
        """Return a message, ``None`` where it is not kept."""

    def drop(self, seq: int) -> int:
        """Drop all up to a number; return how many were kept."""

    def after(self, seq: int) -> Iterator[tuple[int, bytes]]:
        """Iterate over what is kept beyond a number, ascending."""

    def __len__(self) -> int:
        """Return how many are kept."""


class FailedWrite(NamedTuple):
    """A message that was refused, or was there already."""

    seq: int
    reason: str
    message: bytes | None
    """The stored copy; ``None`` where it is no longer kept."""


class PublishStore:
    """The rules; the messages are where ``messages`` keeps them."""

    def __init__(self, messages: Messages, *, error_on_gap: bool = False) -> None:
        """Take over what is kept already.

        :param error_on_gap: refuse a server that lacks what was dropped here
        """
        self._messages = messages
        self._error_on_gap = error_on_gap

    @property
    def unpersisted_count(self) -> int:
        """How many messages are kept."""
        return len(self._messages)

    @property
    def unpersisted(self) -> list[int]:
        """Their numbers."""
        return [seq for seq, _ in self._messages.after(self._messages.discarded)]

    @property
    def next_seq(self) -> int:
        """The number of the next message."""
        return self._messages.last + 1

    def add(self, seq: int, message: bytes) -> None:
        """Keep a message before it is sent; numbers rise, with gaps only where the publisher wants them.

        :raises SequenceError: the number is not above those before it
        """
        if seq < self.next_seq:
            raise SequenceError(
                f"Sequence number {seq} does not follow {self._messages.last}: numbers rise from message to message, "
                f"also over restarts. Leave the number out, or give one from {self.next_seq} on."
            )
        self._messages.add(seq, message)

    def failed(self, ack: CommandAck) -> FailedWrite | None:
        """Return what the application has to be told because of a ``persisted`` ack; nothing changes yet."""
        if ack.seq is None or (ack.status != "failure" and ack.reason not in TOLD_IN_ANY_CASE):
            return None
        return FailedWrite(ack.seq, ack.reason or "", self._messages.get(ack.seq))

    def acknowledged(self, ack: CommandAck) -> FailedWrite | None:
        """Take a ``persisted`` ack with a sequence number; return what the application has to be told.

        One that came before, or that is about messages of another store, changes nothing.
        """
        failed = self.failed(ack)
        if ack.seq is not None:
            self._messages.drop(ack.seq)
        return failed

    def missing_at(self, server_last: int) -> range:
        """Return the numbers a server with everything up to ``server_last`` lacks, and that cannot be sent again."""
        return range(server_last + 1, self._messages.discarded + 1)

    def logged_on(self, server_last: int) -> list[tuple[int, bytes]]:
        """Take the logon ack: drop what the server has; return what is to be sent again, in order.

        :param server_last: the number up to which the server has everything
        :raises GapError: where gaps are an error; nothing was dropped
        """
        missing = self.missing_at(server_last)
        if missing and self._error_on_gap:
            raise GapError(missing[0], missing[-1])
        self._messages.drop(server_last)
        return list(self._messages.after(server_last))
