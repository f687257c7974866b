"""The exchange of the gateway with Kafka: requests out, replies and outcomes back, for one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import move_on_after

from ackstream.client.errors import ClosedError, CorrelationIdInUseError, NotSentError, RequestTimeout
from ackstream.gateway.errors import (
    body_incomplete,
    correlation_id_in_use,
    no_answer,
    not_sent,
    shutting_down,
    unavailable,
)
from ackstream.protocol.ditto.headers import CORRELATION_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Future

    from anyio import CancelScope

    from ackstream.client import Reply, Requester
    from ackstream.observe.meter import Outcomes, RequestOutcome
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.protocol.errors import DittoError

T = TypeVar("T")


class Exchange:
    """Sends requests through Kafka and awaits their replies and outcomes; for one event loop, without threads.

    The threads of the client resolve the futures through the loop. A request that cannot be answered raises the
    ``DittoError`` for its sender: 503 with Retry-After if Kafka or the service is unavailable or the gateway is
    shutting down, 409 for a correlation-id that is in use. The clients are closed by their owner.
    """

    def __init__(self, requester: Requester, outcomes: Outcomes) -> None:
        self._requester = requester
        self._outcomes = outcomes
        self._waiting: set[asyncio.Future[None]] = set()
        self._limited: set[CancelScope] = set()
        self._ended: deque[asyncio.Future[None]] = deque()
        self._woken: asyncio.AbstractEventLoop | None = None
        self._interrupted = False

    async def receive(self, body: Coroutine[Any, Any, T], seconds: float) -> T:
        """Await the rest of a request from its client.

        :raises DittoError: 408, it did not arrive within ``seconds``; 503, the gateway is shutting down
        """
        found = await self.within(body, seconds, not_sent)
        if found is None:
            raise body_incomplete(seconds)
        return found

    async def within(
        self, what: Coroutine[Any, Any, T], seconds: float, interrupted: Callable[[], DittoError] = shutting_down
    ) -> T | None:
        """Await something for a client; return ``None`` if it does not happen within ``seconds``.

        :raises DittoError: 503, the gateway is shutting down
        """
        if self._interrupted:
            what.close()
            raise interrupted()
        with move_on_after(seconds) as scope:
            self._limited.add(scope)
            try:
                return await what
            finally:
                self._limited.discard(scope)
        if self._interrupted:
            raise interrupted()
        return None

    async def ask(self, command: Envelope) -> Reply:
        """Send a request that requires a response, and return its reply."""
        self._check()
        with _as_http():
            return await self._wait(self._requester.send(command))

    async def publish(self, command: Envelope) -> None:
        """Send a request that requires no response; return once the broker has stored it."""
        self._check()
        with _as_http():
            await self._wait(self._requester.publish(command))

    async def settle(self, command: Envelope, seconds: float) -> RequestOutcome | None:
        """Send a request that requires no response, and return its outcome, or ``None`` after ``seconds``.

        :param command: with its correlation-id
        """
        self._check()
        with (
            _as_http(),
            self._outcomes.expect(command.headers[CORRELATION_ID], command.topic.thing_id) as outcome,
        ):
            await self._wait(self._requester.publish(command))
            try:
                return await asyncio.wait_for(self._wait(outcome), seconds)
            except asyncio.TimeoutError:
                return None

    def interrupt(self) -> None:
        """End all waits with 503, and send no further requests; those already sent continue in Kafka."""
        self._interrupted = True
        for scope in self._limited:
            scope.cancel()
        for waiter in self._waiting:
            _end(waiter)

    def _check(self) -> None:
        if self._interrupted:
            raise not_sent()

    async def _wait(self, future: Future[T]) -> T:
        if self._interrupted:
            raise shutting_down()
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            future.add_done_callback(partial(self._wake, waiter))
            await waiter
        finally:
            self._waiting.discard(waiter)
        if not future.done():
            raise shutting_down()
        return future.result()

    def _wake(self, waiter: asyncio.Future[None], _future: Any) -> None:
        """End a wait, from any thread: what ends at about the same time wakes the loop once."""
        self._ended.append(waiter)
        if self._woken is not (loop := waiter.get_loop()):
            self._woken = loop
            # the loop may have been closed already
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end_waits)

    def _end_waits(self) -> None:
        # before the rest: what ends from now on has to wake the loop again
        self._woken = None
        while self._ended:
            _end(self._ended.popleft())


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@contextmanager
def _as_http() -> Iterator[None]:
    """Convert errors of the client to those for a web client."""
    try:
        yield
    except CorrelationIdInUseError as error:
        raise correlation_id_in_use(error.correlation_id) from error
    except ClosedError as error:
        raise shutting_down() from error
    except NotSentError as error:
        raise unavailable("Kafka does not accept requests at the moment.", "Try again in a moment.") from error
    except RequestTimeout as error:
        raise no_answer() from error
