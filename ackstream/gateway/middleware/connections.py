"""Connections of clients: how many there may be at a time, of one address and in all, and their TLS.

A connection counts from its first moment, before TLS and before its client is known, until it has ended. One too many
gets a response with the limit and is closed at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from contextlib import suppress
from functools import lru_cache, partial
from time import time
from typing import TYPE_CHECKING, Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ackstream.errors import SettingsError
from ackstream.gateway.errors import too_many_connections, too_many_of_address
from ackstream.gateway.middleware.admission import ConcurrencyCounter, is_in, network
from ackstream.settings.access import file_state
from ackstream.settings.security import is_loopback

if TYPE_CHECKING:
    from asyncio import BaseTransport
    from collections.abc import Callable, Iterable

    from starlette.requests import HTTPConnection

    from ackstream.protocol.errors import DittoError
    from ackstream.settings import Gateway
    from ackstream.settings.gateway import GatewayTls

log = logging.getLogger(__name__)

CERTIFICATE = "certificate"
"""The key of the state of a request under which there is the name in the certificate of its client, or ``None``."""

MAX_CHARACTERS = 256


class Certificates:
    """The certificates of new connections. Open ones keep theirs while those of their clients are valid."""

    def __init__(self, tls: GatewayTls) -> None:
        """Read the files; ``SettingsError``: one of them is missing or unfit."""
        self._tls = tls
        self._stamps = [*map(file_state, tls.files)]
        self._authorities = b""
        # that have the present authorities of clients; the last one is for new connections
        self._contexts: list[ssl.SSLContext] = []
        try:
            self._read()
        except (OSError, ValueError) as error:
            raise SettingsError(f"The setting gateway.tls cannot be used: {error}.") from None

    def context(self) -> ssl.SSLContext:
        """Return the context of the moment."""
        return self._contexts[-1]

    def renew(self) -> None:
        """Read the files again if they have changed; an unfit one is logged as a warning and changes nothing."""
        stamps = [*map(file_state, self._tls.files)]
        if stamps == self._stamps:
            return
        # a file that is still being written changes again
        self._stamps = stamps
        try:
            self._read()
        except (OSError, ValueError) as error:
            log.warning("Reloading certificates failed, keeping the current ones: %s.", error)
        else:
            log.info("The gateway has read its certificates again.")

    def ended(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether the certificate of a client has expired, or the authorities of clients have changed since."""
        shown = transport.get_extra_info("peercert")
        return bool(shown) and (
            transport.get_extra_info("sslcontext") not in self._contexts or _seconds(shown["notAfter"]) <= time()
        )

    def _read(self) -> None:
        # before the context: a change in between is seen at the next look
        authorities = b"" if self._tls.client_ca is None else self._tls.client_ca.read_bytes()
        context = self._tls.context()
        if authorities != self._authorities:
            self._authorities, self._contexts = authorities, []
        self._contexts.append(context)


_seconds = lru_cache(maxsize=1024)(ssl.cert_time_to_seconds)


def certified_name(connection: HTTPConnection) -> str | None:
    """Return the name in the certificate of a client, if there is one that can be the name of a subject."""
    found: str | None = connection.scope.get("state", {}).get(CERTIFICATE)
    return found if found and len(found) <= MAX_CHARACTERS and found.isprintable() else None


def common_name(transport: BaseTransport) -> str | None:
    """Return the common name in the certificate of a client, which TLS has verified; ``None``: it has shown none."""
    found: dict[str, Any] = transport.get_extra_info("peercert") or {}
    names = [value for part in found.get("subject", ()) for name, value in part if name == "commonName"]
    return names[-1] if names else None


def check_transport(settings: Gateway, *, authenticated: bool) -> None:
    """Refuse to listen where others could read credentials of clients; ``SettingsError`` has the remedy."""
    encrypted = settings.tls.certificate is not None or settings.proxy.addresses
    if authenticated and not encrypted and not is_loopback(settings.host):
        raise SettingsError(
            f"The setting gateway.host is {settings.host!r}, so everyone on the way there could read passwords, tokens "
            f"and things: set gateway.tls.certificate, or name the proxy that encrypts in gateway.proxy.addresses, or "
            f"listen on 127.0.0.1."
        )


HANDSHAKE_SECONDS = 10.0
"""The time within which a client completes the handshake of TLS."""

_LINGER_SECONDS = 1.0
"""How long a client may take to read that it is refused."""

_LINGERING = 20
"""As many may do so at any time; where there may be many connections, a quarter of them."""

_SHARE = 4
"""One address may have this part of all connections; this machine, where a proxy may be, has no such limit."""

_REASON = "Too Many Connections"


class Doors:
    """Counts connections, and admits no more than there may be."""

    def __init__(self, most: int, proxies: Iterable[str] = ()) -> None:
        """Admit as many; one of the addresses of proxies may have all of them."""
        self._most = most
        self._proxies = [ipaddress.ip_network(address) for address in proxies]
        self._addresses = ConcurrencyCounter()
        # all connections
        self.open = 0

    def enter(self, host: str) -> DittoError | None:
        """Count a connection, to be counted out by :meth:`leave`, and return why it may not stay, if so."""
        found, share = self._client(host), max(1, self._most // _SHARE)
        error = None
        if self.open >= self._most:
            error = too_many_connections("gateway", self._most)
        elif found is not None and self._addresses[found] >= share:
            error = too_many_of_address(f"address {found}", share)
        self.open += 1
        if found is not None:
            self._addresses[found] += 1
        return error

    def leave(self, host: str) -> None:
        """Count a connection out."""
        self.open -= 1
        if (found := self._client(host)) is not None:
            self._addresses.remove(found)

    def _client(self, host: str) -> str | None:
        """Return the address or network that a connection counts for, ``None``: it has no limit of its own."""
        return None if is_in(host, self._proxies) else network(host)

    @property
    def crowded(self) -> bool:
        """Whether too many connections are open to send a refusal."""
        return self.open > self._most + max(_LINGERING, self._most // _SHARE)


class _Counted(asyncio.Protocol):
    def __init__(self, doors: Doors, **given: Any) -> None:
        super().__init__(**given)
        self._doors, self._host = doors, ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._host = _host(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._doors.leave(self._host)
        super().connection_lost(exc)


class SocketConnection(_Counted, WebSocketsSansIOProtocol):
    """A connection of a WebSocket; it was counted as one for HTTP."""


class HttpConnection(_Counted, H11Protocol):
    """A connection for HTTP, which may become one for a WebSocket."""

    def __init__(self, doors: Doors, *, entered: bool = False, **given: Any) -> None:
        """Serve a connection; ``entered``: the doors have counted it."""
        super().__init__(doors, **given)
        self._entered, self._refused = entered, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or refuse it."""
        super().connection_made(transport)
        error = None if self._entered else self._doors.enter(self._host)
        if error is not None:
            self._refused = True
            if self._doors.crowded:
                transport.abort()
            else:
                refuse(transport, error)

    def data_received(self, data: bytes) -> None:
        """Read data, unless the connection is refused."""
        if not self._refused:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP, or end the connection if a response has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()


class TlsConnection(asyncio.Protocol):
    """A connection that becomes one for HTTP when the handshake of TLS is done."""

    def __init__(self, doors: Doors, context: Callable[[], ssl.SSLContext], **given: Any) -> None:
        """Begin; ``context`` returns the one with the certificates of the moment."""
        self._doors, self._context = doors, context
        self._http = partial(HttpConnection, doors, entered=True, **given)
        self._early: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and begin the handshake."""
        host = _host(transport)
        if self._doors.enter(host) is not None:
            # without TLS no response can be sent
            self._doors.leave(host)
            transport.abort()  # type: ignore[attr-defined]
            return
        transport.pause_reading()  # type: ignore[attr-defined]
        self._task = asyncio.get_running_loop().create_task(self._begin(transport, host))

    def data_received(self, data: bytes) -> None:
        """Keep data that arrives before HTTP begins."""
        self._early.append(data)

    async def _begin(self, transport: Any, host: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                transport, self, self._context(), server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except (OSError, asyncio.CancelledError) as error:
            # errors of TLS too: no certificate, one of an unknown authority, or another protocol
            log.info("A connection from %s was not secured: %s", host, error)
            self._doors.leave(host)
            return
        if secured is None or secured.is_closing():
            self._doors.leave(host)
            return
        connection = self._http()
        connection.app_state = {**connection.app_state, CERTIFICATE: common_name(secured)}
        secured.set_protocol(connection)
        connection.connection_made(secured)
        if self._early:
            connection.data_received(b"".join(self._early))


def refuse(transport: asyncio.Transport, error: DittoError) -> None:
    """Send the reason to the client, and close the connection."""
    body = msgspec.json.encode(error.to_dict())
    headers = [("content-type", "application/json"), ("content-length", len(body)), ("connection", "close")]
    lines = [f"HTTP/1.1 {error.status} {_REASON}", *(f"{name}: {value}" for name, value in (*headers, *error.headers))]
    transport.write("\r\n".join([*lines, "", ""]).encode() + body)
    if not transport.can_write_eof():
        transport.close()
        return
    with suppress(OSError):
        # closing immediately would reset the connection before the client reads the response; it may already be gone
        transport.write_eof()
    asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.abort)


def _host(transport: asyncio.BaseTransport) -> str:
    """Return the address of a client as it connected; an aborted socket has none any more."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""
