"""A real HTTP server in a thread, which signals are pushed to."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from ackstream.connectivity.transports.http_push import MAX_BODY_BYTES

if TYPE_CHECKING:
    import ssl


DRIPS = {
    "/early": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "/heads": (b"HTTP/1.1 200 OK\r\nx: ", b"a"),
    "/body": (b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", b"a"),
    "/endless": (b"HTTP/1.1 200 OK\r\n\r\n", b"a"),
}
BOMB = gzip.compress(bytes(50_000_000))


class Service:
    """Answers each request as its path says, and keeps it: ``/status/404``, ``/hang``, ``/slow``, ``/large``.

    ``/bomb`` has a compressed body.
    To paths of :data:`DRIPS` it sends a little all the time, and never a response to its end.

    :ivar status: of all other paths
    :ivar headers: of all responses
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        service = self
        self.status = 200
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.running = self.most = 0
        self.lock = threading.Lock()
        self.gate = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                with service.lock:
                    service.requests.append(
                        (self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                    )
                    service.running += 1
                    service.most = max(service.most, service.running)
                if "/hang" in self.path or "/slow" in self.path:
                    service.gate.wait(30)
                if self.path in DRIPS:
                    first, again = DRIPS[self.path]
                    self.wfile.write(first)
                    while not service.gate.wait(0.02):
                        self.wfile.write(again)
                with service.lock:
                    service.running -= 1
                status = int(self.path.rpartition("/status/")[2]) if "/status/" in self.path else service.status
                payload = (
                    b"x" * (MAX_BODY_BYTES + 1) if "/large" in self.path else b'{"path": "%s"}' % self.path.encode()
                )
                self.send_response(status)
                if "/bomb" in self.path:
                    payload = BOMB
                    self.send_header("Content-Encoding", "gzip")
                for name, value in service.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - of the server

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """Expect clients that have gone."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        if context is not None:
            self.url = self.url.replace("http:", "https:")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
