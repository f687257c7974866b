"""The SDK for asyncio: the clients of ``ackstream.client`` without blocking calls.

Each twin holds a client and has its methods. Futures are those of asyncio, methods that wait are coroutines, iteration
is by ``async for``. A twin connects and closes by ``async with``.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ackstream import client as sdk
from ackstream.aio._base import SLICE_SECONDS, Calls, apart, aside, changed, coroutine, outcome, same, sliced
from ackstream.aio._base import AsyncClient as AsyncClient
from ackstream.aio._base import AsyncIteration as AsyncIteration
from ackstream.client import options
from ackstream.client.core.arguments import names, takes
from ackstream.client.parties.answers import Answer
from ackstream.client.publishing.publications import AwaitedMessage
from ackstream.client.reading.sample_reader import ANY
from ackstream.protocol.messages import CommandAck


class AsyncUpdates(AsyncIteration[sdk.Reply]):
    """The twin of :class:`Updates`: ``async for update in requester.stream(…)``; it wraps ``updates``."""

    def __init__(self, updates: sdk.Updates) -> None:
        self.updates = updates

    def _ask(self) -> asyncio.Future[sdk.Reply | None]:
        return asyncio.wrap_future(self.updates.ask())


class AsyncRequester(AsyncClient[sdk.Requester]):
    """The twin of :class:`Requester`. A request whose wait is cancelled is answered, and the reply is dropped."""

    @takes(options.RequesterOptions, awaits=True)
    def __init__(self, given: options.RequesterOptions) -> None:
        super().__init__(**vars(given))

    send = changed(sdk.Requester.send, asyncio.wrap_future)
    request = coroutine(sdk.Requester.send, outcome)
    publish = coroutine(sdk.Requester.publish, outcome)

    async def _sent(self, call: Callable[[], Future[sdk.Reply]]) -> asyncio.Future[sdk.Reply]:
        # to look up a topic takes a moment
        return asyncio.wrap_future(await aside(call))

    async def _answered(self, call: Callable[[], Future[sdk.Reply]]) -> sdk.Reply:
        return await (await self._sent(call))

    send_record = coroutine(sdk.Requester.send_record, _sent)

    async def _streamed(self, call: Callable[[], sdk.Updates]) -> AsyncUpdates:
        return AsyncUpdates(await aside(call))

    request_record = coroutine(sdk.Requester.send_record, _answered)
    stream = changed(sdk.Requester.stream, AsyncUpdates)
    stream_record = coroutine(sdk.Requester.stream_record, _streamed)
    cancel = same(sdk.Requester.cancel)


class AsyncPublisher(AsyncClient[sdk.Publisher]):
    """The twin of :class:`Publisher`. Messages have the order in which :meth:`publish` is called.

    While the window is full, or readers lag, ``publish`` waits, not the loop; if cancelled, it may have sent.
    """

    @takes(options.PublisherOptions, awaits=True)
    def __init__(self, given: options.PublisherOptions) -> None:
        super().__init__(**vars(given))

    async def _one(self, call: Callable[[], Future[sdk.Receipt]]) -> asyncio.Future[sdk.Receipt]:
        return _receipt(await self.after_others(call))

    async def _many(self, call: Callable[[], list[Future[sdk.Receipt]]]) -> list[asyncio.Future[sdk.Receipt]]:
        return [_receipt(one) for one in await self.after_others(call)]

    publish = coroutine(sdk.Publisher.publish, _one)
    publish_many = coroutine(sdk.Publisher.publish_many, _many)
    publish_flush = sliced(sdk.Publisher.publish_flush, sdk.FlushTimeout)
    wait_for_acknowledgments = sliced(sdk.Publisher.wait_for_acknowledgments, sdk.ReaderTimeout, "max_wait")
    waiting_for = coroutine(sdk.Publisher.waiting_for, apart)

    async def close(self, timeout: float = 5.0) -> None:
        """Close the publisher, as :meth:`Publisher.close` does; called by a handler it does not wait for that."""
        await self._close(timeout)

    @takes(AwaitedMessage)
    async def publish_await_acknowledgement(self, message: AwaitedMessage) -> sdk.Receipt:
        """Publish and wait for the receipt; errors are those of ``Publisher.publish_await_acknowledgement``."""
        receipt = await self.publish(**vars(message))
        done, _ = await asyncio.wait([receipt], timeout=message.timeout)
        if not done:
            raise sdk.AcknowledgementTimeout(
                f"No acknowledgement within {message.timeout:g} s; the message is kept, and may be stored already or "
                f"later."
            )
        return await receipt


def _receipt(given: Future[sdk.Receipt]) -> asyncio.Future[sdk.Receipt]:
    """Return the future of a receipt, which need not be awaited: ``on_failed_write`` gets each refused message."""
    found = asyncio.wrap_future(given)
    found.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return found


@dataclass(frozen=True, kw_only=True)
class AsyncResponderOptions(options.ResponderOptions):
    """The options of an ``AsyncResponder``."""

    handler: Callable[[Any], Answer | Awaitable[Answer]]  # type: ignore[assignment]  # awaits, too


@dataclass(frozen=True, kw_only=True)
class AsyncSubscriberOptions(options.SubscriberOptions):
    """The options of an ``AsyncSubscriber``."""

    handler: Callable[[sdk.Delivered], Answer | Awaitable[Answer]]  # type: ignore[assignment]  # a subscriber's signals


class AsyncResponder(AsyncClient[sdk.Responder]):
    """The twin of :class:`Responder`; its ``handler`` is a coroutine function that returns the answer to a signal."""

    @takes(AsyncResponderOptions, awaits=True)
    def __init__(self, given: AsyncResponderOptions) -> None:
        super().__init__(**vars(given))


def responder(
    *labels: str, **options: Any
) -> Callable[[Callable[[Any], Answer | Awaitable[Answer]]], Callable[..., AsyncResponder]]:
    """Make a coroutine function one that starts its responder: ``async with handler("localhost:9092"): …``."""
    return lambda handler: partial(AsyncResponder, handler=handler, labels=names("labels", labels), **options)


class AsyncSubscriber(AsyncClient[sdk.Subscriber]):
    """The twin of :class:`Subscriber`; its ``handler`` is a coroutine function that returns the answer to a signal."""

    @takes(AsyncSubscriberOptions, awaits=True)
    def __init__(self, given: AsyncSubscriberOptions) -> None:
        super().__init__(**vars(given))


class AsyncSampleReader(AsyncIteration[sdk.Sample], AsyncClient[sdk.SampleReader]):
    """The twin of :class:`SampleReader`: ``async for sample in reader``, or a coroutine function as its ``handler``.

    ``application-auto`` acknowledges a sample when the next one is requested: after an exception or a ``break`` in the
    body of the loop, the last sample is delivered again at the next start. Iterate, or use a handler, not both.
    """

    _lent: AbstractContextManager[list[sdk.Sample]] | None = None

    @takes(options.ReaderOptions, awaits=True)
    def __init__(self, given: options.ReaderOptions) -> None:
        super().__init__(**vars(given))

    async def _await_samples(
        self, access: Callable[[], list[sdk.Sample]], timeout: float | None, *, unread: bool = False
    ) -> list[sdk.Sample]:
        """Return what ``access`` does once there are samples: a wait that is cancelled has accessed none."""
        until = None if timeout is None else time.monotonic() + timeout
        arrival = partial(self.client._history.await_samples, unread=unread)  # noqa: SLF001 - a wait that takes nothing
        while True:
            there = arrival(0)
            samples = access()
            left = SLICE_SECONDS if until is None else min(SLICE_SECONDS, until - time.monotonic())
            # an empty result although there are samples: none were requested
            if samples or there or left <= 0:
                return samples
            await aside(arrival, left)

    async def _access(self, call: partial[list[sdk.Sample]]) -> list[sdk.Sample]:
        bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
        timeout, bound.arguments["timeout"] = bound.arguments.get("timeout", 0.0), 0.0
        access = partial(call.func, *bound.args, **bound.kwargs)
        return await self._await_samples(access, timeout, unread=bound.arguments.get("unread", False))

    take = coroutine(sdk.SampleReader.take, _access)  # type: ignore[arg-type]  # it makes a partial
    read = coroutine(sdk.SampleReader.read, _access)  # type: ignore[arg-type]  # it makes a partial
    acknowledge_sample = same(sdk.SampleReader.acknowledge_sample)
    acknowledge_all = same(sdk.SampleReader.acknowledge_all)
    reject_sample = same(sdk.SampleReader.reject_sample)
    unregister = coroutine(sdk.SampleReader.unregister, apart)

    async def close(self, *, leave: bool = True) -> None:
        """Close the reader, as :meth:`SampleReader.close` does; called by a handler it does not wait for that."""
        await self._close(leave=leave)

    @asynccontextmanager
    async def loan(self, max_samples: int = ANY, timeout: float | None = 0.0) -> AsyncIterator[list[sdk.Sample]]:
        """Lend samples for an ``async with`` block, as :meth:`SampleReader.loan` does."""
        with ExitStack() as lent:
            yield await self._await_samples(lambda: lent.enter_context(self.client.loan(max_samples)), timeout)

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

    Where the library settles, a message is accepted when the next one is requested. Methods of a message do not wait.
    """

    @takes(options.QueueOptions, awaits=True)
    def __init__(self, given: options.QueueOptions) -> None:
        super().__init__(**vars(given))

    stop = same(sdk.QueueConsumer.stop)
    start = same(sdk.QueueConsumer.start)

    def _ask(self) -> asyncio.Future[sdk.QueueMessage | None]:
        return self.after_others(self.client.receive)


class AsyncMessageStream(AsyncIteration[sdk.LogMessage]):
    """The twin of :class:`MessageStream`: ``async for message in stream``; ``stream`` is the stream itself."""

    def __init__(self, stream: sdk.MessageStream) -> None:
        self.stream = self.client = stream
        self._thread = Calls("ackstream-aio-stream")

    wait = sliced(sdk.MessageStream.wait, sdk.CommandTimeout)

    async def stats(self) -> CommandAck:
        """Wait for the counts of a query or a delete, and return them."""
        return await self.wait("stats")

    def _at_hand(self) -> sdk.LogMessage | None:
        return self.stream.receive(0)

    def _ask(self) -> asyncio.Future[sdk.LogMessage | None]:
        return self._thread.make(self.stream.receive)


class AsyncQueryClient(AsyncClient[sdk.QueryClient]):
    """The twin of :class:`QueryClient`: a command is awaited until it is processed."""

    @takes(options.QueryOptions, awaits=True)
    def __init__(self, given: options.QueryOptions) -> None:
        super().__init__(**vars(given))

    async def _stream(self, call: Any) -> AsyncMessageStream:
        if (handler := call.keywords.get("handler")) is not None:
            call = partial(call, handler=partial(self._handle, asyncio.get_running_loop(), handler))
        return AsyncMessageStream(await aside(call))

    sow = coroutine(sdk.QueryClient.sow, _stream)
    sow_and_subscribe = coroutine(sdk.QueryClient.sow_and_subscribe, _stream)
    subscribe = coroutine(sdk.QueryClient.subscribe, _stream)
    execute = coroutine(sdk.QueryClient.execute, _stream)
    sow_delete = coroutine(sdk.QueryClient.sow_delete, apart)
    flush = coroutine(sdk.QueryClient.flush, apart)

    async def unsubscribe(self, stream: AsyncMessageStream | None = None, timeout: float | None = None) -> None:
        """Cancel a subscription, or all of them."""
        await aside(self.client.unsubscribe, None if stream is None else stream.stream, timeout)


__all__ = ["responder"]
__all__ += [name for name in globals() if name.startswith("Async")]
