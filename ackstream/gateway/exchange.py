"""Requests of web clients on their way through Kafka: an asyncio future each, and no thread."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from ackstream.client.errors import ClosedError, CorrelationIdInUseError, NotSentError, RequestTimeout
from ackstream.gateway.errors import correlation_id_in_use, no_answer, shutting_down, unavailable
from ackstream.protocol.ditto.headers import CORRELATION_ID

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ackstream.client import Reply, Requester
    from ackstream.client.replies import Outcomes, RequestOutcome
    from ackstream.protocol.ditto.envelopes import Envelope


T = TypeVar("T")


class Exchange:
    """Sends requests and waits for what comes of them; for one event loop.

    The client's threads resolve the futures through the loop. A request that cannot be answered ends with the
    ``DittoError`` that its sender is to get: 503 with Retry-After where Kafka or the service is away or the gateway
    stops, 409 for a correlation-id that is open.
    """

    def __init__(self, requester: Requester, outcomes: Outcomes) -> None:
        """Use these clients; who made them closes them."""
        self._requester = requester
        self._outcomes = outcomes
        self._waiting: set[asyncio.Future[None]] = set()
        self._interrupted = False

    async def ask(self, command: Envelope) -> Reply:
        """Send a request that requires a response, and return its reply."""
        with _as_http():
            return await self._wait(self._requester.send(command))

    async def publish(self, command: Envelope) -> None:
        """Send a request that requires no response; return when the broker has it."""
        with _as_http():
            await self._wait(self._requester.publish(command))

    async def settle(self, command: Envelope, seconds: float, *, any_answer: bool) -> RequestOutcome | None:
        """Send a request that requires no response, and return its outcome; ``None`` where none came in time.

        :param command: with its correlation-id
        :param any_answer: no acknowledgements are awaited: the first answer, most likely an error, is the outcome
        """
        with (
            _as_http(),
            self._outcomes.expect(command.headers[CORRELATION_ID], any_answer=any_answer) as outcome,
        ):
            await self._wait(self._requester.publish(command))
            try:
                return await asyncio.wait_for(self._wait(outcome), seconds)
            except asyncio.TimeoutError:
                return None

    def interrupt(self) -> None:
        """End every wait with 503, now and from now on; what was sent goes on without its clients."""
        self._interrupted = True
        for waiter in list(self._waiting):
            if not waiter.done():
                waiter.set_exception(shutting_down())

    async def _wait(self, future: Future[T]) -> T:
        if self._interrupted:
            raise shutting_down()
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def done(_future: Future[T]) -> None:
            # the loop may have ended with its clients
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake)

        self._waiting.add(waiter)
        try:
            future.add_done_callback(done)
            await waiter
            return future.result()
        finally:
            self._waiting.discard(waiter)


class _as_http(contextlib.AbstractContextManager[None]):  # noqa: N801 - used like a function
    """Turns the client's errors into those that are sent to a web client."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CorrelationIdInUseError):
            raise correlation_id_in_use(error.correlation_id) from error
        if isinstance(error, ClosedError):
            raise shutting_down() from error
        if isinstance(error, NotSentError):
            raise unavailable("Kafka does not take requests at the moment.", "Try again in a moment.") from error
        if isinstance(error, RequestTimeout):
            raise no_answer() from error
