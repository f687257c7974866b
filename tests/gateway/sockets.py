"""A WebSocket client for the ASGI application itself: no server and no network."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.harness.waiting import PATIENCE_SECONDS


class Closed(Exception):  # noqa: N818 - what happened, as the library of a real client calls it
    """The server ended the connection; ``code`` is the WebSocket's, or the HTTP status of a refusal."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(str(code))
        self.code, self.reason = code, reason


class Socket:
    """One connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, inbox: asyncio.Queue[Any], outbox: queue.Queue[Any]) -> None:
        self._loop = loop
        self._inbox = inbox
        self._outbox = outbox

    def send_text(self, text: str) -> None:
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, {"type": "websocket.receive", "text": text})

    def receive_text(self) -> str:
        message = self._outbox.get(timeout=PATIENCE_SECONDS)
        match message["type"]:
            case "websocket.send":
                return str(message["text"])
            case "websocket.http.response.start":
                raise Closed(message["status"])
        raise Closed(message["code"], message["reason"])

    def leave(self) -> None:
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, {"type": "websocket.disconnect", "code": 1000})


@contextmanager
def connected(app: Any, path: str, query: str, headers: dict[str, str]) -> Iterator[Socket]:
    """Connect for the time of the block; the application runs in a loop of its own.

    :raises Closed: the connection is refused
    """
    loop = asyncio.new_event_loop()
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    outbox: queue.Queue[Any] = queue.Queue()
    scope = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
    }

    async def send(message: Any) -> None:
        outbox.put(message)

    async def serve() -> None:
        inbox.put_nowait({"type": "websocket.connect"})
        await app(scope, inbox.get, send)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    socket = Socket(loop, inbox, outbox)
    try:
        first = outbox.get(timeout=PATIENCE_SECONDS)
        if first["type"] != "websocket.accept":
            raise Closed(first["status"])
        yield socket
    finally:
        if thread.is_alive():
            socket.leave()
        thread.join(PATIENCE_SECONDS)
        loop.close()
