"""``/ws/2``: Ditto Protocol over a WebSocket. A socket costs three tasks and no thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import WebSocketRoute

from ackstream.gateway import answers
from ackstream.gateway.answers import response
from ackstream.gateway.session import SocketSession
from ackstream.gateway.translation import QueryParameters, read_request_headers
from ackstream.protocol.ditto.declarations import parse_labels
from ackstream.protocol.ditto.headers import DECLARED_ACKS
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.websockets import WebSocket

    from ackstream.gateway.service import Dependencies

PATH = "/ws/2"


def routes(dependencies: Dependencies) -> list[BaseRoute]:
    """Return the route; none if streaming is off."""
    streaming = dependencies.streaming
    if streaming is None:
        return []

    async def endpoint(websocket: WebSocket) -> None:
        try:
            subjects = await dependencies.authenticator.identify(websocket)
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in websocket.headers.raw]
            given = read_request_headers(headers, QueryParameters(tuple(websocket.query_params.multi_items())))
            labels = parse_labels(given.get(DECLARED_ACKS, ()))
        except DittoError as error:
            await websocket.send_denial_response(response(answers.of_error(error, None)))
            return
        await websocket.accept()
        await SocketSession(websocket, dependencies, streaming, subjects, given).run(labels)

    return [WebSocketRoute(PATH, endpoint)]
