"""A requester of a system in memory: the real one, but for its connections."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ackstream.client.core.lifetime import Lifetime
from ackstream.client.requests._open_requests import OpenRequests
from ackstream.client.requests.requester import Requester

if TYPE_CHECKING:
    from ackstream.client.requests._open_requests import OpenRequest
    from ackstream.testing.system import RequestSystem


class DrivenFuture(Future[Any]):
    """A future that lets the time of its system pass while someone waits for it."""

    def __init__(self, system: RequestSystem) -> None:
        super().__init__()
        self._system = system

    def result(self, timeout: float | None = None) -> Any:
        """Let time pass until the outcome is there, and return it; ``timeout`` does not count, as no real time passes.

        :raises Exception: that of the outcome
        """
        self._system.run_until(self.done)
        return super().result(0 if timeout is None else timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Let time pass until the outcome is there, and return its error."""
        self._system.run_until(self.done)
        return super().exception(0 if timeout is None else timeout)


class NoReader:
    """Stands for the connection that a requester of a broker has."""

    thread = None
    skipped = unreadable = 0

    def __init__(self) -> None:
        self.stop = threading.Event()


class DrivenRequester(Requester):
    """Sends to a system in memory; made by :meth:`RequestSystem.requester`.

    ``request`` returns without waiting: the time of the system jumps to where the reply arrives, to the deadline at the
    latest. It can be used in place of a ``Requester``.
    """

    def __init__(self, system: RequestSystem) -> None:
        self._system = system
        self._kafka = system.settings.kafka
        self._signals, self._replies = "signals", "replies"
        self._reply_to = []
        self._default_timeout_ms = system.settings.correlate.default_timeout
        self._grace = self._delivery_timeout = 0.0
        self._requests = OpenRequests()
        self._life = Lifetime(self._end)
        self._reader: Any = NoReader()
        system.listen(self._replies, self._receive)

    def close(self) -> None:
        """Fail the open futures; may be called twice."""
        self._reader.stop.set()
        self._end(None)
        self._life.close()

    def _future(self) -> Future[Any]:
        return DrivenFuture(self._system)

    def _produce(self, request: OpenRequest) -> None:
        found = request.record or {}
        record = self._system.append(found["topic"], found["value"], found["key"], found["headers"])
        self._stored(request, record)
        self._system.settle()
