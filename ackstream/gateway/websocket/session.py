"""The session of one WebSocket: signals go to Kafka, replies and subscribed signals come back in one ordered queue."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from typing import Any

from msgspec.structs import replace
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from ackstream.gateway.access.authentication import SignedIn, check_labels, in_loop
from ackstream.gateway.errors import binary_refused, body_too_large, error_message, internal_error, unavailable
from ackstream.gateway.exchange import Dependencies
from ackstream.gateway.http import responses
from ackstream.gateway.http.translation import check_parameters, new_id, read_request_headers
from ackstream.gateway.middleware.audit import Attempt
from ackstream.gateway.middleware.commands import AdmissionOrder, admit
from ackstream.gateway.streaming import UnreadMessages
from ackstream.gateway.websocket import incoming as messages
from ackstream.protocol.ditto.acknowledgements import write_ack
from ackstream.protocol.ditto.correlation_ids import RecentIds, wire_id
from ackstream.protocol.ditto.envelopes import Envelope, decode, encode
from ackstream.protocol.ditto.headers import CORRELATION_ID, DECLARED_ACKS, ORIGINATOR
from ackstream.protocol.ditto.labels import parse_declared
from ackstream.protocol.ditto.signal_defaults import STREAM_TIMEOUT_MS
from ackstream.protocol.ditto.twin import subscriptions as rules
from ackstream.protocol.ditto.twin.permissions import restrict, seen_by
from ackstream.protocol.errors import DittoError, label_not_unique

log = logging.getLogger(__name__)

MAX_OPEN = 1_000
"""Maximum number of open requests; beyond it, reading from the client pauses."""

DECLARE_SECONDS = 15.0
FULL_SECONDS = 0.1
STREAM_SECONDS = STREAM_TIMEOUT_MS / 1000
_NORMAL, _INTERNAL_ERROR, _TRY_AGAIN_LATER = 1000, 1011, 1013
_REASON_BYTES = 123
_BINARY = error_message(binary_refused(), None)


class SocketSession:
    """The session of one client during its connection."""

    def __init__(
        self, websocket: WebSocket, dependencies: Dependencies, signed_in: Callable[..., Any], given: dict[str, Any]
    ) -> None:
        """Serve an accepted socket; ``given`` are headers of the connection, those of messages take precedence."""
        self._websocket = websocket
        self._dependencies = dependencies
        self._streaming = dependencies.streaming
        self._given = given
        self._subscriber = rules.SubscriberState(frozenset(), {})
        self._answering = messages.Answering(dependencies.access, dependencies.settings.correlate)
        self._issued = RecentIds(STREAM_SECONDS)
        slow = partial(self._finish, _TRY_AGAIN_LATER, "The client does not read.")
        self._unread = UnreadMessages(slow, dependencies.unread)
        self._put = self._unread.put
        self._searches = messages.Searches(self._query, self._unread, self._start)
        self._order = AdmissionOrder()
        self._room = asyncio.Semaphore(MAX_OPEN)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._end: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._client = signed_in(end=partial(self._finish, _NORMAL))
        if dependencies.authenticator.required:
            self._given[ORIGINATOR] = self._client.subjects[0]

    async def run(self, labels: frozenset[str]) -> None:
        """Declare the labels, and serve until the client disconnects, loses a right or is too slow."""
        code, reason, streaming = _NORMAL, "", self._streaming
        declared = streaming.declarer.declare(labels, lost=in_loop(self._lost)) if labels else None
        try:
            if declared is not None:
                await asyncio.wait_for(asyncio.wrap_future(declared.future), DECLARE_SECONDS)
                self._subscriber = rules.SubscriberState(labels, {})
                streaming.add_labels(self, labels)
            self._start(self._send())
            self._start(self._receive())
            code, reason = await self._end
        except asyncio.TimeoutError:
            await self._refuse(unavailable("Kafka does not accept declarations at the moment.", "Try again."))
        except DittoError as error:
            await self._refuse(error)
        finally:
            self._client.close()
            streaming.remove(self, self._subscriber.labels)
            if declared is not None:
                streaming.declarer.release(declared)
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # a client that does not read delays the end
            self._unread.drop()
        with suppress(RuntimeError, WebSocketDisconnect):
            await self._websocket.close(code, reason)

    # -- from the client -----------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        code = _INTERNAL_ERROR
        try:
            while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
                if wait := self._dependencies.admission.limits.message(self._client.subjects[0]):
                    # meanwhile nothing is read from the client
                    await asyncio.sleep(wait)
                while self._streaming.full:  # noqa: ASYNC110 - another thread empties it
                    # Kafka takes answers and events more slowly than the client sends them, or not at all
                    await asyncio.sleep(FULL_SECONDS)
                if (text := message.get("text")) is None:
                    self._put(_BINARY)
                else:
                    await self._take(text)
            code = _NORMAL
        finally:
            self._finish(code)

    async def _take(self, text: str) -> None:
        envelope = None
        maximum = self._dependencies.settings.gateway.max_body_bytes
        try:
            if len(text) > maximum or len(data := text.encode("utf-8", "replace")) > maximum:
                raise body_too_large(maximum)
            if control := messages.read_control(text):
                self._control(control)
                return
            if (token := messages.read_token(text)) is not None:
                await self._client.renew(token)
                return
            envelope = decode(data)
            incoming = messages.read_incoming(envelope, self._given, self._subscriber.labels, new_id())
            if incoming.what == "search":
                self._searches.take(incoming.envelope)
                return
        except DittoError as error:
            self._put(error_message(error, envelope))
            return
        if incoming.what == "request":
            await self._room.acquire()
            self._start(self._ask(incoming))
        else:
            self._pass_on(incoming)

    def _control(self, control: messages.Control) -> None:
        try:
            stream, wanted = control.change()
            subscriptions = {name: one for name, one in self._subscriber.subscriptions.items() if name != stream}
            if wanted is None:
                self._streaming.unsubscribe(self, stream)
            else:
                subscriptions[stream] = wanted
                self._streaming.subscribe(self, stream)
            self._subscriber = rules.SubscriberState(self._subscriber.labels, subscriptions)
            self._put(f"{control.name}:ACK")
        except DittoError as error:
            identity = control.parameters.get(CORRELATION_ID) or self._given.get(CORRELATION_ID)
            self._put(error_message(error, None, identity))

    async def _query(self, command: Envelope) -> Envelope:
        originator = {name: value for name, value in self._given.items() if name == ORIGINATOR}
        with self._dependencies.audit.attempt(self._client.sender, "search", command) as attempt:
            restrict(self._dependencies.access, self._client.subjects, "search", command)
        with self._dependencies.admission.limits.search(self._client.subjects[0]):
            command.headers = {CORRELATION_ID: attempt.sent(new_id()), **originator}
            return (await self._dependencies.exchange.ask(command)).envelope

    async def _ask(self, incoming: messages.Incoming) -> None:
        command = incoming.envelope
        client_id = str(command.headers[CORRELATION_ID])
        try:
            with self._dependencies.audit.attempt(self._client.sender, incoming.kind, command) as attempt:
                new_id = partial(self._new_id, client_id, attempt)
                admission = admit(self._dependencies, self._client.subjects, incoming.kind, command, new_id)
                admitted = await self._order.keep(command.topic.thing_id, admission)
            if not incoming.response:
                await admitted.publish()
                return
            self._put(encode((await admitted.ask()).envelope).decode())
        except DittoError as error:
            # without a response, too: a message that was not sent is in no table
            self._put(error_message(error, command))
        except Exception:
            log.exception("The request %s failed.", client_id)
            self._put(error_message(internal_error(), command))
        finally:
            self._room.release()

    def _new_id(self, client_id: str, attempt: Attempt) -> str:
        """Return a correlation-id to send, whose signal does not come back to the client."""
        issued = wire_id(client_id)
        self._issued.add(issued, time.monotonic())
        return attempt.sent(issued)

    def _pass_on(self, incoming: messages.Incoming) -> None:
        envelope = incoming.envelope
        try:
            # only refusals are recorded unless all is: devices answer and report as often as they like
            with self._dependencies.audit.attempt(self._client.sender, "messages", envelope, "answer") as attempt:
                self._answering.admit(incoming, self._client.subjects)
        except DittoError as error:
            self._put(error_message(error, envelope))
            return
        if event := incoming.what == "event":
            self._issued.add(str(envelope.headers[CORRELATION_ID]), time.monotonic())
        attempt.sent(str(envelope.headers[CORRELATION_ID]))
        self._streaming.forward(envelope, "events" if event else "acks")

    # -- to the client -------------------------------------------------------------------------------------------------

    def receive(self, signal: rules.Publication, moment: datetime) -> None:
        """Handle a signal of a subscribed stream, or one that requests a label of the session; must not block."""
        if self._issued.known(signal.correlation_id, time.monotonic()):
            # as in Ditto, the originator does not receive its own signal
            return
        shown = seen_by(self._dependencies.access, self._client.subjects, signal)
        wanted = self._subscriber.subscriptions.get(signal.stream)
        if shown is not None and wanted is not None and wanted.extra_fields and wanted.covers(signal):
            self._put(self._start(self._enriched(shown, wanted, moment)))
            return
        text = self._decide(shown or signal, moment, visible=shown is not None)
        if text is not None:
            self._put(text)

    def fail(self) -> None:
        """End the session: a signal could not be handled."""
        self._finish(_INTERNAL_ERROR)

    async def _enriched(self, signal: rules.Publication, wanted: rules.Subscription, moment: datetime) -> str | None:
        try:
            extra = await self._dependencies.extra_fields(self._client.subjects, wanted, signal, moment)
        except DittoError as error:
            return error_message(error, signal.envelope)
        return self._decide(signal, moment, visible=True, extra=extra)

    def _decide(
        self, signal: rules.Publication, moment: datetime, *, visible: bool, extra: Mapping[str, Any] | None = None
    ) -> str | None:
        """Return the message to send for a signal; without one, issue weak acknowledgements."""
        try:
            with self._dependencies.admission.limits.filtering(self._client.subjects[0]) as effort:
                decision = rules.decide(
                    self._subscriber, signal, visible=visible, extra=extra, time=moment, effort=effort
                )
        except DittoError as error:
            # of the filter: the client must not miss the signal unnoticed
            return error_message(error, signal.envelope)
        if isinstance(decision, rules.Drop):
            for ack in rules.weak_acks(signal, decision):
                self._streaming.forward(write_ack(ack, signal.thing_id))
            return None
        envelope = decision.envelope
        if not (decision.labels or signal.response_required):
            return self._streaming.text(envelope)
        published = self._answering.send(signal)
        return encode(replace(envelope, headers={**envelope.headers, CORRELATION_ID: published})).decode()

    async def _send(self) -> None:
        try:
            await self._unread.send_all(self._websocket.send_text)
        except (WebSocketDisconnect, RuntimeError):
            # the client closed it
            self._finish(_NORMAL)
        finally:
            self._finish(_INTERNAL_ERROR)

    # -- its end -------------------------------------------------------------------------------------------------------

    def _lost(self) -> None:
        if not self._end.done():
            self._end.set_exception(label_not_unique())

    async def _refuse(self, error: DittoError) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.send_text(error_message(error, None))

    def _finish(self, code: int, reason: str = "") -> None:
        if not self._end.done():
            # a frame that ends a WebSocket has room for no more (RFC 6455, 5.5)
            self._end.set_result((code, reason.encode()[:_REASON_BYTES].decode("utf-8", "ignore")))

    def _start(self, coroutine: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def socket_route(dependencies: Dependencies) -> WebSocketRoute:
    """Return the route of ``/ws/2``: Ditto Protocol over a WebSocket, with three tasks and no thread per socket."""
    access, audit = dependencies.access, dependencies.audit

    async def endpoint(websocket: WebSocket) -> None:
        with ExitStack() as opened:
            try:
                identity = await dependencies.admission.admit(websocket)
                check_parameters(websocket.query_params, ())
                given = read_request_headers(websocket, dependencies.settings.gateway.proxy)
                labels = frozenset(map(parse_declared, given.get(DECLARED_ACKS, ())))
                with audit.refusals(websocket, identity.subjects):
                    check_labels(access, identity.subjects, labels)
                opened.enter_context(dependencies.admission.socket(websocket, identity.subjects))
            except DittoError as error:
                await websocket.send_denial_response(responses.of_error(error))
                return
            audit.opened(websocket, identity.subjects)
            await websocket.accept()
            signed_in = partial(SignedIn, dependencies.authenticator, access, websocket, identity, labels)
            await SocketSession(websocket, dependencies, signed_in, given).run(labels)

    return WebSocketRoute("/ws/2", endpoint)
