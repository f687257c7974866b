"""The gateway's server: uvicorn with limits for connections, which ends those whose clients neither send nor read.

uvicorn waits without limit for a request to become complete, for the rest of a body after its response, and for a
client to read its responses, even to close a connection. A body that the application reads has its limit there.
"""

import asyncio
import logging
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ackstream.errors import SettingsError
from ackstream.gateway.exchange import Dependencies
from ackstream.gateway.http.api import REQUEST_SECONDS, Api
from ackstream.gateway.http.operations import PREFIX
from ackstream.gateway.http.responses import on_error
from ackstream.gateway.middleware import connections, edge
from ackstream.gateway.middleware.admission import Doors
from ackstream.gateway.page.pages import page_routes
from ackstream.gateway.websocket.session import socket_route
from ackstream.observe.endpoint import HEALTH
from ackstream.protocol.errors import DittoError
from ackstream.settings.gateway import FileWatch, GatewayTls, WatchedFile

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5
HEADER_SECONDS = 10.0
"""The time within which a client sends the head of a request, from the connection on or from the last response."""

KEEP_SECONDS = 8
"""Idle time of a connection: above httpx's, which would send on a closing one; below the time for a next head."""

UNREAD_SECONDS = 30.0
"""The time within which a client reads some of its unread bytes."""

_SEND_BYTES = 131_072
"""Send buffer of a connection, which the system doubles. It takes more once a third has been read, and only then is
reading visible; the default of 4 MB is too large for a slow client to read a third of it within the time."""

_NOISE = ("ASGI callable returned without completing handshake", "Invalid ", "Unsupported upgrade request.")
"""Beginnings of uvicorn's lines about refused WebSockets, data that cannot be read, and offers of HTTP/2."""

_OTHER_FILES = 200
"""Files that are open besides connections: of Kafka's clients, tables, logs."""

_seconds = lru_cache(maxsize=1024)(ssl.cert_time_to_seconds)
_TICKS = 10
"""Calls of uvicorn's ``on_tick`` in a second."""


def application(dependencies: Dependencies) -> ASGIApp:
    """Build the ASGI application with all routes.

    A request or WebSocket passes, in order: ``MeteredConnection``, ``ResponseHead``, ``ProxyCheck``, CORS,
    ``OriginCheck``, then in its route ``ClientAdmission.admit``, ``ClientAdmission.socket`` (WebSockets and event
    streams), ``Audit``, and for a command ``commands.admit``.
    """
    gateway = dependencies.settings.gateway
    app = Starlette(
        middleware=[
            Middleware(edge.ProxyCheck, proxy=gateway.proxy),
            *edge.origin_middleware(
                gateway, authenticated=dependencies.authenticator.required, refused=dependencies.audit.refused
            ),
        ],
        routes=[
            socket_route(dependencies),
            Mount(PREFIX, app=Api(dependencies)),
            *page_routes(dependencies),
            *edge.PROBES,
        ],
        exception_handlers=dict.fromkeys((DittoError, HTTPException, Exception), on_error),
    )
    # outside the error handler of Starlette, which is outside its middleware
    return edge.ResponseHead(app)


class Server(uvicorn.Server):
    """Serves the application; on shutdown it ends all waits with 503 while the requests continue in Kafka."""

    def __init__(self, dependencies: Dependencies, started: Callable[[str], None]) -> None:
        """Serve at the address of the settings; ``started`` is called with the URL once the server listens."""
        gateway = dependencies.settings.gateway
        self._certificates = None if gateway.tls.certificate is None else Certificates(gateway.tls)
        self.doors = Doors(connections_within(gateway.max_connections), gateway.proxy.addresses)
        super().__init__(
            uvicorn.Config(
                application(dependencies),
                host=gateway.host,
                port=gateway.port,
                # the log is the process's own
                log_config=None,
                log_level="warning",
                access_log=False,
                backlog=2_048,
                lifespan="off",
                # the protocols whose states Stalls reads
                http=partial(connections.MeteredConnection, self.doors, self._certificates),  # type: ignore[arg-type]
                ws=connections.SocketConnection,
                # a message that is too large for a body gets an error; one that is larger still is not read
                ws_max_size=2 * gateway.max_body_bytes,
                # a buffer for each connection, and time of the loop; Ditto does without, too
                ws_per_message_deflate=False,
                server_header=False,
                # the application itself believes those of gateway.proxy
                proxy_headers=False,
                timeout_keep_alive=KEEP_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS + 1,
            )
        )
        logging.getLogger("uvicorn.error").addFilter(lambda line: not str(line.msg).startswith(_NOISE))
        live, unread = dependencies.live, dependencies.unread
        edge.follow(lambda: self.doors.open, lambda: unread.characters, lambda: live.view().oldest)
        self._exchange = dependencies.exchange
        self._started = started
        self._stalls = Stalls()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down in order also if the terminal is closed; uvicorn handles Ctrl-C and SIGTERM."""
        before = signal.getsignal(signal.SIGHUP)
        # one that nohup ignores stays ignored; tests serve in other threads
        takes = before is not signal.SIG_IGN and threading.current_thread() is threading.main_thread()
        if takes:
            signal.signal(signal.SIGHUP, self.handle_exit)
        try:
            with super().capture_signals():
                yield
        finally:
            if takes:
                signal.signal(signal.SIGHUP, before)

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Listen and report the URL."""
        await super().startup(sockets)
        if self.started:
            for listening in self.servers[0].sockets:
                # the connections inherit it
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            scheme = "http" if self._certificates is None else "https"
            self._started(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")

    async def on_tick(self, counter: int) -> bool:
        """End stalled connections, once a second; return whether to shut down."""
        if counter % _TICKS == 0:
            HEALTH.beat(edge.EVENT_LOOP, time.monotonic())
            if self._certificates is not None:
                for connection in list(self.server_state.connections):
                    if self._certificates.ended(connection.transport):
                        connection.transport.abort()
            found = self._stalls.find(self.server_state.connections, time.monotonic())
            if found:
                log.warning(
                    "Ending %s connections, whose clients do not send or read: %s …", len(found), found[0].client
                )
            for connection in found:
                if isinstance(connection, H11Protocol):
                    connection.transport.abort()
                else:
                    connection.end("The message did not arrive in time.")
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        """Accept no new connections, respond to all waiting clients, and end connections that remain after 5 s."""
        self._exchange.interrupt()
        # a task that waits for a client ends with its connection; uvicorn would cancel it, and answer 500
        timer = asyncio.get_running_loop().call_later(SHUTDOWN_SECONDS, self._abort)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            edge.unfollow()
            if self._certificates is not None:
                self._certificates.watch.__exit__()

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class Certificates:
    """The certificates of new connections. Open ones keep theirs while those of their clients are valid."""

    def __init__(self, tls: GatewayTls) -> None:
        self._tls, self._authorities = tls, b""
        # those with the present authorities of clients; the last one is for new connections
        self.contexts: list[ssl.SSLContext] = []
        self.watch = FileWatch(WatchedFile(path, self.renew) for path in tls.files)

    def ended(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether the certificate of a client has expired, or the authorities of clients have changed since."""
        shown = transport.get_extra_info("peercert")
        kept = transport.get_extra_info("sslcontext") in self.contexts
        return bool(shown) and (not kept or _seconds(shown["notAfter"]) <= time.time())

    def renew(self) -> None:
        """Read all files; ``SettingsError``: one of them is missing or unfit."""
        try:
            # before the context: a change in between is noticed at the next check
            authorities = b"" if self._tls.client_ca is None else self._tls.client_ca.read_bytes()
            context = self._tls.context()
        except (OSError, ValueError) as error:
            raise SettingsError(f"The setting gateway.tls cannot be used: {error}.") from None
        if authorities != self._authorities:
            self._authorities, self.contexts = authorities, []
        self.contexts.append(context)


def connections_within(wanted: int) -> int:
    """Raise the process's limit of connections as wanted, and return the number it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + wanted // 2 + _OTHER_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= needed:
        return wanted
    fewer = max(1, (soft - _OTHER_FILES) * 2 // 3)
    log.warning(
        "The system lets this process open %s files, so it serves %s connections instead of gateway.max_connections"
        " (%s). Raise the limit of files (ulimit -n).", soft, fewer, wanted
    )  # fmt: skip
    return fewer


class Stalls:
    """Finds connections whose clients owe the rest of a request, or do not read. Times are monotonic seconds."""

    def __init__(self) -> None:
        # the step that the client owes, and since when
        self._waits: dict[Any, tuple[object, float]] = {}

    def find(self, connections: Iterable[Any], now: float) -> list[Any]:
        """Return the connections to be ended; to be called regularly with all open ones."""
        waits, found = {}, []
        for connection in connections:
            step, limit = _state(connection)
            before, since = self._waits.get(connection, (None, now))
            waits[connection] = step, since if step == before else now
            if limit is not None and now - waits[connection][1] >= limit:
                found.append(connection)
        self._waits = waits
        return found


def _state(connection: Any) -> tuple[object, float | None]:
    """Return the step of a connection, which changes with each action of its client, and its time limit."""
    transport = connection.transport
    unread = transport.get_write_buffer_size()
    read = transport.written - unread
    if not isinstance(connection, H11Protocol):
        # a WebSocket counts as unread only then: before, a little is written between two checks, and pings end it
        if transport.is_closing() or not connection.writable.is_set():
            return (read,), UNREAD_SECONDS
        incomplete = connection.frames or connection.conn.reader.buffer
        return connection.messages, REQUEST_SECONDS if incomplete else None
    cycle, state = connection.cycle, connection.conn.their_state
    complete = cycle is None or cycle.response_complete
    owed = {h11.IDLE: HEADER_SECONDS, h11.SEND_BODY: REQUEST_SECONDS}.get(state) if complete else None
    return (cycle, state, complete, read, unread > 0), UNREAD_SECONDS if unread else owed
