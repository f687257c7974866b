"""Signals for all WebSockets of a gateway: read once, handed to the sessions they concern.

One thread reads Kafka and one keeps the declared labels, however many sockets there are. Everything else happens in the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol

from ackstream.client.commands import fields_in, retrieval
from ackstream.client.group import Work
from ackstream.client.labels import Declarer
from ackstream.client.signals import read_publication
from ackstream.client.worker import Worker
from ackstream.kafka.clients import Closing
from ackstream.protocol.correlation_ids import UniqueIds
from ackstream.protocol.ditto.envelopes import encode
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Collection

    from ackstream.gateway.exchange import Exchange
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.protocol.ditto.subscriptions import Publication, Stream
    from ackstream.settings import Settings


log = logging.getLogger(__name__)

TOPICS = ("signals", "events")
GRACE_SECONDS = 10.0
_UNTRACKED = 0


class Listener(Protocol):
    """A session as the hub sees it."""

    def receive(self, signal: Publication, moment: datetime) -> None:
        """Take a signal that is of a stream it wants, or that asks for a label it holds; must not wait."""


class Streaming(Closing):
    """The hub; made in any thread, used in the event loop of the gateway."""

    def __init__(self, settings: Settings, exchange: Exchange) -> None:
        """Connect; signals from now on are seen.

        :raises UnreachableError: no broker, or a topic is missing
        """
        self._exchange = exchange
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[Stream, set[Listener]] = {}
        self._labels: dict[str, Listener] = {}
        self._last: tuple[Envelope, str] | None = None
        self._extra: dict[tuple[str, str, str, int | None], asyncio.Task[dict[str, Any]]] = {}
        remembered = settings.gateway.max_timeout + settings.correlate.recent_memory
        self.correlation_ids = UniqueIds(remembered / 1000 + GRACE_SECONDS)
        with ExitStack() as stack:
            self.declarer = stack.enter_context(Declarer(settings.kafka))
            self._worker = stack.enter_context(Worker(settings.kafka, TOPICS, self._read, None, "latest"))
            self._worker.run()
            self._connected = stack.pop_all()

    def close(self) -> None:
        """Disconnect; the labels of all sessions are given back."""
        self._connected.close()

    # -- for sessions, in the event loop -------------------------------------------------------------------------------

    def want(self, listener: Listener, stream: Stream) -> None:
        """Hand over the signals of a stream from now on."""
        self._loop = asyncio.get_running_loop()
        self._streams.setdefault(stream, set()).add(listener)

    def unwant(self, listener: Listener, stream: Stream) -> None:
        """Hand over no more signals of a stream, but those that ask for labels of the session."""
        self._streams.get(stream, set()).discard(listener)

    def own(self, listener: Listener, labels: Collection[str]) -> None:
        """Hand over the signals that ask for one of the labels."""
        self._loop = asyncio.get_running_loop()
        self._labels.update(dict.fromkeys(labels, listener))

    def leave(self, listener: Listener, labels: Collection[str]) -> None:
        """Forget a session."""
        for listeners in self._streams.values():
            listeners.discard(listener)
        for label in labels:
            self._labels.pop(label, None)

    def text(self, envelope: Envelope) -> str:
        """Return a message as it is sent; that of the last one, which many sessions may share, is known."""
        if self._last is None or self._last[0] is not envelope:
            self._last = (envelope, encode(envelope).decode())
        return self._last[1]

    def answer(self, message: Envelope, topic: str = "acks") -> None:
        """Send an acknowledgement, a live response or a live event on its way."""
        self._worker.send(str(message.headers.get(CORRELATION_ID, "")), message, Work(_UNTRACKED), topic=topic)

    async def enrich(self, thing_id: str, fields: str, signal: Publication) -> dict[str, Any]:
        """Return fields of a thing as it is now; asked once for all sessions that want the same for a signal.

        :raises DittoError: it cannot be asked; a thing that is not there has no fields
        """
        key = (thing_id, fields, signal.correlation_id, signal.envelope.revision)
        task = self._extra.get(key)
        if task is None:
            task = self._extra[key] = asyncio.create_task(self._retrieve(thing_id, fields))

            def done(found: asyncio.Task[dict[str, Any]]) -> None:
                del self._extra[key]
                # those who asked may have left
                if not found.cancelled():
                    found.exception()

            task.add_done_callback(done)
        return await asyncio.shield(task)

    async def _retrieve(self, thing_id: str, fields: str) -> dict[str, Any]:
        return fields_in(await self._exchange.ask(retrieval(thing_id, fields)), thing_id)

    # -- in the worker's thread ----------------------------------------------------------------------------------------

    def _read(self, record: Any, _work: Work) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            signal = read_publication(record)
        except DittoError as error:
            log.debug("A record of %s is no signal (offset %s): %s", record.topic, record.offset, error)
            return
        if signal is not None:
            moment = datetime.fromtimestamp(record.timestamp / 1000, timezone.utc)
            # the loop may have ended with its clients
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._publish, signal, moment)

    def _publish(self, signal: Publication, moment: datetime) -> None:
        concerned = set(self._streams.get(signal.stream, ()))
        concerned.update(self._labels[label] for label in signal.labels if label in self._labels)
        for listener in concerned:
            try:
                listener.receive(signal, moment)
            except Exception:
                # whatever one of them makes of it, the others get it
                log.exception("A session failed at the signal %s.", signal.correlation_id)
