"""The audit: actions at the gateway, and refusals, as records that no text of a client can forge.

Recorded are refusals, failed sign-ins, WebSockets that open, changes of the access file, and commands that are carried
out: those that change something, or all (``gateway.audit``). Failed sign-ins and requests refused unread need no right
to cause, so they are counted where they are too many. Each part of a record has a field of its own, cut to a length;
unverified names of clients are in none.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ackstream.gateway.errors import unavailable
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.errors import AccessDeniedError, DittoError
from ackstream.protocol.ledger import AuditRow
from ackstream.settings.access import ROLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from starlette.requests import HTTPConnection
    from typing_extensions import Self

    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.protocol.ditto.twin.permissions import Kind

MAX_CHARACTERS = 1_024
"""Maximum length of each text in a record."""

FREE = 5
"""Failures of one kind of an address that are recorded one by one within :data:`WINDOW_SECONDS`; others are counted."""
WINDOW_SECONDS = 60.0
ADDRESSES = 1_000
"""Addresses with counts of their own within that time; those of all others are counted together."""

SIGN_IN, REQUEST = "sign-in", "request"
"""Events: who opens a WebSocket or fails to sign in; a request that is refused before it is read."""

_READING = frozenset({"retrieve", "many", "list", "search", "count", "messages"})
_REPEATED = "further attempts of this address"


class Sender(NamedTuple):
    """Who sends, from where, and how: the subjects with their roles, an address, and a method of HTTP or WEBSOCKET."""

    subjects: tuple[str, ...]
    address: str | None = None
    method: str | None = None

    @classmethod
    def of(cls, connection: HTTPConnection, subjects: tuple[str, ...] = ()) -> Sender:
        """Return the sender of a connection."""
        peer = connection.client
        return cls(subjects, peer and peer.host, connection.scope.get("method", "WEBSOCKET"))


class Action(msgspec.Struct, frozen=True):
    """The subject of a record: a command, or the path of a request or file."""

    correlation_id: str | None = None
    command: str | None = None
    thing_id: str | None = None
    path: str | None = None


class Attempt:
    """One command of a client, from the check of its rights until it is sent; as a context it records a refusal."""

    def __init__(self, audit: Audit, sender: Sender, kind: Kind, command: Envelope, event: str) -> None:
        self._audit, self._sender, self._command, self._event = audit, sender, command, event
        self._records = audit.records(reading=kind in _READING)

    def __enter__(self) -> Self:
        if self._records:
            self._audit.check()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, AccessDeniedError):
            identity = self._command.headers.get(CORRELATION_ID)
            self._write(str(identity) if identity else None, allowed=False, status=error.status, reason=error.lacking)

    def sent(self, correlation_id: str) -> str:
        """Record that the command is sent under a correlation-id, which is returned."""
        if self._records:
            self._write(correlation_id, allowed=True)
        return correlation_id

    def _write(self, correlation_id: str | None, **how: Any) -> None:
        topic = self._command.topic
        action = Action(
            correlation_id,
            command="/".join(filter(None, (topic.channel, topic.criterion, topic.action or topic.subject))),
            thing_id=None if topic.namespace == "_" else topic.thing_id,
            path=self._command.path,
        )
        self._audit.write(self._event, self._sender, action, **how)


class Audit:
    """The records of a gateway."""

    def __init__(
        self,
        level: str = "off",
        take: Callable[[AuditRow], None] = lambda _: None,
        full: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Give records to ``take`` at a level, ``gateway.audit``; the clock is in epoch seconds. See :meth:`store`."""
        self.level, self._take, self._full, self._clock = level, take, full, clock
        self._failures, self._lock = FailureCounts(), threading.Lock()

    def store(self, take: Callable[[AuditRow], None], full: Callable[[], bool]) -> None:
        """Give records to ``take`` from now on; ``full``: too many wait to be stored to allow what needs another."""
        self._take, self._full = take, full

    def records(self, *, reading: bool) -> bool:
        """Return whether commands that are allowed are recorded."""
        return self.level == "all" or (self.level == "changes" and not reading)

    def check(self) -> None:
        """Refuse an action that could not be recorded, with 503."""
        if self.level != "off" and self._full():
            raise unavailable("The audit cannot be written at the moment, so nothing is done.", "Try again.")

    def attempt(self, sender: Sender, kind: Kind, command: Envelope, event: str = "command") -> Attempt:
        """Return the context that records a command (with the client's correlation-id) as its kind: change or query."""
        return Attempt(self, sender, kind, command, event)

    def opened(self, connection: HTTPConnection, subjects: tuple[str, ...]) -> None:
        """Record that a WebSocket was opened."""
        self.write(SIGN_IN, Sender.of(connection, subjects), Action(command=connection.scope["path"]), allowed=True)

    def failed(self, connection: HTTPConnection, error: DittoError, user: str | None) -> None:
        """Record, or count, a failed sign-in of a user, if known; an unknown name may be a password."""
        self._fail(SIGN_IN, connection, error, () if user is None else (f"user:{user}",))

    def refused(self, connection: HTTPConnection, error: DittoError, subjects: tuple[str, ...] = ()) -> None:
        """Record, or count, what is refused unread: for its names, a label, or a limit; the sender may be unknown."""
        self._fail(REQUEST, connection, error, subjects)

    @contextmanager
    def refusals(self, connection: HTTPConnection, subjects: tuple[str, ...] = ()) -> Iterator[None]:
        """Record, or count, an error that is raised within the block, as :meth:`refused` does."""
        try:
            yield
        except DittoError as error:
            self.refused(connection, error, subjects)
            raise

    def _fail(self, event: str, connection: HTTPConnection, error: DittoError, subjects: tuple[str, ...]) -> None:
        sender = Sender.of(connection, subjects)
        with self._lock:
            recorded = self._failures.take(event, sender.address, self._clock())
        if recorded:
            action = Action(command=connection.scope["path"])
            self.write(event, sender, action, allowed=False, status=error.status, reason=error.message)

    def turn(self, *, closing: bool = False) -> None:
        """Record the failures that were counted; to be called from time to time, in any thread."""
        with self._lock:
            due = self._failures.due(self._clock(), everything=closing)
        for event, address, count in due:
            self.write(event, Sender((), address), Action(), allowed=False, count=count, reason=_REPEATED)

    def read_rules(self, name: str, problem: str | None) -> None:
        """Record that the access file was read again, or refused."""
        self.write("rules", Sender(()), Action(path=name), allowed=problem is None, reason=problem)

    def write(
        self,
        event: str,
        sender: Sender,
        action: Action,
        *,
        allowed: bool,
        count: int = 1,
        status: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Give a record to be stored."""
        if self.level == "off":
            return
        subject, roles = _divided(sender.subjects)
        row = AuditRow(
            event=event,
            received_at=round(self._clock() * 1000),
            subject=subject,
            roles=roles,
            address=_cut(sender.address),
            method=_cut(sender.method),
            correlation_id=_cut(action.correlation_id),
            command=_cut(action.command),
            thing_id=_cut(action.thing_id),
            path=_cut(action.path),
            allowed=allowed,
            count=count,
            status=status,
            reason=_cut(reason),
        )
        self._take(row)


def _cut(text: str | None) -> str | None:
    return text if text is None else text[:MAX_CHARACTERS]


@lru_cache(maxsize=1024)
def _divided(subjects: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Return the subject and the roles among those of a sender."""
    own = [_cut(subject) for subject in subjects if not subject.startswith(ROLE)]
    roles = [subject.removeprefix(ROLE)[:MAX_CHARACTERS] for subject in subjects if subject.startswith(ROLE)]
    return own[0] if own else None, tuple(roles)


@dataclass
class _Failures:
    since: float
    recorded: int = 0
    counted: int = 0


class FailureCounts:
    """Which failures are recorded one by one, and how many others there were; times are seconds."""

    def __init__(self) -> None:
        self._of: OrderedDict[tuple[str, str | None], _Failures] = OrderedDict()

    def take(self, event: str, address: str | None, now: float) -> bool:
        """Return whether to record one; else it is counted."""
        if (event, address) not in self._of and len(self._of) >= ADDRESSES:
            address = None
        found = self._of.setdefault((event, address), _Failures(now))
        if found.recorded < FREE:
            found.recorded += 1
            return True
        found.counted += 1
        return False

    def due(self, now: float, *, everything: bool = False) -> list[tuple[str, str | None, int]]:
        """Return events and addresses whose time is over, and how many were counted, if any; they begin anew."""
        over = [key for key, found in self._of.items() if everything or now - found.since >= WINDOW_SECONDS]
        ended = [(*key, self._of.pop(key).counted) for key in over]
        return [(event, address, count) for event, address, count in ended if count]
