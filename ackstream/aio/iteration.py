"""What clients receive, for ``async for``."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

M = TypeVar("M")


class AsyncIteration(AsyncIterator[M], Generic[M]):
    """Hands messages to the loop, one when it is asked for.

    The limited buffer of the client is the only one: what the application does not take stays there, and once it is
    full, in Kafka. A wait that is cancelled loses nothing: its message is that of the next one.
    """

    def __init__(self) -> None:
        self._coming: asyncio.Future[M | None] | None = None
        self._turn = asyncio.Lock()

    def _at_hand(self) -> M | None:
        """Return a message that need not be waited for, if there is one: to ask a thread costs more than the rest."""
        return None

    @abstractmethod
    def _ask(self) -> asyncio.Future[M | None]:
        """Wait for the next message in a thread; ``None``: there are no more."""

    async def receive(self) -> M | None:
        """Return the next message; ``None`` if there are no more.

        Limit the wait with ``asyncio.wait_for``, or ``asyncio.timeout`` from Python 3.11 on.

        :raises ClientError: the client, or the stream, has ended with that error
        """
        async with self._turn:
            if self._coming is None:
                # other tasks have their turn, and a cancellation comes before a message is taken
                await asyncio.sleep(0)
                if (ready := self._at_hand()) is not None:
                    return ready
                self._coming = self._ask()
            try:
                message = await asyncio.shield(self._coming)
            except asyncio.CancelledError:
                if self._coming.cancelled():
                    self._coming = None
                raise
            except BaseException:
                self._coming = None
                raise
            self._coming = None
            return message

    async def __anext__(self) -> M:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message
