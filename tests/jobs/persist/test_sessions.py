"""A law of publishers and persist together: a success is in the table, whatever is lost, and whoever else publishes."""

from __future__ import annotations

from concurrent.futures import Future
from copy import deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import example, given
from hypothesis import strategies as st

from ackstream.client.core.storage import KeptMessage, PublishStore
from ackstream.client.errors import RefusedError, TakenOverError
from ackstream.client.options import PublisherOptions
from ackstream.client.publishing._acks import RENUMBERED
from ackstream.client.publishing._unacknowledged import UnacknowledgedMessages
from ackstream.client.publishing.publications import FailedMessage, Headers, Open, Publications, Receipt
from ackstream.client.reading._reader_history import ReaderHistory
from ackstream.client.reading.samples import ReaderQos, of_record
from ackstream.jobs.persist.backlog import AckPacing, BatchAcks
from ackstream.jobs.persist.decisions import Admission
from ackstream.jobs.persist.job import fold
from ackstream.jobs.persist.records import MessageMetadata
from ackstream.protocol.dispositions import SESSION_OVER
from ackstream.protocol.messages import CommandAck
from ackstream.protocol.readers import KnownWriter, ReaderStart
from ackstream.settings import Persist, PublishRule

if TYPE_CHECKING:
    from ackstream.jobs.persist.state import PublisherState

WINDOW = 8
SECRET = Persist(entitlements=(PublishRule(clients=("*",), topics=("open",)),))


class Service:
    """Kafka's partitions of the publisher, of which a second one may be added; persist, and its table.

    :ivar behind: whether the first partition is not read for the moment
    """

    def __init__(self) -> None:
        self.logs: list[list[tuple[int, dict[str, str], bytes]]] = [[]]
        self.stored: dict[int, bytes] = {}
        self.refused: set[int] = set()
        self.states: dict[str, PublisherState] = {}
        self.behind = False
        self._folded = [0, 0]
        self._pacing, self._batches = AckPacing(), 0
        self._time = 1000

    def write(self, headers: dict[str, str], value: bytes) -> None:
        """Append a record to the newest partition."""
        self._time += 1
        self.logs[-1].append((self._time, headers, value))

    def batch(self) -> list[CommandAck]:
        """Fold what arrived; return the acks that are due, which others are in the next batch."""
        records = []
        for partition, log in enumerate(self.logs):
            if partition > 0 or not self.behind:
                records += [self._record(partition, offset) for offset in range(self._folded[partition], len(log))]
                self._folded[partition] = len(log)
        result = fold(records, self.states, Admission(SECRET), floor_ms=500, batch=0)
        self.states |= result.changed
        rejected = {(item.partition, item.offset): item.reason for item in result.rejected}
        for record in records:
            reason, seq = rejected.get((record.partition, record.offset), "stored"), int(record.seq or 0)
            value = self.logs[record.partition][record.offset][2]
            if reason == "stored":
                assert seq not in self.stored, "a number is stored once"
                self.stored[seq] = value
            elif reason is not None and reason != SESSION_OVER:
                self.refused.add(seq)
            elif record.command is None and reason is None:
                assert self.stored.get(seq) == value or seq in self.refused, "only a copy is dropped without a reason"
        self._batches += 1
        for client, ack in result.acks:
            window, urgent = result.changed[client].window, client in result.urgent
            self._pacing.add(BatchAcks(client, [ack], 1, window, urgent=urgent), 0, self._batches)
        return [paced.ack for paced in self._pacing.take(self._batches)]

    def _record(self, partition: int, offset: int) -> MessageMetadata:
        time, headers, value = self.logs[partition][offset]
        names = ("client", "seq", "command", "cid", "ack", "topic", "ttl", "first", "ack-conflation")
        fields = [headers.get(name) for name in names]
        more = (headers.get("publisher-session"), headers.get("publish-window"), None, headers.get("publisher-store"))
        return MessageMetadata(partition, offset, time, len(value), *fields, *more)


class Process:
    """One publisher in one run, as its session drives it."""

    def __init__(self, service: Service, store: PublishStore, session: str) -> None:
        self.service, self.store, self.id = service, store, session
        self.failed: list[bytes | None] = []
        options = PublisherOptions("localhost:9092", name="p", window=WINDOW, on_failed_write=self._fail)
        self.messages = UnacknowledgedMessages(store, options)
        self.alive, self.outbox, self.inbox = True, list[int](), list[CommandAck]()
        self.futures: dict[bytes, tuple[int, Future[Receipt]]] = {}
        self._records = Publications("p", session, acknowledged=True)
        kept = store.numbers()
        first = kept[0] if kept else store.last + 1
        self._write(self._records.logon(session, first if kept or first > 1 else None, WINDOW, None, store.store))

    def read(self) -> None:
        """Process the answers that have arrived."""
        while self.inbox and self.alive:
            ack = self.inbox.pop(0)
            if ack.ack_type == "processed":
                self._read_logon(ack)
            elif ack.session in (None, self.id):
                self.outbox += self.messages.acknowledged(ack)

    def _read_logon(self, ack: CommandAck) -> None:
        if ack.cid == self.id and ack.reason != SESSION_OVER:
            before = [message.value for seq in self.store.numbers() if (message := self.store.get(seq))]
            resent, holes = self.messages.logged_on(ack.seq or 0, ack.highest or 0, ack.takeovers)
            kept = {message.value for seq in self.store.numbers() if (message := self.store.get(seq))}
            known = {*kept, *self.failed, *self.service.stored.values()}
            assert all(value in known for value in before), "what a store has kept is stored, refused, or sent again"
            for hole in holes:
                self._write(self._records.withdrawal(*hole))
            self.outbox += resent
        else:
            self.alive = False
            self.messages.end(TakenOverError("taken over"))

    def _fail(self, message: FailedMessage) -> None:
        if message.reason != RENUMBERED:
            self.failed.append(message.value)

    def publish(self, value: bytes, topic: str) -> None:
        future: Future[Receipt] = Future()
        if self.alive:
            message = KeptMessage(value, [("topic", topic.encode())])
            for number in self.messages.add([(message, Open(future, None))]):
                self.futures[value] = number, future
                self.outbox.append(number)

    def transmit(self, fate: str) -> None:
        """Give Kafka the oldest message that was sent: it takes it, or loses it, or refuses it for good."""
        if not self.outbox:
            self.outbox += self.messages.overdue()
        if not self.outbox:
            return
        seq = self.outbox.pop(0)
        message = self.messages.resend(seq)
        if message is None:
            return
        if fate == "refused":
            self.messages.rejected(seq, RefusedError.of("message too large", f"Message {seq}"))
        elif fate == "lost":
            self.messages.rejected(seq)
        else:
            self._write(self._records.message(seq, message), message.value)
            self.messages.accepted(seq)

    def _write(self, headers: list[tuple[str, bytes]], value: bytes = b"") -> None:
        self.service.write({name: text.decode() for name, text in headers}, value)


class World:
    """Publishers of one name, one after the other or side by side."""

    def __init__(self) -> None:
        self.service = Service()
        self.everybody: list[Process] = []
        self.copy = PublishStore()
        self.running = [self.start(self.store())]

    def store(self) -> PublishStore:
        """Return one with a file, of which this is the copy in memory."""
        found = PublishStore()
        found.store = f"file-{len(self.everybody)}"
        return found

    def start(self, store: PublishStore) -> Process:
        process = Process(self.service, store, f"logon-{len(self.everybody)}")
        self.everybody.append(process)
        self.batch()
        process.read()
        return process

    def batch(self) -> None:
        acks = self.service.batch()
        for process in self.everybody:
            # the answers to earlier logons, which a publisher recognises by their position, are left out
            own = [index for index, ack in enumerate(acks) if ack.cid == process.id]
            process.inbox += acks[own[0] :] if own and not process.inbox else acks

    def act(self, action: str, value: bytes, index: int) -> None:
        process = self.running[index % len(self.running)]
        if action in ("open", "secret"):
            process.publish(value, action)
        elif action in ("taken", "lost", "refused"):
            process.transmit(action)
        elif action == "read":
            process.read()
        elif action == "batch":
            self.batch()
        elif action == "copy":
            self.copy = deepcopy(process.store)
        elif action == "added" and len(self.service.logs) == 1:
            self.service.logs.append([])
            self.service.behind = True
        elif action in ("added", "caught up"):
            self.service.behind = False
        elif action == "second":
            self.running = [process, self.start(self.store() if index else PublishStore())]
        else:
            process.alive = False
            stores = {"restart": process.store, "older": deepcopy(self.copy), "nothing": self.store()}
            self.running = [self.start(stores[action])]


SIDE_BY_SIDE = {"open": 6, "taken": 6, "batch": 2, "read": 3, "second": 2, "restart": 1, "nothing": 1}
DISASTERS = {"open": 6, "secret": 1, "taken": 3, "lost": 2, "refused": 1, "batch": 1, "read": 2, "copy": 1, "older": 1}

ADDED = {
    "open": 6,
    "secret": 1,
    "taken": 6,
    "batch": 2,
    "read": 3,
    "added": 1,
    "caught up": 1,
    "nothing": 2,
    "restart": 1,
}


def _drawn(weights: dict[str, int]) -> st.SearchStrategy[list[tuple[str, int]]]:
    actions = st.sampled_from([action for action, weight in weights.items() for _ in range(weight)])
    return st.lists(st.tuples(actions, st.integers(0, 1)), min_size=5, max_size=60)


TWO_STORES = "open 0, batch 0, second 0, open 1, taken 1, batch 0, read 1, restart 0"
"""The first keeps a message that Kafka has not got, when another publisher uses its number."""


@given(_drawn(SIDE_BY_SIDE) | _drawn(DISASTERS) | _drawn(SIDE_BY_SIDE | DISASTERS) | _drawn(ADDED))
@example([(action, int(index)) for action, index in map(str.split, TWO_STORES.split(", "))])
def test_a_success_is_in_the_table_whatever_is_lost_and_whoever_publishes_beside_it(
    actions: list[tuple[str, int]],
) -> None:
    world = World()
    for step, (action, index) in enumerate([*actions, ("caught up", 0), ("batch", 0), ("read", 0), ("read", 1)]):
        world.act(action, b"%d" % step, index)
    for process in world.everybody:
        for value, (number, future) in process.futures.items():
            if future.done() and future.exception() is None:
                assert world.service.stored.get(number) == value, (number, future.result())


def test_a_reader_gets_what_persist_has_stored_of_two_publishers_of_a_name_wherever_it_begins() -> None:
    log: list[Any] = []

    def write(headers: Headers, value: bytes = b"") -> None:
        log.append(SimpleNamespace(partition=0, offset=len(log), timestamp=1_000, value=value, headers=headers))

    def publish(publisher: Publications, seq: int, value: bytes) -> None:
        write(publisher.message(seq, KeptMessage(value, [])), value)

    old, new = (Publications("p", session, acknowledged=True) for session in ("old", "new"))
    write(old.logon("old", None, WINDOW, None))
    publish(old, 1, b"old 1")
    write(new.logon("new", None, WINDOW, None))
    # the old process has not learned of its successor yet
    for publisher, value in ((old, b"refused"), (new, b"stored")) * 2:
        publish(publisher, 2 + len(log) // 6, value)
    names = {"client": "client", "seq": "seq", "command": "command", "cid": "cid", "session": "publisher-session"}
    records = []
    for record in log:
        headers = {name: value.decode() for name, value in record.headers}
        fields = {field: headers.get(name) for field, name in names.items()}
        records.append(MessageMetadata(0, record.offset, record.timestamp, len(record.value), **fields))
    result = fold(records, {}, Admission(Persist()), floor_ms=0, batch=0)
    assert [item.offset for item in result.rejected if item.reason] == [3, 5]
    for start in range(4):
        history = ReaderHistory(
            ReaderQos(), ReaderStart("r", 1), wanted=lambda _: True, on_acknowledged=lambda *_: None
        )
        if start:
            history.begin(KnownWriter("p", 1, 1, ((1, 1),)))
        for record in log[start:]:
            if (sample := of_record(record)) is not None:
                history.add(sample)
        for stored in result.stored:
            history.mark_stored(stored)
        found = [(sample.seq, sample.value) for sample in history.take(9, 0) if sample.seq > 1]
        assert found == [(2, b"stored"), (3, b"stored")]
