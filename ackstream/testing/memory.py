"""The connection of clients to a system in memory, and its time: no thread runs, and nothing waits."""

import threading
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ackstream.client.core.connection import Connection, Guard, Loop, Producer, RequestFuture
from ackstream.errors import BadParameterError, PreconditionNotMetError
from ackstream.kafka.reader import TopicReader
from ackstream.protocol.ditto.labels import Claim, LabelsTakenError
from ackstream.settings import Kafka


class VirtualTime(ABC):
    """Base of the systems in memory; ``now`` is the time in epoch milliseconds, ``loops`` the steps of the clients."""

    def __init__(self, start_ms: int = 0) -> None:
        self.now = start_ms
        self.loops: list[_MemoryLoop] = []

    def advance(self, seconds: float) -> None:
        """Let time pass; everything due happens at its own time. A negative number is a ``BadParameterError``."""
        if seconds < 0:
            raise BadParameterError(f"The number of seconds is {seconds}: time does not go back.")
        until = self.now + round(seconds * 1000)
        while (due := self._due()) is not None and due <= until:
            self._step(due)
        # a handler may have let more time pass
        self._step(max(self.now, until))

    def run_until(self, done: Callable[[], bool]) -> None:
        """Let time pass until a condition holds, or until no event is left."""
        while not done() and (due := self._due()) is not None:
            self._step(due)

    def turn(self) -> None:
        """Let the clients take their steps."""
        for loop in list(self.loops):
            loop.turn()

    @abstractmethod
    def _due(self) -> int | None:
        """Return the next time at which something happens, not before now; ``None``: never."""

    @abstractmethod
    def _step(self, now: int) -> None:
        """Move the time to ``now``, and let due events happen."""


@dataclass(frozen=True)
class TopicRecord:
    """A record of a topic, which has one partition; ``timestamp`` is the system's time in epoch milliseconds."""

    topic: str
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int = 0

    @property
    def coordinates(self) -> tuple[str, int, int]:
        """Topic, partition and offset."""
        return self.topic, self.partition, self.offset


class MemorySystem(VirtualTime):
    """Topics and labels in memory, and clients; ``records`` by topic, ``unread`` those that have not acted yet."""

    def __init__(self, start_ms: int = 0) -> None:
        super().__init__(start_ms)
        self.records: defaultdict[str, list[TopicRecord]] = defaultdict(list)
        self.unread: deque[TopicRecord] = deque()
        self.connection = _MemoryConnection(self)
        self._listeners: defaultdict[str, list[Callable[[TopicRecord], None]]] = defaultdict(list)
        self._labels: set[str] = set()

    @abstractmethod
    def settle(self) -> None:
        """Let the stored records act, and the records that these cause."""

    def claim(self, labels: frozenset[str]) -> Callable[[], None]:
        """Give labels to a receiver, unless another one has one; return the function that takes them from it."""
        if labels & self._labels:
            raise LabelsTakenError(labels, [Claim(frozenset(self._labels))])
        self._labels |= labels
        return lambda: self._labels.difference_update(labels)

    def listen(self, topic: str, receive: Callable[[TopicRecord], None]) -> None:
        """Call a function with each record of a topic from now on."""
        self._listeners[topic].append(receive)

    def append(
        self, topic: str, value: bytes | None, key: bytes | None, headers: Iterable[tuple[str, bytes]]
    ) -> TopicRecord:
        """Store a record, which acts with the next :meth:`settle`."""
        record = TopicRecord(topic, len(self.records[topic]), self.now, key, value, tuple(headers))
        self.records[topic].append(record)
        self.unread.append(record)
        return record

    def give(self, record: TopicRecord) -> None:
        """Give a record to the clients that read its topic."""
        for receive in list(self._listeners[record.topic]):
            receive(record)
        self.turn()


class _DrivenFuture(RequestFuture[Any]):
    """A future that lets the time of its system pass while someone waits for it."""

    def __init__(self, system: VirtualTime) -> None:
        super().__init__()
        self._system = system

    def result(self, timeout: float | None = None) -> Any:
        self._system.run_until(self.done)
        # no real time passes
        return super().result(0 if timeout is None else timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._system.run_until(self.done)
        return super().exception(0 if timeout is None else timeout)


class _MemoryReader(TopicReader):
    """Gives a client the records of topics as they are stored."""

    reached = True

    def __init__(self, system: MemorySystem, topics: Iterable[str], stop: threading.Event | None) -> None:
        super().__init__(None, stop)
        self._system = system
        self._records: list[Any] = []
        for topic in set(topics):
            system.listen(topic, self._records.append)

    def read(self, timeout_ms: int = 0, max_records: int = 0) -> list[Any]:  # noqa: ARG002
        found = list(self._records)
        self._records.clear()
        return found

    def start(self, name: str, *handlers: Callable[[Any], object], guard: Guard | None = None, **_: Any) -> None:  # noqa: ARG002
        handle, *after = handlers

        def step() -> None:
            for record in self.read():
                handle(record)
            for act in after:
                act(self._system.connection.now())

        _MemoryLoop(self._system, step, self.stop, guard or (lambda run: run())).start()

    def close(self) -> None:
        self.stop.set()


@dataclass(eq=False)
class _MemoryLoop(Loop):
    """A step of a client; the system takes it when a record is stored and when time passes."""

    _system: VirtualTime
    _step: Callable[[], None]
    _stop: threading.Event
    _guard: Guard
    due: Callable[[], float | None] = lambda: None
    inside = False

    def start(self) -> None:
        self._system.loops.append(self)

    def join(self) -> None:
        if self in self._system.loops:
            self._system.loops.remove(self)

    def turn(self) -> None:
        if self._stop.is_set():
            return
        outer, self.inside = self.inside, True
        try:
            self._guard(self._step)
        finally:
            self.inside = outer


class _MemoryProducer(Producer):
    """Stores records in the topics of a system, which has every topic, and lets them act."""

    def __init__(self, system: MemorySystem) -> None:
        self._system = system

    def put(self, stored: Callable[[Any], None], failed: object, topic: str, **record: Any) -> None:  # noqa: ARG002
        stored(self._system.append(topic, record["value"], record["key"], record["headers"]))
        self._system.settle()

    def prepare(self, topic: str) -> None:
        pass

    def close(self, timeout: float = 0.0) -> None:
        pass


class VirtualConnection(Connection):
    """Lets clients act in the time of a system in memory."""

    def __init__(self, system: VirtualTime) -> None:
        # topics have their plain names here
        super().__init__(Kafka())
        self._time = system

    def now(self) -> float:
        """Return the time of the system in seconds."""
        return self._time.now / 1000

    def wait(self, seconds: float, over: threading.Event) -> None:  # noqa: ARG002
        """Let the time of the system pass."""
        self._time.advance(seconds)

    def future(self) -> _DrivenFuture:
        """Return a future that lets the time of the system pass."""
        return _DrivenFuture(self._time)

    def loop(self, step: Callable[[], None], name: str, *options: Any) -> _MemoryLoop:  # noqa: ARG002
        """Return a loop that the system drives."""
        return _MemoryLoop(self._time, step, *options)


class _MemoryConnection(VirtualConnection):
    """Connects requesters, responders and subscribers with a system in memory."""

    def __init__(self, system: MemorySystem) -> None:
        super().__init__(system)
        self._system = system
        self.claim = system.claim

    def reader(self, *topics: str, stop: threading.Event | None = None, **_: Any) -> _MemoryReader:
        return _MemoryReader(self._system, topics, stop)

    def producer(self, topic: str, **_: Any) -> _MemoryProducer:  # noqa: ARG002 - it may write to all
        return _MemoryProducer(self._system)

    def consumer(self, *_: str, **__: Any) -> Any:
        raise PreconditionNotMetError("A system in memory has no consumer groups: leave group out.")

    def link(self, name: str, *_: Any, **__: Any) -> Any:
        raise PreconditionNotMetError(
            f"A RequestSystem has requesters, responders and subscribers only: connect {name} to Kafka."
        )
