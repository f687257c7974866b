"""Messages of a WebSocket client: requests, answers to signals, live events and control messages; and its searches.

A client answers only signals that it was sent: with the correlation-id of any other request it could answer or end that
request in place of its real party. Correlate compares an answer with its request again: thing, channel and label.
Source of the rules: Eclipse Ditto, ``WebSocketRoute#buildSignal``, ``StreamingSessionActor``, ``ProtocolMessageType``,
``ProtocolMessageExtractor``, ``SubscriptionManager``, ``SubscriptionActor``; the table is in ``ditto.md`` 1.8.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import count
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Raw

from ackstream.gateway import errors
from ackstream.gateway.middleware.commands import check_headers, is_live, with_defaults
from ackstream.gateway.streaming import UnreadMessages
from ackstream.protocol.ditto import headers as names
from ackstream.protocol.ditto import signal_defaults
from ackstream.protocol.ditto.acknowledgements import check_answer, taken_entries
from ackstream.protocol.ditto.correlation_ids import ForwardedIds, RecentIds
from ackstream.protocol.ditto.envelopes import Envelope, encode
from ackstream.protocol.ditto.requests import message_headers
from ackstream.protocol.ditto.twin import permissions, searches, subscriptions
from ackstream.protocol.ditto.twin.access import Access
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError, unknown_path, unknown_topic_path
from ackstream.settings import Correlate

log = logging.getLogger(__name__)

_INHERITED = names.DEFINITIONS.keys() - {names.CORRELATION_ID, names.DECLARED_ACKS}
"""Headers of the connection that apply to its messages."""

_PART = "ditto-message-"


class Incoming(msgspec.Struct, frozen=True):
    """A message: a request, with ``response`` if one is required, a search command, or an answer or a live event."""

    what: Literal["request", "search", "answer", "event"]
    envelope: Envelope
    kind: permissions.Kind = "modify"
    response: bool = False


def read_incoming(envelope: Envelope, given: Mapping[str, Any], declared: Collection[str], new_id: str) -> Incoming:
    """Read a message, with headers to forward or for a search's answers, over those ``given``; raises 400, 405, 501."""
    taken = names.taken_headers(envelope.headers)
    sent = {(name.lower() if name.lower() == names.CORRELATION_ID else name): value for name, value in taken.items()}
    if envelope.topic.criterion == "messages":
        sent = _of_message(sent, envelope)
    if envelope.status is not None or envelope.topic.criterion in ("acks", "errors"):
        envelope.headers = sent
        check_answer(envelope, declared, "Only acknowledgements and live responses can be sent as answers.")
        if envelope.topic.criterion == "messages" and not permissions.addresses_subject(envelope):
            raise unknown_path(envelope.path)
        envelope.value = taken_entries(envelope)
        return Incoming("answer", envelope)
    if sent.get(names.CORRELATION_ID) is None:
        sent[names.CORRELATION_ID] = new_id
    envelope.headers = sent
    own = names.read_headers(sent)
    if envelope.topic.criterion == "search":
        check_headers("search", own)
        envelope.headers = names.request_reply_headers(own)
        return Incoming("search", envelope)
    # a null in the message removes a header of the connection
    inherited = _INHERITED - {name.lower() for name in sent}
    defaults = {name: value for name, value in given.items() if name in inherited}
    if subscriptions.stream_of(envelope) == "live-events":
        envelope.headers = with_defaults("event", own, defaults, live=True)
        check_headers("event", envelope.headers, live=True)
        return Incoming("event", envelope)
    operation = permissions.kind_of(envelope)
    envelope.headers = with_defaults(operation, own, defaults, live=envelope.topic.channel == "live")
    return _request(operation, envelope)


def _of_message(headers: Mapping[str, Any], message: Envelope) -> dict[str, Any]:
    """Return headers of a message in which direction, subject, thing and feature are those of its topic and path."""
    own = message_headers(message)
    named = {name: own.get(name.lower(), value) for name, value in headers.items()}
    return {name: value for name, value in named.items() if name.lower() in own or not name.lower().startswith(_PART)}


def _request(operation: permissions.Kind, envelope: Envelope) -> Incoming:
    user = envelope.headers
    kind = signal_defaults.signal_kind(envelope.topic, user)
    if kind is None or kind in ("other", "otherQuery"):
        raise unknown_topic_path(str(envelope.topic), "Only commands and messages of things can be sent here.")
    if operation in ("search", "count"):
        # a search comes as one, page by page
        raise unknown_path(envelope.path)
    permissions.check_address(operation, envelope)
    headers = signal_defaults.effective_headers(kind, user)
    signal_defaults.check_combination("WebSocket", kind, headers)
    timeout = user.get(names.TIMEOUT)
    if timeout is not None and Duration.parse(timeout).capped(2**53) > signal_defaults.STREAM_TIMEOUT_MS:
        user[names.TIMEOUT] = f"{signal_defaults.STREAM_TIMEOUT_MS // 1000}s"
    check_headers(operation, user, live=is_live(envelope))
    return Incoming("request", envelope, operation, bool(headers.get(names.RESPONSE_REQUIRED, True)))


class Control(msgspec.Struct, frozen=True):
    """A message that starts or stops a stream, such as ``START-SEND-EVENTS?namespaces=…&filter=…``."""

    name: str
    parameters: dict[str, str]

    def change(self) -> tuple[subscriptions.Stream, subscriptions.Subscription | None]:
        """Return the stream and its wanted subscription, ``None`` to end it; raises 400, 501 without such a stream."""
        stream = _CONTROLS[self.name]
        if stream is None:
            raise errors.stream_unavailable(self.name)
        for name in self.parameters:
            if name not in _OF_CONTROLS:
                known = ", ".join(_OF_CONTROLS)
                raise errors.parameter_invalid(name, f"is not a parameter of this message: it has {known}")
        if self.name.startswith("STOP"):
            return stream, None
        return stream, subscriptions.subscription_of(stream, self.parameters)


_CONTROLS: dict[str, subscriptions.Stream | None] = {
    f"{verb}-SEND-{name.upper()}": None if name == "policy-announcements" else name
    for verb in ("START", "STOP")
    for name in (*get_args(subscriptions.Stream), "policy-announcements")
}
_OF_CONTROLS = (*subscriptions.PARAMETERS, names.CORRELATION_ID)
_TOKEN = "JWT-TOKEN"  # noqa: S105 - the name of the message


def read_control(text: str) -> Control | None:
    """Read a message that starts or stops a stream; ``None`` for any other message."""
    name = text.partition("?")[0] if text.startswith(("START-", "STOP-")) else ""
    return Control(name, _parameters(text)) if name in _CONTROLS else None


def read_token(text: str) -> str | None:
    """Read the token of ``JWT-TOKEN?jwtToken=…``, which continues a session; ``None`` for any other message."""
    return _parameters(text).get("jwtToken", "") if text == _TOKEN or text.startswith(f"{_TOKEN}?") else None


def _parameters(text: str) -> dict[str, str]:
    return {name: value for name, value in parse_qsl(text.partition("?")[2], keep_blank_values=True) if name}


class Answering:
    """The signals that one client was sent and may still answer."""

    def __init__(self, access: Access, limits: Correlate) -> None:
        self._access, self._limits = access, limits
        self._sent = ForwardedIds(signal_defaults.STREAM_TIMEOUT_MS / 1000)

    def send(self, signal: subscriptions.Publication) -> str:
        """Return the correlation-id under which the client is sent a signal that it may answer."""
        limits = self._limits
        timeout = min(signal.timeout_ms or signal_defaults.STREAM_TIMEOUT_MS, limits.max_timeout)
        # longer than the timeout, so that a late answer is recorded as late
        return self._sent.issue(signal.correlation_id, time.monotonic(), (timeout + limits.recent_memory) / 1000)

    def admit(self, incoming: Incoming, subjects: tuple[str, ...]) -> None:
        """Admit a live event, or an answer under its signal's correlation-id; raises 404: no right or signal."""
        envelope = incoming.envelope
        identity = str(envelope.headers[names.CORRELATION_ID])
        original = None if incoming.what == "event" else self._sent.original(identity, time.monotonic())
        ack = envelope.topic.criterion == "acks"
        # an answer to a live command that came on another way needs, as a live event does, the right to write
        permissions.check_answer(self._access, subjects, envelope, event=original is None and not ack)
        if original is None and ack:
            raise errors.answer_not_expected(identity)
        envelope.headers[names.CORRELATION_ID] = original or identity


MAX_OPEN_SEARCHES = 100
IDLE_SECONDS = 60.0
"""How long a search waits for the client's next request."""

ENDED_SECONDS = 10.0
"""How long the id of a search that has ended is remembered, so that its end and a request that crosses it fit."""


class _OpenSearch(searches.Search):
    task: asyncio.Task[None]

    def __init__(self, identity: str, wanted: searches.Subscribe, headers: dict[str, Any]) -> None:
        super().__init__(identity, wanted, headers)
        self.requested = asyncio.Event()


class Searches:
    """Answers the search commands of one client; for the event loop of its session."""

    def __init__(
        self, ask: Callable[..., Awaitable[Envelope]], unread: UnreadMessages, start: Callable[..., asyncio.Task[None]]
    ) -> None:
        """Serve a session: ``ask`` sends a query without headers for the client, ``start`` a task that ends with it."""
        self._ask = ask
        # of these a page waits until there is room for it, an answer does not
        self._unread = unread
        self._start = start
        self._turn = asyncio.Lock()
        self._identities = map(str, count())
        self._open: dict[str, _OpenSearch] = {}
        self._ended = RecentIds(ENDED_SECONDS)

    def take(self, envelope: Envelope) -> None:
        """Handle a search command; raises if it cannot be read, or the client has too many searches."""
        match searches.read_search(envelope):
            case searches.Subscribe() as wanted:
                if len(self._open) >= MAX_OPEN_SEARCHES:
                    raise errors.too_many_searches(MAX_OPEN_SEARCHES)
                search = _OpenSearch(next(self._identities), wanted, envelope.headers)
                self._open[search.identity] = search
                search.task = self._start(self._run(search))
                self._put(search.event("created"))
            case searches.RequestPages(identity, demand):
                self._request(identity, demand, envelope.headers)
            case searches.Cancel(identity):
                if (found := self._open.get(identity)) is not None:
                    self._end(found)
                    found.task.cancel()
                elif not self._ended.known(identity, time.monotonic()):
                    self._put(searches.failed(identity, envelope.headers, searches.subscription_not_found(identity)))

    def _request(self, identity: str, demand: int, headers: dict[str, Any]) -> None:
        if (search := self._open.get(identity)) is None:
            ended = self._ended.known(identity, time.monotonic())
            error = searches.subscription_cancelled() if ended else searches.subscription_not_found(identity)
            self._put(searches.failed(identity, headers, error))
            return
        try:
            search.request(demand, headers)
            search.requested.set()
        except DittoError as error:
            search.task.cancel()
            self._fail(search, error)

    async def _run(self, search: _OpenSearch) -> None:
        """Query page after page until the last one or an error; wait where the client has requested no more."""
        try:
            while search.identity in self._open:
                if not search.demand:
                    search.requested.clear()
                    await asyncio.wait_for(search.requested.wait(), IDLE_SECONDS)
                # one page at a time, in whichever search: each one waits until the client has read those before
                async with self._turn:
                    await self._unread.room()
                    self._receive(search, await self._ask(search.query()))
        except asyncio.TimeoutError:
            self._fail(search, searches.subscription_timeout(search.identity))
        except DittoError as error:
            self._fail(search, error)
        except Exception:
            log.exception("The search %s failed.", search.identity)
            self._fail(search, errors.internal_error())

    def _receive(self, search: _OpenSearch, reply: Envelope) -> None:
        if reply.value is UNSET or reply.topic.criterion == "errors":
            self._fail(search, errors.internal_error() if reply.value is UNSET else reply.value)
            return
        page = msgspec.json.decode(reply.value, type=searches.Page)
        if page.cursor is None:
            self._end(search)
        for event in search.receive(page):
            self._put(event)

    def _fail(self, search: _OpenSearch, error: DittoError | Raw) -> None:
        self._end(search)
        self._put(searches.failed(search.identity, search.headers, error))

    def _put(self, event: Envelope) -> None:
        self._unread.put(encode(event).decode())

    def _end(self, search: _OpenSearch) -> None:
        self._open.pop(search.identity, None)
        self._ended.add(search.identity, time.monotonic())
