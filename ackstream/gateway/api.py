"""The HTTP API: read a request, send the command, return the response."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request

from ackstream.gateway import responses
from ackstream.gateway.errors import body_too_large, no_answer
from ackstream.gateway.operations import PREFIX, Match, find
from ackstream.gateway.permissions import restrict, visible_part
from ackstream.gateway.translation import (
    GRACE_SECONDS,
    ORIGINATOR,
    command,
    read_request_headers,
    wire_ids,
)
from ackstream.protocol.ditto.errors import unknown_topic_path
from ackstream.protocol.ditto.headers import CORRELATION_ID, REQUESTED_ACKS, RESPONSE_REQUIRED, TIMEOUT
from ackstream.protocol.ditto.signal_defaults import (
    check_combination,
    default_headers,
    signal_kind,
    timeout_milliseconds,
    waits_for_acks,
)
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from ackstream.gateway.service import Dependencies
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.settings import Gateway


REQUEST_SECONDS = 60.0
"""The time within which a client sends a request, from its first byte to its last."""


class Api:
    """The ASGI application below :data:`PREFIX`."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._settings = dependencies.settings.gateway
        self._ids = wire_ids(dependencies.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        request = Request(scope, receive)
        correlation_id = request.headers.get(CORRELATION_ID) or request.query_params.get(CORRELATION_ID)
        try:
            response = await self._answer(request)
        except DittoError as error:
            response = responses.of_error(error, correlation_id)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        subjects = await self._dependencies.authenticator.identify(request)
        raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
        match = find(request.method, raw_path.decode("latin-1").removeprefix(PREFIX))
        given = read_request_headers(request)
        client_id = given.get(CORRELATION_ID) or str(uuid.uuid4())
        given[CORRELATION_ID] = self._ids.issue(client_id, time.monotonic())
        if self._dependencies.authenticator.required:
            given[ORIGINATOR] = subjects[0]
        # the last value counts: this one is the default
        query = QueryParams([("namespace", self._settings.default_namespace), *request.query_params.multi_items()])
        body = b"" if match.operation.body is None else await self._body(request)
        asked = command(match, given, query, request.headers.get("content-type", ""), body)
        restrict(self._dependencies.access, subjects, match.operation.kind, asked)
        expectation = expect(asked, self._settings)
        if not expectation.response:
            return await self._settle(asked, expectation, client_id)
        return await self._ask(match, asked, subjects, client_id, f"{str(request.base_url).rstrip('/')}{PREFIX}")

    async def _ask(
        self, match: Match, asked: Envelope, subjects: tuple[str, ...], client_id: str, url: str
    ) -> Response:
        reply = await self._dependencies.exchange.ask(asked)
        envelope = reply.envelope
        envelope.value = visible_part(self._dependencies.access, subjects, match.operation.kind, asked, envelope)
        return responses.of_reply(reply, asked, client_id, url)

    async def _settle(self, asked: Envelope, expectation: Expectation, client_id: str) -> Response:
        """Send a command without response: wait for its acknowledgements, or briefly for an error."""
        acks = expectation.acks
        seconds = expectation.timeout_ms / 1000 + GRACE_SECONDS if acks else self._settings.fire_and_forget_wait / 1000
        outcome = await self._dependencies.exchange.settle(asked, seconds, any_answer=not acks)
        if outcome is not None:
            return responses.of_outcome(outcome, expectation.timeout_ms, client_id)
        if acks:
            raise no_answer()
        return responses.accepted(client_id)

    async def _body(self, request: Request) -> bytes:
        maximum = self._settings.max_body_bytes
        if int(request.headers.get("content-length", "0")) > maximum:
            raise body_too_large(maximum)

        async def read() -> bytes:
            found = bytearray()
            async for chunk in request.stream():
                found += chunk
                if len(found) > maximum:
                    raise body_too_large(maximum)
            return bytes(found)

        return await self._dependencies.exchange.receive(read(), REQUEST_SECONDS)


class Expectation(msgspec.Struct, frozen=True):
    """What an HTTP request waits for: a response, acknowledgements only, or nothing; and for how long."""

    response: bool
    acks: bool
    timeout_ms: int


def expect(command: Envelope, settings: Gateway) -> Expectation:
    """Derive what a command waits for from its three headers, and set its effective timeout header.

    Other headers stay as the client sent them, since correlate applies the same defaults.
    Source: Eclipse Ditto, ``AbstractHttpRequestActor``, ``MessagesRoute``; ditto.md 1.8.

    :raises DittoError: 400; the headers contradict each other, or the timeout exceeds its maximum
    """
    topic = command.topic
    kind = signal_kind(topic, command.headers)
    if kind is None:
        raise unknown_topic_path(str(topic))
    headers = default_headers(kind, command.headers)
    check_combination("HTTP", kind, headers)
    most = settings.max_timeout
    claims = kind == "message" and topic.subject == "claim"
    bound = settings.max_claim_timeout if claims else most
    waited = timeout_milliseconds("HTTP", kind, headers, most, bound)
    if kind == "message":
        # a claim's timeout may exceed the wait; Ditto writes whole seconds without a unit
        waited = min(waited, most)
        command.headers[TIMEOUT] = str(waited // 1000) if waited % 1000 == 0 else f"{waited}ms"
    else:
        command.headers.setdefault(TIMEOUT, f"{most}ms" if most % 1000 else f"{most // 1000}s")
    return Expectation(
        bool(headers.get(RESPONSE_REQUIRED, True)),
        waits_for_acks(kind, headers.get(REQUESTED_ACKS) or ()),
        waited,
    )
