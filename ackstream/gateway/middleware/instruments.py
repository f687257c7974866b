"""What the gateway shows its operators: counts and times of responses, and probes of its health without a login."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from ackstream.observe.catalogue import CONNECTIONS, HTTP_REQUESTS, HTTP_SECONDS, OLDEST, UNREAD
from ackstream.observe.endpoint import HEALTH, LIVE, READY, Health
from ackstream.observe.figures import FIGURES, Figures, Tally
from ackstream.observe.live import KAFKA

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


EVENT_LOOP, LOOP_SECONDS, KAFKA_SECONDS = "The event loop", 60.0, 20.0
"""The signs of life of a gateway: its event loop turns, and it reads the ledger and the ends of its topics."""

_SOURCE = "gateway"
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "PATCH", "POST", "DELETE"})
_OTHER = "other"


class ResponseCounter:
    """Counts the responses of an ASGI application, and how long their requests waited for them to begin."""

    def __init__(self, app: ASGIApp, figures: Figures = FIGURES) -> None:
        self.app, self._figures = app, figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request; probes and WebSockets are not counted."""
        if scope["type"] != "http" or is_probe(scope):
            await self.app(scope, receive, send)
            return
        began, method = time.perf_counter(), scope["method"] if scope["method"] in _METHODS else _OTHER

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._figures.count(HTTP_REQUESTS, method, f"{message['status'] // 100}xx")
                self._figures.observe(HTTP_SECONDS, method, value=time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, sent)


def is_probe(scope: Scope) -> bool:
    """Return whether a request asks for the gateway's health: under any name of the gateway, as probes of a cluster do.

    The answer is the same for everyone, and names nobody.
    """
    return scope["type"] == "http" and scope["path"] in (LIVE, READY)


def probe_routes(health: Health = HEALTH) -> list[Route]:
    """Return the routes of the probes."""

    async def live(_: Request) -> Response:
        return _answer(*health.live(time.monotonic()).answer())

    async def ready(_: Request) -> Response:
        return _answer(*health.ready(time.monotonic()).answer())

    return [Route(LIVE, live), Route(READY, ready)]


def _answer(status: int, body: bytes) -> Response:
    return Response(body, status, {"cache-control": "no-store"}, "application/json")


def follow(connections: Callable[[], int], unread: Callable[[], int], oldest_ms: Callable[[], int | None]) -> None:
    """Read gauges when metrics are requested, and expect the gateway's signs of life, until :func:`unfollow`.

    :param unread: characters
    :param oldest_ms: age of the oldest open request
    """

    def tally() -> Tally:
        found = Tally()
        found.set(CONNECTIONS, value=connections())
        found.set(UNREAD, value=unread())
        found.set(OLDEST, value=(oldest_ms() or 0) / 1000)
        return found

    FIGURES.follow(_SOURCE, tally)
    HEALTH.expect(EVENT_LOOP, LOOP_SECONDS, vital=True)
    HEALTH.expect(KAFKA, KAFKA_SECONDS)


def unfollow() -> None:
    """Read and expect no more: the gateway ends."""
    FIGURES.unfollow(_SOURCE)
    for name in (EVENT_LOOP, KAFKA):
        HEALTH.forget(name)
