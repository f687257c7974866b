"""Answers as Starlette sends them, errors of the framework included."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from ackstream.gateway.answers import Answer, of_error
from ackstream.gateway.errors import internal_error, method_not_allowed, not_found
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from starlette.requests import Request

log = logging.getLogger(__name__)

METHOD_NOT_ALLOWED = 405


def response(answer: Answer) -> Response:
    """Return an answer as a response."""
    return Response(answer.body, answer.status, answer.headers, answer.content_type)


async def on_ditto_error(_request: Request, error: Exception) -> Response:
    """Answer with an error of ours that a route raised."""
    assert isinstance(error, DittoError)  # noqa: S101 - registered for it
    return response(of_error(error))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer with an error of the framework in our form."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    if error.status_code == METHOD_NOT_ALLOWED:
        return response(of_error(method_not_allowed(request.method, ["GET"])))
    return response(of_error(not_found(request.url.path)))


async def on_failure(request: Request, error: Exception) -> Response:
    """Answer a request in which the gateway failed."""
    log.error("The request %s %s failed.", request.method, request.url.path, exc_info=error)
    return response(of_error(internal_error()))
