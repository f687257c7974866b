"""What one client has not read yet, of a WebSocket or of server-sent events: in order, and within limits."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
MAX_WAITING_CHARACTERS = 64 * 1024 * 1024
"""Maximum number and length of unread messages; beyond it the client is cut off rather than some are dropped."""

MAX_OF_ALL = 256 * 1024 * 1024
"""Maximum length of the unread messages of all clients of a gateway; beyond it those that have many are cut off."""

ROOM_CHARACTERS = 1024 * 1024
"""A search goes on to its next page while the client has fewer unread characters than this."""

Message = str | asyncio.Task[str | None]
"""A text, or the task that makes it; ``None``: there is nothing to send after all."""


class UnreadTotal:
    """The length of the unread messages of all clients; for the event loop that serves them."""

    def __init__(self) -> None:
        self.characters = 0


class UnreadMessages:
    """The messages to one client; for the event loop that serves it.

    A text that is still being made has no length yet: it counts from when it is there.
    """

    def __init__(self, overflow: Callable[[], None], total: UnreadTotal) -> None:
        """Begin without messages; ``overflow`` is called at the limit."""
        self._overflow, self._total = overflow, total
        self._waiting: asyncio.Queue[Message] = asyncio.Queue(MAX_WAITING)
        self._lengths: dict[asyncio.Task[str | None], int] = {}
        self._characters = 0
        self._taken = asyncio.Event()
        self._overflown = False

    @property
    def empty(self) -> bool:
        """Whether no message waits."""
        return self._waiting.empty()

    def put(self, message: Message) -> None:
        """Add a message behind all others."""
        if self._waiting.full():
            self._overflow_now()
            return
        if isinstance(message, str):
            self._waiting.put_nowait(message)
            self._add(len(message))
        else:
            self._lengths[message] = 0
            self._waiting.put_nowait(message)
            message.add_done_callback(self._made)

    async def room(self) -> None:
        """Return once the client has room for the next message of a kind that can wait."""
        while self._characters > ROOM_CHARACTERS:
            self._taken.clear()
            await self._taken.wait()

    async def take(self) -> Message:
        """Return the next message; none is lost if this is cancelled."""
        message = await self._waiting.get()
        self._remove(len(message) if isinstance(message, str) else self._lengths.pop(message))
        self._taken.set()
        return message

    async def send_all(self, send: Callable[[str], Awaitable[None]]) -> None:
        """Send messages as they come; ``send`` returns once the socket has taken one."""
        while True:
            message = await self.take()
            try:
                text = message if isinstance(message, str) else await message
            except Exception:
                # the client must not miss it unnoticed: its session ends
                log.exception("A message for a client could not be made.")
                raise
            if text is not None:
                await send(text)

    def drop(self) -> None:
        """Forget what was not sent."""
        self._waiting = asyncio.Queue()
        self._lengths.clear()
        self._remove(self._characters)

    def _made(self, task: asyncio.Task[str | None]) -> None:
        # one that is sent already, or was dropped, does not count
        if task in self._lengths and not task.cancelled() and task.exception() is None:
            self._lengths[task] = length = len(task.result() or "")
            self._add(length)

    def _add(self, length: int) -> None:
        self._characters += length
        self._total.characters += length
        crowded = self._total.characters > MAX_OF_ALL and self._characters > ROOM_CHARACTERS
        if crowded or self._characters > MAX_WAITING_CHARACTERS:
            self._overflow_now()

    def _remove(self, length: int) -> None:
        self._characters -= length
        self._total.characters -= length

    def _overflow_now(self) -> None:
        if not self._overflown:
            self._overflown = True
            log.warning("Disconnecting a client that left %s messages unread.", self._waiting.qsize())
            self._overflow()
