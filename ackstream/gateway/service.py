"""The gateway as a service: its parts, its ASGI application and its server."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount

from ackstream.client import Requester
from ackstream.client.replies import Outcomes
from ackstream.gateway.api import Api
from ackstream.gateway.authentication import Authenticator, access_of
from ackstream.gateway.exchange import Exchange
from ackstream.gateway.operations import PREFIX
from ackstream.gateway.pages import Live, Pages
from ackstream.gateway.responses import on_ditto_error, on_failure, on_http_error
from ackstream.gateway.session import socket_routes
from ackstream.gateway.streaming import Streaming
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ackstream.protocol.ditto.access import Access
    from ackstream.settings import Settings


TOPICS = ("signals", "acks", "replies", "ledger", "events", "declarations")
"""The topics the gateway reads and writes, without the prefix."""

SHUTDOWN_SECONDS = 5
_BACKLOG = 2_048


@contextmanager
def connected(settings: Settings) -> Iterator[Dependencies]:
    """Connect to Kafka for the duration of the block.

    :raises SettingsError: the authentication settings are invalid
    :raises LocalError: the broker is unavailable or cannot create missing topics
    """
    gateway = settings.gateway
    authenticator = Authenticator(gateway)
    access = access_of(gateway, authenticator)
    ensure_topics(settings, TOPICS)
    with ExitStack() as stack:
        outcomes = stack.enter_context(closing(Outcomes(settings.kafka)))
        requester = stack.enter_context(
            Requester(
                settings.kafka,
                default_timeout=gateway.max_timeout / 1000,
                delivery_timeout=gateway.delivery_timeout / 1000,
            )
        )
        live = stack.enter_context(Live(settings))
        exchange = Exchange(requester, outcomes)
        streaming = stack.enter_context(Streaming(settings, exchange))
        yield Dependencies(settings, authenticator, access, exchange, live, streaming)


class Server(uvicorn.Server):
    """Serves the application; on shutdown it ends all waits with 503 while the requests continue in Kafka."""

    def __init__(self, dependencies: Dependencies, started: Callable[[str], None]) -> None:
        """Serve at the address of the settings.

        :param started: called with the URL once the server listens
        """
        gateway = dependencies.settings.gateway
        super().__init__(
            uvicorn.Config(
                application(dependencies),
                host=gateway.host,
                port=gateway.port,
                log_level="warning",
                access_log=False,
                backlog=_BACKLOG,
                lifespan="off",
                ws="websockets-sansio",
                server_header=False,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self._exchange = dependencies.exchange
        self._started = started

    async def startup(self, sockets: list[Any] | None = None) -> None:
        """Listen and report the URL."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._started(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        """Accept no new connections and respond to all waiting clients."""
        self._exchange.interrupt()
        await super().shutdown(sockets)


def application(dependencies: Dependencies) -> Starlette:
    """Build the ASGI application with all routes."""
    return Starlette(
        routes=[
            *socket_routes(dependencies),
            Mount(PREFIX, app=Api(dependencies)),
            *Pages(dependencies, dependencies.live).routes,
        ],
        exception_handlers={DittoError: on_ditto_error, HTTPException: on_http_error, Exception: on_failure},
    )


@dataclass(frozen=True)
class Dependencies:
    """The parts of one gateway, given to every route.

    ``authenticator`` identifies the subjects of an HTTP request or WebSocket, ``access`` decides what they may do,
    ``exchange`` sends requests and awaits replies, ``live`` feeds the page, and ``streaming`` feeds WebSockets.
    """

    settings: Settings
    authenticator: Authenticator
    access: Access
    exchange: Exchange
    live: Live | None = None
    streaming: Streaming | None = None
