"""The SDK for asyncio: the clients of ``ackstream.client``, awaited instead of waited for.

Each twin holds a client and has its methods. A method that returns a future returns one of asyncio here; a method that
waits is a coroutine; iteration is by ``async for``. A twin connects and closes by ``async with``.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ackstream import client as sdk
from ackstream.aio._base import AsyncClient as AsyncClient
from ackstream.aio._base import AsyncIteration as AsyncIteration
from ackstream.aio._base import apart, aside, coroutine, future, outcome, sliced

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from ackstream.protocol.messages import CommandAck


class AsyncRequester(AsyncClient[sdk.Requester]):
    """The twin of :class:`Requester`. A request whose wait is cancelled is answered, and the reply is dropped."""

    _kind = sdk.Requester

    send = future(sdk.Requester.send)
    request = coroutine(sdk.Requester.send, outcome)
    publish = coroutine(sdk.Requester.publish, outcome)


class AsyncPublisher(AsyncClient[sdk.Publisher]):
    """The twin of :class:`Publisher`. Messages have the order in which :meth:`publish` is called.

    While the window is full, or readers are too far behind, ``publish`` waits, and the loop does not. A call that is
    cancelled has published its message, or not; so has one whose future is cancelled.
    """

    _kind = sdk.Publisher

    async def _one(self, call: Callable[[], Future[sdk.Receipt]]) -> asyncio.Future[sdk.Receipt]:
        return asyncio.wrap_future(await self.after_others(call))

    async def _many(self, call: Callable[[], list[Future[sdk.Receipt]]]) -> list[asyncio.Future[sdk.Receipt]]:
        return [asyncio.wrap_future(one) for one in await self.after_others(call)]

    publish = coroutine(sdk.Publisher.publish, _one)
    publish_many = coroutine(sdk.Publisher.publish_many, _many)
    publish_flush = sliced(sdk.Publisher.publish_flush, sdk.FlushTimeout)
    wait_for_acknowledgments = sliced(sdk.Publisher.wait_for_acknowledgments, sdk.ReaderTimeout, "max_wait")
    waiting_for = coroutine(sdk.Publisher.waiting_for, apart)

    async def publish_await_acknowledgement(
        self, value: bytes, timeout: float | None = None, **options: Any
    ) -> sdk.Receipt:
        """Publish and wait for the receipt; errors are those of ``Publisher.publish_await_acknowledgement``."""
        receipt = await self.publish(value, **{"ack_immediately": True, **options})
        done, _ = await asyncio.wait([receipt], timeout=timeout)
        if not done:
            raise sdk.AcknowledgementTimeout(
                f"No acknowledgement within {timeout:g} s; the message is kept, and may be stored already or later."
            )
        return await receipt


class AsyncResponder(AsyncClient[sdk.Responder]):
    """The twin of :class:`Responder`; its ``handler`` is a coroutine function that returns the answer to a signal."""

    _kind = sdk.Responder


class AsyncSubscriber(AsyncClient[sdk.Subscriber]):
    """The twin of :class:`Subscriber`; its ``handler`` is a coroutine function that returns the answer to a signal."""

    _kind = sdk.Subscriber


class AsyncSampleReader(AsyncIteration[sdk.Sample], AsyncClient[sdk.SampleReader]):
    """The twin of :class:`SampleReader`: ``async for sample in reader``, or a coroutine function as its ``handler``.

    ``application-auto`` acknowledges a sample when the next one is asked for, so that one whose turn of the loop raised
    is received again at the next start, as is the last one before a ``break``. Iterate, or use a handler, not both.
    """

    _kind = sdk.SampleReader
    _lent: AbstractContextManager[list[sdk.Sample]] | None = None

    unregister = coroutine(sdk.SampleReader.unregister, apart)

    def _at_hand(self) -> sdk.Sample | None:
        return self._next(0)

    def _ask(self) -> asyncio.Future[sdk.Sample | None]:
        return self.after_others(self._next, None)

    def _next(self, timeout: float | None) -> sdk.Sample | None:
        previous, self._lent = self._lent, None
        lent = self.client.loan(1, timeout)
        try:
            if previous is not None:
                # not acknowledged any more if the reader is closed
                previous.__exit__(None, None, None)
            samples = lent.__enter__()
        except sdk.ReaderClosedError:
            return None
        if not samples:
            return None
        self._lent = lent
        return samples[0]


class AsyncQueueConsumer(AsyncIteration[sdk.QueueMessage], AsyncClient[sdk.QueueConsumer]):
    """The twin of :class:`QueueConsumer`: ``async for message in consumer``, or a coroutine function as ``handler``.

    Where the library settles, a message is accepted when the next one is asked for. ``message.settle`` does not wait.
    """

    _kind = sdk.QueueConsumer

    def _ask(self) -> asyncio.Future[sdk.QueueMessage | None]:
        return self.after_others(self.client.receive)


class AsyncMessageStream(AsyncIteration[sdk.LogMessage]):
    """The twin of :class:`MessageStream`: ``async for message in stream``; ``stream`` is the stream itself."""

    def __init__(self, stream: sdk.MessageStream) -> None:
        self.stream = self.client = stream
        self._thread = ThreadPoolExecutor(1, "ackstream-aio-stream")

    wait = sliced(sdk.MessageStream.wait, sdk.CommandTimeout)

    async def stats(self) -> CommandAck:
        """Wait for the counts of a query or a delete, and return them."""
        return await self.wait("stats")

    def _at_hand(self) -> sdk.LogMessage | None:
        return self.stream.receive(0)

    def _ask(self) -> asyncio.Future[sdk.LogMessage | None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self.stream.receive)


class AsyncQueryClient(AsyncClient[sdk.QueryClient]):
    """The twin of :class:`QueryClient`: a command is awaited until it is processed."""

    _kind = sdk.QueryClient

    async def _stream(self, call: Callable[[], sdk.MessageStream]) -> AsyncMessageStream:
        return AsyncMessageStream(await aside(call))

    sow = coroutine(sdk.QueryClient.sow, _stream)
    sow_and_subscribe = coroutine(sdk.QueryClient.sow_and_subscribe, _stream)
    subscribe = coroutine(sdk.QueryClient.subscribe, _stream)
    sow_delete = coroutine(sdk.QueryClient.sow_delete, apart)
    flush = coroutine(sdk.QueryClient.flush, apart)

    async def unsubscribe(self, stream: AsyncMessageStream | None = None, timeout: float | None = None) -> None:
        """Cancel a subscription, or all of them."""
        await aside(self.client.unsubscribe, None if stream is None else stream.stream, timeout)


__all__ = [name for name in globals() if name.startswith("Async")]
