"""Connections of clients: their limits per address and in total, their TLS, and the budget of each.

A connection counts from its start, before TLS and before its client is known, until its end. One above the limit gets a
response with the limit and is closed at once. All bytes pass :class:`MeteredConnection`, which spreads the work that
they cause over time; the protocols above it end a connection that sends more of a kind than any client needs.
"""

import asyncio
import logging
import re
from contextlib import suppress
from http import HTTPStatus
from time import monotonic, thread_time
from typing import Any, cast

import h11
import msgspec
from starlette.requests import HTTPConnection
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State

from ackstream.errors import SettingsError
from ackstream.gateway.errors import not_http, target_too_long, too_many_headers
from ackstream.gateway.middleware.admission import Doors, Rate
from ackstream.gateway.middleware.edge import MAX_CHARACTERS
from ackstream.protocol.errors import DittoError
from ackstream.settings import Gateway
from ackstream.settings.security import is_loopback

log = logging.getLogger(__name__)


def certified_name(connection: HTTPConnection) -> str | None:
    """Return the common name in the certificate of a client, if there is one that can be the name of a subject."""
    found = connection.scope.get("state", {}).get("certificate") or {}
    names = [value for part in found.get("subject", ()) for name, value in part if name == "commonName"]
    return names[-1] if names and 0 < len(names[-1]) <= MAX_CHARACTERS and names[-1].isprintable() else None


def check_transport(settings: Gateway, *, authenticated: bool) -> None:
    """Refuse to listen where others could read credentials of clients; ``SettingsError`` has the remedy."""
    encrypted = settings.tls.certificate is not None or settings.proxy.addresses
    if authenticated and not encrypted and not is_loopback(settings.host):
        raise SettingsError(
            f"The setting gateway.host is {settings.host!r}, so everyone on the way there could read passwords, tokens "
            f"and things: set gateway.tls.certificate, or name the proxy that encrypts in gateway.proxy.addresses, or "
            f"listen on 127.0.0.1."
        )


HANDSHAKE_SECONDS, _LINGER_SECONDS = 10.0, 1.0
"""The times within which a client must complete the TLS handshake, and read its refusal."""

_END_OF_HEAD = re.compile(rb"\n\r?\n")
MAX_TARGET_BYTES, MAX_PARAMETERS, MAX_HEADERS = 8_192, 200, 100
"""Limits of the head of a request, which is refused before it is parsed."""

OWN_SHARE, OWN_BURST_SECONDS = 0.005, 0.002
"""The share of the event loop, and the burst, that each connection always has: dozens of requests per second."""

TURN_SECONDS, _PIECE, FRAME_SECONDS = 0.001, 2_048, 40e-6
"""Seconds of work for one connection in a turn; bytes handed over at a time; least seconds for a message of a frame."""

CONTROL_FRAMES, CONTROL_BURST, MAX_FRAGMENTS = 100.0, 1_000.0, 1_000
"""Pings and pongs of a WebSocket, per second and at once, and fragments of a message; more end it."""


class MeteredConnection:
    """The transport between a socket and the protocol of a connection, which counts its work.

    A connection beyond its own share of the event loop waits, unread, for its turn among the others.
    """

    def __init__(self, doors: Doors, tls: Any = None, **given: Any) -> None:
        """Serve HTTP, which may become a WebSocket; ``tls`` are the ``Certificates`` of the server, if any."""
        self._doors, self._tls, self._host, self._entered = doors, tls, "", False
        self._protocol: Any = HttpConnection(**given)
        self._transport: Any = None
        self._own = Rate(OWN_SHARE, OWN_BURST_SECONDS)
        self._held, self._paused, self._refused = bytearray(), False, False
        self._turn: asyncio.Handle | asyncio.Task[None] | None = None
        # bytes written for the client; seconds to be added to the cost of the turn; the handshake of a WebSocket
        self.written, self.charged, self._answered = 0, 0.0, True

    def __getattr__(self, name: str) -> Any:
        # calls that cost nothing pass through
        return getattr(self._protocol if name.endswith(("_writing", "eof_received")) else self._transport, name)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or refuse it, and begin the handshake of TLS."""
        peer = transport.get_extra_info("peername")
        # an aborted socket has no address any more
        self._transport, self._host, self._entered = transport, str(peer[0]) if peer else "", True
        error = self._doors.enter(self._host)
        if error is not None and (self._doors.crowded or self._tls is not None):
            # before the handshake of TLS no response can be sent
            self._transport.abort()
        elif error is not None:
            self.refuse(error)
        elif self._tls is None:
            self._protocol.connection_made(self)
        else:
            self.pause_reading()
            self._turn = asyncio.get_running_loop().create_task(self._secure(self._tls))

    async def _secure(self, tls: Any) -> None:
        loop, seconds = asyncio.get_running_loop(), HANDSHAKE_SECONDS
        try:
            secured = await loop.start_tls(
                self._transport, cast("Any", self), tls.contexts[-1], server_side=True, ssl_handshake_timeout=seconds
            )
        except (OSError, asyncio.CancelledError) as error:
            # errors of TLS too: no certificate, one of an unknown authority, or another protocol
            log.info("A connection from %s was not secured: %s", self._host, error)
            secured = None
        if secured is None or secured.is_closing():
            self.connection_lost(None)
            return
        self._transport, self._turn = secured, None
        self._protocol.app_state = {**self._protocol.app_state, "certificate": secured.get_extra_info("peercert")}
        self._protocol.connection_made(self)
        self.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Hand data over at once, or in later turns."""
        if not self._refused:
            self._held += data
            if self._turn is None:
                self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection out."""
        self._held.clear()
        if self._entered:
            self._entered = False
            self._doors.leave(self._host)
            if self._protocol.transport is not None:
                self._protocol.connection_lost(exc)
        # they refer to each other: with its buffers it would stay until the next collection of garbage
        self._protocol = None

    def write(self, data: bytes) -> None:
        """Write data, if any, and count them; after the end of a connection asyncio would log each."""
        if not data or self._transport.is_closing():
            return
        self.written += len(data)
        self._transport.write(data)
        if not self._answered:
            self._answered = True
            self.resume_reading()

    def close(self) -> None:
        """Close the connection; a second time would take away the state of TLS, which is read until its end."""
        if not self._transport.is_closing():
            self._transport.close()
            # TLS that has seen the client's end while nothing was read ends only once reading goes on
            self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand over data to another protocol, and those that HTTP has not read, once it has answered the handshake."""
        self._held[:0] = self._protocol.conn.trailing_data[0]
        self._protocol, self._answered = protocol, False
        self.pause_reading()

    def pause_reading(self) -> None:
        """Read nothing until the protocol resumes."""
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again, once it is the turn of the connection."""
        self._paused = False
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take)

    def refuse(self, error: DittoError) -> None:
        """Send the reason to the client, and close the connection, of which nothing more is read."""
        self._refused = True
        self._held.clear()
        body = msgspec.json.encode(error.to_dict())
        headers = [("content-type", "application/json"), ("content-length", len(body)), ("connection", "close")]
        status = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"
        lines = [status, *(f"{name}: {value}" for name, value in (*headers, *error.headers)), "", ""]
        self.write("\r\n".join(lines).encode() + body)
        if not self._transport.can_write_eof():
            self.close()
            return
        with suppress(OSError):
            # closing would reset the connection before the client reads the response; it may already be gone
            self._transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._transport.abort)

    def _take(self) -> None:
        """Hand over data until the turn is over; then wait for the next one, or read more."""
        self._turn = None
        if self._paused or self._transport.is_closing():
            return
        protocol, spent = self._protocol, 0.0
        while self._held and spent < TURN_SECONDS and self._protocol is protocol and not self._transport.is_closing():
            piece = bytes(self._held[:_PIECE])
            del self._held[:_PIECE]
            began = thread_time()
            try:
                protocol.data_received(piece)
            except Exception as error:  # noqa: BLE001 - such as an assertion of a library that a client can break
                if not self._doors.lines.take("", monotonic()):
                    log.warning("Ending a connection from %s, whose data cannot be handled: %r", self._host, error)
                self._transport.abort()
            spent, self.charged = spent + thread_time() - began + self.charged, 0.0
        now = monotonic()
        wait = self._doors.loop.reserve("", now, spent) if self._own.take("", now, spent) else 0.0
        if wait or (self._held and not self._paused):
            self._transport.pause_reading()
            self._turn = asyncio.get_running_loop().call_later(wait, self._take)
        elif not self._paused:
            self._transport.resume_reading()


class HttpConnection(H11Protocol):
    """The protocol of HTTP, until a request upgrades to a WebSocket."""

    transport: MeteredConnection  # type: ignore[assignment]

    def handle_events(self) -> None:
        """Handle requests; one is refused by its head before that is parsed."""
        data = self.conn.trailing_data[0] if self.conn.their_state is h11.IDLE else b""
        if data and (error := check_head(data)):
            self.transport.refuse(error)
        else:
            super().handle_events()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - of uvicorn
        """Refuse data that is not HTTP, in place of the response to their request if that has not begun."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.refuse(not_http())
        else:
            self.transport.close()


def check_head(data: bytes) -> DittoError | None:
    """Return why a request is refused by its head, of which at least a part is there, if so."""
    target, _, rest = data.partition(b"\n")
    if len(target) > MAX_TARGET_BYTES or target.count(b"&") >= MAX_PARAMETERS:
        return target_too_long(MAX_TARGET_BYTES, MAX_PARAMETERS)
    end = _END_OF_HEAD.search(rest)
    many = rest.count(b"\n", 0, end.start() + 1 if end else len(rest)) > MAX_HEADERS
    return too_many_headers(MAX_HEADERS) if many else None


class SocketConnection(WebSocketsSansIOProtocol):
    """The protocol of a WebSocket; ``messages`` counts those that have arrived completely."""

    transport: MeteredConnection  # type: ignore[assignment]

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._control = Rate(CONTROL_FRAMES, CONTROL_BURST)
        self.messages = 0

    def end(self, reason: str) -> None:
        """Close the connection; the client gets the reason, if it reads."""
        if self.conn.state is State.OPEN and self.writable.is_set():
            self.conn.fail(CloseCode.POLICY_VIOLATION, reason)
            self.handle_parser_exception()
            self.frames = []
        else:
            self.transport.abort()

    def shutdown(self) -> None:
        """Close the connection; if the client has sent a close frame, it gets none."""
        with suppress(InvalidState):
            super().shutdown()
        self.transport.close()

    def send_receive_event_to_app(self) -> None:
        """Hand over a message; after an invalid one a close frame may have come, which ends the connection."""
        with suppress(InvalidState):
            super().send_receive_event_to_app()

    def handle_events(self) -> None:
        """Handle frames; those that no client needs end the connection, and pongs that are not read are not sent."""
        frames = [event for event in self.conn.events if isinstance(event, Frame)]
        control = sum(frame.opcode in (Opcode.PING, Opcode.PONG) for frame in frames)
        self.transport.charged += FRAME_SECONDS * len(frames)
        self.messages += sum(frame.fin for frame in frames) - control
        if not self.writable.is_set():
            self.conn.data_to_send()
        super().handle_events()
        if self.conn.handshake_exc is not None:
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
        elif self._control.take("", monotonic(), control):
            self.end(f"More than {CONTROL_FRAMES:g} pings and pongs per second.")
        elif len(self.frames) > MAX_FRAGMENTS:
            self.end(f"The message has more than {MAX_FRAGMENTS} fragments.")
