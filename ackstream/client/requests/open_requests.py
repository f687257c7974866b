"""The open requests, and how they end. Times are seconds of a monotonic clock, given by the caller."""

import heapq
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ackstream.client.core.lifetime import call_handler
from ackstream.client.errors import ClosedError, CorrelationIdInUseError, NotSentError, RequestError
from ackstream.client.requests.replies import Reply, Stored, Updates, read_reply
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError, shown
from ackstream.protocol.record_headers import CORRELATION_ID, REPLY_ID

log = logging.getLogger(__name__)

REMEMBERED = 16_384
"""The number of replies and updates that are remembered. After a crash the sink repeats only its latest records."""

STORE_CHECK_SECONDS = 1.0
MAX_EARLY = 8

Verdict = Literal["not_sent", "no_reply"]
"""The key of its count, too."""


@dataclass(eq=False)
class OpenRequest:
    """An open request.

    After storage, which has to come by ``give_up_at`` and is reported to ``on_stored``, it waits ``wait`` seconds for a
    reply; ``None``: storage completes it. ``reply_id`` follows from where it is stored; ``place`` ends with topic and
    partition; replies that may be to it are ``early`` until then. ``updates`` get its updates as long as they are
    read; ``amendable``: a second reply may follow a timeout.
    """

    correlation_id: str
    wait: float | None
    give_up_at: float
    topic: TopicPath
    on_stored: Callable[[], None] | None = None
    future: Future[Any] = field(default_factory=Future)
    stored_at: float | None = None
    reply_id: str | None = None
    place: Future[tuple[str, int]] = field(default_factory=Future)
    early: list[Reply] = field(default_factory=list)
    updates: weakref.ref[Updates] | None = None
    amendable: bool = False

    @cached_property
    def key(self) -> bytes:
        """The correlation-id as a record header."""
        return self.correlation_id.encode()

    def end(self, outcome: Reply | Stored | RequestError) -> None:
        """End the future."""
        if isinstance(outcome, RequestError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)

    def not_sent(self, error: BaseException | None = None) -> NotSentError:
        """Return the error of a request that the broker has not stored, as far as is known."""
        reason = "no answer in time" if error is None else str(error)
        found = NotSentError(f"Kafka did not store the request {self.correlation_id}: {reason}.", self.correlation_id)
        found.__cause__ = error
        return found


class OpenRequests:
    """All open requests; ``on_amended`` gets second replies to amendable ones that ended by timeout. Thread-safe."""

    def __init__(self, on_amended: Callable[[Reply], object] | None = None) -> None:
        self._on_amended = on_amended
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._open: dict[bytes, OpenRequest] = {}
        # keys, not requests: an answered one stays here until its timeout, and must not keep its reply in memory
        self._agenda: list[tuple[float, bytes]] = []
        self._answered: Latest[bytes, None] = Latest(REMEMBERED)
        self._amendable: Latest[bytes, None] = Latest(REMEMBERED)
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: OpenRequest, now: float) -> None:
        """Add a request that is about to be sent, unless its correlation-id is open, or ``close_all`` was called."""
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
            return request.wait is None and self._close(request, "published")

    def refused(self, request: OpenRequest) -> bool:
        """Note that the broker will not store a request; return whether that ends it."""
        with self._lock:
            return self._close(request, "not_sent")

    def find(self, key: bytes | None) -> OpenRequest | None:
        """Return the request of a correlation-id; cheap, since most replies belong to other requesters."""
        return None if key is None else self._open.get(key)

    def accepts(self, request: OpenRequest, reply: Reply) -> bool:
        """Return whether a reply is to this request, and not to another one of the same correlation-id.

        The reply to an unreadable request names no thing: only its id shows that, and it may wait in ``early``.
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

    def answer(self, key: bytes, reply: Reply) -> OpenRequest | None:
        """End and return the open request; an update leaves it open. ``None``: a duplicate, or no request is open."""
        reply_id = identity = reply.reply_id.encode()
        if reply.is_update:
            identity += b"-%d" % reply.version
        with self._lock:
            if reply_id in self._answered or identity in self._answered:
                self.counts["repeats"] += 1
                return None
            if (request := self._open.get(key)) is None:
                return None
            self._answered[identity] = None
            if not reply.is_update:
                self._close(request, "answered")
                if request.amendable and reply.completed_by == "timeout":
                    self._amendable[identity] = None
        if not reply.is_update:
            request.end(reply)
        elif request.updates is not None and (updates := request.updates()) is not None:
            updates.add(reply)
        return request

    def receive(self, record: Any) -> bool:
        """Handle a record of the reply topic; return whether it is the answer to an open request, or an update."""
        keys = {name: value for name, value in record.headers if name in (CORRELATION_ID, REPLY_ID)}
        identity: Any = keys.get(REPLY_ID)
        request = None if identity is None else self.find(keys.get(CORRELATION_ID))
        if request is None and identity not in self._amendable:
            # the JSON of other requesters' replies is not even decoded; a late duplicate counts as one of them
            self.counts["foreign"] += 1
            return False
        if (reply := read_reply(record.headers, record.value, record.timestamp)) is None:
            self.counts["malformed"] += 1
            log.warning("A record of %s lacks the headers of a reply (offset %s).", record.topic, record.offset)
        elif reply.completed_by == "amended" and identity in self._amendable:
            with self._lock:
                self._amendable.pop(identity, None)
            call_handler(self._on_amended, reply)
        elif request is None or reply.completed_by == "amended":
            self.counts["foreign"] += 1
        elif self.accepts(request, reply):
            return self.answer(request.key, reply) is not None
        else:
            self.counts["foreign"] += 1
            log.warning("A reply to another request of the same correlation-id was ignored (%s).", shown(request.key))
        return False

    def due(self, now: float) -> list[tuple[OpenRequest, Verdict]]:
        """Close and return the expired requests."""
        found: list[tuple[OpenRequest, Verdict]] = []
        with self._lock:
            while self._agenda and self._agenda[0][0] <= now:
                request = self._open.get(heapq.heappop(self._agenda)[1])
                if request is not None and (verdict := self._judge(request, now)) is not None:
                    self._close(request, verdict)
                    if request.amendable and request.reply_id is not None:
                        # the reply may be late, and a second one follow
                        self._amendable[request.reply_id.encode()] = None
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
            # without a report of the producer
            return "not_sent"
        deadline = request.stored_at + request.wait
        if now < deadline:
            self._plan(deadline, request)
            return None
        return "no_reply"

    def _close(self, request: OpenRequest, outcome: str) -> bool:
        """Close and count a request, unless it is closed; return whether it was open."""
        if self._open.get(request.key) is not request:
            return False
        del self._open[request.key]
        self.counts[outcome] += 1
        return True

    def _plan(self, when: float, request: OpenRequest) -> None:
        heapq.heappush(self._agenda, (when, request.key))
