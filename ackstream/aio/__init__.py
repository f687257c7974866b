"""The SDK for asyncio: the clients of ``ackstream.client``, awaited instead of waited for.

Each twin holds a client and has its methods. What returns a future there returns one of asyncio here; what waits there
is a coroutine here; what one iterates over there is for ``async for`` here. Connecting and closing are ``async with``.
"""

from ackstream.aio.clients import AsyncClient, AsyncPublisher, AsyncRequester, AsyncResponder, AsyncSubscriber
from ackstream.aio.iteration import AsyncIteration
from ackstream.aio.readers import AsyncMessageStream, AsyncQueryClient, AsyncQueueConsumer, AsyncSampleReader

__all__ = [
    "AsyncClient",
    "AsyncIteration",
    "AsyncMessageStream",
    "AsyncPublisher",
    "AsyncQueryClient",
    "AsyncQueueConsumer",
    "AsyncRequester",
    "AsyncResponder",
    "AsyncSampleReader",
    "AsyncSubscriber",
]
