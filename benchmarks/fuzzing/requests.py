"""correlate and the twin under fuzz."""

from __future__ import annotations

from collections import Counter, deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from ackstream.jobs.correlate.records import Writer
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.state import ACKS, SIGNALS, TWIN_ACKS, Record
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.jobs.twin.batch import fold
from ackstream.jobs.twin.records import SignalRecord
from ackstream.protocol import ledger
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.ditto.requests import read_request
from ackstream.protocol.errors import DittoError
from ackstream.protocol.record_headers import REPLY_ID
from ackstream.settings import Correlate, Settings
from ackstream.spark.records import in_order
from ackstream.testing.system import process
from benchmarks.fuzzing.room import FAR, LAG_MS, Room

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fuzzing.garbage import Garbage

PART_BYTES = 100_000
"""Small, so that batches are divided."""
READ = ("signals", "acks", "twin-acks", "declarations")
"""The topics by the numbers of the state (``SIGNALS``, ``ACKS`` …)."""
SHORTENED = (b"acknowledgement:toolarge", b"reply.toolarge")
_TEXT_COLUMNS = ("topic", "reply_id", "status", "completed_by", "reason")
_json = msgspec.json.Decoder().decode


class CorrelateRoom(Room):
    """One shard with some thousand open requests: every signal has one row or dead letter, every answer is recorded."""

    name, share = "correlate", 0.4
    # so that a few large payloads are too many for a reply
    record_bytes, value_bytes = 300_000, 200_000

    def __init__(self, garbage: Garbage) -> None:
        super().__init__(garbage)
        self._limits = Correlate(reply_topics=("mine",), max_value_bytes=self.value_bytes)
        self._topics = CorrelateTopics(reply_topics={"mine": 100_000}, record_bytes=self.record_bytes)
        self._state: tuple[int, bytes] | None = None
        self._batch = self._number = 0
        self._ids: deque[str] = deque(["id-0"], maxlen=3_000)
        self._waiting: deque[str] = deque(maxlen=200)
        self._asked: dict[str, str] = {}
        self._ends: dict[tuple[str, int, int], Counter[int]] = {}
        self._outcomes: Counter[str] = Counter()
        self._awaited: set[str] = set()

    def make(self) -> Record:
        source = SIGNALS if self.garbage.one_in(2) else self.garbage.pick((ACKS, TWIN_ACKS))
        # most answers are for requests that are still open
        waiting = source != SIGNALS and self._waiting and not self.garbage.one_in(4)
        key: str | None = self.garbage.pick(self._waiting if waiting else self._ids)
        if source == SIGNALS and not self.garbage.one_in(8):
            self._number += 1
            key = f"id-{self._number}"
            self._ids.append(key)
        elif self.garbage.one_in(40):
            key = self.garbage.text()
        body = self.garbage.signal(key or "") if source == SIGNALS else self.garbage.answer(key or "")
        value = self.garbage.record(body)
        partition, offset = self.place(source)
        if source == SIGNALS and (key is None or self.garbage.one_in(50)):
            key = f"signals-{partition}-{offset}"
        size = len(value or b"")
        if value is not None and size > self._limits.max_value_bytes:
            value = value[: ledger.DEAD_LETTER_BYTES]
        digest = blake2b((key or f"{partition}-{offset}").encode(), digest_size=8).digest()
        place = (self.time(), source, partition, offset, int.from_bytes(digest, "big", signed=True))
        headers = self.garbage.kafka_headers()
        if source == TWIN_ACKS and not self.garbage.one_in(8):
            headers[REPLY_ID] = self._asked.get(key or "", "unknown").encode()
        return Record(*place, key, b"key", value, size, headers)

    def feed(self, records: Sequence[Record]) -> None:
        self._process(records, self.now - LAG_MS)
        for record in records:
            topic = READ[record.source]
            self._ends.setdefault((topic, record.partition, record.offset), Counter())

    def finish(self) -> None:
        for late in range(1, 4):
            self._process([], FAR * late)
        for (topic, partition, offset), ends in self._ends.items():
            once = sum(ends.values()) == 1 if topic == "signals" else ends and set(ends.values()) == {1}
            self.expect(once, f"{topic}-{partition}-{offset} has the ends", dict(ends))
        self.expect(self._awaited == self._outcomes.keys(), "not each awaited request has an outcome", "")
        self.expect(set(self._outcomes.values()) <= {1}, "a request has two outcomes", "")

    def _process(self, records: Sequence[Record], watermark: int) -> None:
        writer = Writer(self._topics, "fuzz", self._batch)
        shard = CorrelateShard(self._limits, self._topics, writer)
        if self._state is not None:
            shard.load(*self._state)
        process(shard, records, watermark)
        self._state = shard.dump()
        self._batch += 1
        for name in _TEXT_COLUMNS:
            pa.array([getattr(emission, name) for emission in writer.emissions], pa.string())
        for emission in writer.emissions:
            self.check_sent(emission.topic, emission.key, emission.value, emission.reason)
            if emission.topic == self._topics.ledger:
                _json(emission.value or b"")
                self._account(ledger.decode(emission.value or b""))
            elif emission.reply_id is not None:
                decode(emission.value or b"")
                self.counts["replies"] += 1
                self.counts["replies shortened"] += any(note in (emission.value or b"") for note in SHORTENED)

    def _account(self, record: ledger.LedgerRecord) -> None:
        if (row := record.signal) is not None:
            self._end("signals", row.partition, row.offset, 0, "signals")
            if row.response_required or row.requested_acks:
                self._awaited.add(record.id)
                self._waiting.append(row.correlation_id)
                self._asked[row.correlation_id] = record.id
        if (letter := record.dead_letter) is not None:
            self._end(letter.topic, letter.partition, letter.offset, -1, "dead letters")
        for ack in record.acks or ():
            self._end(ack.topic, ack.partition, ack.offset, ack.index, f"acks {ack.disposition}")
        if (outcome := record.outcome) is not None:
            self._outcomes[record.id] += 1
            self.counts[f"outcomes {outcome.completed_by}"] += 1
            if outcome.completed_by == "invalid":
                self._awaited.add(record.id)

    def _end(self, topic: str, partition: int, offset: int, index: int, what: str) -> None:
        self._ends.setdefault((topic, partition, offset), Counter())[index] += 1
        self.counts[what] += 1


class TwinRoom(Room):
    """Each command changes a thing, is answered, or requires no answer; the rest is not for the twin."""

    name, share = "twin", 0.15

    def __init__(self, garbage: Garbage) -> None:
        super().__init__(garbage)
        self._things: dict[str, Any] = {}
        self._settings = Settings()

    def make(self) -> SignalRecord:
        partition, offset = self.place()
        key = f"c-{partition}-{offset}"
        value = self.garbage.record(self.garbage.signal(key))
        return SignalRecord(self.time(), partition, offset, key, value)

    def feed(self, records: Sequence[SignalRecord]) -> None:
        things = dict(self._things)
        parts = list(fold(in_order(records), things, self._settings, PART_BYTES))
        journal = [row for part in parts for row in part.rows]
        messages = [message for part in parts for message in part.messages]
        rows = {(row.partition, row.offset) for row in journal}
        self.expect(len(rows) == len(journal), "a command has two rows")
        answers = Counter(message.correlation_id for message in messages if message.topic == "twin-acks")
        for row in journal:
            pa.array([row.thing_id, row.path, row.value, row.thing, row.correlation_id], pa.string())
        for message in messages:
            self.check_sent(message.key, message.correlation_id, message.value)
            decode(message.value)
        for record in records:
            answered, changed = answers[record.correlation_id or ""], (record.partition, record.offset) in rows
            self.expect(answered <= 1, "a command has two answers:", record)
            why = self._unanswered(record)
            self.expect(answered or why, "a command has no answer:", record)
            self.counts["changes" if changed else "answers" if answered else why] += 1
        self._things = things

    def _unanswered(self, record: SignalRecord) -> str:
        """Return why a record needs no answer of the twin's; empty if it does need one."""
        try:
            command = decode(record.value or b"")
            request = read_request(command)
        except DittoError:
            return "refused by correlate"
        limits = self._settings.correlate
        too_much = len(record.value or b"") > limits.max_value_bytes or len(request.awaited) > limits.max_labels
        if request.kind not in ("twin", "twinQuery") or command.topic.group != "things" or too_much:
            return "not for the twin"
        return "" if request.response_required or "twin-persisted" in request.awaited else "silent"
