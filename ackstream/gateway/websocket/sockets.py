"""The route of WebSockets: who may open one, and how many."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from starlette.routing import WebSocketRoute

from ackstream.gateway.errors import label_not_allowed
from ackstream.gateway.http import responses
from ackstream.gateway.http.translation import check_parameters, read_request_headers
from ackstream.gateway.websocket.session import SocketSession
from ackstream.protocol.ditto.headers import DECLARED_ACKS
from ackstream.protocol.ditto.labels import parse_declared
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from ackstream.gateway.service import Dependencies
    from ackstream.protocol.ditto.access import Access


def socket_route(dependencies: Dependencies) -> WebSocketRoute:
    """Return the route of ``/ws/2``: Ditto Protocol over a WebSocket, with three tasks and no thread per socket."""
    access, audit = dependencies.access, dependencies.audit

    async def endpoint(websocket: WebSocket) -> None:
        with ExitStack() as opened:
            try:
                identity = await dependencies.admit(websocket)
                check_parameters(websocket.query_params, ())
                given = read_request_headers(websocket)
                labels = frozenset(map(parse_declared, given.get(DECLARED_ACKS, ())))
                with audit.refusals(websocket, identity.subjects):
                    check_labels(access, identity.subjects, labels)
                opened.enter_context(dependencies.socket(websocket, identity.subjects))
            except DittoError as error:
                await websocket.send_denial_response(responses.of_error(error))
                return
            audit.opened(websocket, identity.subjects)
            await websocket.accept()
            await SocketSession(websocket, dependencies, identity, given).run(labels)

    return WebSocketRoute("/ws/2", endpoint)


def check_labels(access: Access, subjects: tuple[str, ...], labels: frozenset[str]) -> None:
    """Reject labels that no rule lets the subjects declare.

    :raises DittoError: 403 ``acknowledgement:label.notallowed``
    """
    for label in sorted(labels):
        if not access.may_declare(subjects, label):
            raise label_not_allowed(label)
