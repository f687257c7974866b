"""Distribute signals to the WebSocket sessions and event streams of a gateway, and hold the unread ones of each.

One thread reads Kafka for all and one maintains the declared labels; everything else runs in the event loop.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any, Protocol

from msgspec.structs import replace

from ackstream.client import Reply
from ackstream.client.core.labels import Declarer
from ackstream.client.core.messages import Work
from ackstream.client.core.worker import Worker
from ackstream.client.parties.signals import read_publication
from ackstream.client.requests.commands import fields_in, retrieval
from ackstream.gateway.middleware.admission import ANONYMOUS, ClientAdmission
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.protocol.ditto.envelopes import Envelope, encode
from ackstream.protocol.ditto.headers import CORRELATION_ID, ORIGINATOR
from ackstream.protocol.ditto.twin.subscriptions import Publication, Stream
from ackstream.protocol.ditto.twin.things import MEMBERS
from ackstream.protocol.errors import DittoError
from ackstream.settings import Settings

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
MAX_WAITING_CHARACTERS = 64 * 1024 * 1024
"""Maximum number and length of unread messages; beyond it the client is cut off rather than some are dropped."""

MAX_OF_ALL = 256 * 1024 * 1024
"""Maximum length of the unread messages of all clients of a gateway; beyond it those that have many are cut off."""

ROOM_CHARACTERS = 1024 * 1024
"""A search goes on to its next page while the client has fewer unread characters than this."""

Message = str | asyncio.Task[str | None]
"""A text, or the task that makes it; ``None``: there is nothing to send after all."""


class UnreadTotal:
    """The length of the unread messages of all clients; for the event loop that serves them."""

    characters = 0


class UnreadMessages:
    """Messages to one client, for the loop that serves it; a text still being made counts from when it is there."""

    def __init__(self, overflow: Callable[[], None], total: UnreadTotal) -> None:
        """Begin without messages; ``overflow`` is called at the limit."""
        self._overflow, self._total = overflow, total
        self._waiting: asyncio.Queue[Message] = asyncio.Queue(MAX_WAITING)
        self._lengths: dict[asyncio.Task[str | None], int] = {}
        self._characters = 0
        self._taken = asyncio.Event()
        self._overflown = False

    def put(self, message: Message) -> None:
        """Append a message."""
        if self._waiting.full():
            self._overflow_now()
            return
        self._waiting.put_nowait(message)
        if isinstance(message, str):
            self._add(len(message))
        else:
            self._lengths[message] = 0
            message.add_done_callback(self._made)

    async def room(self) -> None:
        """Return once the client has room for the next message of a kind that can wait."""
        while self._characters > ROOM_CHARACTERS:
            self._taken.clear()
            await self._taken.wait()

    async def take(self) -> Message:
        """Return the next message; none is lost if this is cancelled."""
        message = await self._waiting.get()
        self._remove(len(message) if isinstance(message, str) else self._lengths.pop(message))
        self._taken.set()
        return message

    async def send_all(self, send: Callable[[str], Awaitable[None]]) -> None:
        """Send messages as they come; ``send`` returns once the socket has taken one."""
        while True:
            message = await self.take()
            try:
                text = message if isinstance(message, str) else await message
            except Exception:
                # the client must not miss it unnoticed: its session ends
                log.exception("A message for a client could not be made.")
                raise
            if text is not None:
                await send(text)

    def drop(self) -> None:
        """Drop unsent messages."""
        self._waiting = asyncio.Queue()
        self._lengths.clear()
        self._remove(self._characters)

    def _made(self, task: asyncio.Task[str | None]) -> None:
        # one that is sent already, or was dropped, does not count
        if task in self._lengths and not task.cancelled() and task.exception() is None:
            self._lengths[task] = length = len(task.result() or "")
            self._add(length)

    def _add(self, length: int) -> None:
        self._characters += length
        self._total.characters += length
        crowded = self._total.characters > MAX_OF_ALL and self._characters > ROOM_CHARACTERS
        if crowded or self._characters > MAX_WAITING_CHARACTERS:
            self._overflow_now()

    def _remove(self, length: int) -> None:
        self._characters -= length
        self._total.characters -= length

    def _overflow_now(self) -> None:
        if not self._overflown:
            self._overflown = True
            log.warning("Disconnecting a client that left %s messages unread.", self._waiting.qsize())
            self._overflow()


TOPICS = ("signals", "events")
WHOLE = ",".join((*MEMBERS, "_revision", "_created", "_modified"))
"""All fields of a thing."""
MAX_HANDED_OVER = 100
"""Signals on their way from the thread that reads Kafka to the event loop; further ones wait in Kafka."""
ROOM_SECONDS = 0.1


class Listener(Protocol):
    """A session, or a stream of server-sent events."""

    def receive(self, signal: Publication, moment: datetime) -> None:
        """Handle a signal; must not block."""

    def fail(self) -> None:
        """End: a signal could not be handled, and the client must not miss it unnoticed."""


class Streaming(Closing):
    """The hub; created in any thread, used in the event loop of the gateway."""

    def __init__(self, settings: Settings, ask: Callable[[Envelope], Awaitable[Reply]]) -> None:
        """Connect; signals written from now on are read. ``UnreachableError``: no broker, or a topic is missing."""
        self._ask = ask
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[Stream, set[Listener]] = {}
        self._labels: dict[str, Listener] = {}
        self._last: tuple[Envelope, str] | None = None
        self._things: dict[tuple[str, str, int | None], asyncio.Task[dict[str, Any]]] = {}
        self._room, self._ended = threading.Semaphore(MAX_HANDED_OVER), threading.Event()
        with ExitStack() as stack:
            self.declarer = stack.enter_context(Declarer(settings.kafka))
            self._worker = stack.enter_context(Worker(settings.kafka, TOPICS, self._read, None, "latest"))
            # the loop must not wait for the partitions of the topics that it writes
            self._worker.outbox.prepare("events")
            self._worker.run()
            self._connected = stack.pop_all()

    def close(self) -> None:
        """Disconnect and release the labels of all sessions."""
        self._ended.set()
        self._connected.close()

    # -- for sessions, in the event loop -------------------------------------------------------------------------------

    def subscribe(self, session: Listener, stream: Stream) -> None:
        """Subscribe a session to a stream."""
        self._loop = asyncio.get_running_loop()
        self._streams.setdefault(stream, set()).add(session)

    def unsubscribe(self, session: Listener, stream: Stream) -> None:
        """End the subscription of a session to a stream; signals that request its labels still arrive."""
        self._streams.get(stream, set()).discard(session)

    def add_labels(self, session: Listener, labels: Collection[str]) -> None:
        """Deliver signals that request one of the labels to a session."""
        self._loop = asyncio.get_running_loop()
        self._labels.update(dict.fromkeys(labels, session))

    def remove(self, session: Listener, labels: Collection[str]) -> None:
        """Remove a session."""
        for sessions in self._streams.values():
            sessions.discard(session)
        for label in labels:
            # after a lapse of its lease another session may have it
            if self._labels.get(label) is session:
                del self._labels[label]

    def text(self, envelope: Envelope) -> str:
        """Encode a message; the latest is cached, since many sessions may receive the same one."""
        if self._last is None or self._last[0] is not envelope:
            self._last = (envelope, encode(envelope).decode())
        return self._last[1]

    @property
    def full(self) -> bool:
        """Whether too many messages are on their way to Kafka to read more from clients."""
        return bool(self._worker.outbox.full)

    def forward(self, message: Envelope, topic: str = "acks") -> None:
        """Forward an acknowledgement, a live response or a live event."""
        self._worker.outbox.send(str(message.headers.get(CORRELATION_ID, "")), message, Work(0), topic=topic)

    async def thing(self, signal: Publication, admission: ClientAdmission, subjects: tuple[str, ...]) -> dict[str, Any]:
        """Return the present thing of a signal ({} if missing), once for all sessions; raises ``DittoError``.

        The one that needs it first is counted as its sender; 429: it sends too many requests.
        """
        key = (signal.thing_id, signal.correlation_id, signal.envelope.revision)
        task = self._things.get(key)
        if task is None:
            admission.limits.admit(subjects[0])
            counted = ExitStack()
            counted.enter_context(admission.open_requests.one(subjects))
            task = self._things[key] = asyncio.create_task(self._retrieve(signal.thing_id, subjects[0]))

            def done(found: asyncio.Task[dict[str, Any]]) -> None:
                counted.close()
                del self._things[key]
                # mark the exception as retrieved: all sessions may have left
                if not found.cancelled():
                    found.exception()

            task.add_done_callback(done)
        return await asyncio.shield(task)

    async def _retrieve(self, thing_id: str, subject: str) -> dict[str, Any]:
        question = retrieval(thing_id, WHOLE)
        if subject != ANONYMOUS:
            question.headers[ORIGINATOR] = subject
        return fields_in(await self._ask(question), thing_id)

    # -- in the worker's thread ----------------------------------------------------------------------------------------

    def _read(self, record: Any, _work: Work) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            signal = read_publication(record, self._worker.originator_key)
        except DittoError as error:
            log.debug("Ignored a record of %s that is not a signal (offset %s): %s", record.topic, record.offset, error)
            return
        if signal is not None:
            signal = as_shown(signal)
            moment = datetime.fromtimestamp(record.timestamp / 1000, timezone.utc)
            # the loop turns to nothing else while it has signals, each of which may have many listeners
            while not (self._ended.is_set() or self._room.acquire(timeout=ROOM_SECONDS)):
                pass
            if self._ended.is_set():
                return
            try:
                loop.call_soon_threadsafe(self._hand_over, signal, moment)
            except RuntimeError:
                # the loop has been closed already
                self._room.release()

    def _hand_over(self, signal: Publication, moment: datetime) -> None:
        self._room.release()
        sessions = set(self._streams.get(signal.stream, ()))
        sessions.update(self._labels[label] for label in signal.labels if label in self._labels)
        for session in sessions:
            try:
                session.receive(signal, moment)
            except Exception:
                # other sessions still receive it
                log.exception("A session failed to handle the signal %s.", signal.correlation_id)
                session.fail()


def as_shown(signal: Publication) -> Publication:
    """Return a signal with the correlation-id for clients: no client is shown the secret part of one on the wire."""
    identity = shown_id(signal.correlation_id)
    if identity == signal.correlation_id:
        return signal
    headers = {**signal.envelope.headers, CORRELATION_ID: identity}
    return replace(signal, envelope=replace(signal.envelope, headers=headers))
