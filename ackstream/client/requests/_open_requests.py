"""The open requests of a requester: which reply belongs to which request, and when a request has failed.

Times are seconds of a monotonic clock, given by the caller.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ackstream.client.errors import ClosedError, CorrelationIdInUseError, RequestError
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.client.requests.replies import Reply
    from ackstream.protocol.ditto.topics import TopicPath

REMEMBERED = 16_384
"""The number of reply-ids that are remembered. After a crash the sink repeats only what it wrote shortly before."""

STORE_CHECK_SECONDS = 1.0
MAX_EARLY = 8

Verdict = Literal["not sent", "no reply"]


class RequesterStatistics(msgspec.Struct, frozen=True):
    """Requests by outcome, and unused records of the reply topic by reason.

    ``sent`` is the sum of ``answered``, ``published`` (stored, without a reply), ``open``, ``no_reply``, ``not_sent``.
    ``foreign`` replies belong to other requesters, or to a request elsewhere with the same correlation-id; ``repeats``
    are duplicates that arrived while a request with the same correlation-id was open, ``malformed`` records were
    addressed to a request but are not replies, ``unreadable`` ones could not be unpacked.
    """

    sent: int
    answered: int
    published: int
    open: int
    no_reply: int
    not_sent: int
    repeats: int
    foreign: int
    malformed: int
    unreadable: int


class Stored(msgspec.Struct, frozen=True):
    """Where the broker stored a request without a reply; ``timestamp`` in epoch milliseconds."""

    correlation_id: str
    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(eq=False)
class OpenRequest:
    """An open request.

    :ivar wait: seconds to wait for a reply once the request is stored; ``None``: it is complete as soon as it is stored
    :ivar give_up_at: the time by which it has to be stored
    :ivar topic: that of the command
    :ivar on_stored: called when the broker has stored it
    :ivar reply_id: that of its reply, which follows from where it is stored
    :ivar early: replies under its correlation-id that may be to it: known once it is stored
    """

    correlation_id: str
    wait: float | None
    give_up_at: float
    topic: TopicPath
    on_stored: Callable[[], None] | None = None
    future: Future[Any] = field(default_factory=Future)
    stored_at: float | None = None
    reply_id: str | None = None
    early: list[Reply] = field(default_factory=list)

    @cached_property
    def key(self) -> bytes:
        """The correlation-id as a record header."""
        return self.correlation_id.encode()

    def end(self, outcome: Reply | Stored | RequestError) -> None:
        """End the future, unless it was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, RequestError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class OpenRequests:
    """All open requests. Safe to use from several threads."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._open: dict[bytes, OpenRequest] = {}
        # keys, not requests: an answered one stays here until its time comes, and must not keep its reply in memory
        self._agenda: list[tuple[float, bytes]] = []
        # a dict keeps the order of arrival
        self._answered: dict[bytes, None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: OpenRequest, now: float) -> None:
        """Add a request that is about to be sent.

        :raises CorrelationIdInUseError: its correlation-id is open
        :raises ClosedError: ``close_all`` was called
        """
        identity = request.correlation_id
        with self._lock:
            if self._closed:
                raise ClosedError(f"The requester is closed; {identity} was not sent.", identity)
            if self._open.setdefault(request.key, request) is not request:
                raise CorrelationIdInUseError(
                    f"A request with the correlation-id {identity} is open, and its reply would belong to both: use "
                    "another correlation-id.",
                    identity,
                )
            self._plan(now + (request.wait or STORE_CHECK_SECONDS), request)
            self.counts["sent"] += 1

    def stored(self, request: OpenRequest, now: float, reply_id: str | None = None) -> bool:
        """Note that the broker has stored a request; return whether that completes it."""
        with self._lock:
            request.stored_at, request.reply_id = now, reply_id
            if request.wait is None and self._open.get(request.key) is request:
                self._close(request, "published")
                return True
            return False

    def refused(self, request: OpenRequest) -> bool:
        """Note that the broker will not store a request; return whether that ends it."""
        with self._lock:
            if self._open.get(request.key) is not request:
                return False
            self._close(request, "not_sent")
            return True

    def find(self, key: bytes) -> OpenRequest | None:
        """Return the request of a correlation-id; cheap, since most replies belong to other requesters."""
        return self._open.get(key)

    def accepts(self, request: OpenRequest, reply: Reply) -> bool:
        """Return whether a reply under its correlation-id is to this request, and not to another one of the same id.

        A request that could not be read is refused without naming its thing; its reply is known by its id alone, which
        may have to wait in ``early``.
        """
        if reply.reply_id == request.reply_id:
            return True
        with suppress(DittoError):
            if reply.answers(request.topic):
                return True
        with self._lock:
            if request.stored_at is None and len(request.early) < MAX_EARLY:
                request.early.append(reply)
            return reply.reply_id == request.reply_id

    def answer(self, key: bytes, reply_id: bytes) -> OpenRequest | None:
        """Close and return the request that a reply answers; ``None`` for a duplicate, or if no request is open."""
        with self._lock:
            if reply_id in self._answered:
                self.counts["repeats"] += 1
                return None
            request = self._open.pop(key, None)
            if request is None:
                return None
            self._answered[reply_id] = None
            if len(self._answered) > REMEMBERED:
                del self._answered[next(iter(self._answered))]
            self.counts["answered"] += 1
            return request

    def due(self, now: float) -> list[tuple[OpenRequest, Verdict]]:
        """Close and return the requests whose time is over."""
        found: list[tuple[OpenRequest, Verdict]] = []
        with self._lock:
            while self._agenda and self._agenda[0][0] <= now:
                request = self._open.get(heapq.heappop(self._agenda)[1])
                if request is not None:
                    verdict = self._judge(request, now)
                    if verdict is not None:
                        found.append((request, verdict))
        return found

    def close_all(self) -> list[OpenRequest]:
        """Close and return all open requests; none can be added afterwards."""
        with self._lock:
            self._closed = True
            found = list(self._open.values())
            self._open.clear()
            self._agenda.clear()
            return found

    def _judge(self, request: OpenRequest, now: float) -> Verdict | None:
        if request.stored_at is None or request.wait is None:
            if now < request.give_up_at + STORE_CHECK_SECONDS:
                self._plan(now + STORE_CHECK_SECONDS, request)
                return None
            # the producer has not reported what became of it
            self._close(request, "not_sent")
            return "not sent"
        deadline = request.stored_at + request.wait
        if now < deadline:
            self._plan(deadline, request)
            return None
        self._close(request, "no_reply")
        return "no reply"

    def _close(self, request: OpenRequest, what: str) -> None:
        del self._open[request.key]
        self.counts[what] += 1

    def _plan(self, when: float, request: OpenRequest) -> None:
        heapq.heappush(self._agenda, (when, request.key))
