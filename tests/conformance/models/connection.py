"""One publisher's connection as the server sees it: what it is told about its messages, and when."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ackstream.jobs.persist.conflation import Beat, Conflation
from ackstream.protocol import queries
from ackstream.protocol.messages import CommandAck

if TYPE_CHECKING:
    from ackstream.protocol.queries import QueryCommand


@dataclass(frozen=True)
class Terms:
    """What holds for a connection.

    :param logged: there is a transaction log: persisted acks are merged and carry no command id; without one each
        message gets its own, and it means little
    :param conflation_ms: how often merged acks come; 0: at once
    :param floor_ms: more often the server cannot send them
    """

    logged: bool = True
    conflation_ms: int = 1000
    floor_ms: int = 0


class _Stored(NamedTuple):
    position: int
    command: QueryCommand


class _Flush(NamedTuple):
    seq: int
    command: QueryCommand


class Connection:
    """Driven by what happens to the client's messages; merged acks are asked for at the times of :meth:`next`."""

    def __init__(self, client: str, terms: Terms, *, expected: int, now: int = 0) -> None:
        """Log the client on.

        :param expected: the first sequence number that has to be answered
        """
        self.client = client
        self._terms = terms
        self._conflation = Conflation(expected)
        self._beat = Beat(terms.conflation_ms, terms.floor_ms, now)
        self._highest = expected - 1
        self._stored: deque[_Stored] = deque()
        self._flushes: deque[_Flush] = deque()
        self._single: list[CommandAck] = []

    def publish(self, command: QueryCommand, reason: str | None, position: int) -> list[CommandAck]:
        """Take a publish or sow_delete; return what the client is told at once.

        :param reason: why it is refused; ``None``: it is being stored
        :param position: the position in the log at which it will be durable; any for a refused one
        """
        acks = queries.opening(command, reason)
        self._highest = max(self._highest, command.seq or 0)
        if reason is None:
            self._stored.append(_Stored(position, command))
            if command.name != "sow_delete":
                acks += queries.completed(command)
        else:
            self._decide(command, reason)
        return acks

    def flush(self, command: QueryCommand) -> list[CommandAck]:
        """Take a flush: ``persisted`` comes when all before it is durable or has failed, the rest now."""
        acks = queries.opening(command, None) + queries.completed(command)
        if "persisted" in command.asked:
            self._flushes.append(_Flush(self._highest, command))
        return acks

    def advance(self, durable: int) -> list[CommandAck]:
        """Return what is told at once of what has become durable.

        :param durable: the position up to which the log and all places that are waited for have everything
        """
        while self._stored and self._stored[0].position <= durable:
            self._decide(self._stored.popleft().command, None)
        acks, self._single = self._single, []
        while self._flushes and self._settled(self._flushes[0]):
            # nothing that was flushed may be left untold
            acks += self.merged()
            acks.append(CommandAck(ack_type="persisted", client=self.client, cid=self._flushes.popleft().command.cid))
        return acks

    def next(self, now: int) -> int:
        """Return when merged acks are to be sent next."""
        return self._beat.next(now)

    def merged(self) -> list[CommandAck]:
        """Return the merged acks about all that is decided."""
        return [
            CommandAck(
                ack_type="persisted",
                status=queries.status(run.reason),
                client=self.client,
                first=run.first,
                seq=run.last,
                reason=run.reason,
                effective_conflation_ms=self._beat.effective_ms,
            )
            for run in self._conflation.take()
        ]

    def _settled(self, flush: _Flush) -> bool:
        if self._terms.logged:
            return self._conflation.watermark >= flush.seq
        return all((stored.command.seq or 0) > flush.seq for stored in self._stored)

    def _decide(self, command: QueryCommand, reason: str | None) -> None:
        asked = "persisted" in command.asked
        if self._terms.logged and command.seq is not None:
            self._conflation.decide(command.seq, reason, asked=asked)
        elif asked:
            self._single.append(
                CommandAck(
                    ack_type="persisted",
                    status=queries.status(reason),
                    client=self.client,
                    cid=command.cid,
                    first=command.seq,
                    seq=command.seq,
                    reason=reason,
                )
            )
