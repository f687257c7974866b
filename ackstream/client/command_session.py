"""A client's side of commands: who waits for what until when, and how a logon ends (brokers.md 1.1 A15, A19)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ackstream.protocol.messages import CommandAck

LEAVES_SOMETHING = frozenset({"subscribe", "delta_subscribe", "sow", "sow_and_subscribe", "sow_and_delta_subscribe"})
"""Commands that are cancelled when nobody waits for them any more: a late success must leave nothing behind."""

MAX_RETRIES = 3
"""A server that always answers a logon with other credentials is given up."""


class Send(NamedTuple):
    """A command that the client sends by itself."""

    command: str
    cid: str | None = None
    user_id: str | None = None
    password: str | None = None

    def __str__(self) -> str:
        if self.command == "logon":
            return f"logon with {self.user_id}"
        return self.command if self.cid is None else f"{self.command} {self.cid}"


@dataclass(frozen=True)
class _Waiting:
    command: str
    deadline: int | None


class CommandOutcome(NamedTuple):
    """How a command ended: not at all yet, well, with a reason, or by the time."""

    cid: str | None
    command: str
    reason: str | None = None
    timed_out: bool = False


class CommandSession:
    """Commands that wait for their ``processed`` ack."""

    def __init__(self) -> None:
        self.connected = False
        self._waiting: dict[str | None, _Waiting] = {}
        self._retries = 0

    def sent(self, command: str, cid: str | None, now: int, timeout_ms: int = 0) -> None:
        """Note that a command was sent and is waited for; 0: for ever."""
        self._waiting[cid] = _Waiting(command, now + timeout_ms if timeout_ms else None)
        if command == "logon":
            self.connected = False

    @property
    def deadline(self) -> int | None:
        """When :meth:`expire` has something to do next."""
        return min((entry.deadline for entry in self._waiting.values() if entry.deadline is not None), default=None)

    def answered(self, ack: CommandAck) -> tuple[CommandOutcome | None, list[Send]]:
        """Take an ack; return the end of a command, and what is sent because of it.

        A logon that is answered with ``retry`` is tried again with the credentials of the answer; the second answer
        decides.
        """
        waiting = self._waiting.get(ack.cid)
        if ack.ack_type != "processed" or waiting is None:
            return None, []
        if ack.status == "retry" and waiting.command == "logon" and self._retries < MAX_RETRIES:
            self._retries += 1
            return None, [Send("logon", ack.cid, ack.user_id, ack.password)]
        del self._waiting[ack.cid]
        reason = None if ack.status == "success" else ack.reason or "logon refused again and again"
        if waiting.command == "logon":
            self.connected = reason is None
            self._retries = 0
        return CommandOutcome(ack.cid, waiting.command, reason), []

    def expire(self, now: int) -> tuple[list[CommandOutcome], list[Send]]:
        """Give up on commands whose time has passed; return them, and what is sent because of it."""
        over = [
            (cid, entry) for cid, entry in self._waiting.items() if entry.deadline is not None and entry.deadline <= now
        ]
        for cid, _ in over:
            del self._waiting[cid]
        return (
            [CommandOutcome(cid, entry.command, timed_out=True) for cid, entry in over],
            [Send("unsubscribe", cid) for cid, entry in over if entry.command in LEAVES_SOMETHING],
        )

    def lost(self) -> None:
        """Note that the connection is gone."""
        self.connected = False
