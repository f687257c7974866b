"""The ASGI application: all routes of the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount

from ackstream.gateway import websocket
from ackstream.gateway.api import Api
from ackstream.gateway.operations import PREFIX
from ackstream.gateway.pages import Pages
from ackstream.gateway.responses import on_ditto_error, on_failure, on_http_error
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from ackstream.gateway.dependencies import Dependencies


def application(dependencies: Dependencies) -> Starlette:
    """Return the application."""
    return Starlette(
        routes=[
            *websocket.routes(dependencies),
            Mount(PREFIX, app=Api(dependencies)),
            *Pages(dependencies, dependencies.live).routes,
        ],
        exception_handlers={DittoError: on_ditto_error, HTTPException: on_http_error, Exception: on_failure},
    )
