"""The proxy in front of the gateway: what it says of a client is believed from its own addresses alone.

``X-Forwarded-For`` and ``-Proto`` name the client and the scheme behind a named proxy, and its own header the client
that it has authenticated. From anywhere else these headers have no effect.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

from starlette.middleware import Middleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ackstream.gateway.errors import authentication_failed
from ackstream.settings.identity import ROLE

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ackstream.settings.identity import Proxy

_FOUND = "ackstream.proxied"
MAX_CHARACTERS = 256


class Proxied(NamedTuple):
    """What a named proxy says: the values of its headers, of which one that is repeated is not clear."""

    subjects: tuple[bytes, ...]
    roles: tuple[bytes, ...]


def proxy_middleware(proxy: Proxy) -> Middleware:
    """Return the middleware that reads the headers of a proxy; it must be the outermost one."""
    return Middleware(ProxyCheck, proxy=proxy)


class ProxyCheck:
    """Takes the proxy's headers out of each request; keeps what they say if the proxy has sent it."""

    def __init__(self, app: ASGIApp, *, proxy: Proxy) -> None:
        self._app: ASGIApp = app
        self._networks = [ipaddress.ip_network(address) for address in proxy.addresses]
        self._names = [name.lower().encode() for name in (proxy.subject_header, proxy.roles_header)]
        if proxy.addresses:
            self._app = ProxyHeadersMiddleware(app, list(proxy.addresses))  # type: ignore[assignment, arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request or a WebSocket."""
        if scope["type"] in ("http", "websocket") and any(self._names):
            values = [tuple(value for name, value in scope["headers"] if name == own) for own in self._names]
            kept = [(name, value) for name, value in scope["headers"] if name not in self._names]
            named = self._names_proxy(scope)
            scope = {**scope, "headers": kept, _FOUND: Proxied(*values) if named else None}
        await self._app(scope, receive, send)

    def _names_proxy(self, scope: Scope) -> bool:
        peer = scope.get("client")
        try:
            address = ipaddress.ip_address(peer[0] if peer else "")
        except ValueError:
            return False
        # a socket for both versions shows addresses of IPv4 as ::ffff:10.0.0.7
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)


def proxied_subjects(connection: HTTPConnection) -> tuple[str, ...] | None:
    """Return the subjects and roles of a client that the proxy has authenticated, ``None`` if it has not.

    :raises DittoError: 401, what the proxy says is not clear
    """
    found: Proxied | None = connection.scope.get(_FOUND)
    if found is None:
        return None
    # else a client may have sent one, which the proxy has passed on beside its own
    if len(found.subjects) > 1 or len(found.roles) > 1:
        raise authentication_failed("The proxy sends a header of its own twice: let it replace the client's.", ())
    subject, roles = _text(found.subjects), _text(found.roles)
    if not subject:
        return None
    named = dict.fromkeys(role.strip() for role in roles.split(","))
    return (f"proxy:{subject}", *(f"{ROLE}proxy:{role}" for role in named if role))


def _text(values: tuple[bytes, ...]) -> str:
    try:
        text = b"".join(values).decode().strip()
    except UnicodeDecodeError:
        text = "\0"
    if len(text) > MAX_CHARACTERS or not text.isprintable():
        raise authentication_failed("The proxy sends a header of its own that is no short text.", ())
    return text
