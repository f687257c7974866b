"""One batch of records of the messages topic, folded over what is known of each client.

Pure: facts of the records and the clients' ledgers in; verdicts, acks and the changed ledgers out. The same records
over the same ledgers give the same, so that a batch that runs again after a crash says the same again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ackstream.publishing import commands
from ackstream.publishing.acks import Ack
from ackstream.publishing.commands import Command
from ackstream.publishing.conflation import DUPLICATE, Conflation
from ackstream.publishing.verdicts import judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ackstream.publishing.verdicts import Rules, Verdict

DAY_MS = 86_400_000
NO_CLIENT, NO_NUMBER, NO_COMMAND = "no client name", "no sequence number", "no such command"
MAX_REFUSALS = 10_000
"""Refusals of a client that are remembered with their reasons; older ones, when they come again, are duplicates."""


class Fact(msgspec.Struct, frozen=True, gc=False):
    """What a record says besides its value; ``timestamp`` is the broker's, in epoch milliseconds."""

    partition: int
    offset: int
    timestamp: int
    size: int
    client: str | None
    seq: str | None = None
    command: str | None = None
    cid: str | None = None
    ack: str | None = None
    topic: str | None = None
    ttl: str | None = None
    first: str | None = None
    conflation: str | None = None


class Ledger(msgspec.Struct):
    """What is known of a client between two batches.

    :ivar watermark: everything up to it is decided
    :ivar held: runs of decided numbers behind a hole; what became of them was not told yet
    :ivar refused: reasons, by number
    :ivar day: the UTC day of ``stored``, counted from 1970
    :ivar stored: bytes stored on that day
    """

    watermark: int = 0
    highest: int = 0
    held: list[tuple[int, int]] = []
    refused: dict[int, str] = {}
    asked: list[tuple[int, int]] = []
    flushes: list[tuple[int, str | None]] = []
    day: int = 0
    stored: int = 0


class Refused(NamedTuple):
    """A record that is not stored as a message: why (``None``: it is no message, or there already)."""

    partition: int
    offset: int
    reason: str | None


class Fold(NamedTuple):
    """What a batch comes to; all other records are messages that are stored."""

    refused: list[Refused]
    acks: list[tuple[str, Ack]]
    changed: dict[str, Ledger]


def fold(facts: Iterable[Fact], ledgers: Mapping[str, Ledger], rules: Rules, floor_ms: int) -> Fold:
    """Fold a batch.

    :param facts: of each partition in the order of its offsets
    :param floor_ms: how often merged acks can come at best
    """
    refused: list[Refused] = []
    clients: dict[str, list[Fact]] = {}
    newest = 0
    for fact in facts:
        newest = max(newest, fact.timestamp)
        if fact.client:
            clients.setdefault(fact.client, []).append(fact)
        else:
            refused.append(Refused(fact.partition, fact.offset, NO_CLIENT))
    acks: list[tuple[str, Ack]] = []
    changed: dict[str, Ledger] = {}
    for client, own in clients.items():
        desk = _Desk(client, ledgers.get(client), rules, floor_ms, newest)
        for fact in own:
            desk.take(fact)
        changed[client] = desk.close()
        refused += desk.refused
        acks += [(client, ack.identified()) for ack in desk.acks]
    return Fold(refused, acks, changed)


class _Desk:
    """The records of one client in one batch."""

    def __init__(self, client: str, ledger: Ledger | None, rules: Rules, floor_ms: int, newest: int) -> None:
        self.refused: list[Refused] = []
        self.acks: list[Ack] = []
        self._client = client
        self._known = ledger is not None
        self._ledger = msgspec.structs.replace(ledger or Ledger(), refused=dict(ledger.refused) if ledger else {})
        self._rules, self._floor_ms, self._newest = rules, floor_ms, newest
        self._flushes = list(self._ledger.flushes)
        self._begin(self._ledger.watermark + 1)
        for first, last in self._ledger.held:
            for seq in range(first, last + 1):
                asked = any(low <= seq <= high for low, high in self._ledger.asked)
                self._conflation.decide(seq, self._ledger.refused.get(seq), asked=asked)

    def _begin(self, expected: int) -> None:
        self._conflation = Conflation(expected, failed=self._ledger.refused)

    # -- records -----------------------------------------------------------------------------------------------------

    def take(self, fact: Fact) -> None:
        asked = commands.asked((fact.ack or "").split(","))
        if fact.command in (None, "publish"):
            self._publish(fact, asked)
            return
        self._refuse(fact, None)
        if fact.command == "logon":
            self._log_on(fact)
        elif fact.command == "flush":
            self._flushes.append((self._ledger.highest, fact.cid))
        else:
            command = Command(str(fact.command), fact.cid, asked)
            self.acks.append(
                Ack(ack_type="processed", status="failure", client=self._client, cid=command.cid, reason=NO_COMMAND)
            )

    def _publish(self, fact: Fact, asked: frozenset[str]) -> None:
        if fact.seq is None or not fact.seq.isdecimal():
            self._refuse(fact, NO_NUMBER)
            return
        seq = int(fact.seq)
        if not self._known:
            # a client that never logged on: what comes first is its first
            self._known = True
            self._begin(seq)
        verdict = self._judge(fact)
        reason = verdict.reason
        if self._conflation.decided(seq):
            reason = self._ledger.refused.get(seq, DUPLICATE)
            self._refuse(fact, None)
        elif reason is not None:
            self._refuse(fact, reason)
            self._ledger.refused[seq] = reason
        elif verdict.stored:
            self._ledger.stored += fact.size
        else:
            self._refuse(fact, None)
        self._ledger.highest = max(self._ledger.highest, seq)
        command = Command("publish", fact.cid, asked, seq)
        failure = commands.refusal(command) or reason
        told = commands.opening(command, failure) + (commands.completed(command) if failure is None else [])
        self.acks += [msgspec.structs.replace(ack, client=self._client) for ack in told]
        self._conflation.decide(seq, reason, asked="persisted" in asked)

    def _judge(self, fact: Fact) -> Verdict:
        day = fact.timestamp // DAY_MS
        if day != self._ledger.day:
            self._ledger.day, self._ledger.stored = day, 0
        # the newest record of the batch tells the time, so that a batch that runs again decides alike
        expired = bool(fact.ttl and fact.ttl.isdecimal() and fact.timestamp + int(fact.ttl) < self._newest)
        return judge(
            self._rules,
            self._client,
            fact.topic or "",
            fact.size,
            expired=expired,
            stored_today=self._ledger.stored,
        )

    def _refuse(self, fact: Fact, reason: str | None) -> None:
        self.refused.append(Refused(fact.partition, fact.offset, reason))

    def _log_on(self, fact: Fact) -> None:
        """Say how far the client's messages are known; what it still keeps was refused perhaps: say that again."""
        self._tell()
        first = int(fact.first) if fact.first and fact.first.isdecimal() else self._conflation.watermark + 1
        if first > self._conflation.watermark + 1:
            # the client has nothing below: there is no hole to wait for
            self._begin(first)
        self._known = True
        refused = self._ledger.refused = {seq: why for seq, why in self._ledger.refused.items() if seq >= first}
        watermark = self._conflation.watermark
        self.acks += [self._answer(seq, refused[seq]) for seq in sorted(refused) if seq <= watermark]
        wanted = _milliseconds(fact.conflation)
        self.acks.append(
            Ack(
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
        self._tell()
        ledger = self._ledger
        watermark = ledger.watermark = self._conflation.watermark
        ledger.held = self._conflation.held
        ledger.asked = self._conflation.asked_beyond
        ready = [flush for flush in self._flushes if flush[0] <= watermark]
        self.acks += [Ack(ack_type="persisted", client=self._client, cid=cid) for _, cid in ready]
        ledger.flushes = [flush for flush in self._flushes if flush[0] > watermark]
        for seq in sorted(ledger.refused)[:-MAX_REFUSALS]:
            del ledger.refused[seq]
        return ledger

    def _tell(self) -> None:
        for run in self._conflation.take():
            if run.reason is None:
                self.acks.append(Ack(ack_type="persisted", client=self._client, first=run.first, seq=run.last))
            else:
                self.acks.append(self._answer(run.last, run.reason))

    def _answer(self, seq: int, reason: str) -> Ack:
        return Ack(ack_type="persisted", status="failure", client=self._client, first=seq, seq=seq, reason=reason)


def _milliseconds(text: str | None) -> int | None:
    digits = (text or "").removesuffix("ms")
    return int(digits) if digits.isdecimal() else None


def facts(columns: Sequence[Sequence[object]]) -> list[Fact]:
    """Make facts of columns in the order of the fields of :class:`Fact`."""
    return [Fact(*row) for row in zip(*columns, strict=True)]
