"""The session of one WebSocket: signals of the client go to Kafka, replies and subscribed signals come back.

All outgoing messages pass through one queue, which keeps them in order.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from ackstream.gateway import responses
from ackstream.gateway.errors import body_too_large, internal_error, unavailable
from ackstream.gateway.incoming import Incoming, read_control, read_incoming
from ackstream.gateway.permissions import restrict, seen_by, visible_part
from ackstream.gateway.translation import ORIGINATOR, read_request_headers
from ackstream.protocol.correlation_ids import RecentIds, UniqueIds
from ackstream.protocol.ditto.acknowledgements import write_ack
from ackstream.protocol.ditto.envelopes import Envelope, decode, encode, error_envelope
from ackstream.protocol.ditto.errors import label_not_unique
from ackstream.protocol.ditto.headers import CORRELATION_ID, DECLARED_ACKS
from ackstream.protocol.ditto.labels import parse_label
from ackstream.protocol.ditto.signal_defaults import STREAM_TIMEOUT_MS
from ackstream.protocol.ditto.subscriptions import Drop, SubscriberState, decide, weak_acks
from ackstream.protocol.ditto.thing_errors import thing_not_found
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from starlette.websockets import WebSocket

    from ackstream.gateway.service import Dependencies
    from ackstream.protocol.ditto.subscriptions import Publication, Subscription

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
MAX_WAITING_CHARACTERS = 64 * 1024 * 1024
"""Maximum number and length of unread messages; beyond it the socket is closed rather than dropping some."""

MAX_OPEN = 1_000
"""Maximum number of open requests; beyond it, reading from the client pauses."""

DECLARE_SECONDS = 15.0
STREAM_SECONDS = STREAM_TIMEOUT_MS / 1000
_NORMAL, _INTERNAL_ERROR, _TRY_AGAIN_LATER = 1000, 1011, 1013

Outgoing = str | asyncio.Task[str | None]


class SocketSession:
    """One client during its connection."""

    def __init__(
        self, websocket: WebSocket, dependencies: Dependencies, subjects: tuple[str, ...], given: dict[str, Any]
    ) -> None:
        """Serve an accepted socket; ``given`` are headers of the connection, those of messages take precedence."""
        self._websocket = websocket
        self._dependencies = dependencies
        self._streaming = dependencies.streaming
        self._subjects = subjects
        self._given = given
        if dependencies.authenticator.required:
            self._given[ORIGINATOR] = subjects[0]
        self._subscriber = SubscriberState(frozenset(), {})
        self._forwarding = UniqueIds(STREAM_SECONDS)
        self._issued = RecentIds(STREAM_SECONDS)
        self._outgoing: asyncio.Queue[Outgoing] = asyncio.Queue(MAX_WAITING)
        self._waiting_characters = 0
        self._room = asyncio.Semaphore(MAX_OPEN)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self, labels: frozenset[str]) -> None:
        """Declare the labels, and serve until the client disconnects, loses them or is too slow."""
        streaming = self._streaming
        declared = streaming.declarer.declare(labels, lost=self._lost()) if labels else None
        try:
            if declared is not None:
                await asyncio.wait_for(asyncio.wrap_future(declared.future), DECLARE_SECONDS)
                self._subscriber = SubscriberState(labels, {})
                streaming.add_labels(self, labels)
            self._start(self._send())
            self._start(self._receive())
            code = await self._end
        except asyncio.TimeoutError:
            code = await self._refuse(unavailable("Kafka does not accept declarations at the moment.", "Try again."))
        except DittoError as error:
            code = await self._refuse(error)
        finally:
            streaming.remove(self, self._subscriber.labels)
            if declared is not None:
                streaming.declarer.release(declared)
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # a client that does not read delays the end
            self._outgoing = asyncio.Queue()
        with suppress(RuntimeError, WebSocketDisconnect):
            await self._websocket.close(code)

    # -- from the client -----------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        code = _INTERNAL_ERROR
        try:
            while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
                text = message.get("text")
                if text is not None:
                    await self._take(text)
            code = _NORMAL
        finally:
            self._finish(code)

    async def _take(self, text: str) -> None:
        envelope = None
        try:
            if control := read_control(text):
                self._subscribe(control.stream, control.subscription)
                self._put(control.confirmation)
                return
            envelope = self._decode(text)
            incoming = read_incoming(envelope, self._given, self._subscriber.labels, str(uuid.uuid4()))
        except DittoError as error:
            self._put(_error(error, envelope))
            return
        if incoming.what == "request":
            await self._room.acquire()
            self._start(self._ask(incoming))
        else:
            self._pass_on(incoming)

    def _decode(self, text: str) -> Envelope:
        maximum = self._dependencies.settings.gateway.max_body_bytes
        if len(text) > maximum:
            raise body_too_large(maximum)
        return decode(text.encode("utf-8", "replace"))

    def _subscribe(self, stream: Any, wanted: Subscription | None) -> None:
        subscriptions = {name: one for name, one in self._subscriber.subscriptions.items() if name != stream}
        if wanted is None:
            self._streaming.unsubscribe(self, stream)
        else:
            subscriptions[stream] = wanted
            self._streaming.subscribe(self, stream)
        self._subscriber = SubscriberState(self._subscriber.labels, subscriptions)

    async def _ask(self, incoming: Incoming) -> None:
        command = incoming.envelope
        client_id = str(command.headers[CORRELATION_ID])
        now = time.monotonic()
        command.headers[CORRELATION_ID] = self._streaming.correlation_ids.issue(client_id, now)
        self._issued.add(command.headers[CORRELATION_ID], now)
        access, exchange = self._dependencies.access, self._dependencies.exchange
        try:
            restrict(access, self._subjects, incoming.kind, command)
            if not incoming.response:
                await exchange.publish(command)
                return
            message = (await exchange.ask(command)).envelope
            message.value = visible_part(access, self._subjects, incoming.kind, command, message)
            message.headers[CORRELATION_ID] = client_id
            self._put(encode(message).decode())
        except DittoError as error:
            command.headers[CORRELATION_ID] = client_id
            if incoming.response:
                self._put(_error(error, command))
        except Exception:
            log.exception("The request %s failed.", client_id)
            self._put(_error(internal_error(), command))
        finally:
            self._room.release()

    def _pass_on(self, incoming: Incoming) -> None:
        """Forward an answer to a signal, or a live event."""
        envelope, access = incoming.envelope, self._dependencies.access
        thing_id = envelope.topic.thing_id
        event = incoming.what == "event"
        allowed = (
            access.may("WRITE", self._subjects, thing_id, envelope.path)
            if event
            else access.knows(self._subjects, thing_id)
        )
        if not allowed:
            self._put(_error(thing_not_found(thing_id), envelope))
            return
        identity = str(envelope.headers[CORRELATION_ID])
        if event:
            self._issued.add(identity, time.monotonic())
        else:
            envelope.headers[CORRELATION_ID] = self._forwarding.original(identity)
        self._streaming.forward(envelope, "events" if event else "acks")

    # -- to the client -------------------------------------------------------------------------------------------------

    def receive(self, signal: Publication, moment: datetime) -> None:
        """Handle a signal of a subscribed stream, or one that requests a label of the session; must not block."""
        if signal.correlation_id in self._issued:
            # as in Ditto, the originator does not receive its own signal
            return
        shown = seen_by(self._dependencies.access, self._subjects, signal)
        wanted = self._subscriber.subscriptions.get(signal.stream)
        if shown is not None and wanted is not None and wanted.extra_fields and wanted.covers(signal):
            self._put(self._start(self._enriched(shown, wanted.extra_fields, moment)))
            return
        text = self._decide(shown or signal, moment, visible=shown is not None)
        if text is not None:
            self._put(text)

    async def _enriched(self, signal: Publication, fields: str, moment: datetime) -> str | None:
        try:
            extra = await self._streaming.enrich(signal.thing_id, fields, signal)
        except DittoError as error:
            return _error(error, signal.envelope)
        if extra:
            extra = self._dependencies.access.visible(self._subjects, signal.thing_id, "/", extra) or {}
        return self._decide(signal, moment, visible=True, extra=extra)

    def _decide(
        self, signal: Publication, moment: datetime, *, visible: bool, extra: Mapping[str, Any] | None = None
    ) -> str | None:
        """Return the message to send for a signal; issue weak acknowledgements if there is none."""
        decision = decide(self._subscriber, signal, visible=visible, extra=extra, time=moment)
        if isinstance(decision, Drop):
            for ack in weak_acks(signal, decision):
                self._streaming.forward(write_ack(ack, signal.thing_id))
            return None
        envelope = decision.envelope
        if not (decision.labels or signal.response_required):
            return self._streaming.text(envelope)
        now = time.monotonic()
        seconds = (signal.timeout_ms or STREAM_TIMEOUT_MS) / 1000
        published = self._forwarding.issue(signal.correlation_id, now, seconds)
        return encode(replace(envelope, headers={**envelope.headers, CORRELATION_ID: published})).decode()

    def _put(self, message: Outgoing) -> None:
        self._waiting_characters += _length(message)
        if self._outgoing.full() or self._waiting_characters > MAX_WAITING_CHARACTERS:
            log.warning("Closing a WebSocket whose client left %s messages unread.", self._outgoing.qsize())
            self._finish(_TRY_AGAIN_LATER)
        else:
            self._outgoing.put_nowait(message)

    async def _send(self) -> None:
        try:
            while True:
                message = await self._outgoing.get()
                self._waiting_characters -= _length(message)
                text = message if isinstance(message, str) else await message
                if text is not None:
                    await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError):
            # the client closed it
            self._finish(_NORMAL)
        finally:
            self._finish(_INTERNAL_ERROR)

    # -- its end -------------------------------------------------------------------------------------------------------

    def _lost(self) -> Any:
        """Return a callback that ends the session from the declarer's thread."""
        loop = asyncio.get_running_loop()

        def end() -> None:
            if not self._end.done():
                self._end.set_exception(label_not_unique())

        def lost() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(end)

        return lost

    async def _refuse(self, error: DittoError) -> int:
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.send_text(_error(error, None))
        return _NORMAL

    def _finish(self, code: int) -> None:
        if not self._end.done():
            self._end.set_result(code)

    def _start(self, coroutine: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _length(message: Outgoing) -> int:
    # of one with extra fields it is not known yet: the number alone limits those
    return len(message) if isinstance(message, str) else 0


def _error(error: DittoError, about: Envelope | None) -> str:
    """Encode an error with the thing and correlation-id of the message that caused it."""
    headers: dict[str, Any] = {}
    thing_id = channel = None
    if about is not None:
        thing_id, channel = about.topic.thing_id, about.topic.channel
        if about.headers.get(CORRELATION_ID):
            headers[CORRELATION_ID] = about.headers[CORRELATION_ID]
    return encode(error_envelope(error, thing_id=thing_id, channel=channel, headers=headers)).decode()


def socket_route(dependencies: Dependencies) -> WebSocketRoute:
    """Return the route of ``/ws/2``: Ditto Protocol over a WebSocket, with three tasks and no thread per socket."""

    async def endpoint(websocket: WebSocket) -> None:
        try:
            subjects = await dependencies.authenticator.identify(websocket)
            given = read_request_headers(websocket)
            labels = frozenset(map(parse_label, given.get(DECLARED_ACKS, ())))
        except DittoError as error:
            await websocket.send_denial_response(responses.of_error(error))
            return
        await websocket.accept()
        await SocketSession(websocket, dependencies, subjects, given).run(labels)

    return WebSocketRoute("/ws/2", endpoint)
