"""Replies to requests, and the updates that come before a reply."""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from ackstream.client.core.connection import RequestFuture
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, is_success, read_issued
from ackstream.protocol.ditto.envelopes import Envelope, decode, decoded
from ackstream.protocol.ditto.headers import ACK_QUORUM
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError
from ackstream.protocol.record_headers import COMPLETED_BY, CORRELATION_ID, REPLY_ID, REPLY_VERSION, STATUS, UPDATE

log = logging.getLogger(__name__)

MAX_UNREAD, MAX_UNREAD_BYTES = 1_000, 16_000_000

_EXPLAINED = {
    "response": "The response arrived.",
    "cancelled": "The request was cancelled.",
    "progress": "Acknowledgements arrived; the request is still open.",
    "amended": "Late acknowledgements made the request succeed after its deadline.",
}


class ReceivedAck(Acknowledgement):
    """An acknowledgement in a reply: label, HTTP status, headers, and the payload as a Python value or ``None``."""

    payload: Any = None


@dataclass(frozen=True)
class Reply:
    """One reply: its record headers, and the message itself, which is decoded on first access.

    ``status`` is of HTTP, ``timestamp`` the broker's time in epoch milliseconds. ``completed_by`` is why the wait
    ended: ``acknowledgements`` (all arrived, or a quorum is decided), ``response``, ``timeout``, ``cancelled``,
    ``error`` or ``invalid``; ``amended``: a second reply, with the ``version`` 2, after a timeout; ``progress``: an
    update, whose ``acks`` are those since the last one (status 102) and whose ``version`` is the number of its batch.
    """

    correlation_id: str
    reply_id: str
    status: int
    completed_by: str
    data: bytes
    timestamp: int = 0
    version: int = 1

    @property
    def is_update(self) -> bool:
        """Whether it is an update, not the reply: the request stays open."""
        return self.completed_by == UPDATE

    @property
    def ok(self) -> bool:
        """Whether the status is 200 to 299."""
        return is_success(self.status)

    @property
    def complete(self) -> bool:
        """Whether the answer contains everything that was awaited; if not, ``explanation`` gives the reason."""
        return self.completed_by in ("acknowledgements", "response", "amended")

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
    def acks(self) -> dict[str, ReceivedAck]:
        """The acknowledgements by label, in order of the request; empty for a plain response or an error."""
        if self.envelope.topic.criterion != "acks":
            return {}
        return {
            ack.label: ReceivedAck(ack.label, ack.status, payload=decoded(ack.payload), headers=ack.headers)
            for ack in read_issued(self.envelope, built_in=True)
        }

    @property
    def missing(self) -> tuple[str, ...]:
        """The labels that did not arrive in time (status 408), in order of the request."""
        return tuple(label for label, ack in self.acks.items() if ack.timed_out)

    @property
    def explanation(self) -> str:
        """Why the answer is complete, or why it is not; names the labels that refused, or are missing."""
        match self.completed_by:
            case "acknowledgements":
                quorum = f"The quorum was {'' if self.ok else 'not '}reached."
                negative = [f"{label} ({ack.status})" for label, ack in self.acks.items() if not is_success(ack.status)]
                found = [quorum] if ACK_QUORUM in self.envelope.headers else []
                found += [f"Refused: {', '.join(negative)}."] if negative else []
                return " ".join(found) or "Every requested acknowledgement arrived."
            case "timeout":
                return f"The deadline passed before this arrived: {', '.join(self.missing) or 'the response'}."
            case "error":
                return f"An error ended the wait: {self._message}"
            case "invalid":
                return f"The request was refused: {self._message}"
        return _EXPLAINED.get(self.completed_by, f"It was completed by {self.completed_by!r}.")

    @property
    def _message(self) -> str:
        return str(self.value["message"]) if isinstance(self.value, dict) and "message" in self.value else "no reason."


def read_reply(record_headers: Iterable[tuple[str, bytes | None]], data: bytes | None, timestamp: int) -> Reply | None:
    """Return the reply in a record, ``None`` if its headers are not those of a reply."""
    named = dict(record_headers)
    try:
        texts = [(named[name] or b"").decode() for name in (CORRELATION_ID, REPLY_ID, STATUS, COMPLETED_BY)]
        identity, reply_id, status, completed_by = texts
        version = int(named.get(REPLY_VERSION) or 1)
        return Reply(identity, reply_id, int(status), completed_by, data or b"", timestamp, version)
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
        # decoded separately: the requester may change the message before it reads it
        own = replace(outcome)
        # a reply that is not a message of the protocol has no further attributes
        with suppress(DittoError):
            return found | {"ackstream.missing": own.missing}, own.explanation
    return found, None


class Updates(Iterator[Reply]):
    """The updates of one request as they come, and at last its reply; the error of the request is raised in its place.

    Each update is a ``Reply`` whose ``completed_by`` is ``progress``; a copy is not given again. At most 1,000 unread
    updates and 16 MB are kept; older ones are dropped with a warning in the log, but the reply has all answers. A loop
    that is left early frees them: the request continues, and its reply is dropped. Safe to use from several threads;
    each update goes to one of them.

    :ivar reply: the future of the reply
    :ivar correlation_id: that of the request, for ``Requester.cancel``
    """

    def __init__(self, make: Callable[[], RequestFuture[Any]]) -> None:
        """Wait for updates; ``make`` makes a future."""
        self.correlation_id = ""
        self.reply: RequestFuture[Reply] = make()
        # the callbacks of a future are called while the lock is held
        self._make, self._lock = make, threading.RLock()
        self._unread: deque[Reply] = deque()
        self._waiting: deque[Future[Reply | None]] = deque()
        self._bytes = 0
        self._ended = self._dropped = False
        # an iteration that was left is not kept by its open request
        alive = weakref.ref(self)
        self.reply.add_done_callback(lambda _: None if (updates := alive()) is None else updates.give())

    def add(self, update: Reply) -> None:
        """Add an update; called by the requester."""
        with self._lock:
            self._unread.append(update)
            self._bytes += len(update.data)
            while len(self._unread) > 1 and (len(self._unread) > MAX_UNREAD or self._bytes > MAX_UNREAD_BYTES):
                self._take()
                if not self._dropped:
                    self._dropped = True
                    log.warning("Updates of the request %s are not read, and older ones dropped.", self.correlation_id)
            self.give()

    def ask(self) -> Future[Reply | None]:
        """Return the future of the next update or of the reply, ``None`` after that; a cancelled one takes nothing."""
        future = self._make()
        with self._lock:
            self._waiting.append(future)
            self.give()
        return future

    def give(self) -> None:
        """Give updates, and after the last one the outcome of the request, to the waiting callers."""
        with self._lock:
            while self._waiting and (self._unread or self.reply.done()):
                future = self._waiting.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                if self._unread:
                    future.set_result(self._take())
                elif self._ended:
                    future.set_result(None)
                else:
                    self._ended = True
                    error = self.reply.exception()
                    future.set_result(self.reply.result()) if error is None else future.set_exception(error)

    def _take(self) -> Reply:
        update = self._unread.popleft()
        self._bytes -= len(update.data)
        return update

    def __next__(self) -> Reply:
        future = self.ask()
        try:
            if (found := future.result()) is None:
                raise StopIteration
            return found
        finally:
            # an interrupted wait takes no update
            future.cancel()
