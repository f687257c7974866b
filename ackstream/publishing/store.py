"""What a publisher keeps until it is answered, so that nothing is lost between it and the server.

The rules are those of the AMPS publish store (brokers.md 1.1 A14 to A17): an ack for n drops everything up to n, a
failure too; what was refused is handed to the application and never sent again; after a reconnect the server says the
last number it has, and the rest is sent again in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from ackstream.errors import AckstreamError
from ackstream.publishing.persist.conflation import DUPLICATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.publishing.acks import Ack

TOLD_IN_ANY_CASE = frozenset({DUPLICATE, "not entitled"})
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

    def failed(self, ack: Ack) -> FailedWrite | None:
        """Return what the application has to be told because of a ``persisted`` ack; nothing changes yet."""
        if ack.seq is None or (ack.status != "failure" and ack.reason not in TOLD_IN_ANY_CASE):
            return None
        return FailedWrite(ack.seq, ack.reason or "", self._messages.get(ack.seq))

    def acknowledged(self, ack: Ack) -> FailedWrite | None:
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
