"""Server-sent events: changes, messages, things found, the updates of a request.

Source of the rules: Ditto, ``ThingsSseRouteBuilder``, the HTML standard.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, aclosing, closing, contextmanager
from datetime import datetime
from typing import Any

import msgspec
from anyio import CancelScope
from msgspec import UNSET
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ackstream.client import Reply
from ackstream.gateway.access.authentication import SignedIn
from ackstream.gateway.exchange import Dependencies, Exchange
from ackstream.gateway.http.operations import EVENT_STREAM, Match
from ackstream.gateway.http.translation import fields_in, filter_in, is_json, media_type, pieces, thing_ids
from ackstream.gateway.middleware.commands import AdmittedCommand
from ackstream.gateway.streaming import UnreadMessages
from ackstream.protocol import json
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, Envelope, decoded, encode, json_text, raw
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID, sendable
from ackstream.protocol.ditto.twin.permissions import check_visible, seen_by
from ackstream.protocol.ditto.twin.subscriptions import Publication, subscription
from ackstream.protocol.ditto.twin.things import check_id, merged, select_of_thing
from ackstream.protocol.errors import DittoError, option_invalid

Block = AbstractContextManager[None]
HEARTBEAT_SECONDS = 10.0
"""Interval of comments on an idle stream: proxies close connections that are quiet for a minute."""

TURN_SECONDS = 1.0
HEARTBEAT = ":\n\n"
CONTEXT = "_context"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_LINE_END = re.compile("\r\n|\r|\n")


def accepts_events(request: Request) -> bool:
    """Return whether the client names the media type of server-sent events; a wildcard does not."""
    return any(media_type(kind) == EVENT_STREAM for kind in request.headers.get("accept", "").split(","))


def frame(data: str, *, event: str | None = None, identity: str | None = None) -> str:
    """Write one event."""
    named = {"id": identity, "event": event}
    lines = [f"{name}: {_LINE_END.sub(' ', text)}" for name, text in named.items() if text is not None]
    lines += [f"data: {line}" for line in _LINE_END.split(data)]
    return "\n".join(lines) + "\n\n"


class EventResponse(StreamingResponse):
    """Sends events and heartbeats while the client is connected, and has the right to them."""

    def __init__(
        self, frames: AsyncIterator[str], correlation_id: str, signed_in: Callable[..., SignedIn], *around: Block
    ) -> None:
        """Send ``frames``; ``around`` are entered before the response begins, and may raise ``DittoError``."""
        self._signed_in, self._around = signed_in, around
        headers = _HEADERS | {CORRELATION_ID: sendable(correlation_id)}
        super().__init__(frames, headers=headers, media_type=EVENT_STREAM)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond."""
        with ExitStack() as entered:
            for each in self._around:
                entered.enter_context(each)
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        """Send the response."""
        with CancelScope() as scope, closing(self._signed_in(end=lambda _: scope.cancel())):
            await super().stream_response(send)
        if scope.cancelled_caught:
            await send({"type": "http.response.body", "body": b""})


class SignalEvents:
    """Changes of things, or messages to and from them, for one client; if it reads too slowly, it is disconnected."""

    def __init__(self, dependencies: Dependencies, match: Match, query: QueryParams, subjects: tuple[str, ...]) -> None:
        """Read the request; raises 400, 404."""
        self._dependencies, self._match, self._subjects = dependencies, match, subjects
        thing_id = match.values.get("thingId")
        self._things: frozenset[str] | None = None
        if thing_id is not None:
            check_id(thing_id)
            check_visible(dependencies.access, subjects, thing_id, match.path)
            self._things = frozenset([thing_id])
        elif "ids" in query:
            self._things = frozenset(thing_ids(query))
        self._fields = fields_in(query)
        self._wanted = subscription(
            "events" if match.operation.events == "events" else "messages",
            namespaces=pieces(query, "namespaces"),
            filter=filter_in(query),
            extra_fields=fields_in(query, "extraFields"),
        )
        self._unread = UnreadMessages(self.fail, dependencies.unread)
        self._ended = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Receive signals during the block."""
        streaming = self._dependencies.streaming
        streaming.subscribe(self, self._wanted.stream)
        try:
            yield
        finally:
            streaming.remove(self, ())
            self.fail()

    def receive(self, signal: Publication, moment: datetime) -> None:
        """Handle a signal of the stream; must not block."""
        if self._ended or not self._wanted.covers(signal) or not self._addressed(signal):
            return
        shown = seen_by(self._dependencies.access, self._subjects, signal)
        if shown is None:
            return
        if self._wanted.extra_fields is None:
            text = self._event(shown, moment, {})
            if text is not None:
                self._unread.put(text)
        else:
            task = asyncio.get_running_loop().create_task(self._enriched(shown, moment))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._unread.put(task)

    async def frames(self) -> AsyncIterator[str]:
        """Yield events in the order of their signals."""
        # the response begins at once
        yield HEARTBEAT
        while not self._ended:
            try:
                found = await self._dependencies.exchange.within(self._unread.take(), HEARTBEAT_SECONDS)
            except DittoError:
                # the gateway is shutting down
                return
            if isinstance(found, asyncio.Task):
                await asyncio.wait([found])
                # a task that is cancelled: the stream has ended meanwhile
                text = None if found.cancelled() else found.result()
            else:
                text = found or HEARTBEAT
            if text is not None:
                yield text

    def _addressed(self, signal: Publication) -> bool:
        if self._things is not None and signal.thing_id not in self._things:
            return False
        if self._wanted.stream == "events":
            return True
        path, wanted = signal.envelope.path, self._match.path
        return path == wanted if "subject" in self._match.values else path.startswith(f"{wanted}/")

    async def _enriched(self, signal: Publication, moment: datetime) -> str | None:
        try:
            extra = await self._dependencies.extra_fields(self._subjects, self._wanted, signal, moment)
        except DittoError as error:
            return frame(json_text(error.to_dict()))
        return self._event(signal, moment, extra)

    def _event(self, signal: Publication, moment: datetime, extra: dict[str, Any]) -> str | None:
        try:
            with self._dependencies.admission.limits.filtering(self._subjects[0]) as effort:
                if not self._wanted.matches(signal, extra, moment, effort):
                    return None
        except DittoError as error:
            return frame(json_text(error.to_dict()))
        if signal.stream == "messages":
            return frame(_payload(signal.envelope), event=signal.envelope.topic.subject)
        thing = {"thingId": signal.thing_id} | merged(extra, signal.thing)
        if self._fields is not None:
            value = select_of_thing(thing | _context_of(signal, self._fields), self._fields)
        else:
            value = {name: part for name, part in thing.items() if not name.startswith("_")}
        value = json.find(value, json.keys_of(self._match.path))
        return None if value is UNSET or (self._fields and not value) else frame(json_text(value))

    def fail(self) -> None:
        """End the stream: a signal could not be handled, or the client does not read."""
        self._ended = True
        self._unread.drop()
        for task in self._tasks:
            task.cancel()


def _context_of(signal: Publication, fields: str) -> dict[str, Any]:
    if not any(path[0] == CONTEXT for path in json.parse_selector(fields)):
        return {}
    envelope = signal.plain
    value = decoded(envelope.value)
    return {CONTEXT: {"topic": str(envelope.topic), "path": envelope.path, "value": value, "headers": envelope.headers}}


def _payload(message: Envelope) -> str:
    """Return the payload of a message as text; binary data is in base64."""
    if message.value is UNSET:
        return ""
    if not is_json(media_type(str(message.headers.get(CONTENT_TYPE, JSON_CONTENT_TYPE)))):
        decoded = msgspec.json.decode(message.value)
        if isinstance(decoded, str):
            return decoded
    return bytes(message.value).decode()


async def _heartbeats(following: asyncio.Future[Any]) -> AsyncGenerator[str, None]:
    """Yield heartbeats until a future is done; cancel it if the client disconnects first."""
    try:
        while not (await asyncio.wait({following}, timeout=HEARTBEAT_SECONDS))[0]:
            yield HEARTBEAT
    finally:
        following.cancel()


class RequestEvents:
    """The updates of one request, and its reply as the last event: Ditto Protocol messages, as on a WebSocket."""

    def __init__(self, admitted: AdmittedCommand) -> None:
        self._admitted = admitted

    @contextmanager
    def open(self) -> Iterator[None]:
        """Send the request, and count it as open during the block; raises 409, 429, 503."""
        with self._admitted.stream() as self._replies:
            yield

    async def frames(self) -> AsyncIterator[str]:
        """Yield events ``progress`` and ``reply``; ``failure``: an error in place of the reply, as a body has it."""
        # the response begins at once
        yield HEARTBEAT
        waits = True
        while waits:
            following = asyncio.ensure_future(anext(self._replies))
            async with aclosing(_heartbeats(following)) as beats:
                async for beat in beats:
                    yield beat
            try:
                reply = following.result()
            except DittoError as error:
                yield frame(json_text(error.to_dict()), event="failure")
                return
            waits = reply.is_update
            yield frame(encode(reply.envelope).decode(), event="progress" if waits else "reply")


class SearchEvents:
    """The things that a search finds, page by page; the id of an event is that of the thing."""

    def __init__(
        self, exchange: Exchange, command: Envelope, new_id: Callable[[], str], limit: Callable[[], Block]
    ) -> None:
        """Search; ``limit`` counts a search for a block, or raises 429."""
        self._exchange, self._command, self._new_id, self._limit = exchange, command, new_id, limit
        self._query: dict[str, Any] = msgspec.json.decode(command.value)  # type: ignore[arg-type]  # a search has one
        self._fields: str | None = self._query.get("fields")
        self._options: list[str] = self._query.get("options", [])
        self._page: list[Any] = []
        self._cursor: str | None = None

    async def begin(self, last_id: str | None) -> Reply:
        """Retrieve the first page after a thing; 400: cursor and limit are for single pages, 429: too many searches."""
        if any(option.strip().startswith(("cursor", "limit")) for option in self._options):
            raise option_invalid("A stream of search results goes from page to page by itself: use only sort and size.")
        if last_id:
            self._query["after"] = last_id
        # few large pages: in another order than that of ids, each one reads all things
        self._query["all"] = True
        if self._fields is not None:
            self._query["fields"] = f"{self._fields},thingId"
        with self._limit():
            return await self._next()

    async def frames(self) -> AsyncIterator[str]:
        """Yield the things found; an error in between is the last event."""
        while True:
            for thing in self._page:
                shown = thing if self._fields is None else json.select(thing, self._fields)
                yield frame(json_text(shown), identity=thing["thingId"])
            if self._cursor is None:
                return
            self._query.pop("after", None)
            self._query["options"] = [*self._options, f"cursor({self._cursor})"]
            following = asyncio.ensure_future(self._in_turn())
            async with aclosing(_heartbeats(following)) as beats:
                async for beat in beats:
                    yield beat
            try:
                reply = following.result()
            except DittoError as error:
                yield frame(json_text(error.to_dict()))
                return
            if not reply.ok:
                yield frame(json_text(reply.value))
                return

    async def _in_turn(self) -> Reply:
        """Retrieve a page once the subject is below its limit of searches: the twin runs one at a time."""
        with ExitStack() as counted:
            while True:
                try:
                    counted.enter_context(self._limit())
                except DittoError:
                    await asyncio.sleep(TURN_SECONDS)
                else:
                    return await self._next()

    async def _next(self) -> Reply:
        headers = {**self._command.headers, CORRELATION_ID: self._new_id()}
        command = msgspec.structs.replace(self._command, headers=headers, value=raw(self._query))
        reply = await self._exchange.ask(command)
        if reply.ok:
            self._page, self._cursor = reply.value["items"], reply.value.get("cursor")
        return reply
