"""Replies and the open requests that they answer. Times are seconds of a monotonic clock, given by the caller."""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import msgspec

from ackstream.client.errors import ClosedError, CorrelationIdInUseError, RequestError
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, is_success, read_issued
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.protocol.ditto.envelopes import Envelope, decode, decoded
from ackstream.protocol.ditto.headers import ACK_QUORUM
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError
from ackstream.protocol.record_headers import COMPLETED_BY, CORRELATION_ID, REPLY_ID, STATUS

REMEMBERED = 16_384
"""The number of reply-ids that are remembered. After a crash the sink repeats only its latest records."""

STORE_CHECK_SECONDS = 1.0
MAX_EARLY = 8

Verdict = Literal["not_sent", "no_reply"]
"""The key of its count, too."""


_EXPLAINED = {
    "acknowledgements": "Every requested acknowledgement arrived.",
    "response": "The response arrived.",
    "cancelled": "The request was cancelled.",
}


@dataclass(frozen=True)
class Reply:
    """One reply: its record headers, and the message itself, which is decoded on first access.

    ``status`` is of HTTP, ``timestamp`` the broker's time in epoch milliseconds. ``completed_by`` is why the wait
    ended: ``acknowledgements`` (all arrived, or a quorum is decided), ``response``, ``timeout``, ``cancelled``,
    ``error`` or ``invalid``.
    """

    correlation_id: str
    reply_id: str
    status: int
    completed_by: str
    data: bytes
    timestamp: int = 0

    @property
    def ok(self) -> bool:
        """Whether the status is 200 to 299."""
        return is_success(self.status)

    @property
    def complete(self) -> bool:
        """Whether the answer contains everything that was awaited; if not, ``explanation`` gives the reason."""
        return self.completed_by in ("acknowledgements", "response")

    @cached_property
    def envelope(self) -> Envelope:
        """The message; raises ``DittoError`` if the reply is not a protocol message."""
        return decode(self.data)

    def answers(self, command: TopicPath) -> bool:
        """Whether it is of the thing and channel of a command, and a response to such a command if it is one.

        A header may have made a twin's command live. Raises ``DittoError`` if it is not a protocol message.
        """
        topic, channel = self.envelope.topic, command.channel
        if topic.thing_id != command.thing_id or topic.channel not in (channel, "live", channel or "twin"):
            return False
        return topic.criterion in ("acks", "errors") or topic == msgspec.structs.replace(command, channel=topic.channel)

    @cached_property
    def value(self) -> Any:
        """The JSON value of the message, ``None`` if it has none."""
        return decoded(self.envelope.value)

    @cached_property
    def acks(self) -> dict[str, Acknowledgement]:
        """The acknowledgements by label, in order of the request; empty for a plain response or an error."""
        if self.envelope.topic.criterion != "acks":
            return {}
        return {ack.label: ack for ack in read_issued(self.envelope, built_in=True)}

    @property
    def missing(self) -> tuple[str, ...]:
        """The labels that did not arrive in time (status 408), in order of the request."""
        return tuple(label for label, ack in self.acks.items() if ack.timed_out)

    @property
    def explanation(self) -> str:
        """One sentence: why the answer is complete, or why it is not."""
        match self.completed_by:
            case "acknowledgements" if ACK_QUORUM in self.envelope.headers:
                return "The quorum of the acknowledgements was decided."
            case "acknowledgements" | "response" | "cancelled":
                return _EXPLAINED[self.completed_by]
            case "timeout":
                late = ", ".join(self.missing) or "the response"
                return f"The deadline passed before this arrived: {late}."
            case "error":
                return f"An error ended the wait: {self._message}"
            case "invalid":
                return f"The request was refused: {self._message}"
        return f"It was completed by {self.completed_by!r}."

    @property
    def _message(self) -> str:
        return str(self.value["message"]) if isinstance(self.value, dict) and "message" in self.value else "no reason."


def read_reply(record_headers: Iterable[tuple[str, bytes | None]], data: bytes | None, timestamp: int) -> Reply | None:
    """Return the reply in a record, ``None`` if its headers are not those of a reply."""
    named = dict(record_headers)
    try:
        texts = [(named[name] or b"").decode() for name in (CORRELATION_ID, REPLY_ID, STATUS, COMPLETED_BY)]
        identity, reply_id, status, completed_by = texts
        return Reply(identity, reply_id, int(status), completed_by, data or b"", timestamp)
    except (KeyError, ValueError):
        return None


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


def described(outcome: Reply | Stored) -> tuple[dict[str, Any], str | None]:
    """Return the attributes of an outcome in its trace, and why it is a failure."""
    if isinstance(outcome, Stored):
        return {}, None
    found = {"ackstream.status": outcome.status, "ackstream.completed_by": outcome.completed_by}
    if not outcome.ok:
        # decoded apart: who asked may change the message before it reads it
        own = replace(outcome)
        # a reply that is no message of the protocol has no further attributes
        with suppress(DittoError):
            return found | {"ackstream.missing": own.missing}, own.explanation
    return found, None


@dataclass(eq=False)
class OpenRequest:
    """An open request.

    After storage, which has to come by ``give_up_at`` and is reported to ``on_stored``, it waits ``wait`` seconds for a
    reply; ``None``: storage completes it. ``reply_id`` follows from where it is stored, which ``place`` names by topic
    and partition; replies that may be to it are ``early`` until then.
    """

    correlation_id: str
    wait: float | None
    give_up_at: float
    topic: TopicPath
    on_stored: Callable[[], None] | None = None
    future: Future[Any] = field(default_factory=Future)
    stored_at: float | None = None
    reply_id: str | None = None
    place: tuple[str, int] | None = None
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
        self._answered: Latest[bytes, None] = Latest(REMEMBERED)
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

        The reply to an unreadable request names no thing: its id alone shows that, and it may wait in ``early``.
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
            self.counts["answered"] += 1
            return request

    def due(self, now: float) -> list[tuple[OpenRequest, Verdict]]:
        """Close and return the requests whose time is over."""
        found: list[tuple[OpenRequest, Verdict]] = []
        with self._lock:
            while self._agenda and self._agenda[0][0] <= now:
                request = self._open.get(heapq.heappop(self._agenda)[1])
                if request is not None and (verdict := self._judge(request, now)) is not None:
                    self._close(request, verdict)
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
