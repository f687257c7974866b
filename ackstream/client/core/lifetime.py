"""The life of a client: a thread that dies ends it visibly, and a handler of the application cannot end it.

A client keeps one :class:`Lifetime`, runs its threads with it, and passes the errors that end it to ``fail``. Its pure
:class:`Session` begins (logon, start or bind) until the job answers, then shows that it is alive; a later session of
the name ends it. Times and pauses are in one unit of any clock that only goes forward.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from ackstream.client.core.connection import Connection, Loop, OfOneProcess
from ackstream.client.errors import ThreadDiedError
from ackstream.errors import AckstreamError
from ackstream.kafka.clients import Closing

log = logging.getLogger(__name__)

AGAIN_SECONDS = 3.0
"""The pause before a beginning is repeated that the job did not answer, or could not process."""

LASTING_SECONDS = 10.0
"""A wait of the application that lasts longer is logged."""

ALIVE_PER_LEASE = 3
"""Signs of life per lease: two of them may be lost before the session lapses."""

P = TypeVar("P", bound=Any)
R = TypeVar("R", bound=Any)

ConnectionState: TypeAlias = Literal["connected", "disconnected", "resubscribed"]
"""The service answers a client (again); it has answered nothing for too long, or its session is lost; the subscriptions
of a session that was lost are back."""


def call_handler(handler: Callable[..., Any] | None, *arguments: Any) -> None:
    """Call a handler of the application, if there is one; log its exception."""
    try:
        if handler is not None:
            handler(*arguments)
    except Exception:
        log.exception("A handler of the application failed: %r", handler)


class Lifetime:
    """Whether a client works; ends once, by ``close`` (``error`` stays ``None``) or by the first error. Thread-safe."""

    def __init__(
        self,
        end: Callable[[Exception], None] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        on_connection: Callable[[ConnectionState], object] | None = None,
        name: str = "The client",
    ) -> None:
        """Begin; ``end`` fails the futures and waits of the client, before ``on_error``; ``name``: in the log."""
        self.error: Exception | None = None
        self.end, self._name = end, name
        self._on_error, self._on_connection = on_error, on_connection
        self._state: ConnectionState | None = None
        self._waiting = Lasting()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._here = threading.local()

    @property
    def inside(self) -> bool:
        """Whether the caller is a handler that the client calls, in a thread of its own or of its producer."""
        return bool(getattr(self._here, "calls", 0))

    @contextmanager
    def _calling(self) -> Iterator[None]:
        self._here.calls = getattr(self._here, "calls", 0) + 1
        try:
            yield
        finally:
            self._here.calls -= 1

    @property
    def alive(self) -> bool:
        """Whether the client is neither closed nor ended by an error."""
        return not self._over.is_set()

    def fail(self, error: Exception) -> None:
        """End the client with an error; one that is closed or has failed stays as it is."""
        with self._lock:
            if self.error is not None or self._over.is_set():
                return
            self.error = error
        try:
            if self.end is not None:
                self.end(error)
        finally:
            self._over.set()
        log.error("%s has ended: %s", self._name, error)
        with self._calling():
            call_handler(self._on_error, error)

    def enter(self, state: ConnectionState) -> None:
        """Note the state of the connection; report a change to the log and to the application."""
        with self._lock:
            before = self._state
            self._state = "connected" if state == "resubscribed" else state
        if state == (before or "disconnected"):
            return
        if state == "disconnected":
            log.warning("%s is disconnected: its records are not stored, or not answered. It tries again.", self._name)
        elif before == "disconnected":
            log.warning("%s is connected again.", self._name)
        call_handler(self._on_connection, state)

    def look(self, now: float, *, away: bool = False, waits: bool = False) -> None:
        """Enter the state that evidence shows (seconds of any clock), first ``connected``; a wait is one once it lasts.

        ``away``: Kafka did not store a record, or no answer came; ``waits``: for Kafka, an answer or a connection.
        """
        late = self._waiting.has(now, lasts=waits)
        if self._state is not None or not (away or waits):
            self.enter("disconnected" if away or late else "connected")

    def close(self) -> None:
        """Note that the application has closed the client."""
        self._over.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait for the end, without a timeout until Ctrl-C; return whether it came, and raise the error behind it."""
        with suppress(*[KeyboardInterrupt] if timeout is None else ()):
            self._over.wait(timeout)
        if self.error is not None:
            raise self.error
        return not self.alive

    def thread(self, run: Callable[[], None], name: str) -> Loop:
        """Return a thread that ends the client if ``run`` raises."""
        return Loop(partial(self.guard, run), name)

    def guard(self, run: Callable[[], object]) -> None:
        """Run the loop of a thread; its exception ends the client."""
        try:
            with self._calling():
                run()
        except AckstreamError as error:
            self.fail(error)
        except BaseException as error:  # sys.exit() in a handler, too
            name = threading.current_thread().name
            log.exception("The thread %s died.", name)
            died = ThreadDiedError(f"The thread {name} died of {error!r}: close the client, and create a new one.")
            died.__cause__ = error
            self.fail(died)


class Ending:
    """Finishes a client after its last handler: in the thread that closes it, or in that of the handlers.

    A thread of the client must not wait for the handlers, which wait for it when they finish the client.

    :ivar closing: set once the client is closed
    """

    def __init__(self, life: Lifetime, finish: Callable[[], object]) -> None:
        """Prepare; no handler runs before :meth:`start`. ``finish`` is called once."""
        self.closing = threading.Event()
        self._life, self._finish = life, finish
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._handles = self._finished = False

    def start(self, loop: Loop) -> None:
        """Start the loop that calls the handlers."""
        self._loop, self._handles = loop, True
        loop.start()

    def handle(self, run: Callable[[], None], over: Callable[[], bool] = lambda: True) -> None:
        """Run the loop that calls the handlers; ``over``: whether none is called any more once it has returned."""
        self._life.guard(run)
        with self._lock:
            self._handles = not over()
            last = not self._handles and self.closing.is_set()
        if last:
            self._life.guard(self._finish_once)

    def close(self, *, inside: bool = False) -> None:
        """Finish the client after the current handler; ``inside`` of one this returns, and its thread finishes it."""
        with self._lock:
            self.closing.set()
            handles = self._handles
        if self._loop is not None and not (inside or self._loop.inside):
            self._loop.join()
        elif handles:
            return
        self._finish_once()

    def _finish_once(self) -> None:
        if not self._finished:
            self._finished = True
            self._finish()


class Client(OfOneProcess, Closing):
    """Base of the clients of the SDK."""

    _life: Lifetime

    @property
    def alive(self) -> bool:
        """Whether the client is neither closed nor ended by an error."""
        return self._life.alive

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait ``timeout`` seconds, or until Ctrl-C, for the end; return whether it came; raise the error behind it."""
        return self._life.wait(timeout)


class Awaited:
    """Base of a state that callers wait for, until an error ends all waits. ``changed`` guards it. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.ended: Exception | None = None

    def end(self, error: Exception) -> None:
        """Fail current and later waits with an error; the first call decides which."""
        with self.changed:
            self.ended = self.ended or error
            self.changed.notify_all()

    def wait_for(
        self,
        condition: Callable[[], bool],
        timeout: float | None,
        lasting: Callable[[], str] | None = None,
        *,
        ask: Callable[[], None] | None = None,
        again: float = inf,
    ) -> bool:
        """Wait for a condition; return whether it holds, and raise the error that has ended the waits.

        ``lasting`` describes the wait, for a warning once it has lasted ten seconds. ``ask`` is called unless the
        condition holds, and after each pause of ``again`` seconds.
        """
        now = begun = time.monotonic()
        until, ask_at = inf if timeout is None else begun + timeout, inf if ask is None else begun
        warn_at = inf if lasting is None else begun + LASTING_SECONDS
        while True:
            left = min(until, ask_at, warn_at) - now
            with self.changed:
                done = self.changed.wait_for(
                    lambda: condition() or self.ended is not None, None if left == inf else max(0.0, left)
                )
                if self.ended is not None:
                    raise self.ended
            now = time.monotonic()
            if done or now >= until:
                return done
            if lasting is not None and now >= warn_at:
                log.warning("%s", lasting())
                warn_at = inf
            if ask is not None and now >= ask_at:
                ask()
                ask_at = now + again


class Session(Generic[P]):
    """One session of a client; ``position`` is where it begins by the job's answer; ``None``: none yet, or lost."""

    def __init__(self, again: float = AGAIN_SECONDS) -> None:
        self.position: P | None = None
        self._again = self._alive = again
        # when the next record is due; None: at once
        self._next: float | None = None

    def begin(self, position: P, alive: float) -> None:
        """Note the answer of the job; signs of life are ``alive`` apart, the first after the last beginning."""
        self.position, self._alive = position, alive

    def lapse(self) -> None:
        """Note that the job has ended the session: it begins again at once."""
        self.position = self._next = None

    def is_over(self, position: P) -> bool:
        """Return whether a session of the name that began at ``position`` has ended this one."""
        return self.position is not None and position > self.position

    def due(self, now: float) -> Literal["begin", "alive"] | None:
        """Return which record to send now, if one is due; it counts as sent."""
        if self._next is not None and now < self._next:
            return None
        self.sent(now)
        return "begin" if self.position is None else "alive"

    def sent(self, now: float) -> None:
        """Note a record that shows that the client is alive."""
        self._next = now + (self._again if self.position is None else self._alive)


class Lasting:
    """Whether something has lasted for :data:`LASTING_SECONDS`."""

    _since: float | None = None
    _has = False

    def has(self, now: float, *, lasts: bool) -> bool:
        """Note whether it lasts; return whether it has lasted (seconds of any clock)."""
        self._since = (now if self._since is None else self._since) if lasts else None
        return self._since is not None and now - self._since > LASTING_SECONDS

    def due(self, now: float, *, lasts: bool) -> bool:
        """Note whether it lasts; return whether to log it now: once, and again when it has begun again."""
        before, self._has = self._has, self.has(now, lasts=lasts)
        return self._has and not before


class Parts(Generic[R]):
    """An answer of ``shards`` with ``parts`` each (by default one); a shard's later answer replaces its earlier one."""

    def __init__(self) -> None:
        # by shard: the number of its parts and which answer they are, and the parts by number
        self._shards: dict[int, tuple[tuple[int, Hashable], dict[int, R]]] = {}
        self._expected = 0

    def add(self, record: R, answer: Hashable = None) -> "Parts[R]":
        """Add a record; ``answer`` distinguishes the answers of one shard."""
        kind = (getattr(record, "parts", 1), answer)
        if self._shards.setdefault(record.shard, (kind, {}))[0] != kind:
            self._shards[record.shard] = (kind, {})
        self._shards[record.shard][1][getattr(record, "part", 0)] = record
        self._expected = record.shards
        return self

    @property
    def whole(self) -> list[R] | None:
        """All records; ``None`` until every part of every shard has arrived."""
        found = [record for _, parts in self._shards.values() for record in parts.values()]
        complete = all(len(parts) == kind[0] for kind, parts in self._shards.values())
        return found if found and len(self._shards) == self._expected and complete else None


def answers(connection: Connection, name: str, topic: str, ask: Callable[[], bytes], timeout: float) -> Iterator[bytes]:
    """Write the record of ``ask`` to ``app-acks`` every 3 s until the timeout; yield the answers to the name."""
    until, session = time.monotonic() + timeout, Session[int]()
    with connection.link(name, sends="app-acks", addressed=topic) as link:
        while (now := time.monotonic()) < until:
            if session.due(now):
                link.send(ask())
            yield from (record.value for record in link.read())
