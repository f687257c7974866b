"""persist, settle, queues and query under fuzz."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from ackstream.jobs.persist.decisions import Admission
from ackstream.jobs.persist.job import fold
from ackstream.jobs.persist.records import MessageMetadata, read_metadata
from ackstream.jobs.persist.state import PublisherState
from ackstream.jobs.query import records as requests
from ackstream.jobs.query.plan import QueryState, SubscriptionPlan, execute
from ackstream.jobs.query.results import Acknowledged
from ackstream.jobs.queues.endpoint import Endpoint
from ackstream.jobs.queues.records import Arrival, ConsumerReport
from ackstream.jobs.settle.records import REPORTS, STORED, TICK, ReportRecord
from ackstream.jobs.settle.shard import SettleShard
from ackstream.jobs.settle.state import SettleState
from ackstream.protocol import queues
from ackstream.protocol.json import RecordError
from ackstream.protocol.messages import encode_ack, write_stored
from ackstream.protocol.readers import AppAck, read
from ackstream.settings import Persist, Query, RequiredRole, Settle
from ackstream.settings.jobs import QueueSettings
from benchmarks.fuzzing.room import FAR, LAG_MS, Room

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.fuzzing.garbage import Garbage


class PersistRoom(Room):
    """Each record is stored, or has a reason, or is a command or a duplicate."""

    name, share = "persist", 0.15

    def __init__(self, garbage: Garbage) -> None:
        super().__init__(garbage)
        self._states: dict[str, PublisherState] = {}
        self._admission = Admission(Persist(daily_quota_bytes=10**9))
        self._batch, self._next = 0, Counter[str]()

    def make(self) -> MessageMetadata:
        number = self.chance.randrange(20)
        # one whose numbers have leapt is stuck, as it should be
        client = f"p{number}-{self._batch // 20}"
        self._next[client] += 1
        partition, offset = self.place("messages", partition=number % 4)
        acks = self.garbage.pick((None, "persisted", "persisted,processed"))
        given: dict[str, Any] = {"client": client, "seq": str(self._next[client]), "ack": acks}
        command = self.garbage.pick((None,) * 12 + ("publish", "logon", "flush", "withdraw"))
        if command is not None:
            given |= {"command": command, "cid": str(offset), "first": str(self._next[client])}
        if self.garbage.one_in(4):
            names = MessageMetadata.__struct_fields__[4:]
            given[self.garbage.pick(names)] = self.garbage.text()
        size = self.garbage.pick((0, 10, 1_000, 5_000_000))
        return MessageMetadata(partition, offset, self.time(), size, **{"client": None, **given})

    def feed(self, records: Sequence[MessageMetadata]) -> None:
        columns = zip(*map(msgspec.structs.astuple, records), strict=True)
        kinds = [pa.int32(), pa.int64(), pa.int64(), pa.int64()] + [pa.string()] * 50
        fields = MessageMetadata.__struct_fields__
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=False)]
        items = list(read_metadata(pa.Table.from_arrays(arrays, list(fields))))
        result = fold(items, self._states, self._admission, floor_ms=500, batch=self._batch)
        rejected = {(entry.partition, entry.offset): entry.reason for entry in result.rejected}
        self.expect(len(rejected) == len(result.rejected), "a record is rejected twice")
        self.expect(rejected.keys() <= {(record.partition, record.offset) for record in records}, "an unknown record")
        for client, ack in result.acks:
            self.check_sent(client, encode_ack(ack))
        for run in result.stored:
            self.check_sent(run.client, write_stored(run))
        pa.array([reason for reason in rejected.values() if reason], pa.string())
        states = {client: _copy(state, PublisherState) for client, state in result.changed.items()}
        for record in records:
            reason = rejected.get((record.partition, record.offset), "stored")
            self.counts["commands and duplicates" if reason is None else reason] += 1
        self._states.update(states)
        self._batch += 1


class SettleRoom(Room):
    """Each unreadable record has a row; each report is confirmed, has a row, or waits for its samples."""

    name, share = "settle", 0.1

    def __init__(self, garbage: Garbage) -> None:
        super().__init__(garbage)
        self._rules = Settle(shards=1, required=(RequiredRole(role="Logger", quorum=1),))
        self._state: tuple[int, bytes] | None = None
        self._written = self._made = 0
        self._reports: dict[tuple[int, int], tuple[str, str, int, int]] = {}
        self._confirmed: set[tuple[str, str, int, int]] = set()

    def make(self) -> ReportRecord:
        source = STORED if self.garbage.one_in(4) else REPORTS
        if source == STORED:
            self._written += 1
            body = self.garbage.stored(self._written, self._written + 2)
        else:
            self._made += 1
            body = self.garbage.report(self._written, 1 + self._made // 5_000)
        partition, offset = self.place(source)
        return ReportRecord(self.time(), source, partition, offset, self.garbage.record(body))

    def feed(self, records: Sequence[ReportRecord]) -> None:
        settled, state = self._process(records, self.now - LAG_MS)
        rows = {(row["topic"], row["partition"], row["offset"]) for row in settled.ignored}
        for record in records:
            ignored = (("stored", "app-acks")[record.source], record.partition, record.offset) in rows
            self.counts[self._end(record, ignored=ignored)] += 1
        self._state = state
        self._note(settled)

    def finish(self) -> None:
        settled, state = self._process([], FAR)
        self._note(settled)
        waiting = msgspec.msgpack.decode(state[1], type=SettleState).early if state else []
        early = {(record.partition, record.offset) for record in waiting}
        self.expect(not early, "reports wait although all time has passed:", early)
        missing = [report for report in self._reports.values() if report not in self._confirmed]
        self.expect(not missing, "reports without a confirmation or a row:", missing[:5])

    def _process(self, records: Sequence[ReportRecord], watermark: int) -> tuple[Any, Any]:
        shard = SettleShard(self._rules, 0)
        if self._state is not None:
            shard.load(*self._state)
        settled = shard.process([*records, ReportRecord(watermark, TICK, 0, 0, None)], watermark)
        for key, value in settled.messages():
            self.check_sent(key, value)
        for row in (*settled.deliveries, *settled.ignored):
            self._check_row(row.values())
        return settled, shard.dump()

    def _check_row(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, str):
                value.encode()
            elif isinstance(value, int):
                self.expect(-(2**63) <= value < 2**63, "a number of more than 64 bits:", value)

    def _end(self, record: ReportRecord, *, ignored: bool) -> str:
        if record.source == STORED:
            return "stored unreadable" if ignored else "stored"
        try:
            report = read(record.value)
        except RecordError:
            self.expect(ignored, "an unreadable record has no row:", record)
            return "unreadable"
        if isinstance(report, AppAck) and not ignored:
            known = (report.reader, report.writer, report.epoch, report.count)
            self._reports[record.partition, record.offset] = known
        return f"{'ignored ' if ignored else ''}{type(report).__name__}"

    def _note(self, settled: Any) -> None:
        self._confirmed |= {(conf.reader, conf.writer, conf.epoch, conf.count) for conf in settled.confs}
        for row in settled.ignored:
            # one that has waited may end so, too
            if row["topic"] == "app-acks":
                self._reports.pop((row["partition"], row["offset"]), None)
        self.counts["rows of ignored reports"] += len(settled.ignored)
        self.counts["rows of deliveries"] += len(settled.deliveries)


class QueuesRoom(Room):
    """Each message is in the queue or has left; each unreadable record becomes a dead letter."""

    name, share = "queues", 0.1

    def __init__(self, garbage: Garbage) -> None:
        super().__init__(garbage)
        self._rules = QueueSettings.model_validate({"name": "q", "topics": ("*",), "lease": "2s", "max_ttl": "10s"})
        self._state: tuple[int, bytes] | None = None
        self._inside: dict[str, None] = {}

    def make(self) -> Arrival | ConsumerReport:
        partition, offset = self.place("q")
        if self.garbage.one_in(3):
            ttl = self.garbage.pick((0, 0, 1, 1_000, 2**62))
            subject = self.garbage.text() if self.garbage.one_in(9) else "s"
            eligible, barrier = self.garbage.one_in(2), self.garbage.one_in(99)
            return Arrival(self.time(), "t", partition, offset, 1, subject, ttl, eligible, barrier)
        recent = list(self._inside)[-200:]
        value = self.garbage.record(self.garbage.consumer(recent))
        return ConsumerReport(self.time(), partition, offset, b"c", value)  # type: ignore[arg-type]

    def feed(self, records: Sequence[Arrival | ConsumerReport]) -> None:
        arrivals = [record for record in records if isinstance(record, Arrival)]
        reports = [record for record in records if isinstance(record, ConsumerReport)]
        endpoint = Endpoint(self._rules, 5_000)
        if self._state is not None:
            endpoint.load(*self._state)
        list(endpoint.process(arrivals, reports, self.now - LAG_MS))
        state = endpoint.dump()
        for answer in endpoint.answers:
            self.check_sent(answer.consumer, queues.write(answer))
        left = Counter(event.message for event in endpoint.events if event.event == "left")
        inside = self._inside | {arrival.id: None for arrival in arrivals}
        once = left.keys() <= inside.keys() and set(left.values()) <= {1}
        self.expect(once, "a message left twice, or was not there")
        unreadable = {(report.partition, report.offset) for report, _ in endpoint.unreadable}
        for report in reports:
            self.counts[self._end(report, (report.partition, report.offset) in unreadable)] += 1
        self.counts["arrivals"] += len(arrivals)
        self.counts.update(f"events {event.event}" for event in endpoint.events)
        self._state, self._inside = state, {key: None for key in inside if key not in left}

    def finish(self) -> None:
        endpoint = Endpoint(self._rules, 5_000)
        if self._state is not None:
            endpoint.load(*self._state)
        # tick by tick as the clock does: a leap does not count as silence; records may be later than due deadlines
        at = 0
        while endpoint.dump() is not None and (due := endpoint.next_timeout) is not None:
            at = max(due, at + 1_000)
            list(endpoint.process([], [], at))
        left = {event.message for event in endpoint.events if event.event == "left"}
        self.counts["events left"] += len(left)
        self.expect(left == self._inside.keys(), "messages neither wait nor have left:", len(self._inside))

    def _end(self, report: ConsumerReport, unreadable: bool) -> str:  # noqa: FBT001 - of the account
        try:
            record = queues.read(report.value)
        except RecordError:
            self.expect(unreadable, "an unreadable record is no dead letter:", report)
            return "unreadable"
        self.expect(not unreadable, "a readable record is a dead letter:", report)
        return type(record).__name__


COMMANDS = (
    "logon", "subscribe", "sow", "sow_and_subscribe", "sow_delete", "unsubscribe", "flush", "heartbeat", "publish",
)  # fmt: skip
COMMAND_HEADERS = (
    "options", "order_by", "sow_keys", "top_n", "seq", "bookmark", "command", "ack", "cid", "sub_id", "topic", "filter",
)  # fmt: skip
COMMAND_TEXTS = ("EPOCH", "NOW", "0|1|1|", "replace", "start,10", "heartbeat=5s", "/a DESC", "k1,k2", "10")


class QueryRoom(Room):
    """Each command is executed or refused with a reason that its client learns, or is a dead letter."""

    name, share = "query", 0.1

    def __init__(self, garbage: Garbage) -> None:
        super().__init__(garbage)
        self._state = QueryState()
        self._newest = 0

    def make(self) -> tuple[bytes | None, list[tuple[str, bytes | None]], str, int]:
        chance = self.garbage
        partition, offset = self.place()
        client = b"" if chance.one_in(60) else f"c{self.chance.randrange(20)}".encode()
        headers: dict[str, str | None] = {
            "command": chance.pick(COMMANDS),
            "cid": str(offset),
            "ack": chance.pick((None, "processed", "received,processed", "completed,processed,stats", "none")),
            "topic": "t",
            "sub_id": f"s{self.chance.randrange(5)}",
        }
        if chance.one_in(2):
            headers["filter"] = chance.filter()
        while chance.one_in(2):
            headers[chance.pick(COMMAND_HEADERS)] = chance.pick(COMMAND_TEXTS) if chance.one_in(2) else chance.text()
        given = [(name, None if text is None else text.encode("utf-8", "replace")) for name, text in headers.items()]
        if chance.one_in(30):
            given.append((chance.pick(COMMAND_HEADERS), b"\xff\xfe"))
        return client, given, f"{partition}-{offset}", self.time()

    def feed(self, records: Sequence[Any]) -> None:
        state = _copy(self._state, QueryState)
        plan = SubscriptionPlan(state, known=self._newest, newest=self._newest + 1, now=self.now)
        asked, dead = [], 0
        for record in records:
            try:
                asked.append(requests.read(*record))
            except requests.UnreadableError:
                dead += 1
        plan.deliver(asked)
        for request in asked:
            execute(plan, request, Query())
        plan.close()
        told: Counter[str] = Counter()
        for step in plan.steps:
            if isinstance(step, Acknowledged):
                self.check_sent(step.id, encode_ack(step.ack))
                told[step.id.partition("/")[0]] += 1
        for request in asked:
            wants = "processed" in request.command.asked
            self.expect(not wants or told[request.origin], "a command is not acknowledged:", request)
            self.counts[f"refused: {request.reason}" if request.reason else "executed"] += 1
        self.counts["dead letters"] += dead
        # a state is a row of JSON
        self._state, self._newest = _copy(state, QueryState), self._newest + 1


def _copy(value: Any, kind: Any) -> Any:
    """Return a value as the next batch after a restart sees it."""
    return msgspec.json.decode(msgspec.json.encode(value), type=kind)
