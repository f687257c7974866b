"""The requests plane in memory: correlate and the twin, in a time that the test moves.

Supported: commands and messages, records of any kind, acknowledgements, live responses, the twin with its things and
events, timeouts, late and early acknowledgements, repeated requests, delayed answers.
Not supported: several partitions, lost brokers and jobs, leases of labels, ``correlate.refuse_undeclared``.
"""

from collections.abc import Iterable
from functools import partial
from hashlib import blake2b
from math import ceil
from typing import Any
from zlib import crc32

import msgspec
from msgspec import UNSET

from ackstream.client.parties.receivers import Responder, Subscriber
from ackstream.client.parties.signals import record_correlation_id
from ackstream.client.requests.requester import Requester
from ackstream.errors import BadParameterError
from ackstream.jobs.correlate.records import Emission, Writer
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.state import ACKS, LARGEST_NUMBER, OWN, SIGNALS, TWIN_ACKS, Record
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.jobs.twin.batch import fold, search_persisted
from ackstream.jobs.twin.changes import Thing
from ackstream.jobs.twin.records import SignalRecord
from ackstream.protocol import ledger, record_headers
from ackstream.protocol.ditto.acknowledgements import acknowledgement, write_ack
from ackstream.protocol.ditto.correlation_ids import correlation_id
from ackstream.protocol.ditto.envelopes import PROTOCOL_CONTENT_TYPE, Envelope, encode, raw
from ackstream.protocol.ditto.record_requests import ASKING, cancels
from ackstream.protocol.ditto.topics import UNKNOWN_THING
from ackstream.protocol.json import UNREADABLE
from ackstream.protocol.ledger import DEAD_LETTER_BYTES, LedgerRecord
from ackstream.protocol.record_headers import CORRELATION_ID
from ackstream.settings import Correlate, Kafka, Settings
from ackstream.settings.jobs import matches
from ackstream.spark.pieces import PieceStore
from ackstream.spark.records import Share
from ackstream.testing.memory import MemorySystem, TopicRecord

SOURCES = {"signals": SIGNALS, "acks": ACKS, "twin-acks": TWIN_ACKS}
"""The topics that correlate reads here, and their numbers in its state."""


def hash_of(text: str) -> int:
    """Return the 64-bit hash by which correlate remembers a decided request; Spark computes another one."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def for_correlate(record: TopicRecord, limits: Correlate) -> Record | None:
    """Return a record as correlate's source gives it to a shard; ``None``: it is neither a request nor an answer."""
    value, role, number, topic = record.value, SOURCES.get(record.topic), 0, None
    headers = {name: value for name, value in record.headers if value}
    if role is not None:
        identity = correlation_id(record.headers, _json_headers(value), record.coordinates)
    else:
        topic, number = record.topic, crc32(record.topic.encode()) & LARGEST_NUMBER
        if (headers.keys() & {*ASKING} or cancels(headers, value)) and matches(limits.request_topics, topic):
            role, identity = SIGNALS, record_correlation_id(headers, record.coordinates)
        elif record_headers.LABEL in headers and matches(limits.ack_topics, topic):
            role, identity = ACKS, correlation_id(record.headers, {}, record.coordinates)
        else:
            return None
    own = "-".join(map(str, record.coordinates))
    known = None if identity == own and role != SIGNALS else identity
    size = len(value or b"")
    if value is not None and size > limits.max_value_bytes:
        value = value[:DEAD_LETTER_BYTES]
    headers.pop(record_headers.CORRELATION_ID, None)
    place = (record.timestamp, role + OWN * number, record.partition, record.offset)
    return Record(*place, hash_of(identity), known, record.key, value, size, headers, topic)


def headers_of(emission: Emission) -> list[tuple[str, bytes]]:
    """Return the record headers of an emission of correlate, in the order of its sink."""
    if emission.reply_id is None:
        return [] if emission.reason is None else [(record_headers.REASON, emission.reason.encode())]
    own, repeated = record_headers.reply_record_headers(partial(getattr, emission), PROTOCOL_CONTENT_TYPE)
    found = {name: value for name, value in (own | repeated).items() if value is not None}
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in found.items()]


def _json_headers(value: bytes | None) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(value or b"")
    except UNREADABLE:
        return {}
    headers = found.get("headers") if isinstance(found, dict) else None
    return headers if isinstance(headers, dict) else {}


def process(shard: CorrelateShard, records: Iterable[Record], tick: int = 0) -> None:
    """Let a shard process a batch; its writer keeps the emissions."""
    for _ in shard.process(Share(list(records)), tick):
        pass


class ShardRun:
    """Feeds a shard of correlate batch by batch; its state goes through bytes in between, as it does in Spark."""

    def __init__(
        self, limits: Correlate, topics: CorrelateTopics, slack_ms: int = 0, store: PieceStore | None = None
    ) -> None:
        self.topics, self.limits, self.store = topics, limits, store
        self.state: tuple[int, bytes] | None = None
        self.batch = 0
        self.next_timeout: int | None = None
        self._slack_ms = slack_ms

    def process(self, records: Iterable[Record], tick: int = 0) -> list[Emission]:
        """Process a batch, after which no record before ``tick`` (epoch milliseconds) follows; return its emissions."""
        writer = Writer(self.topics, "query", self.batch)
        self.batch += 1
        if self.store is not None:
            self.store.batch = self.batch
        shard = CorrelateShard(self.limits, self.topics, writer, self._slack_ms, self.store)
        if self.state is not None:
            shard.load(*self.state)
        process(shard, records, tick)
        self.state, self.next_timeout = shard.dump(), shard.next_timeout
        return writer.emissions


class RequestSystem(MemorySystem):
    """Everything between requesters and responders; for one thread.

    A record acts when it is fed: the jobs and the receivers have written their records when the call returns.
    Time stands still until the test moves it (:meth:`advance`), or waits for a future of :meth:`requester`. A record
    that arrives at a deadline is still in time; the deadline itself has passed a millisecond later.

    :ivar records: the records of each topic, by its name: ``signals``, ``acks``, ``replies``, ``ledger``, ``events`` …
    :ivar things: the things of the twin, by their ids
    :ivar now: the time in epoch milliseconds
    """

    def __init__(self, settings: Settings | None = None, *, twin: bool = False, start_ms: int = 0) -> None:
        """Start with empty topics.

        :param settings: limits and times of the jobs; ``None``: the defaults; an unsupported one: ``BadParameterError``
        :param twin: whether the twin runs, which carries out commands, and answers ``twin-persisted`` and
            ``search-persisted``; an unknown thing is an error then
        :param start_ms: the time at first, in epoch milliseconds
        """
        super().__init__(start_ms)
        self.settings = settings or Settings()
        if self.settings.correlate.refuse_undeclared:
            raise BadParameterError("correlate.refuse_undeclared is on, but leases do not run here: leave it out.")
        # topics have their plain names here
        self.settings = self.settings.model_copy(update={"kafka": Kafka()})
        self._correlate = ShardRun(self.settings.correlate, CorrelateTopics())
        self._twin = twin
        self.things: dict[str, Thing] = {}

    def requester(self, **options: Any) -> Requester:
        """Return a requester, whose futures take no real time: the system's time jumps to the reply or the deadline."""
        default = {"default_timeout": self.settings.correlate.default_timeout / 1000}
        return Requester(self.connection, **default | options)

    def responder(self, **options: Any) -> Responder:
        """Call a handler for each command and message from now on; the options are those of ``Responder``."""
        return Responder(self.connection, **options)

    def subscriber(self, **options: Any) -> Subscriber:
        """Call a handler for each signal that is subscribed to; the options are those of ``Subscriber``."""
        return Subscriber(self.connection, **options)

    def send(self, command: Envelope) -> TopicRecord:
        """Write a command or message to ``signals``, as a program of any language does without waiting for a reply."""
        return self.feed("signals", encode(command), key=command.topic.thing_id.encode())

    def acknowledge(
        self, correlation_id: str, label: str, status: int = 200, *, thing_id: str = UNKNOWN_THING, payload: Any = UNSET
    ) -> TopicRecord:
        """Write an acknowledgement of a request's thing, or of a record, to ``acks``; ``payload`` is any JSON value."""
        value = payload if payload is UNSET else raw(payload)
        ack = acknowledgement(label, status, value, {CORRELATION_ID: correlation_id})
        return self.feed("acks", encode(write_ack(ack, thing_id)), key=thing_id.encode())

    def feed(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: Iterable[tuple[str, bytes]] = ()
    ) -> TopicRecord:
        """Write any record, let it act, and return it.

        It acts in ``signals``, ``acks``, ``twin-acks`` and the topics of ``correlate.request_topics`` and
        ``correlate.ack_topics`` only.
        """
        record = self.append(topic, value, key, headers)
        self.settle()
        return record

    def _due(self) -> int | None:
        waits = [wait for loop in self.loops if (wait := loop.due()) is not None]
        # 0.1 + 0.2 is more than 0.3
        times = [self.now + ceil(wait * 1000 - 1e-6) for wait in waits]
        if self._correlate.next_timeout is not None:
            times.append(self._correlate.next_timeout + 1)
        return max(self.now, min(times)) if times else None

    def _step(self, now: int) -> None:
        self.now = now
        self.turn()
        self.settle()
        self._write(self._correlate.process([], self.now))
        self.settle()

    @property
    def ledger(self) -> list[LedgerRecord]:
        """The decisions of correlate: outcomes, and acknowledgements that were not used with their disposition."""
        return [ledger.decode(record.value or b"") for record in self.records["ledger"]]

    @property
    def dead_letters(self) -> list[str]:
        """Why records could not be used, one reason for each."""
        return [dict(record.headers)["reason"].decode() for record in self.records["dead-letters"]]

    def settle(self) -> None:
        """Let the stored records act, and the records that these cause."""
        while self.unread:
            record = self.unread.popleft()
            if (shown := for_correlate(record, self.settings.correlate)) is not None:
                # only a tick lets time pass
                self._write(self._correlate.process([shown]))
            if self._twin and record.topic == "signals":
                self._fold(record)
            self.give(record)

    def _write(self, emissions: list[Emission]) -> None:
        for emission in emissions:
            self.append(emission.topic, emission.value, emission.key, headers_of(emission))

    def _fold(self, record: TopicRecord) -> None:
        """Give a signal to the twin; store its answers, its events and the acknowledgements of its index."""
        headers = {name: value for name, value in record.headers if value}
        own = headers.get(CORRELATION_ID)
        text = None if own is None else own.decode("utf-8", "replace")
        chosen = headers.get(record_headers.REPLY_TO) or headers.get(record_headers.SPRING_REPLY_TOPIC)
        signal = SignalRecord(record.timestamp, record.partition, record.offset, text, record.value, chosen)
        for result in fold([signal], self.things, self.settings):
            messages = list(result.messages)
            for row in result.rows:
                if row.search_persisted:
                    reply_id = ledger.reply_id(row.correlation_id, *record.coordinates)
                    messages.append(search_persisted(row.thing_id, row.correlation_id, reply_id, visible=row.visible))
            for message in messages:
                written = [(name, value.encode()) for name, value in message.headers]
                self.append(message.topic, message.value, message.key.encode(), written)
