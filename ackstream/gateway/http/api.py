"""The HTTP API: read a request, send the command, return the response."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ackstream.gateway.access.authentication import SignedIn
from ackstream.gateway.errors import body_too_large, media_type_unsupported, no_answer, not_acceptable
from ackstream.gateway.exchange import Dependencies
from ackstream.gateway.http import event_streams, responses, translation
from ackstream.gateway.http.operations import LIST, OF_MANY, PREFIX, Match, find, methods
from ackstream.gateway.middleware.admission import Identity
from ackstream.gateway.middleware.audit import Sender
from ackstream.gateway.middleware.commands import AdmittedCommand, admit, check_headers
from ackstream.protocol.ditto import signal_defaults
from ackstream.protocol.ditto.correlation_ids import wire_id
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, Envelope
from ackstream.protocol.ditto.headers import CORRELATION_ID, ORIGINATOR, REQUESTED_ACKS, RESPONSE_REQUIRED, TIMEOUT
from ackstream.protocol.ditto.twin.permissions import Kind, check_permissions, restrict
from ackstream.protocol.errors import DittoError, unknown_topic_path
from ackstream.settings import Gateway

_SEARCHES: tuple[Kind, ...] = ("list", "search", "count")
REQUEST_SECONDS = 60.0
"""The time within which a client sends a request, from its first byte to its last."""


class Expectation(msgspec.Struct, frozen=True):
    """The wait of an HTTP request: for a response, for acknowledgements only, or none; and its timeout."""

    response: bool
    acks: bool
    timeout_ms: int


def expect(command: Envelope, settings: Gateway) -> Expectation:
    """Derive the wait of a command from its three headers, and set its effective timeout header; raises 400.

    Other headers stay as the client sent them, since correlate applies the same defaults.
    Source: Eclipse Ditto, ``AbstractHttpRequestActor``, ``MessagesRoute``; ditto.md 1.8.
    """
    topic = command.topic
    kind = signal_defaults.signal_kind(topic, command.headers)
    if kind is None:
        raise unknown_topic_path(str(topic))
    headers = signal_defaults.effective_headers(kind, command.headers)
    signal_defaults.check_combination("HTTP", kind, headers)
    most = settings.max_timeout
    bound = settings.max_claim_timeout if kind == "message" and topic.subject == "claim" else most
    waited = signal_defaults.timeout_milliseconds("HTTP", kind, headers, most, bound)
    if kind == "message":
        # a claim's timeout may exceed the wait; Ditto writes whole seconds without a unit
        waited = min(waited, most)
        command.headers[TIMEOUT] = str(waited // 1000) if waited % 1000 == 0 else f"{waited}ms"
    else:
        command.headers.setdefault(TIMEOUT, f"{most}ms" if most % 1000 else f"{most // 1000}s")
    acks = signal_defaults.waits_for_acks(kind, headers.get(REQUESTED_ACKS) or ())
    return Expectation(bool(headers.get(RESPONSE_REQUIRED, True)), acks, waited)


class Api:
    """The ASGI application below :data:`PREFIX`."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._settings = dependencies.settings.gateway
        self._signed_in = partial(SignedIn, dependencies.authenticator, dependencies.access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        request = Request(scope, receive)
        correlation_id = request.headers.get(CORRELATION_ID)
        try:
            identity = await self._dependencies.admission.admit(request)
            # only after admission, since the query has to be parsed
            correlation_id = correlation_id or request.query_params.get(CORRELATION_ID)
            response = await self._answer(request, identity)
        except DittoError as error:
            response = responses.of_error(error, correlation_id)
        except ClientDisconnect:
            return
        if request.method == "HEAD":
            response.body = b""
        try:
            await response(scope, receive, send)
        except DittoError as error:
            # a stream that was refused before it began
            await responses.of_error(error, correlation_id)(scope, receive, send)

    async def _answer(self, request: Request, identity: Identity) -> Response:
        raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
        path = raw_path.decode("latin-1").removeprefix(PREFIX)
        if request.method == "OPTIONS":
            return Response(None, responses.NO_CONTENT, {"allow": ", ".join(methods(path))})
        limits, subjects = self._dependencies.admission.limits, identity.subjects
        match = find(request.method, path)
        if match.operation.events and request.method == "GET" and event_streams.accepts_events(request):
            return await self._stream(request, match, identity)
        if match.operation.kind == "many" and "ids" not in request.query_params:
            match = Match(LIST, {})
        operation, kind = match.operation, match.operation.kind
        translation.check_parameters(request.query_params, OF_MANY if kind == "many" else operation.parameters)
        client_id, given = self._headers(request, kind, subjects)
        if kind == "messages":
            raise not_acceptable()
        content_type = request.headers.get("content-type", "")
        # a page may send other media types without a preflight request, but not JSON
        foreign = operation.body == "json" and "origin" in request.headers
        body = b"" if operation.body is None else await read_body(self._dependencies, request, only_json=foreign)
        if kind in ("whoami", "permissions"):
            whoami, access = kind == "whoami", self._dependencies.access
            found = responses.named(subjects) if whoami else check_permissions(access, subjects, body)
            return responses.of_value(found, client_id)
        query = request.query_params
        if kind == "create":
            # the last value counts: this one is the default
            query = QueryParams([("namespace", self._settings.default_namespace), *query.multi_items()])
        asked = translation.command(match, given, query, content_type, body)
        expectation = expect(asked, self._settings)
        with self._dependencies.audit.attempt(Sender.of(request, subjects), kind, asked) as attempt:
            admitted = await admit(self._dependencies, subjects, kind, asked, lambda: attempt.sent(wire_id(client_id)))
        if not expectation.response:
            return await self._settle(admitted, expectation, client_id)
        if operation.events == "request" and event_streams.accepts_events(request):
            events = event_streams.RequestEvents(admitted)
            return event_streams.EventResponse(
                events.frames(), client_id, *self._around(request, identity), events.open()
            )
        with limits.search(subjects[0]) if kind in _SEARCHES else nullcontext():
            reply = await admitted.ask()
        if kind == "list" and reply.ok:
            response = responses.of_list(reply, request.url, request.query_params, client_id)
        else:
            response = responses.of_reply(reply, asked, client_id)
        return response

    def _headers(self, request: Request, kind: Kind, subjects: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        given = translation.read_request_headers(request, self._settings.proxy)
        check_headers(kind, given)
        client_id = given[CORRELATION_ID] = given.get(CORRELATION_ID) or translation.new_id()
        if self._dependencies.authenticator.required:
            given[ORIGINATOR] = subjects[0]
        return client_id, given

    @staticmethod
    async def _settle(admitted: AdmittedCommand, expectation: Expectation, client_id: str) -> Response:
        if not expectation.acks:
            await admitted.publish()
            return responses.accepted(client_id)
        outcome = await admitted.settle(expectation.timeout_ms / 1000 + translation.GRACE_SECONDS)
        if outcome is None:
            raise no_answer()
        return responses.of_outcome(outcome, expectation.timeout_ms, client_id)

    def _around(self, request: Request, identity: Identity) -> tuple[partial[SignedIn], AbstractContextManager[None]]:
        """Return the end of an event stream with the right to it, and its limit."""
        counted = self._dependencies.admission.socket(request, identity.subjects)
        return partial(self._signed_in, request, identity, ()), counted

    async def _stream(self, request: Request, match: Match, identity: Identity) -> Response:
        translation.check_parameters(request.query_params, match.operation.event_parameters)
        kind: Kind = "search" if match.operation.events == "search" else "messages"
        subjects, sender = identity.subjects, Sender.of(request, identity.subjects)
        client_id, given = self._headers(request, kind, subjects)
        around = self._around(request, identity)
        if kind == "messages":
            asked = translation.subscribed(match, client_id)
            with self._dependencies.audit.attempt(sender, kind, asked, "stream") as attempt:
                events = event_streams.SignalEvents(self._dependencies, match, request.query_params, subjects)
                attempt.sent(client_id)
            return event_streams.EventResponse(events.frames(), client_id, *around, events.open())
        asked = translation.command(match, given, request.query_params, "", b"")
        with self._dependencies.audit.attempt(sender, kind, asked) as attempt:
            restrict(self._dependencies.access, subjects, kind, asked)
        expect(asked, self._settings)
        limit = partial(self._dependencies.admission.limits.search, subjects[0])
        exchange = self._dependencies.exchange
        search = event_streams.SearchEvents(exchange, asked, lambda: attempt.sent(wire_id(client_id)), limit)
        first = await search.begin(request.headers.get("last-event-id"))
        if not first.ok:
            return responses.of_reply(first, asked, client_id)
        return event_streams.EventResponse(search.frames(), client_id, *around)


async def read_body(dependencies: Dependencies, request: Request, *, only_json: bool) -> bytes:
    """Return a body; raises 415: not JSON, which no page of another site sends unasked, 413: too large, 408: late."""
    content_type, maximum = request.headers.get("content-type", ""), dependencies.settings.gateway.max_body_bytes
    if only_json and not translation.is_json(translation.media_type(content_type)):
        raise media_type_unsupported(content_type, JSON_CONTENT_TYPE)
    if int(request.headers.get("content-length", "0")) > maximum:
        raise body_too_large(maximum)

    async def read() -> bytes:
        found = bytearray()
        async for chunk in request.stream():
            found += chunk
            if len(found) > maximum:
                raise body_too_large(maximum)
        return bytes(found)

    return await dependencies.exchange.receive(read(), REQUEST_SECONDS)
