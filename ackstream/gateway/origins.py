"""Web pages of other sites: those of the settings may use the gateway (CORS), the others change nothing.

A browser names the site of a page in the header Origin, and adds credentials that it knows; other clients send no such
header. What a page may read, the browser decides by the response; what it may change, and which WebSocket it may open,
is decided here. Without authentication the header Host must name this machine or one of the settings, or a site could
let its name point here and be of the same origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.websockets import WebSocket

from ackstream.gateway import responses
from ackstream.gateway.errors import foreign_host, foreign_origin
from ackstream.settings.security import is_loopback

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

    from ackstream.protocol.errors import DittoError

_READING = ("GET", "HEAD", "OPTIONS")
_METHODS = (*_READING, "PUT", "PATCH", "POST", "DELETE")


def origin_middleware(allowed: Collection[str], *, authenticated: bool) -> list[Middleware]:
    """Return the middleware of the application, outermost first.

    :param allowed: the origins of the settings
    :param authenticated: whether clients must authenticate
    """
    own = Middleware(OriginCheck, allowed=frozenset(allowed), authenticated=authenticated)
    if not allowed:
        return [own]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(allowed),
        allow_methods=_METHODS,
        allow_headers=["*"],
        allow_credentials=True,
        expose_headers=responses.EXPOSED,
    )
    return [cors, own]


class OriginCheck:
    """Refuses what pages of other sites may not do, in an ASGI application."""

    def __init__(self, app: ASGIApp, *, allowed: frozenset[str], authenticated: bool) -> None:
        self._app, self._allowed, self._authenticated = app, allowed, authenticated
        self._hosts = set(map(_netloc, allowed))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request or a WebSocket, or refuse it with 403."""
        error = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if error is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(responses.of_error(error))
        else:
            await responses.of_error(error)(scope, receive, send)

    def _refusal(self, scope: Scope) -> DittoError | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not (self._authenticated or host in self._hosts or is_loopback(_name(host))):
            return foreign_host(host)
        if origin is None or scope.get("method") in _READING or origin in self._allowed:
            return None
        return None if _netloc(origin) == host else foreign_origin(origin)


def _netloc(origin: str) -> str | None:
    """Return the host and port in an origin, ``None`` if it has none that can be read."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _name(host: str) -> str:
    """Return the name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
