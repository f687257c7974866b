"""The endpoint of a process for its operators: ``/metrics``, ``/health/live`` and ``/health/ready``.

It has a port of its own, without authentication: its answers name queries, queues, connections and destinations of the
settings, and no secrets, things or clients.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import contextmanager
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ackstream import __version__
from ackstream.errors import SettingsError
from ackstream.observe.catalogue import INFO
from ackstream.observe.figures import FIGURES
from ackstream.observe.health import HEALTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _typeshed.wsgi import StartResponse, WSGIApplication

    from ackstream.observe.figures import Figures
    from ackstream.observe.health import Health
    from ackstream.settings import Metrics

log = logging.getLogger(__name__)

LIVE, READY, METRICS = "/health/live", "/health/ready", "/metrics"
CLIENT_SECONDS = 10.0
"""How long a client may take to send its request, or to read the answer."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # WSGIServer would look up the name of the address, which may take long
        self.socket.bind(self.server_address)
        host, port = self.socket.getsockname()[:2]
        self.server_address, self.server_name, self.server_port = (host, port), str(host), port
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - of the library
        log.debug("A request to the metrics endpoint failed: %r", sys.exc_info()[1])


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the library
        """Log no requests: there is one every few seconds."""


def application(figures: Figures, health: Health) -> WSGIApplication:
    """Return the WSGI application.

    :raises MissingExtraError: the extra ``metrics`` is not installed
    """
    from prometheus_client import make_wsgi_app  # noqa: PLC0415 - of the extra

    from ackstream.observe.exposition import registry  # noqa: PLC0415

    metrics = make_wsgi_app(registry(figures))

    def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == METRICS:
            found: Iterable[bytes] = metrics(environ, start_response)
            return found
        now = time.monotonic()
        if path in (LIVE, READY):
            status, body = (health.live(now) if path == LIVE else health.ready(now)).answer()
        else:
            status, body = 404, b'{"status": "not found"}'
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [body]

    return answer


@contextmanager
def serving(settings: Metrics, program: str, figures: Figures = FIGURES, health: Health = HEALTH) -> Iterator[int]:
    """Serve the endpoint until the block ends, if the settings give it a port; give the port, or 0.

    :param program: which one this is, such as ``correlate``
    :raises MissingExtraError: the extra ``metrics`` is not installed
    :raises SettingsError: the port is in use, or the address is not one of this machine
    """
    figures.set(INFO, program, __version__, value=1)
    if not settings.port:
        yield 0
        return
    try:
        server = make_server(settings.host, settings.port, application(figures, health), _Server, _Handler)
    except OSError as error:
        raise SettingsError(
            f"The metrics cannot be served at {settings.host}:{settings.port} ({error.strerror}): set metrics.port "
            f"(ACKSTREAM_METRICS_PORT) to a port of its own for each program on a machine."
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="ackstream-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
