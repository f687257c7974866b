"""Health of a process, and its endpoint for operators: ``/metrics``, ``/health/live`` and ``/health/ready``.

The endpoint has a port of its own, without authentication: its answers name queries, queues, connections and
destinations of the settings, and no secrets, things or clients.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from itertools import accumulate, groupby
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ackstream import __version__
from ackstream.errors import LocalError
from ackstream.observe.metrics import FIGURES, INFO, Figures

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

    from ackstream.settings import Metrics

log = logging.getLogger(__name__)


class FiguresCollector(NamedTuple):
    """Gives the figures of a process to Prometheus' library."""

    figures: Figures

    def collect(self) -> Iterator[Family]:
        """Yield a family for each metric that has a series."""
        from prometheus_client import core  # noqa: PLC0415 - of the extra

        for metric, samples in groupby(self.figures.read().samples(), key=lambda sample: sample.metric):
            kind = getattr(core, f"{metric.kind.capitalize()}MetricFamily")
            family = kind(metric.name, metric.help, labels=metric.labels)
            for sample in samples:
                numbers: list[Any] = [sample.value]
                if metric.kind == "histogram":
                    bounds = [*map(repr, metric.buckets), "+Inf"]
                    numbers.insert(0, list(zip(bounds, accumulate(map(float, sample.counts)), strict=True)))
                family.add_metric(sample.labels, *numbers)
            yield family


def registry(figures: Figures) -> CollectorRegistry:
    """Return the registry to render: figures, Python and the process; raises without the extra ``metrics``."""
    import prometheus_client as prometheus  # noqa: PLC0415 - of the extra

    found = prometheus.CollectorRegistry()
    for collector in (prometheus.ProcessCollector, prometheus.PlatformCollector, prometheus.GCCollector):
        collector(registry=found)
    found.register(FiguresCollector(figures))
    return found


class Pulse(NamedTuple):
    """A sign that is expected at least every ``limit`` seconds; ``last``: ``None`` before the first."""

    limit: float
    # the process does not work without it, once it has begun
    vital: bool
    last: float | None = None
    # the type of the error that prevents it: its message would name hosts to clients
    error: str = ""


class Health:
    """The signs of life of a process; for any thread. Times are monotonic seconds.

    A process is *live* unless a vital sign has been missing for too long after the first one: a start may take long. It
    is *ready* while all signs that are expected come.
    """

    def __init__(self) -> None:
        self._pulses: dict[str, Pulse] = {}
        self._lock = threading.Lock()

    def expect(self, name: str, limit: float, *, vital: bool = False) -> None:
        """Expect a sign at least every ``limit`` seconds; the name is a subject of sentences, such as ``Kafka``."""
        with self._lock:
            self._pulses[name] = Pulse(limit, vital)

    def beat(self, name: str, now: float) -> None:
        """Record a sign; an unexpected one is ignored."""
        with self._lock:
            if (pulse := self._pulses.get(name)) is not None:
                self._pulses[name] = pulse._replace(last=now, error="")

    def fail(self, name: str, error: Exception) -> None:
        """Record the error that prevents a sign; logged if it differs in type from the one before."""
        kind = type(error).__name__
        with self._lock:
            if (pulse := self._pulses.get(name)) is None or pulse.error == kind:
                return
            self._pulses[name] = pulse._replace(error=kind)
        log.warning("Not ready: %s: %s", name, error)

    def forget(self, name: str) -> None:
        """Stop expecting a sign: its part has ended normally."""
        with self._lock:
            self._pulses.pop(name, None)

    @contextmanager
    def expecting(self, name: str, limit: float, *, vital: bool = False) -> Iterator[None]:
        """Expect a sign at least every ``limit`` seconds, during the block."""
        self.expect(name, limit, vital=vital)
        try:
            yield
        finally:
            self.forget(name)

    def live(self, now: float) -> tuple[str, ...]:
        """Return the reasons to restart the process, one sentence each."""
        return _late([(name, pulse) for name, pulse in self._found() if pulse.vital and pulse.last is not None], now)

    def ready(self, now: float) -> tuple[str, ...]:
        """Return the reasons why the process does not work at the moment, one sentence each."""
        pulses = self._found()
        return _late(pulses, now) if pulses else ("It is starting.",)

    def answer(self, path: str, now: float) -> tuple[int, bytes]:
        """Return the status and the JSON body of the answer to the probe at :data:`LIVE` or :data:`READY`."""
        problems = (self.live if path == LIVE else self.ready)(now)
        status, found = (503, "failing") if problems else (200, "ok")
        return status, json.dumps({"status": found, "problems": problems}).encode()

    def _found(self) -> list[tuple[str, Pulse]]:
        with self._lock:
            return sorted(self._pulses.items())


def _late(pulses: Iterable[tuple[str, Pulse]], now: float) -> tuple[str, ...]:
    return tuple(
        f"{name}: no sign {'yet' if last is None else f'for {now - last:.0f} s'}{error and f' ({error})'}."
        for name, (limit, _, last, error) in pulses
        if last is None or now - last > limit
    )


HEALTH = Health()
"""Signs of life of this process."""

LIVE, READY, METRICS = "/health/live", "/health/ready", "/metrics"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # WSGIServer would look up the name of the address, which may take long
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - of the library
        log.debug("A request to the metrics endpoint failed: %r", sys.exc_info()[1])


class _Handler(WSGIRequestHandler):
    # of a client, to send its request and to read the answer
    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the library
        """Log no requests: there is one every few seconds."""


def application(figures: Figures, health: Health) -> WSGIApplication:
    """Return the WSGI application; raises ``MissingExtraError`` without the extra ``metrics``."""
    from prometheus_client import make_wsgi_app  # noqa: PLC0415 - of the extra

    metrics: WSGIApplication = make_wsgi_app(registry(figures))

    def answer(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == METRICS:
            return metrics(environ, start_response)
        status, body = 404, b'{"status": "not found"}'
        if path in (LIVE, READY):
            status, body = health.answer(path, time.monotonic())
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [body]

    return answer


@contextmanager
def serving(settings: Metrics, program: str, figures: Figures = FIGURES, health: Health = HEALTH) -> Iterator[int]:
    """Serve the endpoint during a block, and yield its port, or 0; raises LocalError, MissingExtraError."""
    figures.set(INFO, program, __version__, value=1)
    if not settings.port:
        yield 0
        return
    try:
        server = make_server(settings.host, settings.port, application(figures, health), _Server, _Handler)
    except OSError as error:
        # a port that another program uses now is no wrong setting: a supervisor may try again
        raise LocalError(
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
