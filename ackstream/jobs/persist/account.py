"""The account of one client: which of its messages are taken, and what it is told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ackstream.jobs.persist.admission import Rules
from ackstream.jobs.persist.columns import Fact, MessageRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackstream.protocol.messages import CommandAck, StoredRange

from typing import TYPE_CHECKING

import msgspec

from ackstream.jobs.persist.admission import Verdict, judge
from ackstream.jobs.persist.columns import DAY_MS, milliseconds
from ackstream.jobs.persist.conflation import Conflation
from ackstream.protocol import queries
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.messages import CommandAck, StoredRange, read_number
from ackstream.protocol.queries import QueryCommand

if TYPE_CHECKING:
    from ackstream.jobs.persist.admission import Rules

NO_NUMBER, NO_COMMAND, SEQUENCE_GAP = "no sequence number", "no such command", "sequence gap"
MAX_HELD = 10_000
"""Messages of a client behind a hole; further ones are refused, and taken when they come again after it was filled."""
MAX_REFUSALS = 10_000
"""Refusals of a client that are remembered with their reasons; what came before the oldest is never called stored."""


class Ledger(msgspec.Struct):
    """What is known of a client between two batches.

    :ivar watermark: everything up to it is decided
    :ivar begins: where the client said at its logon that it goes on; counts from its next message on
    :ivar held: runs of decided numbers behind a hole; what became of them was not told yet
    :ivar absent: runs of them that are not in the table
    :ivar refused: reasons, by number
    :ivar doubt: of the numbers up to it some were refused for reasons that are forgotten
    :ivar day: the UTC day of ``stored``, counted from 1970
    :ivar stored: bytes stored on that day
    """

    watermark: int = 0
    highest: int = -1
    begins: int = 0
    held: list[Interval] = []
    absent: list[Interval] = []
    refused: dict[int, str] = {}
    doubt: int = -1
    asked: list[Interval] = []
    flushes: list[tuple[int, str | None]] = []
    day: int = 0
    stored: int = 0


class RefusedRun(NamedTuple):
    """A record that is not stored as a message: why (``None``: it is no message, or there already)."""

    partition: int
    offset: int
    reason: str | None


class Account:
    """One client in one batch: what its records come to, over its ledger.

    :ivar refused: records that are not stored as messages
    :ivar acks: what the client is told, in order
    """

    def __init__(self, client: str, ledger: Ledger | None, rules: Rules, floor_ms: int, newest: int) -> None:
        """Begin.

        :param ledger: ``None``: the client is not known
        :param floor_ms: how often merged acks can come at best
        :param newest: the time of the newest record of the batch, of all clients
        """
        self.refused: list[RefusedRun] = []
        self.acks: list[CommandAck] = []
        self._client = client
        self._known = ledger is not None and ledger.highest >= 0
        self._ledger = msgspec.structs.replace(ledger or Ledger(), refused=dict(ledger.refused) if ledger else {})
        self._rules, self._floor_ms, self._newest = rules, floor_ms, newest
        self._flushes = list(self._ledger.flushes)
        self._begin(self._ledger.watermark + 1)
        self._absent.merge(self._ledger.absent)
        asked = Intervals(self._ledger.asked, start=self._first)
        for first, last in self._ledger.held:
            for seq in range(first, last + 1):
                self._conflation.decide(seq, self._ledger.refused.get(seq), asked=seq in asked)

    def _begin(self, expected: int) -> None:
        self._first = expected
        self._absent = Intervals(start=expected)
        self._conflation = Conflation(expected, failed=self._ledger.refused, doubt=self._ledger.doubt)

    # -- records -----------------------------------------------------------------------------------------------------

    def take(self, item: Fact | MessageRun) -> None:
        """Take the next record, or the next run."""
        if isinstance(item, Fact):
            self._take(item)
        elif not self._take_run(item):
            for fact in item.members():
                self._take(fact)

    def _take_run(self, run: MessageRun) -> bool:
        """Take messages at once, where what holds for one holds for all; tell whether it did."""
        asked = queries.asked((run.fact.ack or "").split(","))
        first, last = run.numbers[0], run.numbers[-1]
        self._meet(first)
        if not asked <= {"persisted"} or not self._conflation.open(first, last) or self._too_far(first, last):
            return False
        if (
            self._rules.daily_quota
            or judge(self._rules, self._client, run.fact.topic or "", run.largest, expired=False, stored_today=0)
            != Verdict()
        ):
            return False
        self._count_day(run.fact.timestamp)
        self._ledger.stored += run.total
        self._ledger.highest = max(self._ledger.highest, last)
        self._conflation.succeed(first, last, asked=bool(asked))
        return True

    def _take(self, fact: Fact) -> None:
        asked = queries.asked((fact.ack or "").split(","))
        if fact.command in (None, "publish"):
            self._publish(fact, asked)
            return
        self._refuse(fact, None)
        if fact.command == "logon":
            self._log_on(fact)
        elif fact.command == "flush":
            self._flushes.append((self._ledger.highest, fact.cid))
        else:
            command = QueryCommand(str(fact.command), fact.cid, asked)
            self.acks.append(
                CommandAck(
                    ack_type="processed", status="failure", client=self._client, cid=command.cid, reason=NO_COMMAND
                )
            )

    def _publish(self, fact: Fact, asked: frozenset[str]) -> None:
        seq = read_number(fact.seq)
        if seq is None:
            self._refuse(fact, NO_NUMBER)
            return
        self._meet(seq)
        command = QueryCommand("publish", fact.cid, asked, seq)
        if self._too_far(seq, seq) and not self._conflation.decided(seq):
            self._refuse(fact, SEQUENCE_GAP)
            self._open(command, SEQUENCE_GAP)
            return
        verdict = self._judge(fact)
        reason = verdict.reason
        if self._conflation.decided(seq):
            reason = self._conflation.again(seq)
            self._refuse(fact, None)
        elif reason is not None:
            self._refuse(fact, reason)
            self._ledger.refused[seq] = reason
            self._absent.add(seq)
        elif verdict.stored:
            self._ledger.stored += fact.size
        else:
            self._refuse(fact, None)
            self._absent.add(seq)
        self._ledger.highest = max(self._ledger.highest, seq)
        self._open(command, reason)
        self._conflation.decide(seq, reason, asked="persisted" in asked)

    def _open(self, command: QueryCommand, reason: str | None) -> None:
        """Say at once what was asked for besides ``persisted``."""
        failure = queries.refusal(command) or reason
        told = queries.opening(command, failure) + (queries.completed(command) if failure is None else [])
        self.acks += [msgspec.structs.replace(ack, client=self._client) for ack in told]

    def _too_far(self, first: int, last: int) -> bool:
        """Tell whether with these numbers too much would wait behind a hole."""
        beyond = first > self._conflation.watermark + 1
        return beyond and self._conflation.held_count + last - first + 1 > MAX_HELD

    def _meet(self, seq: int) -> None:
        """Begin where the client said at its logon, or with what comes first where it never logged on."""
        begins, self._ledger.begins = self._ledger.begins, 0
        if not self._known:
            self._known = True
            self._begin(begins or seq)
        elif begins > self._conflation.watermark + 1:
            # the client has nothing below: there is no hole to wait for
            self._absent.merge(self._conflation.skip(begins))

    def _judge(self, fact: Fact) -> Verdict:
        self._count_day(fact.timestamp)
        # the newest record of the batch tells the time, so that a batch that runs again decides alike
        ttl = read_number(fact.ttl)
        expired = ttl is not None and fact.timestamp + ttl < self._newest
        return judge(
            self._rules,
            self._client,
            fact.topic or "",
            fact.size,
            expired=expired,
            stored_today=self._ledger.stored,
        )

    def _count_day(self, timestamp: int) -> None:
        day = timestamp // DAY_MS
        if day != self._ledger.day:
            self._ledger.day, self._ledger.stored = day, 0

    def _refuse(self, fact: Fact, reason: str | None) -> None:
        self.refused.append(RefusedRun(fact.partition, fact.offset, reason))

    def _log_on(self, fact: Fact) -> None:
        """Say how far the client's messages are known; what it still keeps was refused perhaps: say that again.

        A client that goes on higher is told of the gap, and may refuse to go on: only its next message makes the jump.
        """
        self._tell()
        first = read_number(fact.first)
        if first is None:
            first = self._conflation.watermark + 1
        self._ledger.begins = first
        watermark = self._conflation.watermark
        # what is held behind a hole keeps its reason
        kept = min(first, watermark + 1)
        refused = self._ledger.refused = {seq: why for seq, why in self._ledger.refused.items() if seq >= kept}
        self._conflation.forget(kept)
        if first > self._conflation.doubt:
            self.acks += [self._answer(seq, refused[seq]) for seq in sorted(refused) if seq <= watermark]
        else:
            # not all that was refused is known: what it keeps shall come again, and each is answered by itself
            watermark = first - 1
        wanted = milliseconds(fact.conflation)
        self.acks.append(
            CommandAck(
                ack_type="processed",
                client=self._client,
                cid=fact.cid,
                seq=watermark,
                # tells logons of one name apart: the later one counts
                bookmark=fact.offset,
                effective_conflation_ms=self._floor_ms if wanted is not None and wanted < self._floor_ms else None,
            )
        )

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> Ledger:
        """End the batch; return the ledger for the next one."""
        self._tell()
        ledger = self._ledger
        watermark = ledger.watermark = self._conflation.watermark
        ledger.held = self._conflation.held
        ledger.asked = self._conflation.asked_beyond
        ledger.absent = [run for run in self._absent if run[0] > watermark]
        ready = [flush for flush in self._flushes if flush[0] <= watermark]
        self.acks += [CommandAck(ack_type="persisted", client=self._client, cid=cid) for _, cid in ready]
        ledger.flushes = [flush for flush in self._flushes if flush[0] > watermark]
        told = sorted(seq for seq in ledger.refused if seq <= watermark)
        ledger.doubt = self._conflation.doubt
        for seq in told[:-MAX_REFUSALS]:
            ledger.doubt = seq
            del ledger.refused[seq]
        return ledger

    def stored(self, batch: int) -> StoredRange | None:
        """Return what can be relied on since the batch before."""
        first, last = self._first, self._conflation.watermark
        refused = tuple(run for run in self._absent if run[0] <= last)
        return StoredRange(self._client, first, last, batch, refused) if first <= last else None

    def _tell(self) -> None:
        for run in self._conflation.take():
            if run.reason is None:
                self.acks.append(CommandAck(ack_type="persisted", client=self._client, first=run.first, seq=run.last))
            else:
                self.acks.append(self._answer(run.last, run.reason))

    def _answer(self, seq: int, reason: str) -> CommandAck:
        return CommandAck(
            ack_type="persisted", status="failure", client=self._client, first=seq, seq=seq, reason=reason
        )


NO_CLIENT = "no client name"


class Fold(NamedTuple):
    """What a batch comes to; all other records are messages that are stored."""

    refused: list[RefusedRun]
    acks: list[tuple[str, CommandAck]]
    stored: list[StoredRange]
    changed: dict[str, Ledger]

    def stores(self, records: int) -> bool:
        """Tell whether the batch, of so many records, has rows in the table."""
        return records > sum(refused.reason is None for refused in self.refused)


def waits(ack: CommandAck) -> bool:
    """Tell whether an ack says what is durable, as a logon's does: it waits for the sync destinations."""
    return ack.ack_type == "persisted" or ack.bookmark is not None


def fold(
    facts: Iterable[Fact | MessageRun], ledgers: Mapping[str, Ledger], rules: Rules, *, floor_ms: int, batch: int
) -> Fold:
    """Fold a batch.

    :param facts: of each partition in the order of its offsets
    :param floor_ms: how often merged acks can come at best
    :param batch: its number
    """
    refused: list[RefusedRun] = []
    clients: dict[str, list[Fact | MessageRun]] = {}
    newest = 0
    for item in facts:
        fact, time = (item.fact, item.newest) if isinstance(item, MessageRun) else (item, item.timestamp)
        newest = max(newest, time)
        if fact.client:
            clients.setdefault(fact.client, []).append(item)
        else:
            members = item.members() if isinstance(item, MessageRun) else [item]
            refused += [RefusedRun(member.partition, member.offset, NO_CLIENT) for member in members]
    acks: list[tuple[str, CommandAck]] = []
    stored: list[StoredRange] = []
    changed: dict[str, Ledger] = {}
    for client, own in clients.items():
        account = Account(client, ledgers.get(client), rules, floor_ms, newest)
        for item in own:
            account.take(item)
        changed[client] = account.close()
        refused += account.refused
        acks += [(client, ack.identified()) for ack in account.acks]
        if (found := account.stored(batch)) is not None:
            stored.append(found)
    return Fold(refused, acks, stored, changed)
