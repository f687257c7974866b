"""Readers, consumers of queues and queries for asyncio."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ackstream.aio.clients import AsyncClient, aside, sliced
from ackstream.aio.iteration import AsyncIteration
from ackstream.client.errors import CommandTimeout, ReaderClosedError
from ackstream.client.queries.message_stream import LogMessage
from ackstream.client.queries.query_client import QueryClient
from ackstream.client.queues.queue_consumer import QueueConsumer
from ackstream.client.queues.queued_messages import QueueMessage
from ackstream.client.reading.sample_reader import SampleReader
from ackstream.client.reading.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from ackstream.client.queries.message_stream import MessageStream
    from ackstream.protocol.messages import AckType, CommandAck
    from ackstream.settings import Kafka


class AsyncSampleReader(AsyncIteration[Sample], AsyncClient[SampleReader]):
    """The twin of :class:`SampleReader`: ``async for sample in reader``, or a coroutine function as its ``handler``.

    ``application-auto`` acknowledges a sample when the next one is asked for, so that one whose turn of the loop raised
    is received again at the next start, as is the last one before a ``break``. Iterate, or use a handler, not both.
    """

    _kind = SampleReader

    def __init__(self, bootstrap_servers: str | Kafka, **options: Any) -> None:
        """Take the arguments of ``SampleReader``; see :class:`AsyncClient`."""
        AsyncClient.__init__(self, bootstrap_servers, **options)
        self._begin()

    @classmethod
    def over(cls, client: SampleReader) -> Self:
        """Return the twin of a reader that exists; it is closed with the twin."""
        twin = super().over(client)
        twin._begin()  # noqa: SLF001 - of the same class
        return twin

    async def unregister(self) -> None:
        """Close the reader for good, as ``SampleReader.unregister`` does; errors are the same."""
        await aside(self.client.unregister)

    def _begin(self) -> None:
        AsyncIteration.__init__(self)
        self._lent: AbstractContextManager[list[Sample]] | None = None

    def _at_hand(self) -> Sample | None:
        return self._next(0)

    def _ask(self) -> asyncio.Future[Sample | None]:
        return self._in_order(self._next, None)

    def _next(self, timeout: float | None) -> Sample | None:
        previous, self._lent = self._lent, None
        if previous is not None:
            previous.__exit__(None, None, None)
        lent = self.client.loan(1, timeout)
        try:
            samples = lent.__enter__()
        except ReaderClosedError:
            return None
        if not samples:
            return None
        self._lent = lent
        return samples[0]


class AsyncQueueConsumer(AsyncIteration[QueueMessage], AsyncClient[QueueConsumer]):
    """The twin of :class:`QueueConsumer`: ``async for message in consumer``, or a coroutine function as ``handler``.

    Where the library settles, a message is accepted when the next one is asked for. ``message.settle`` does not wait.
    """

    _kind = QueueConsumer

    def __init__(self, bootstrap_servers: str | Kafka, **options: Any) -> None:
        """Take the arguments of ``QueueConsumer``; see :class:`AsyncClient`."""
        AsyncClient.__init__(self, bootstrap_servers, **options)
        AsyncIteration.__init__(self)

    @classmethod
    def over(cls, client: QueueConsumer) -> Self:
        """Return the twin of a consumer that exists; it is closed with the twin."""
        twin = super().over(client)
        AsyncIteration.__init__(twin)
        return twin

    def _ask(self) -> asyncio.Future[QueueMessage | None]:
        return self._in_order(self.client.receive)


class AsyncMessageStream(AsyncIteration[LogMessage]):
    """The twin of :class:`MessageStream`: ``async for message in stream``.

    :ivar stream: the stream itself
    """

    def __init__(self, stream: MessageStream) -> None:
        super().__init__()
        self.stream = stream
        self._thread = ThreadPoolExecutor(1, "ackstream-aio-stream")

    async def wait(self, ack_type: AckType, max_wait: float | None = None) -> CommandAck:
        """Wait for an acknowledgement, as ``MessageStream.wait`` does; errors are the same.

        :param max_wait: seconds; ``None``: forever
        """
        return await sliced(lambda left: self.stream.wait(ack_type, left), max_wait, CommandTimeout)

    async def stats(self) -> CommandAck:
        """Wait for the counts of a query or a delete, and return them."""
        return await self.wait("stats")

    def _at_hand(self) -> LogMessage | None:
        return self.stream.receive(0)

    def _ask(self) -> asyncio.Future[LogMessage | None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self.stream.receive)


class AsyncQueryClient(AsyncClient[QueryClient]):
    """The twin of :class:`QueryClient`: a command is awaited until it is processed. Options are those of the client."""

    _kind = QueryClient

    async def sow(self, topic: str, filter: str | None = None, **options: Any) -> AsyncMessageStream:  # noqa: A002
        """Query the state of the world, as ``QueryClient.sow`` does."""
        return await self._stream(partial(self.client.sow, topic, filter, **options))

    async def sow_and_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002
        **options: Any,
    ) -> AsyncMessageStream:
        """Query the state of the world and subscribe to what follows, as ``QueryClient.sow_and_subscribe`` does."""
        return await self._stream(partial(self.client.sow_and_subscribe, topic, filter, **options))

    async def subscribe(self, topic: str, filter: str | None = None, **options: Any) -> AsyncMessageStream:  # noqa: A002
        """Subscribe to new messages, or to those after a bookmark, as ``QueryClient.subscribe`` does."""
        return await self._stream(partial(self.client.subscribe, topic, filter, **options))

    async def unsubscribe(self, stream: AsyncMessageStream | None = None) -> None:
        """Cancel a subscription, or all of them."""
        await aside(self.client.unsubscribe, None if stream is None else stream.stream)

    async def sow_delete(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002
        *,
        keys: Iterable[str] = (),
        **options: Any,
    ) -> CommandAck:
        """Delete records from the state of the world, as ``QueryClient.sow_delete`` does; return the counts."""
        return await aside(partial(self.client.sow_delete, topic, filter, keys=keys, **options))

    async def flush(self) -> None:
        """Wait until all earlier commands are done, and their changes are durable."""
        await aside(self.client.flush)

    async def _stream(self, command: Callable[[], MessageStream]) -> AsyncMessageStream:
        return AsyncMessageStream(await aside(command))
