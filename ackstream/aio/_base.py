"""The bases of the twins, which create, use and close clients without blocking the loop.

A twin adds one thread to those of its client, which makes the calls that may block, in the order in which they are
awaited. Its methods are made from those of its client, whose signatures they have.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import cached_property, partial, wraps
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, get_args, get_origin

from ackstream.client.core.lifetime import Client
from ackstream.client.errors import FlushTimeout
from ackstream.errors import PreconditionNotMetError

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

C = TypeVar("C", bound=Client)
M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

SLICE_SECONDS = 10.0
"""Seconds after which a wait without a limit is repeated."""
ENTRY_SECONDS = 5.0
"""How long a handler waits for the entry of its twin."""

_HANDLING: ContextVar[AsyncClient[Any] | None] = ContextVar("_HANDLING", default=None)
"""The twin whose handler runs."""


class Calls:
    """A thread that makes calls one after the other; it ends with its object, and does not delay the exit of Python."""

    def __init__(self, name: str) -> None:
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=_make_calls, args=(self._waiting,), name=name, daemon=True)

    def make(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Make a call after all earlier ones, in the context of the caller."""
        if self._thread.ident is None:
            self._thread.start()
        outcome: Future[T] = Future()
        self._waiting.put((outcome, partial(copy_context().run, function, *arguments)))
        return asyncio.wrap_future(outcome)

    def __del__(self) -> None:
        self._waiting.put(None)


def _make_calls(waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (call := waiting.get()) is not None:
        outcome, function = call
        if not outcome.set_running_or_notify_cancel():
            continue
        try:
            found = function()
        except BaseException as error:  # noqa: BLE001 - it is that of the caller
            outcome.set_exception(error)
        else:
            outcome.set_result(found)
        del call, outcome, function


def aside(function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Call a function that may wait for long in a thread of its own.

    A cancelled call keeps its thread: if such calls filled the loop's few threads, the client could not be closed.
    """
    return Calls("ackstream-aio-aside").make(function, *arguments)


# -- methods of twins, made from those of clients ----------------------------------------------------------------------


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

    A cancelled call keeps its thread until then. Each slice is twice as long as the last, since each repeats its query.
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
    return aside(call)


def same(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that does not wait: that of the client."""
    return changed(method, lambda found: found)


def changed(method: Callable[Concatenate[Any, P], T], change: Callable[[T], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that does not wait, with the result of ``change`` for that of the client."""

    @wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> R:
        return change(getattr(self.client, method.__name__)(*arguments, **named))

    return call


async def outcome(_twin: Any, call: Callable[[], Future[T]]) -> T:
    return await asyncio.wrap_future(call())


_HANDLERS = ("handler", "batch_handler")


class AsyncClient(Generic[C]):
    """Base of the twins: connects when its ``async with`` block is entered, and closes when that is left.

    For one event loop. Cancelling the entry closes the client once it is connected; cancelling the exit does not.
    """

    _kind: ClassVar[Callable[..., Any]]
    _closing: asyncio.Future[None] | None = None
    _ended = False

    def __init_subclass__(cls) -> None:
        """Let a twin ``AsyncClient[Requester]`` make a ``Requester``."""
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            if get_origin(base) is AsyncClient:
                (cls._kind,) = get_args(base)

    def __init__(self, **options: Any) -> None:
        """Take the arguments of the client; the awaitable that a handler returns is awaited in the loop.

        Signals and messages are handled one after the other; a plain function is called in a thread of the client.
        """
        self._options = options
        self._begin()

    @classmethod
    def over(cls, client: C) -> Self:
        """Return the twin of an existing client, such as one of ``ackstream.testing``; it is closed with the twin."""
        twin = cls.__new__(cls)
        twin._begin(client)  # noqa: SLF001 - of the same class
        return twin

    def _begin(self, client: C | None = None) -> None:
        self._client, self._entered = client, threading.Event()
        self._thread = Calls("ackstream-aio")
        if client is not None:
            self._entered.set()

    @property
    def client(self) -> C:
        """The client itself, for calls that do not wait: ``statistics``, ``alive``, settings of its session.

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

    async def close(self) -> None:
        """Close the client; may be called twice. Called by a handler it does not wait for that handler's end."""
        await self._close()

    async def _close(self, *arguments: Any, **named: Any) -> None:
        """Close the client with the arguments of its own ``close``."""
        self._ended = True
        if self._client is not None:
            if self._closing is None:
                self._closing = aside(partial(self._client.close, *arguments, **named))
            if _HANDLING.get() is not self:
                await asyncio.shield(self._closing)

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

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # the error of the block is not hidden by that of its end
        with nullcontext() if error is None else suppress(FlushTimeout):
            await self.close()

    def _make(self, loop: asyncio.AbstractEventLoop) -> C:
        options = self._options
        for name, option in options.items():
            if option is not None and (name in _HANDLERS or inspect.iscoroutinefunction(option)):
                # a request in on_amended is answered in the thread that calls it
                options = options | {name: partial(self._handle, loop, option, waits=name != "on_amended")}
        return self._kind(**options)  # type: ignore[no-any-return]

    def _handle(
        self, loop: asyncio.AbstractEventLoop, handler: Callable[..., Any], *arguments: Any, waits: bool = True
    ) -> Any:
        """Call a handler in the client's thread; an awaitable that it returns is awaited in the loop."""
        # it may use the twin, which has its client only then; but a group that is slow to join waits for this thread
        self._entered.wait(ENTRY_SECONDS)
        found = handler(*arguments)
        if not inspect.isawaitable(found):
            return found

        async def finished() -> Any:
            _HANDLING.set(self)
            return await found

        future = asyncio.run_coroutine_threadsafe(finished(), loop)
        return future.result() if waits else future.add_done_callback(_log_failure)

    def after_others(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Call a function that may wait in the thread of this twin, after all earlier ones."""
        return self._thread.make(function, *arguments)


def _log_failure(future: Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("A handler failed", exc_info=error)


def _close_made(making: asyncio.Future[Any]) -> None:
    if not making.cancelled() and making.exception() is None:
        aside(making.result().close)


class AsyncIteration(AsyncIterator[M], Generic[M]):
    """Hands messages to the loop, one per request.

    The limited buffer of the client is the only one; once it is full, messages wait in Kafka. A cancelled wait loses
    nothing: the next one gets its message.
    """

    _coming: asyncio.Future[M | None] | None = None

    @cached_property
    def _turn(self) -> asyncio.Lock:
        return asyncio.Lock()

    def _at_hand(self) -> M | None:
        """Return a message that is available at once, if any: a call in a thread costs more than the rest."""
        return None

    @abstractmethod
    def _ask(self) -> asyncio.Future[M | None]:
        """Wait for the next message in a thread; ``None``: there are no more."""

    async def receive(self, timeout: float | None = None) -> M | None:
        """Return the next message; ``None`` after the last, or after ``timeout`` seconds.

        Raises the error that has ended the client, or the stream. ``asyncio.wait_for`` limits the wait, too.
        """
        if timeout is None:
            return await self._next_message()
        waiting = asyncio.ensure_future(self._next_message())
        try:
            await asyncio.wait([waiting], timeout=timeout)
            return await waiting if waiting.done() else None
        finally:
            waiting.cancel()

    async def _next_message(self) -> M | None:
        async with self._turn:
            if self._coming is None:
                # other tasks have their turn, and a cancellation comes before a message is taken
                await asyncio.sleep(0)
                if (ready := self._at_hand()) is not None:
                    return ready
                self._coming = self._ask()
            # a wait that is cancelled leaves the message to the next one
            await asyncio.wait([self._coming])
            coming, self._coming = self._coming, None
            return coming.result()

    async def __anext__(self) -> M:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message
