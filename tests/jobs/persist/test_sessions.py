"""A law of publishers and persist together: a success is in the table, whatever is lost, and whoever else publishes."""

from __future__ import annotations

from concurrent.futures import Future
from copy import deepcopy
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.errors import TakenOverError, refused
from ackstream.client.publications import Publications
from ackstream.client.storage import KeptMessage, MemoryMessages
from ackstream.client.unacknowledged import UnacknowledgedMessages
from ackstream.jobs.persist.admission import Admission
from ackstream.jobs.persist.fold import fold
from ackstream.jobs.persist.metadata import MessageMetadata
from ackstream.protocol.messages import SESSION_OVER, CommandAck
from ackstream.settings import Persist, PublishRule

if TYPE_CHECKING:
    from ackstream.client.receipts import Receipt
    from ackstream.jobs.persist.state import PublisherState

SECRET = Persist(entitlements=(PublishRule(clients=("*",), topics=("open",)),))


class Service:
    """Kafka's one partition, persist, and its table."""

    def __init__(self) -> None:
        self.log: list[tuple[dict[str, str], bytes]] = []
        self.stored: dict[int, bytes] = {}
        self.rows = 0
        self.states: dict[str, PublisherState] = {}
        self._folded = 0

    def batch(self) -> list[CommandAck]:
        """Fold what arrived; return the acks."""
        records = [self._record(offset) for offset in range(self._folded, len(self.log))]
        self._folded = len(self.log)
        result = fold(records, self.states, Admission(SECRET), floor_ms=500, batch=0)
        self.states |= result.changed
        rejected = {item.offset for item in result.rejected}
        for record in records:
            if record.offset not in rejected:
                seq = int(record.seq or 0)
                assert seq not in self.stored, "a number is stored once"
                self.stored[seq] = self.log[record.offset][1]
        return [ack for _, ack in result.acks]

    def _record(self, offset: int) -> MessageMetadata:
        headers, value = self.log[offset]
        names = ("client", "seq", "command", "cid", "ack", "topic", "ttl", "first", "ack-conflation")
        fields = [headers.get(name) for name in names]
        return MessageMetadata(0, offset, 1000 + offset, len(value), *fields, headers.get("publisher-session"))


class Process:
    """One publisher in one run, as its session drives it."""

    def __init__(self, service: Service, store: MemoryMessages, session: str) -> None:
        self.service, self.store, self.id = service, store, session
        self.messages = UnacknowledgedMessages(store, window=8)
        self.alive, self.outbox, self.inbox = True, list[int](), list[CommandAck]()
        self.futures: dict[bytes, tuple[int, Future[Receipt]]] = {}
        self._records = Publications("p", session, acknowledged=True)
        kept = store.numbers()
        first = kept[0] if kept else store.last + 1
        self._write(self._records.logon(session, first if kept or first > 1 else None, None))

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
            resent, holes = self.messages.logged_on(ack.seq or 0, ack.highest or 0)
            for hole in holes:
                self._write(self._records.withdrawal(*hole))
            self.outbox += resent
        else:
            self.alive = False
            self.messages.end(TakenOverError("taken over"))

    def publish(self, value: bytes, topic: str) -> None:
        future: Future[Receipt] = Future()
        if self.alive:
            number = self.messages.add(KeptMessage(value, [("topic", topic.encode())]), future, None, None)
            if number is not None:
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
            self.messages.rejected(seq, refused("message too large", f"Message {seq}"))
        elif fate == "lost":
            self.messages.rejected(seq)
        else:
            self._write(self._records.message(seq, message), message.value)
            self.messages.accepted(seq)

    def _write(self, headers: list[tuple[str, bytes]], value: bytes = b"") -> None:
        self.service.log.append(({name: text.decode() for name, text in headers}, value))


class World:
    """Publishers of one name, one after the other or side by side."""

    def __init__(self) -> None:
        self.service = Service()
        self.everybody: list[Process] = []
        self.copy = MemoryMessages()
        self.running = [self.start(MemoryMessages())]

    def start(self, store: MemoryMessages) -> Process:
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
        elif action == "second":
            self.running = [process, self.start(MemoryMessages())]
        else:
            process.alive = False
            stores = {"restart": process.store, "older": deepcopy(self.copy), "nothing": MemoryMessages()}
            self.running = [self.start(stores[action])]


SIDE_BY_SIDE = {"open": 6, "taken": 6, "batch": 2, "read": 3, "second": 2, "restart": 1, "nothing": 1}
DISASTERS = {"open": 6, "secret": 1, "taken": 3, "lost": 2, "refused": 1, "batch": 1, "read": 2, "copy": 1, "older": 1}


def _drawn(weights: dict[str, int]) -> st.SearchStrategy[list[tuple[str, int]]]:
    actions = st.sampled_from([action for action, weight in weights.items() for _ in range(weight)])
    return st.lists(st.tuples(actions, st.integers(0, 1)), min_size=5, max_size=60)


@given(actions=_drawn(SIDE_BY_SIDE) | _drawn(DISASTERS) | _drawn(SIDE_BY_SIDE | DISASTERS))
def test_a_success_is_in_the_table_whatever_is_lost_and_whoever_publishes_beside_it(
    actions: list[tuple[str, int]],
) -> None:
    world = World()
    for step, (action, index) in enumerate([*actions, ("batch", 0), ("read", 0), ("read", 1)]):
        world.act(action, b"%d" % step, index)
    for process in world.everybody:
        for value, (number, future) in process.futures.items():
            if future.done() and future.exception() is None:
                assert world.service.stored.get(number) == value, (number, future.result())
