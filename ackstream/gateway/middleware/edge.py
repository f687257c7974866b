"""The edge of a gateway, which every request and WebSocket passes: counts, probes, proxy, response headers and origin.

``X-Forwarded-For`` and ``-Proto`` name the client and the scheme behind a proxy of the settings, and its own header
names the client that it has authenticated. From any other address these headers have no effect. A browser names the
site of a page in the header Origin and adds its credentials. Pages of the sites in the settings may use the gateway
(CORS), others may not. The header Host must be a name of the gateway, or a site could let its own name point here.
"""

import ipaddress
import socket
import time
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ackstream.gateway.errors import authentication_failed, foreign_host, foreign_origin, foreign_site
from ackstream.gateway.http import responses
from ackstream.gateway.middleware.admission import ip_address, is_in
from ackstream.observe.endpoint import HEALTH, LIVE, READY
from ackstream.observe.metrics import CONNECTIONS, FIGURES, HTTP_REQUESTS, HTTP_SECONDS, OLDEST, UNREAD, Tally
from ackstream.protocol.errors import DittoError
from ackstream.protocol.rql.patterns import matches_any
from ackstream.settings import Gateway
from ackstream.settings.gateway import ROLE, Proxy
from ackstream.settings.security import is_loopback

Refused = Callable[[HTTPConnection, DittoError], None]

EVENT_LOOP, LOOP_SECONDS = "The event loop", 60.0
"""The sign of life of the server. The live page gives that of Kafka."""

_SOURCE = "gateway"


class ResponseHead:
    """Restricts browsers to displaying a response, and counts and times all responses except probes'."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request or a WebSocket."""
        began, method = time.perf_counter(), scope.get("method", "")
        method = method if method in _METHODS else "other"

        async def sent(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in _HEADERS if each[0] not in own)]
            if message["type"] == "http.response.start" and not is_probe(scope):
                FIGURES.count(HTTP_REQUESTS, method, f"{message['status'] // 100}xx")
                FIGURES.observe(HTTP_SECONDS, method, value=time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, sent)


def is_probe(scope: Scope) -> bool:
    """Return whether a request is a probe: allowed under any host name, as its answer names no client."""
    return scope["type"] == "http" and scope["path"] in (LIVE, READY)


async def _probe(request: Request) -> Response:
    status, body = HEALTH.answer(request.url.path, time.monotonic())
    return Response(body, status, {"cache-control": "no-store"}, "application/json")


PROBES = [Route(path, _probe) for path in (LIVE, READY)]


def follow(connections: Callable[[], int], unread: Callable[[], int], oldest_ms: Callable[[], int | None]) -> None:
    """Read gauges (``unread`` are characters) with metrics, and expect a sign of life, until :func:`unfollow`."""

    def tally() -> Tally:
        found = Tally()
        found.set(CONNECTIONS, value=connections())
        found.set(UNREAD, value=unread())
        found.set(OLDEST, value=(oldest_ms() or 0) / 1000)
        return found

    FIGURES.follow(_SOURCE, tally)
    HEALTH.expect(EVENT_LOOP, LOOP_SECONDS, vital=True)


def unfollow() -> None:
    """Stop reading gauges and expecting signs: the gateway ends."""
    FIGURES.unfollow(_SOURCE)
    HEALTH.forget(EVENT_LOOP)


_FOUND = "ackstream.proxied"
"""The key in a scope of the values of a proxy's headers: its subject, and its roles."""
MAX_CHARACTERS = 256


class ProxyCheck:
    """Takes the proxy's headers out of each request; keeps their values if the proxy has sent it. The outermost one."""

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
            named = is_in((scope.get("client") or ("",))[0], self._networks)
            scope = {**scope, "headers": kept, _FOUND: values if named else None}
        await self._app(scope, receive, send)


def proxied_subjects(connection: HTTPConnection) -> tuple[str, ...] | None:
    """Return subjects and roles a proxy has authenticated, ``None`` if it has not; raises 401 on ambiguous headers."""
    found: list[tuple[bytes, ...]] | None = connection.scope.get(_FOUND)
    if found is None:
        return None
    # else a client may have sent one, which the proxy has passed on beside its own
    if any(len(values) > 1 for values in found):
        raise authentication_failed("The proxy sends a header of its own twice: let it replace the client's.", ())
    subject, roles = map(_text, found)
    if not subject:
        return None
    named = dict.fromkeys(role.strip() for role in roles.split(","))
    return (f"proxy:{subject}", *(f"{ROLE}proxy:{role}" for role in named if role))


def _text(values: tuple[bytes, ...]) -> str:
    # invalid UTF-8 becomes characters that are not printable
    text = b"".join(values).decode(errors="surrogateescape").strip()
    if len(text) > MAX_CHARACTERS or not text.isprintable():
        raise authentication_failed("The proxy sends a header of its own that is not a short text.", ())
    return text


_METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "PATCH", "POST", "DELETE")
_PORTS = {"http": ":80", "https": ":443", "ws": ":80", "wss": ":443"}
_PAGES = ("/", "/doc")
"""Pages that a link of another site may open."""

_HEADERS = (
    # content of a device or subscriber is not a page of this gateway: it has no origin, runs nothing, loads nothing
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of all responses that do not set them; the gateway's own pages have another policy."""


def origin_middleware(settings: Gateway, *, authenticated: bool, refused: Refused) -> list[Middleware]:
    """Return the middleware of the application, outermost first; ``refused`` is called with each refusal."""
    check = Middleware(OriginCheck, settings, authenticated=authenticated, refused=refused)
    if not settings.allowed_origins:
        return [check]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(settings.allowed_origins),
        allow_methods=_METHODS,
        allow_headers=["*"],
        allow_credentials=True,
        expose_headers=responses.EXPOSED,
    )
    return [cors, check]


class OriginCheck:
    """Refuses requests of pages of other sites, and requests under a name that is not one of the gateway."""

    def __init__(self, app: ASGIApp, settings: Gateway, *, authenticated: bool, refused: Refused) -> None:
        """Accept the host names of the settings; with authentication those of this machine, too."""
        self._app, self._allowed, self._refused = app, frozenset(settings.allowed_origins), refused
        origins = (urlsplit(origin).hostname for origin in settings.allowed_origins)
        self._names = [*settings.allowed_hosts, *filter(None, origins)]
        self._authenticated = authenticated
        # without it, clients are on this machine, and a page under any other name is that of another site
        if authenticated:
            self._names += [settings.host.lower(), socket.gethostname().lower()]
        # most clients use the same one
        self._known = lru_cache(maxsize=64)(self._is_known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request or a WebSocket."""
        checked = scope["type"] in ("http", "websocket") and not is_probe(scope)
        error = self._refusal(scope) if checked else None
        if error is None:
            await self._app(scope, receive, send)
            return
        self._refused(HTTPConnection(scope), error)
        await responses.of_error(error)(scope, receive, send)

    def _refusal(self, scope: Scope) -> DittoError | None:
        headers = Headers(scope=scope)
        # several do not get here: no HTTP stack accepts them
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._known(host):
            return foreign_host(host)
        if origin is None:
            # images, scripts and links have none; browsers add their credentials all the same
            foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] not in _PAGES
            return foreign_site() if foreign else None
        return None if origin in self._allowed or _is_own(origin, host, scope["scheme"]) else foreign_origin(origin)

    def _is_known(self, host: str) -> bool:
        """Return whether the value of a header Host is one of the gateway; browsers always send one."""
        if not host:
            return self._authenticated
        name = _split(f"//{host}").hostname or ""
        if is_loopback(name) or matches_any(self._names, name):
            return True
        return self._authenticated and ip_address(name) is not None


def _is_own(origin: str, host: str, scheme: str) -> bool:
    """Return whether an origin is that of the gateway itself, under a name that the client has used."""
    parts = _split(origin)
    # behind a proxy for TLS the scheme is unknown; but a page without TLS is not one of a gateway with TLS
    if parts.scheme not in ("http", "https") or (parts.scheme == "http" and scheme in ("https", "wss")):
        return False
    default = _PORTS[parts.scheme]
    return bool(parts.netloc) and parts.netloc.removesuffix(default) == host.lower().removesuffix(default)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
