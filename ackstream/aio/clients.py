"""Clients for asyncio: made, used and closed without blocking the loop.

The clients of the SDK work in threads of their own. A twin adds one thread, which makes the calls that may wait, in the
order in which they are awaited.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ackstream.client.core.lifetime import Client
from ackstream.client.errors import FlushTimeout, ReaderTimeout
from ackstream.client.parties.receivers import Responder, Subscriber
from ackstream.client.publishing.publisher import Publisher
from ackstream.client.requests.requester import Requester
from ackstream.errors import PreconditionNotMetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from typing_extensions import Self

    from ackstream.client.publishing.publications import Receipt, Stage
    from ackstream.client.requests._open_requests import Stored
    from ackstream.client.requests.replies import Reply
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.settings import Kafka

C = TypeVar("C", bound=Client)
T = TypeVar("T")

SLICE_SECONDS = 10.0
"""After which a wait without a limit is made anew."""
ENTRY_SECONDS = 5.0
"""How long a handler waits for the entry of its twin."""

_HANDLING: ContextVar[AsyncClient[Any] | None] = ContextVar("_HANDLING", default=None)
"""The twin whose handler runs."""


def aside(function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Call a function that may wait for long in a thread of its own.

    Those of the loop are few, and a call whose future is cancelled keeps its thread: with enough of them the client
    could not even be closed.
    """
    thread = ThreadPoolExecutor(1, "ackstream-aio-aside")
    try:
        return asyncio.get_running_loop().run_in_executor(thread, partial(copy_context().run, function, *arguments))
    finally:
        thread.shutdown(wait=False)


async def sliced(wait: Callable[[float], T], max_wait: float | None, gives_up: type[Exception]) -> T:
    """Make a call that waits; without a limit again and again, so that a cancelled one does not keep its thread.

    Each time twice as long, since each asks anew.

    :param wait: raises ``gives_up`` after as many seconds
    :param max_wait: seconds; ``None``: forever
    """
    if max_wait is not None:
        return await aside(wait, max_wait)
    seconds = SLICE_SECONDS
    while True:
        with suppress(gives_up):
            return await aside(wait, seconds)
        seconds *= 2


class AsyncClient(Generic[C]):
    """Base of the twins: connects when its ``async with`` block is entered, and closes when that is left.

    For one event loop. Cancelling the entry closes the client as soon as it is connected; cancelling the exit does not
    stop it.
    """

    _kind: ClassVar[Callable[..., Any]]

    def __init__(self, bootstrap_servers: str | Kafka, **options: Any) -> None:
        """Take the arguments of the client; what a handler returns is awaited in the loop, if it has to be.

        Signals and messages are handled one after the other, as they are by a plain function. Other callbacks, such as
        ``on_error``, are called in threads of the client.

        :param bootstrap_servers: the brokers, ``host:port`` with commas between, or the Kafka of the settings
        :param options: as of the client that it is the twin of
        :raises TypeError: the client has no such option, or one is missing
        """
        inspect.signature(self._kind).bind(bootstrap_servers, **options)
        self._arguments: tuple[str | Kafka, dict[str, Any]] = bootstrap_servers, options
        self._client: C | None = None
        self._entered, self._ended = threading.Event(), False
        self._closing: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "ackstream-aio")

    @classmethod
    def over(cls, client: C) -> Self:
        """Return the twin of a client that exists, such as one of ``ackstream.testing``; it is closed with the twin."""
        twin = cls.__new__(cls)
        AsyncClient._hold(twin, client)
        return twin

    def _hold(self, client: C) -> None:
        self._client = client
        self._entered, self._ended = threading.Event(), False
        self._closing = None
        self._entered.set()
        self._thread = ThreadPoolExecutor(1, "ackstream-aio")

    @property
    def client(self) -> C:
        """The client itself, for all that does not wait: ``statistics``, ``alive``, settings of its session.

        :raises PreconditionNotMetError: outside of the ``async with`` block
        """
        if self._client is None:
            raise PreconditionNotMetError(
                f"This {type(self).__name__} is not connected: use it inside of its `async with` block."
            )
        return self._client

    async def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the client is closed, for at most ``timeout`` seconds; return whether it is.

        :raises ClientError: the error that ended the client
        """
        client, seconds = self.client, SLICE_SECONDS if timeout is None else timeout
        while not (closed := await aside(client.wait_closed, seconds)) and timeout is None:
            pass
        return closed

    async def close(self) -> None:
        """Close the client, as its own ``close`` does; may be called twice.

        In a handler of the client it does not wait for the end, which waits for the handler.
        """
        self._ended = True
        if self._client is not None:
            if self._closing is None:
                self._closing = aside(self._client.close)
            if _HANDLING.get() is not self:
                await asyncio.shield(self._closing)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        if self._client is None:
            making = aside(self._make, asyncio.get_running_loop())
            try:
                self._client = await asyncio.shield(making)
                if self._ended:
                    # by a handler
                    making.add_done_callback(_close_made)
            except asyncio.CancelledError:
                making.add_done_callback(_close_made)
                raise
            finally:
                self._entered.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _make(self, loop: asyncio.AbstractEventLoop) -> C:
        bootstrap_servers, options = self._arguments
        for name in ("handler", "batch_handler"):
            if options.get(name) is not None:
                options = options | {name: partial(self._handle, loop, options[name])}
        client: C = self._kind(bootstrap_servers, **options)
        return client

    def _handle(self, loop: asyncio.AbstractEventLoop, handler: Callable[[Any], Any], argument: Any) -> Any:
        """Call a handler in the client's thread; what it returns is awaited in the loop, if it has to be."""
        # it may use the twin, which has its client only then; but a group that is slow to join waits for this thread
        self._entered.wait(ENTRY_SECONDS)
        found = handler(argument)
        if not inspect.isawaitable(found):
            return found

        async def finished() -> Any:
            _HANDLING.set(self)
            return await found

        return asyncio.run_coroutine_threadsafe(finished(), loop).result()

    def _in_order(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Call a function that may wait in the thread of this twin, after all earlier ones."""
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _close_made(making: asyncio.Future[Any]) -> None:
    if not making.cancelled() and making.exception() is None:
        aside(making.result().close)


class AsyncRequester(AsyncClient[Requester]):
    """The twin of :class:`Requester`.

    A request whose wait is cancelled has been sent: the service answers it, and the reply is dropped.
    """

    _kind = Requester

    def send(
        self,
        command: Envelope,
        *,
        timeout: float | str | None = None,
        acks: Iterable[str] | None = None,
        response_required: bool | None = None,
        correlation_id: str | None = None,
    ) -> asyncio.Future[Reply]:
        """Send a request; the future ends with its reply. Parameters and errors are those of ``Requester.send``."""
        return asyncio.wrap_future(
            self.client.send(
                command,
                timeout=timeout,
                acks=acks,
                response_required=response_required,
                correlation_id=correlation_id,
            )
        )

    async def request(
        self,
        command: Envelope,
        *,
        timeout: float | str | None = None,
        acks: Iterable[str] | None = None,
        correlation_id: str | None = None,
    ) -> Reply:
        """Send a request and wait for its reply; parameters and errors are those of ``Requester.send``."""
        return await self.send(command, timeout=timeout, acks=acks, correlation_id=correlation_id)

    async def publish(
        self,
        command: Envelope,
        *,
        timeout: float | str | None = None,
        acks: Iterable[str] | None = None,
        correlation_id: str | None = None,
    ) -> Stored:
        """Send a request without a reply; return once the broker has stored it. Errors as of ``Requester.publish``."""
        sent = self.client.publish(command, timeout=timeout, acks=acks, correlation_id=correlation_id)
        return await asyncio.wrap_future(sent)


class AsyncPublisher(AsyncClient[Publisher]):
    """The twin of :class:`Publisher`. Messages have the order in which :meth:`publish` is called."""

    _kind = Publisher

    async def publish(self, value: bytes, **options: Any) -> asyncio.Future[Receipt]:
        """Keep a message and send it; return the future of its receipt.

        While the window is full, or readers are too far behind, this waits, and the loop does not. A call that is
        cancelled has published its message, or not; so has one whose future is cancelled.

        :param options: as of ``Publisher.publish``, as are the errors
        """
        return asyncio.wrap_future(await self._in_order(partial(self.client.publish, value, **options)))

    async def publish_many(self, values: Iterable[bytes], **options: Any) -> list[asyncio.Future[Receipt]]:
        """Keep messages and send them in their order; return the futures of their receipts.

        :param options: as of ``Publisher.publish_many``, as are the errors
        """
        sent = await self._in_order(partial(self.client.publish_many, values, **options))
        return [asyncio.wrap_future(one) for one in sent]

    async def publish_await_acknowledgement(self, value: bytes, **options: Any) -> Receipt:
        """Publish and wait for the receipt, for which the service waits for no other message (``ack_immediately``).

        :raises RefusedError: with the reason
        """
        return await (await self.publish(value, **{"ack_immediately": True, **options}))

    async def publish_flush(self, max_wait: float | None = None, stage: Stage | None = None) -> None:
        """Wait until every message published so far is acknowledged or refused, as ``Publisher.publish_flush`` does.

        :param max_wait: seconds; ``None``: forever
        :raises FlushTimeout: some are not; they are kept
        """
        await sliced(lambda left: self.client.publish_flush(left, stage), max_wait, FlushTimeout)

    async def wait_for_acknowledgments(self, max_wait: float | None = None) -> None:
        """Wait until readers have acknowledged every message, as ``Publisher.wait_for_acknowledgments`` does.

        :param max_wait: seconds; ``None``: forever
        :raises ReaderTimeout: some messages are not complete
        """
        await sliced(self.client.wait_for_acknowledgments, max_wait, ReaderTimeout)


class AsyncResponder(AsyncClient[Responder]):
    """The twin of :class:`Responder`; its ``handler`` is a coroutine function that returns the answer to a signal."""

    _kind = Responder


class AsyncSubscriber(AsyncClient[Subscriber]):
    """The twin of :class:`Subscriber`; its ``handler`` is a coroutine function that returns the answer to a signal."""

    _kind = Subscriber
