"""A handler's calls and answers, kept for copies of the request; the labels to be answered, and its cancellation."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from ackstream.client.core.arguments import Retry
from ackstream.client.core.messages import Answers, Work, text
from ackstream.client.core.storage import StoreFile
from ackstream.client.core.worker import Worker
from ackstream.client.errors import StoreError
from ackstream.protocol.ditto.acknowledgements import PROCESSING
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.protocol.ditto.envelopes import Envelope, decode, encode
from ackstream.protocol.ditto.labels import check_declared
from ackstream.protocol.ditto.record_requests import cancels
from ackstream.protocol.errors import DittoError
from ackstream.protocol.record_headers import CANCEL, CORRELATION_ID

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ack:
    """An acknowledgement: positive with a status of 2xx, otherwise a nack.

    :param payload: any JSON value
    :param label: ``None`` for every label of ``signal.labels``
    """

    status: int = 200
    payload: Any = UNSET
    label: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """The response to a live command or message: the acknowledgement ``live-response``. Only the twin has others."""

    status: int = 200
    value: Any = UNSET
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class After:
    """An answer to be sent after a number of seconds; meanwhile other signals are handled."""

    seconds: float
    answer: Answer


Answer = Ack | Response | DittoError | After | Iterable["Answer"] | None
"""The return value of a handler: a ``DittoError`` is the response to a live signal, else a nack for each label;
``None`` sends nothing."""

Delayed: TypeAlias = tuple[float, Envelope]
"""A message and the seconds after which it is sent."""


class HandlerStoppedError(Exception):
    """A member of a group was closed between two calls of its handler."""


def call(handler: Callable[[Any], Answer], signal: Any, retry: Retry | None, worker: Worker) -> Answer:
    """Call a handler with a signal, again after an exception if ``retry`` allows that.

    Raises the last exception, or a ``HandlerStoppedError``.
    """
    for failures in count(1):
        try:
            return handler(signal)
        except DittoError:
            # an answer
            raise
        except Exception as error:
            pause = None if retry is None or signal.cancelled else retry.pause(failures)
            awaited = signal.labels or signal.response_required
            if pause is None or (awaited and worker.is_over(signal, signal.timeout_ms, pause)):
                # an answer now is better than one after the deadline
                raise
            log.warning("The handler failed for %s: next call in %g s.", signal.correlation_id, pause, exc_info=True)
            if not worker.pause(pause, lambda: signal.cancelled):
                raise (HandlerStoppedError if worker.grouped else error) from error.__cause__
            if signal.cancelled:
                raise
    raise AssertionError


INBOX_SECONDS = 2 * 86_400.0
"""Copies of a request arrive within this time: answers count for at most a day (``correlate.max_timeout``)."""
INBOX_BYTES = 256 * 1024 * 1024

_SCHEMA = """
CREATE TABLE requests (
  place INTEGER PRIMARY KEY, request TEXT NOT NULL UNIQUE, answers BLOB NOT NULL, at REAL NOT NULL
);
"""
# a few for each one that is added
_FORGET = """
DELETE FROM requests WHERE place IN (SELECT place FROM requests ORDER BY place LIMIT 8) AND (place <= ? OR at < ?)
"""
_ROW_BYTES = 200
"""Bytes that a request takes besides its answers, about."""


class Inbox:
    """The requests that a member of a group has carried out, with its answers, in a file that survives a crash.

    The oldest are dropped: after two days in which the responder ran, or once all take about 256 MiB. While it does not
    run, nothing grows older, as the copies of requests wait, too. A file that fails is an error of the responder.
    """

    def __init__(
        self,
        path: Path,
        group: str,
        failed: Callable[[Exception], object],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the file of a group, or create it; ``failed`` is called with the ``StoreError`` of a later call."""
        lost = "carries requests out again whose answers were not committed"
        self._file = StoreFile(path, group, what="inbox", version=1, schema=_SCHEMA, lost=lost)
        # a place is the number of bytes up to it
        ((self._place, latest),) = self._file.read("SELECT ifnull(max(place), 0), ifnull(max(at), 0) FROM requests")
        self._failed, self._now, self._began = failed, now, now() - latest

    def get(self, request: str) -> list[Delayed] | None:
        """Return the answers to a request; ``None`` if it was not carried out, as far as is known."""
        try:
            rows = self._file.read("SELECT answers FROM requests WHERE request = ?", request)
            return [(delay, decode(value)) for delay, value in _read_answers(rows[0][0])] if rows else None
        except (StoreError, msgspec.MsgspecError, DittoError) as error:
            failure = error if isinstance(error, StoreError) else self._file.damaged(f"the answers to {request}")
            self._failed(failure)
            raise failure from error

    def add(self, request: str, answers: list[Delayed]) -> None:
        """Note that a request was carried out; a disk that cannot be written is logged."""
        value = msgspec.msgpack.encode([(delay, encode(message)) for delay, message in answers])
        self._place, at = self._place + len(value) + _ROW_BYTES, self._now() - self._began
        try:
            self._file.change(
                ("INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?)", (self._place, request, value, at)),
                (_FORGET, (self._place - INBOX_BYTES, at - INBOX_SECONDS)),
                needed=False,
            )
        except StoreError as error:
            # the work is done, and the answers are sent
            self._failed(error)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


_read_answers = msgspec.msgpack.Decoder(list[tuple[float, bytes]]).decode


class OpenDelivery:
    """The labels of one signal that are not answered yet. Safe to use from several threads."""

    def __init__(
        self,
        outbox: Callable[[], Answers],
        work: Work,
        correlation_id: str,
        labels: Collection[str],
        *,
        held: bool = False,
    ) -> None:
        """Wait for the labels; with ``held`` the signal's offset is not committed before all of them are answered.

        ``outbox`` returns that of the receiver, and raises an error in a child of its process.
        """
        self._outbox, self._work, self._correlation_id = outbox, work, correlation_id
        self._labels, self._missing = frozenset(labels), set(labels)
        # seconds that the handler has requested since its deadline was last checked
        self.extension = 0.0
        # whether the requester's cancellation was read
        self.is_cancelled: Callable[[], bool] = lambda: False
        self.held = held and bool(labels)
        self._lock = threading.Lock()
        if self.held:
            outbox().hold(work)

    def repeat(self, answers: list[Delayed]) -> None:
        """Send the answers to an earlier delivery, except those under labels that are no longer issued."""
        issued = [(delay, message) for delay, message in answers if label_of(message) in {None, *self._labels}]
        if lost := len(answers) - len(issued):
            log.warning("%d answers to %s have labels that are no longer issued.", lost, self._correlation_id)
        self.send(issued)

    def send(
        self, answers: list[Delayed], *, missing: bool = False, keep: Callable[[list[Delayed]], object] | None = None
    ) -> None:
        """Send answers, with ``missing`` without those under labels that are answered already.

        ``keep`` is called with those that are sent, before.
        """
        outbox = self._outbox()
        if missing:
            wanted = {None, *self._missing}
            answers = [(delay, message) for delay, message in answers if label_of(message) in wanted]
        labels = {label for _, message in answers if (label := label_of(message)) is not None}
        for label in labels:
            check_declared(label, self._labels)
        if keep is not None:
            keep(answers)
        # progress is not an answer
        labels -= {label_of(message) for _, message in answers if message.status == PROCESSING}
        for delay, message in answers:
            outbox.send(self._correlation_id, message, self._work, delay)
        with self._lock:
            self._missing -= labels
            done = not self._missing
        if done:
            self.give_up()

    def leave(self) -> None:
        """Hold the offset until the group hands the signal out again, to this process or another one."""
        self._outbox().hold(self._work)

    def give_up(self) -> bool:
        """Let the offset be committed; return whether it was still held."""
        with self._lock:
            held, self.held = self.held, False
            if held:
                self._outbox().release(self._work)
            return held


Order: TypeAlias = tuple[str, str, str]
"""A cancelled request: its topic, its correlation-id and its reply-id."""

MAX_ORDERS = 10_000
"""Cancellations that are remembered, many more than are read while a handler works."""


def read_order(record: Any) -> Order | None:
    """Return the request that a record cancels, ``None`` if it cancels none."""
    if record.value is not None:
        return None
    headers = {name: value for name, value in record.headers if value}
    if not cancels(headers, None):
        return None
    return record.topic, text(headers.get(CORRELATION_ID)), text(headers[CANCEL])


class Orders(Latest[Order, None]):
    """The latest cancellations that a receiver has read, before their requests are handled, or meanwhile."""

    def note(self, record: Any) -> None:
        """Note a record that was read, if it is a cancellation."""
        if (order := read_order(record)) is not None:
            self[order] = None


def label_of(message: Envelope) -> str | None:
    """Return the label of an acknowledgement, ``None`` for any other message."""
    return message.topic.subject if message.topic.criterion == "acks" else None
