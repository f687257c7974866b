"""The audit: actions at the gateway, and refusals, as records that no text of a client can forge.

Recorded are refusals, failed sign-ins, WebSockets that open, changes of the access file, actions of operators, and the
commands carried out that change something, or all (``gateway.audit``). Any client can cause failed sign-ins and
requests refused unread, so large numbers of them are only counted. Each part of a record has a field of its own, cut to
a length; none contains an unverified name. Records are numbered, and sent until Kafka has them.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection

from ackstream.client.core.connection import Connection, ReliableSender, Sending
from ackstream.gateway.errors import unavailable
from ackstream.kafka.clients import CLOSE_SECONDS, Closing
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.ditto.twin.permissions import Kind
from ackstream.protocol.errors import AccessDeniedError, DittoError
from ackstream.protocol.ledger import AuditRow, LedgerRecord, encode
from ackstream.settings import Kafka
from ackstream.settings.gateway import ROLE

log = logging.getLogger(__name__)

MAX_CHARACTERS = 1_024
"""Maximum length of each text in a record."""

FREE = 5
"""Failures of one kind of an address that are recorded one by one within :data:`WINDOW_SECONDS`; others are counted."""
WINDOW_SECONDS = 60.0
ADDRESSES = 1_000
"""Addresses with counts of their own within that time; those of all others are counted together."""

SIGN_IN, REQUEST = "sign-in", "request"
"""Events: a WebSocket is opened or a sign-in fails; a request is refused before it is read."""

_READING = frozenset({"retrieve", "many", "list", "search", "count", "messages"})
_REPEATED = "further attempts of this address"
_ABSENT: dict[str, str | None] = dict.fromkeys(("correlation_id", "command", "thing_id", "path"))


class Sender(NamedTuple):
    """The sender of a command: its subjects with their roles, its address, and an HTTP method or WEBSOCKET."""

    subjects: tuple[str, ...]
    address: str | None = None
    method: str | None = None

    @classmethod
    def of(cls, connection: HTTPConnection, subjects: tuple[str, ...] = ()) -> Sender:
        """Return the sender of a connection."""
        peer = connection.client
        return cls(subjects, peer and peer.host, connection.scope.get("method", "WEBSOCKET"))


class Attempt:
    """One command of a client, from the check of its rights until it is sent."""

    def __init__(self, audit: Audit, sender: Sender, kind: Kind, command: Envelope, event: str) -> None:
        self._audit, self._sender, self._command, self._event = audit, sender, command, event
        self.recorded = audit.level == "all" or (audit.level == "changes" and kind not in _READING)

    def sent(self, correlation_id: str) -> str:
        """Record that the command is sent under a correlation-id, which is returned."""
        if self.recorded:
            self.write(correlation_id, allowed=True)
        return correlation_id

    def write(self, correlation_id: str | None, **how: Any) -> None:
        """Record the command, or its refusal."""
        topic, path = self._command.topic, self._command.path
        command = "/".join(filter(None, (topic.channel, topic.criterion, topic.action or topic.subject)))
        thing_id = None if topic.namespace == "_" else topic.thing_id
        about = {"correlation_id": correlation_id, "command": command, "thing_id": thing_id, "path": path}
        self._audit.write(self._event, self._sender, **about | how)


class Audit:
    """The records of a gateway."""

    def __init__(self, level: str = "off", take: Callable[[AuditRow], None] = lambda _: None) -> None:
        """Give records to ``take`` at a level, ``gateway.audit``; see :meth:`store`."""
        self.level = level
        self.store(take, lambda: False)
        self._failures, self._lock = FailureCounts(), threading.Lock()

    def store(self, take: Callable[[AuditRow], None], full: Callable[[], bool]) -> None:
        """Give records to ``take`` from now on; ``full``: too many wait to be stored for another one."""
        self._take, self._full = take, full

    @contextmanager
    def attempt(self, sender: Sender, kind: Kind, command: Envelope, event: str = "command") -> Iterator[Attempt]:
        """Begin to record a command (with the client's correlation-id) by its kind, and its refusal in the block."""
        attempt = Attempt(self, sender, kind, command, event)
        if attempt.recorded:
            self._check_room()
        try:
            yield attempt
        except AccessDeniedError as error:
            identity = command.headers.get(CORRELATION_ID)
            attempt.write(str(identity) if identity else None, allowed=False, status=error.status, reason=error.lacking)
            raise

    @contextmanager
    def action(self, sender: Sender, name: str, of: str) -> Iterator[None]:
        """Record the action of an operator once the block has ended, with its error if there is one."""
        self._check_room()
        write = partial(self.write, "command", sender, command=f"gateway/actions/{name}", path=of)
        try:
            yield
        except Exception as error:
            lacking = getattr(error, "lacking", None)
            write(allowed=not lacking, status=getattr(error, "status", 500), reason=lacking or str(error))
            raise
        write(allowed=True)

    def _check_room(self) -> None:
        if self._full():
            raise unavailable("The audit cannot be written now, so the action was refused.", "Try again.")

    def opened(self, connection: HTTPConnection, subjects: tuple[str, ...]) -> None:
        """Record that a WebSocket was opened."""
        self.write(SIGN_IN, Sender.of(connection, subjects), command=connection.scope["path"], allowed=True)

    def failed(self, connection: HTTPConnection, error: DittoError, user: str | None) -> None:
        """Record, or count, a failed sign-in of a user, if known; an unknown name may be a password."""
        self.refused(connection, error, () if user is None else (f"user:{user}",), SIGN_IN)

    def refused(
        self, connection: HTTPConnection, error: DittoError, subjects: tuple[str, ...] = (), event: str = REQUEST
    ) -> None:
        """Record, or count, a request refused unread: for its names, a label, or a limit; its sender may be unknown."""
        sender = Sender.of(connection, subjects)
        with self._lock:
            recorded = self._failures.take(event, sender.address, time.time())
        if recorded:
            path = connection.scope["path"]
            self.write(event, sender, allowed=False, command=path, status=error.status, reason=error.message)

    @contextmanager
    def refusals(self, connection: HTTPConnection, subjects: tuple[str, ...] = ()) -> Iterator[None]:
        """Record, or count, an error that is raised within the block, as :meth:`refused` does."""
        try:
            yield
        except DittoError as error:
            self.refused(connection, error, subjects)
            raise

    def turn(self, *, closing: bool = False) -> None:
        """Record the failures that were counted; to be called from time to time, in any thread."""
        with self._lock:
            due = self._failures.due(time.time(), everything=closing)
        for event, address, count in due:
            self.write(event, Sender((), address), allowed=False, count=count, reason=_REPEATED)

    def read_rules(self, name: str, problem: str | None) -> None:
        """Record that the access file was read again, or refused."""
        self.write("rules", Sender(()), path=name, allowed=problem is None, reason=problem)

    def write(
        self, event: str, sender: Sender, *, allowed: bool, count: int = 1, status: int | None = None, **texts: Any
    ) -> None:
        """Give a record to be stored; ``texts`` are the columns of the row that are texts, cut to a length."""
        if self.level == "off":
            return
        subject, roles = _divided(sender.subjects)
        texts |= {"address": sender.address, "method": sender.method}
        own = {name: text and text[:MAX_CHARACTERS] for name, text in (_ABSENT | texts).items()}
        row = AuditRow(
            event=event, received_at=round(time.time() * 1000), subject=subject, roles=roles, allowed=allowed,
            count=count, status=status, **own,
        )  # fmt: skip
        self._take(row)


@lru_cache(maxsize=1024)
def _divided(subjects: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    own = [subject[:MAX_CHARACTERS] for subject in subjects if not subject.startswith(ROLE)]
    roles = [subject.removeprefix(ROLE)[:MAX_CHARACTERS] for subject in subjects if subject.startswith(ROLE)]
    return own[0] if own else None, tuple(roles)


class FailureCounts:
    """Decides which failures are recorded one by one, and counts the others; times are seconds."""

    def __init__(self) -> None:
        # the start of the period, and the count
        self._of: dict[tuple[str, str | None], tuple[float, int]] = {}

    def take(self, event: str, address: str | None, now: float) -> bool:
        """Return whether to record one; else it is counted."""
        if (event, address) not in self._of and len(self._of) >= ADDRESSES:
            address = None
        since, count = self._of.get((event, address), (now, 0))
        self._of[event, address] = since, count + 1
        return count < FREE

    def due(self, now: float, *, everything: bool = False) -> list[tuple[str, str | None, int]]:
        """Remove periods that are over; return event, address and count of those with further failures."""
        over = [key for key, (since, _) in self._of.items() if everything or now - since >= WINDOW_SECONDS]
        ended = [(*key, self._of.pop(key)[1] - FREE) for key in over]
        return [(event, address, count) for event, address, count in ended if count > 0]


TOPIC = "audit"
MAX_WAITING = 10_000
"""Records that may wait to be stored; beyond it the gateway refuses actions that need a record."""
GATHERING_SECONDS, LINGER_MS = 0.1, 20
"""Records of this time are sent together, which costs a fraction of the work; no client waits for them."""

TURN_SECONDS = RESEND_SECONDS = 1.0


class AuditTrail(Closing):
    """Stores records in order without making anyone wait, in one partition and numbered, so that a gap shows."""

    def __init__(self, kafka: Kafka, audit: Audit) -> None:
        """Connect, and store the records of an audit; ``UnreachableError``: no broker, or the topic is missing."""
        self._topic, self._run_id = kafka.topic(TOPIC), f"gateway-{secrets.token_hex(8)}"
        self._number = self._unstored = 0
        self._lock, self._waiting, self._closed = threading.Lock(), threading.Event(), threading.Event()
        self._working = True
        self._producer = Connection(kafka).producer(self._topic, linger_ms=LINGER_MS)
        self._sender = ReliableSender(self._producer)
        self._audit = audit
        audit.store(self.take, lambda: self._unstored >= MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="ackstream-audit", daemon=True)
        self._thread.start()

    def take(self, row: AuditRow) -> None:
        """Store a record; may be called in any thread."""
        with self._lock:
            self._number += 1
            if self._unstored >= 2 * MAX_WAITING:
                # refusals only; a missing record is seen by its number
                return
            self._unstored += 1
            record = LedgerRecord("audit", f"{self._run_id}-{self._number}", self._run_id, self._number, audit=row)
            self._send({"topic": self._topic, "key": self._run_id.encode(), "value": encode(record)}, time.monotonic())
        self._waiting.set()

    def close(self) -> None:
        """Send waiting records, and the counted failures, for at most 5 s."""
        self._audit.turn(closing=True)
        self._closed.set()
        self._waiting.set()
        self._thread.join(CLOSE_SECONDS)
        self._producer.close()
        self._sender.settle(time.monotonic())
        if self._unstored:
            log.error("%s records of the audit were not stored: Kafka did not accept them.", self._unstored)

    def _run(self) -> None:
        turned, closed = time.monotonic(), False
        while not closed:
            self._waiting.wait(TURN_SECONDS)
            closed = self._closed.wait(GATHERING_SECONDS)
            self._waiting.clear()
            now = time.monotonic()
            # at the end without waiting for the time of those that failed
            self._sender.turn(now + RESEND_SECONDS if closed else now)
            if not closed and now - turned >= TURN_SECONDS:
                turned = now
                self._audit.turn()

    def _send(self, record: dict[str, Any], at: float) -> None:
        self._sender.submit(Sending(record, lambda error: self._finished(record, error), give_up_at=0), at)

    def _finished(self, record: dict[str, Any], error: BaseException | None) -> None:
        """Count a record that is stored; send any other again, after any error, unless the gateway ends."""
        if error is None:
            with self._lock:
                self._unstored -= 1
            self._working = True
            return
        if not self._closed.is_set():
            # a second copy is recognised by its number
            self._send(record, time.monotonic() + RESEND_SECONDS)
        if self._working:
            log.warning("Kafka does not store records of the audit, which are sent again until it does: %s", error)
        self._working = False
