"""The bases of the twins: they make, use and close clients without blocking the loop.

The clients of the SDK work in threads of their own. A twin adds one thread, which makes the calls that may wait, in the
order in which they are awaited. The methods of a twin are made from those of its client, whose signatures they have.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar

from ackstream.client.core.lifetime import Client
from ackstream.client.errors import FlushTimeout
from ackstream.errors import PreconditionNotMetError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from concurrent.futures import Future
    from types import TracebackType

    from typing_extensions import Self

    from ackstream.client.core.connection import Brokers

C = TypeVar("C", bound=Client)
M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

SLICE_SECONDS = 10.0
"""After which a wait without a limit is made anew."""
ENTRY_SECONDS = 5.0
"""How long a handler waits for the entry of its twin."""

_HANDLING: ContextVar[AsyncClient[Any] | None] = ContextVar("_HANDLING", default=None)
"""The twin whose handler runs."""


def aside(function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Call a function that may wait for long in a thread of its own.

    A cancelled call keeps its thread: with enough of them in the few of the loop the client could not be closed.
    """
    thread = ThreadPoolExecutor(1, "ackstream-aio-aside")
    try:
        return asyncio.get_running_loop().run_in_executor(thread, copy_context().run, function, *arguments)
    finally:
        thread.shutdown(wait=False)


# -- methods of twins, made from those of clients ----------------------------------------------------------------------


def future(method: Callable[Concatenate[Any, P], Future[T]]) -> Callable[Concatenate[Any, P], asyncio.Future[T]]:
    """Return a method whose future is one of asyncio."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> asyncio.Future[T]:
        return asyncio.wrap_future(getattr(self.client, method.__name__)(*arguments, **named))

    return call


def coroutine(
    method: Callable[Concatenate[Any, P], R], run: Callable[[Any, Callable[[], R]], Awaitable[T]]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that awaits a call of the client, which ``run`` makes for a twin."""

    @wraps(method)
    async def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        return await run(self, partial(getattr(self.client, method.__name__), *arguments, **named))

    return call


def sliced(
    method: Callable[Concatenate[Any, P], T], gives_up: type[Exception], limit: str = "timeout"
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that waits; without a limit (a parameter in seconds) it waits again after ``gives_up``.

    A cancelled call keeps its thread until then. Each slice is twice as long as the last, since each asks anew.
    """
    signature = inspect.signature(method)

    async def run(twin: Any, call: Any) -> T:
        bound = signature.bind(twin, *call.args, **call.keywords)
        if bound.arguments.get(limit) is not None:
            return await apart(twin, call)
        seconds = SLICE_SECONDS
        while True:
            bound.arguments[limit] = seconds
            with suppress(gives_up):
                return await apart(twin, partial(call.func, *bound.args[1:], **bound.kwargs))
            seconds *= 2

    return coroutine(method, run)


def apart(_twin: Any, call: Callable[[], T]) -> asyncio.Future[T]:
    """Make a call in a thread of its own."""
    return aside(call)


async def outcome(_twin: Any, call: Callable[[], Future[T]]) -> T:
    """Make a call, and wait for the outcome of its future."""
    return await asyncio.wrap_future(call())


_HANDLERS = ("handler", "batch_handler")


class AsyncClient(Generic[C]):
    """Base of the twins: connects when its ``async with`` block is entered, and closes when that is left.

    For one event loop. Cancelling the entry closes the client as soon as it is connected; cancelling the exit does not
    stop it.
    """

    _kind: ClassVar[Callable[..., Any]]
    _closing: asyncio.Future[None] | None = None
    _ended = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if kind := vars(cls).get("_kind"):
            # for help() and editors
            cls.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]

    def __init__(self, bootstrap_servers: Brokers, **options: Any) -> None:
        """Take the arguments of the client; the awaitable that a handler returns is awaited in the loop.

        Signals and messages are handled one after the other, as they are by a plain function. A callback that is one,
        such as ``on_error``, is called in a thread of the client.

        :param bootstrap_servers: the brokers, ``host:port`` with commas between, or the Kafka of the settings
        :param options: as of the client that it is the twin of
        :raises TypeError: the client has no such option, or one is missing
        """
        inspect.signature(self._kind).bind(bootstrap_servers, **options)
        self._arguments: tuple[Brokers, dict[str, Any]] = bootstrap_servers, options
        self._begin()

    @classmethod
    def over(cls, client: C) -> Self:
        """Return the twin of a client that exists, such as one of ``ackstream.testing``; it is closed with the twin."""
        twin = cls.__new__(cls)
        twin._begin(client)  # noqa: SLF001 - of the same class
        return twin

    def _begin(self, client: C | None = None) -> None:
        self._client, self._entered = client, threading.Event()
        self._thread = ThreadPoolExecutor(1, "ackstream-aio")
        if client is not None:
            self._entered.set()

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
        """Wait at most ``timeout`` seconds for the end; return whether it came, or raise the error that caused it."""
        client, seconds = self.client, SLICE_SECONDS if timeout is None else timeout
        while not (closed := await aside(client.wait_closed, seconds)) and timeout is None:
            pass
        return closed

    async def close(self, **options: Any) -> None:
        """Close the client; may be called twice. Called by a handler it does not wait for that handler's end.

        :param options: as of the client's own, such as ``timeout``
        """
        self._ended = True
        try:
            if self._client is not None:
                if self._closing is None:
                    self._closing = aside(partial(self._client.close, **options))
                if _HANDLING.get() is not self:
                    await asyncio.shield(self._closing)
        finally:
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
        # the error of the block is not hidden by that of its end
        with nullcontext() if error is None else suppress(FlushTimeout):
            await self.close()

    def _make(self, loop: asyncio.AbstractEventLoop) -> C:
        bootstrap_servers, options = self._arguments
        for name, option in options.items():
            if option is not None and (name in _HANDLERS or inspect.iscoroutinefunction(option)):
                options = options | {name: partial(self._handle, loop, option)}
        client: C = self._kind(bootstrap_servers, **options)
        return client

    def _handle(self, loop: asyncio.AbstractEventLoop, handler: Callable[..., Any], *arguments: Any) -> Any:
        """Call a handler in the client's thread; an awaitable that it returns is awaited in the loop."""
        # it may use the twin, which has its client only then; but a group that is slow to join waits for this thread
        self._entered.wait(ENTRY_SECONDS)
        found = handler(*arguments)
        if not inspect.isawaitable(found):
            return found

        async def finished() -> Any:
            _HANDLING.set(self)
            return await found

        return asyncio.run_coroutine_threadsafe(finished(), loop).result()

    def after_others(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Call a function that may wait in the thread of this twin, after all earlier ones."""
        if self._ended:
            # that thread takes no calls any more; the client says what has become of it
            return aside(function, *arguments)
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _close_made(making: asyncio.Future[Any]) -> None:
    if not making.cancelled() and making.exception() is None:
        aside(making.result().close)


class AsyncIteration(AsyncIterator[M], Generic[M]):
    """Hands messages to the loop, one when it is asked for.

    The limited buffer of the client is the only one: messages that the application does not take stay there, and
    once it is full, in Kafka. A wait that is cancelled loses nothing: its message is that of the next one.
    """

    _coming: asyncio.Future[M | None] | None = None

    @cached_property
    def _turn(self) -> asyncio.Lock:
        return asyncio.Lock()

    def _at_hand(self) -> M | None:
        """Return a message that need not be waited for, if there is one: to ask a thread costs more than the rest."""
        return None

    @abstractmethod
    def _ask(self) -> asyncio.Future[M | None]:
        """Wait for the next message in a thread; ``None``: there are no more."""

    async def receive(self) -> M | None:
        """Return the next message; ``None`` after the last. Raises the error that has ended the client, or the stream.

        Limit the wait with ``asyncio.wait_for``, or ``asyncio.timeout`` from Python 3.11 on.
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
