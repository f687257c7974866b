"""Deciding which messages of each publisher are accepted in a batch, and how they are acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ackstream.jobs.persist.admission import ACCEPTED, Verdict
from ackstream.jobs.persist.conflation import Conflation
from ackstream.jobs.persist.metadata import DAY_MS, MessageMetadata, MessageRun
from ackstream.protocol import queries
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.messages import CommandAck, StoredRange, read_number
from ackstream.protocol.queries import QueryCommand

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackstream.jobs.persist.admission import Admission
    from ackstream.protocol.messages import AckType

NO_CLIENT, NO_NUMBER = "no client name", "no sequence number"
NO_COMMAND, SEQUENCE_GAP = "no such command", "sequence gap"
MAX_HELD = 10_000
"""Messages of a publisher behind a hole; further ones are rejected, and accepted when resent after it was filled."""
MAX_REJECTIONS = 10_000
"""Rejections of a publisher that are remembered with their reasons; repeats of older ones never count as stored."""


class PublisherState(msgspec.Struct):
    """What is remembered of a publisher between batches; the fields are the JSON in the table ``publishers``.

    :ivar watermark: the number up to which all are decided
    :ivar begins: the first number announced by the last logon; it takes effect with the next message
    :ivar held: runs of decided, unacknowledged numbers behind a hole
    :ivar absent: runs of them that are not in the table
    :ivar refused: reasons of rejections, by number
    :ivar unknown_through: up to this number, reasons of rejections may have been forgotten
    :ivar asked: the runs of ``held`` whose acknowledgement was requested
    :ivar flushes: pending flush commands: the number each waits for, and its command id
    :ivar day: the UTC day of ``stored``, counted from 1970
    :ivar stored: bytes stored on that day
    """

    watermark: int = 0
    highest: int = -1
    begins: int = 0
    held: list[Interval] = []
    absent: list[Interval] = []
    refused: dict[int, str] = {}
    unknown_through: int = msgspec.field(default=-1, name="doubt")
    asked: list[Interval] = []
    flushes: list[tuple[int, str | None]] = []
    day: int = 0
    stored: int = 0


class RejectedRecord(NamedTuple):
    """A record that is not stored as a message, with the reason; ``None``: it is a command or a duplicate."""

    partition: int
    offset: int
    reason: str | None


class PublisherBatch:
    """The records of one publisher in one batch, applied to its state."""

    def __init__(
        self, client: str, state: PublisherState | None, admission: Admission, floor_ms: int, newest: int
    ) -> None:
        """Start from the state before the batch.

        :param state: ``None`` for an unknown publisher
        :param newest: the timestamp of the newest record of the batch, of all publishers
        """
        self.rejected: list[RejectedRecord] = []
        self.acks: list[CommandAck] = []
        self._client = client
        self._known = state is not None and state.highest >= 0
        state = state or PublisherState()
        self._state = msgspec.structs.replace(state, refused=dict(state.refused), flushes=list(state.flushes))
        self._admission, self._floor_ms, self._newest = admission, floor_ms, newest
        self._expect(state.watermark + 1)
        self._absent.merge(state.absent)
        asked = Intervals(state.asked, start=self._first)
        for first, last in state.held:
            for seq in range(first, last + 1):
                self._conflation.decide(seq, self._state.refused.get(seq), asked=seq in asked)

    def _expect(self, first: int) -> None:
        state = self._state
        self._first = first
        self._absent = Intervals(start=first)
        self._conflation = Conflation(first, failed=state.refused, unknown_through=state.unknown_through)

    # -- records -----------------------------------------------------------------------------------------------------

    def add(self, item: MessageMetadata | MessageRun) -> None:
        """Add the next record, or the next run."""
        if isinstance(item, MessageMetadata):
            self._add(item)
        elif not self._add_run(item):
            for message in item.members():
                self._add(message)

    def _add_run(self, run: MessageRun) -> bool:
        """Add all messages of a run at once if the same holds for all; return whether it did."""
        asked = queries.asked((run.first.ack or "").split(","))
        first, last = run.numbers[0], run.numbers[-1]
        self._open(first)
        if not asked <= {"persisted"} or not self._conflation.undecided(first, last) or self._too_far(first, last):
            return False
        admission, topic = self._admission, run.first.topic or ""
        if admission.quota or (
            admission.judge(self._client, topic, run.largest, expired=False, stored_today=0) is not ACCEPTED
        ):
            return False
        self._count_day(run.first.timestamp)
        self._state.stored += run.total
        self._state.highest = max(self._state.highest, last)
        self._conflation.succeed(first, last, asked=bool(asked))
        return True

    def _add(self, message: MessageMetadata) -> None:
        asked = queries.asked((message.ack or "").split(","))
        if message.command in (None, "publish"):
            self._publish(message, asked)
            return
        self._reject(message, None)
        if message.command == "logon":
            self._log_on(message)
        elif message.command == "flush":
            self._state.flushes.append((self._state.highest, message.cid))
        else:
            self._acknowledge("processed", cid=message.cid, reason=NO_COMMAND)

    def _publish(self, message: MessageMetadata, asked: frozenset[str]) -> None:
        seq = read_number(message.seq)
        if seq is None:
            self._reject(message, NO_NUMBER)
            return
        self._open(seq)
        command = QueryCommand("publish", message.cid, asked, seq)
        repeated = self._conflation.decided(seq)
        if not repeated and self._too_far(seq, seq):
            self._reject(message, SEQUENCE_GAP)
            self._acknowledge_arrival(command, SEQUENCE_GAP)
            return
        verdict = self._judge(message)
        reason = verdict.reason
        if repeated:
            reason = self._conflation.repeated(seq)
            self._reject(message, None)
        elif reason is not None:
            self._reject(message, reason)
            self._absent.add(seq)
        elif verdict.stored:
            self._state.stored += message.size
        else:
            self._reject(message, None)
            self._absent.add(seq)
        self._state.highest = max(self._state.highest, seq)
        self._acknowledge_arrival(command, reason)
        self._conflation.decide(seq, reason, asked="persisted" in asked)

    def _too_far(self, first: int, last: int) -> bool:
        """Return whether these numbers would leave too many waiting behind a hole."""
        beyond = first > self._conflation.watermark + 1
        return beyond and self._conflation.held_count + last - first + 1 > MAX_HELD

    def _open(self, seq: int) -> None:
        """Expect the number announced at the logon, or a message's own if the publisher never logged on."""
        begins, self._state.begins = self._state.begins, 0
        if not self._known:
            self._known = True
            self._expect(begins or seq)
        elif begins > self._conflation.watermark + 1:
            # the publisher has nothing below: there is no hole to wait for
            self._absent.merge(self._conflation.skip(begins))

    def _judge(self, message: MessageMetadata) -> Verdict:
        self._count_day(message.timestamp)
        # the newest record of the batch gives the time, so that a replayed batch decides alike
        ttl = read_number(message.ttl)
        expired = ttl is not None and message.timestamp + ttl < self._newest
        return self._admission.judge(
            self._client, message.topic or "", message.size, expired=expired, stored_today=self._state.stored
        )

    def _count_day(self, timestamp: int) -> None:
        day = timestamp // DAY_MS
        if day != self._state.day:
            self._state.day, self._state.stored = day, 0

    def _reject(self, message: MessageMetadata, reason: str | None) -> None:
        self.rejected.append(RejectedRecord(message.partition, message.offset, reason))

    def _log_on(self, message: MessageMetadata) -> None:
        """Report how far the publisher's messages are known, and repeat the rejections of those it still keeps.

        A publisher that would continue with a higher number learns of the gap and may give up: only its next message
        skips the numbers in between.
        """
        self._acknowledge_decided()
        watermark = self._conflation.watermark
        first = read_number(message.first)
        if first is None:
            first = watermark + 1
        self._state.begins = first
        # rejections behind a hole keep their reasons
        kept = min(first, watermark + 1)
        self._conflation.forget(kept)
        if first > self._conflation.unknown_through:
            for seq, reason in sorted(self._state.refused.items()):
                if seq <= watermark:
                    self._acknowledge("persisted", first=seq, seq=seq, reason=reason)
        else:
            # some rejections are forgotten: the publisher is to resend all it keeps, and each gets its own answer
            watermark = first - 1
        wanted = read_number((message.conflation or "").removesuffix("ms"))
        self._acknowledge(
            "processed",
            cid=message.cid,
            seq=watermark,
            # distinguishes logons of one name: the later one counts
            bookmark=message.offset,
            effective_conflation_ms=self._floor_ms if wanted is not None and wanted < self._floor_ms else None,
        )

    # -- acknowledgements --------------------------------------------------------------------------------------------

    def _acknowledge(self, ack_type: AckType, *, reason: str | None = None, **fields: Any) -> None:
        status = queries.status(reason)
        self.acks.append(CommandAck(ack_type=ack_type, status=status, client=self._client, reason=reason, **fields))

    def _acknowledge_arrival(self, command: QueryCommand, reason: str | None) -> None:
        """Send at once the requested acks other than ``persisted``."""
        failure = queries.refusal(command) or reason
        acks = queries.opening(command, failure) + (queries.completed(command) if failure is None else [])
        self.acks += [msgspec.structs.replace(ack, client=self._client) for ack in acks]

    def _acknowledge_decided(self) -> None:
        for first, last, reason in self._conflation.take():
            self._acknowledge("persisted", first=first, seq=last, reason=reason)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> PublisherState:
        """End the batch; return the state for the next one."""
        self._acknowledge_decided()
        state = self._state
        watermark = state.watermark = self._conflation.watermark
        state.held, state.asked = self._conflation.beyond
        state.absent = [run for run in self._absent if run[0] > watermark]
        for number, cid in state.flushes:
            if number <= watermark:
                self._acknowledge("persisted", cid=cid)
        state.flushes = [flush for flush in state.flushes if flush[0] > watermark]
        acknowledged = sorted(seq for seq in state.refused if seq <= watermark)
        if len(acknowledged) > MAX_REJECTIONS:
            self._conflation.forget(acknowledged[-MAX_REJECTIONS])
        state.unknown_through = self._conflation.unknown_through
        return state

    def stored(self, batch: int) -> StoredRange | None:
        """Return the range that this batch made reliable."""
        first, last = self._first, self._conflation.watermark
        absent = tuple(run for run in self._absent if run[0] <= last)
        return StoredRange(self._client, first, last, batch, absent) if first <= last else None


class PersistResult(NamedTuple):
    """The result of a batch; all records that are not rejected are messages to store."""

    rejected: list[RejectedRecord]
    acks: list[tuple[str, CommandAck]]
    stored: list[StoredRange]
    changed: dict[str, PublisherState]

    def stores(self, records: int) -> bool:
        """Return whether the batch, which has this many records, adds rows to the table."""
        return records > sum(rejected.reason is None for rejected in self.rejected)


def is_durability_ack(ack: CommandAck) -> bool:
    """Return whether an ack reports what is durable, as a logon's does: it waits for the sync destinations."""
    return ack.ack_type == "persisted" or ack.bookmark is not None


def fold(
    records: Iterable[MessageMetadata | MessageRun],
    states: Mapping[str, PublisherState],
    admission: Admission,
    *,
    floor_ms: int,
    batch: int,
) -> PersistResult:
    """Apply a batch of records to the states of their publishers; the given states stay as they are.

    :param records: those of each partition in the order of their offsets
    :param floor_ms: the shortest interval of merged acks
    """
    rejected: list[RejectedRecord] = []
    clients: dict[str, list[MessageMetadata | MessageRun]] = {}
    newest = 0
    for item in records:
        message, timestamp = (item.first, item.newest) if isinstance(item, MessageRun) else (item, item.timestamp)
        newest = max(newest, timestamp)
        if message.client:
            clients.setdefault(message.client, []).append(item)
        else:
            members = item.members() if isinstance(item, MessageRun) else [item]
            rejected += [RejectedRecord(member.partition, member.offset, NO_CLIENT) for member in members]
    acks: list[tuple[str, CommandAck]] = []
    stored: list[StoredRange] = []
    changed: dict[str, PublisherState] = {}
    for client, own in clients.items():
        publisher = PublisherBatch(client, states.get(client), admission, floor_ms, newest)
        for item in own:
            publisher.add(item)
        changed[client] = publisher.close()
        rejected += publisher.rejected
        acks += [(client, ack.identified()) for ack in publisher.acks]
        if (found := publisher.stored(batch)) is not None:
            stored.append(found)
    return PersistResult(rejected, acks, stored, changed)
