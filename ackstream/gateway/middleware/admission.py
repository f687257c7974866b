"""What the command of a client passes on its way to Kafka, and its reply on the way back, for HTTP and WebSockets."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from ackstream.gateway.http.conditions import Deadline, ask_either_channel, check_condition, is_live
from ackstream.protocol.ditto.envelopes import raw
from ackstream.protocol.ditto.headers import CONDITION, CORRELATION_ID, LIVE_CHANNEL_CONDITION
from ackstream.protocol.ditto.permissions import conceal, restrict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ackstream.client import Reply
    from ackstream.client.requests.replies import RequestOutcome
    from ackstream.gateway.service import Dependencies
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.protocol.ditto.permissions import Kind


class AdmittedCommand:
    """A command that its sender may send, and whose condition holds.

    Each time it is sent it gets a correlation-id of its own, which is remembered from then on.
    """

    def __init__(
        self,
        parts: Dependencies,
        subjects: tuple[str, ...],
        kind: Kind,
        command: Envelope,
        new_id: Callable[[], str],
    ) -> None:
        """Nothing is checked here: see :func:`admit`."""
        self._access, self._exchange = parts.access, parts.exchange
        self._open = partial(parts.open_requests.one, subjects)
        self._subjects, self._kind = subjects, kind
        self._command, self._new_id = command, new_id
        self._deadline = Deadline.of(command)
        self._conditional = is_live(command) and CONDITION in command.headers

    async def check(self) -> None:
        """Reject what :func:`admit` says."""
        restrict(self._access, self._subjects, self._kind, self._command)
        if self._conditional:
            await check_condition(self._exchange, self._command, self._deadline)

    async def ask(self) -> Reply:
        """Send the command, and return what the sender may read of its reply.

        :raises DittoError: as ``Exchange.ask`` and ``conceal`` do; 408, nothing of its timeout is left to carry it out;
            429, its sender has as many open requests as a quota allows
        """
        with self._open():
            if LIVE_CHANNEL_CONDITION in self._command.headers:
                reply = await ask_either_channel(self._exchange, self._command, self._deadline, self._new_id)
            else:
                reply = await self._exchange.ask(self._sent())
        conceal(self._access, self._subjects, self._kind, self._command, reply.envelope)
        _name_back(reply, self._command.headers[CORRELATION_ID])
        return reply

    async def publish(self) -> None:
        """Send the command, which requires no response; return once the broker has stored it."""
        await self._exchange.publish(self._sent())

    async def settle(self, seconds: float) -> RequestOutcome | None:
        """Send the command, which requires no response; return its outcome, ``None`` after ``seconds``.

        :raises DittoError: 429, as ``ask`` does
        """
        with self._open():
            return await self._exchange.settle(self._sent(), seconds)

    def _sent(self) -> Envelope:
        sent = replace(self._command, headers=dict(self._command.headers))
        if self._conditional:
            # the condition, and those of commands before it, took a part of its time
            self._deadline.limit(sent)
            del sent.headers[CONDITION]
        sent.headers[CORRELATION_ID] = self._new_id()
        return sent


async def admit(
    parts: Dependencies, subjects: tuple[str, ...], kind: Kind, command: Envelope, new_id: Callable[[], str]
) -> AdmittedCommand:
    """Admit a command, whose headers fit its kind (``check_headers``).

    A command without a condition is admitted without waiting.

    :param command: what it asks for is narrowed to what its sender may read
    :param new_id: returns a correlation-id that correlate does not take for a repeated one
    :raises DittoError: 403, 404, its sender may not send it; 412, its condition does not hold; 408, it took too long to
        find out
    """
    admitted = AdmittedCommand(parts, subjects, kind, command, new_id)
    await admitted.check()
    return admitted


class AdmissionOrder:
    """The commands of one client for one thing are sent in the order in which they came.

    The twin may tell later of an earlier one whether its condition holds: ``unlock`` must not overtake ``lock``.
    """

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Event] = {}

    async def keep(self, thing_id: str, admission: Awaitable[AdmittedCommand]) -> AdmittedCommand:
        """Await an admission, and those of earlier commands for the thing; conditions are asked at the same time.

        What the caller sends without waiting is sent before any later command.

        :raises DittoError: as ``admission`` does
        """
        before = self._last.get(thing_id)
        own = self._last[thing_id] = asyncio.Event()
        try:
            return await admission
        finally:
            try:
                if before is not None:
                    await before.wait()
            finally:
                own.set()
                if self._last.get(thing_id) is own:
                    del self._last[thing_id]


def _name_back(reply: Reply, client_id: str) -> None:
    """Give a reply, and each acknowledgement in it, the correlation-id of the client in place of that on the wire."""
    envelope, on_wire = reply.envelope, reply.correlation_id
    envelope.headers[CORRELATION_ID] = client_id
    if envelope.topic.criterion != "acks" or envelope.topic.subject is not None or envelope.value is UNSET:
        return
    entries = msgspec.json.decode(envelope.value, type=dict[str, dict[str, Raw]])
    for entry in entries.values():
        headers = msgspec.json.decode(entry.get("headers", b"{}"))
        if headers.get(CORRELATION_ID) == on_wire:
            entry["headers"] = raw({**headers, CORRELATION_ID: client_id})
    envelope.value = raw(entries)
