"""The exchange of a gateway with Kafka, for one event loop, and the parts that all its routes share."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

from anyio import CancelScope, move_on_after
from msgspec.structs import replace

from ackstream.client import Reply, Requester, Updates
from ackstream.client.errors import ClosedError, CorrelationIdInUseError, NotSentError, RequestTimeout
from ackstream.gateway import errors
from ackstream.gateway.access.authentication import Authenticator, access_of, watched_files
from ackstream.gateway.middleware.admission import ClientAdmission
from ackstream.gateway.middleware.audit import Audit, AuditTrail
from ackstream.gateway.middleware.connections import check_transport
from ackstream.gateway.page.live import KAFKA, KAFKA_SECONDS, Live
from ackstream.gateway.streaming import Streaming, UnreadTotal
from ackstream.kafka.topics import ensure_topics
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.outcomes import Outcomes, RequestOutcome
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.ditto.twin.access import Access
from ackstream.protocol.ditto.twin.subscriptions import Publication, Subscription
from ackstream.protocol.ditto.twin.things import select_of_thing
from ackstream.protocol.errors import DittoError
from ackstream.protocol.json import parse_selector
from ackstream.protocol.rql.evaluation import concerns
from ackstream.protocol.rql.parser import Combination
from ackstream.settings import Settings
from ackstream.settings.gateway import FileWatch, with_access_file

T = TypeVar("T")


class Exchange:
    """Sends requests through Kafka and awaits their replies and outcomes; for one event loop, without threads.

    The threads of the client resolve the futures through the loop. A request that cannot be answered raises the
    ``DittoError`` for its sender: 503 with Retry-After if Kafka or the service is unavailable (as ``missing`` says)
    or the gateway is shutting down, 409 for a correlation-id that is in use. The clients are closed by their owner.
    """

    def __init__(self, requester: Requester, outcomes: Outcomes, missing: Callable[[], str] = str) -> None:
        self._requester, self._outcomes, self._missing = requester, outcomes, missing
        self._waiting: set[asyncio.Future[None]] = set()
        self._limited: set[CancelScope] = set()
        self._ended: deque[asyncio.Future[None]] = deque()
        self._woken: asyncio.AbstractEventLoop | None = None
        self._interrupted = False

    async def receive(self, body: Coroutine[Any, Any, T], seconds: float) -> T:
        """Await the rest of a request from its client; raises 408 after ``seconds``, 503 during a shutdown."""
        found = await self.within(body, seconds, errors.not_sent)
        if found is None:
            raise errors.body_incomplete(seconds)
        return found

    async def within(
        self, what: Coroutine[Any, Any, T], seconds: float, interrupted: Callable[[], DittoError] = errors.shutting_down
    ) -> T | None:
        """Await something for a client; return ``None`` after ``seconds``; raises 503 during a shutdown."""
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
        with self._sending():
            return await self._wait(self._requester.send(command))

    def stream(self, command: Envelope) -> AsyncIterator[Reply]:
        """Send a request that requires a response; return its updates as they come, and its reply as the last."""
        with self._sending():
            return self._replies(self._requester.stream(command))

    async def _replies(self, updates: Updates) -> AsyncIterator[Reply]:
        with _for_web_clients():
            while (reply := await self._wait(updates.ask())) is not None:
                yield reply

    async def publish(self, command: Envelope) -> None:
        """Send a request that requires no response; return once the broker has stored it."""
        with self._sending(answered=False):
            await self._wait(self._requester.publish(command))

    async def settle(self, command: Envelope, seconds: float) -> RequestOutcome | None:
        """Send a request that requires no response, and return its outcome, or ``None`` after ``seconds``."""
        with self._sending(), self._outcomes.expect(command.headers[CORRELATION_ID], command.topic.thing_id) as outcome:
            await self._wait(self._requester.publish(command))
            return await self.within(self._wait(outcome), seconds)

    def cancel(self, correlation_ids: Iterable[str]) -> bool:
        """Cancel requests by their ids on the wire; return whether one is open and sent by this gateway; any thread."""
        return True in [self._requester.cancel(one) for one in correlation_ids]

    def interrupt(self) -> None:
        """End all waits with 503, and send no further requests; those already sent continue in Kafka."""
        self._interrupted = True
        for scope in self._limited:
            scope.cancel()
        for waiter in self._waiting:
            _end(waiter)

    @contextmanager
    def _sending(self, *, answered: bool = True) -> Iterator[None]:
        """Refuse to send during a shutdown, and a request that cannot be answered."""
        if self._interrupted:
            raise errors.not_sent()
        if answered and (reason := self._missing()):
            raise errors.job_missing(reason)
        with _for_web_clients():
            yield

    async def _wait(self, future: Future[T]) -> T:
        if self._interrupted:
            raise errors.shutting_down()
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            future.add_done_callback(partial(self._wake, waiter))
            await waiter
        finally:
            self._waiting.discard(waiter)
        if not future.done():
            raise errors.shutting_down()
        return future.result()

    def _wake(self, waiter: asyncio.Future[None], _future: Any) -> None:
        """End a wait, from any thread; several within a moment wake the loop once."""
        self._ended.append(waiter)
        if self._woken is not (loop := waiter.get_loop()):
            self._woken = loop
            # the loop may have been closed already
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end_waits)

    def _end_waits(self) -> None:
        # first: a wait that ends from now on has to wake the loop again
        self._woken = None
        while self._ended:
            _end(self._ended.popleft())


@contextmanager
def _for_web_clients() -> Iterator[None]:
    """Convert errors of the client of Kafka for a web client."""
    try:
        yield
    except CorrelationIdInUseError as error:
        raise errors.correlation_id_in_use(error.correlation_id) from error
    except ClosedError as error:
        raise errors.shutting_down() from error
    except NotSentError as error:
        raise errors.unavailable("Kafka does not accept requests at the moment.", "Try again in a moment.") from error
    except RequestTimeout as error:
        raise errors.no_answer() from error


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@lru_cache(maxsize=1_024)
def early(wanted: Subscription) -> Subscription:
    """Return a subscription without its extra fields, and with only the parts of its filter that need none."""
    selected, tree = parse_selector(wanted.extra_fields or "thingId"), wanted.filter
    parts = tree.args if isinstance(tree, Combination) and tree.op == "and" else (tree,)
    kept = tuple(part for part in parts if part is not None and not concerns(part, selected))
    return replace(wanted, filter=Combination("and", kept) if kept else None, extra_fields=None)


@dataclass(frozen=True)
class Dependencies:
    """The parts of one gateway, given to every route."""

    settings: Settings
    authenticator: Authenticator
    access: Access
    exchange: Exchange
    live: Live
    streaming: Streaming
    audit: Audit = field(default_factory=Audit)
    unread: UnreadTotal = field(default_factory=UnreadTotal)

    @cached_property
    def admission(self) -> ClientAdmission:
        """Admits requests, and counts the open requests, searches and sockets of clients."""
        return ClientAdmission(self.settings, self.authenticator.admit, self.audit)

    async def extra_fields(
        self, subjects: tuple[str, ...], wanted: Subscription, signal: Publication, moment: datetime
    ) -> dict[str, Any]:
        """Return the extra fields that subjects may read, {} if their filter drops the signal with any.

        Raises ``DittoError``: there is no answer, the subject sends too many requests, or its filter takes too long.
        """
        with self.admission.limits.filtering(subjects[0]) as effort:
            if not (wanted.extra_fields and early(wanted).matches(signal, None, moment, effort)):
                return {}
        thing = await self.streaming.thing(signal, self.admission, subjects)
        return self.access.visible(subjects, signal.thing_id, "/", select_of_thing(thing, wanted.extra_fields)) or {}


TOPICS = ("signals", "acks", "twin-acks", "replies", "ledger", "audit", "events", "declarations")
"""The topics the gateway reads and writes, without the prefix."""


@contextmanager
def connected(settings: Settings) -> Iterator[Dependencies]:
    """Connect to Kafka for the block; ``SettingsError``: unfit authentication; ``LocalError``: no broker."""
    gateway = with_access_file(settings.gateway)
    audit = Audit(gateway.audit)
    with HEALTH.expecting(KAFKA, KAFKA_SECONDS), Authenticator(gateway, audit.failed) as authenticator:
        access = access_of(gateway, authenticator)
        check_transport(gateway, authenticated=authenticator.required)
        ensure_topics(settings, TOPICS)
        watched = watched_files(settings.gateway, authenticator, access)
        seconds, delivery = gateway.max_timeout / 1000, gateway.delivery_timeout / 1000
        with (
            AuditTrail(settings.kafka, audit) if audit.level != "off" else nullcontext(),
            FileWatch(watched, audit.read_rules),
            Outcomes(settings.kafka) as outcomes,
            Requester(settings.kafka, default_timeout=seconds, delivery_timeout=delivery) as requester,
            Live(settings) as live,
            Streaming(
                settings, (exchange := Exchange(requester, outcomes, lambda: live.presence.missing)).ask
            ) as streaming,
        ):
            yield Dependencies(settings, authenticator, access, exchange, live, streaming, audit)
