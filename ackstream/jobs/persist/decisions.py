"""How the messages of a publisher are decided: which are accepted, and how the acks of the decided ones are merged.

:class:`Admission` judges a message by the settings: names, size, age and quota (brokers.md 1.3, 3.2).
:class:`Conflation` merges the acks of one publisher by sequence number (brokers.md 1.1 A6 to A8, A11). A success covers
a run of decided numbers, which a failure ends, whichever acks were requested: 1 to 5 with 3 rejected becomes success 2,
failure 3, success 5. A message of a topic without a log has an ack of its own, in the same order (A10).
"""

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from ackstream.protocol import dispositions
from ackstream.protocol.intervals import Interval, Intervals
from ackstream.protocol.rql.patterns import matches_any
from ackstream.settings import Persist
from ackstream.settings.jobs import QueueSettings

MAX_TOPIC_BYTES = 1_024


@dataclass(frozen=True)
class Verdict:
    """The reason to reject a message; without one, whether it is stored or acknowledged and dropped."""

    reason: str | None = None
    stored: bool = True
    logged: bool = True
    """Whether its topic has a log; its ack is merged with others only then."""


ACCEPTED = Verdict()
DROPPED = Verdict(stored=False)
"""Acknowledged but not stored, as Solace does where a rejection is not configured."""
UNLOGGED = Verdict(stored=False, logged=False)
"""Only Kafka has it (brokers.md 1.1 A10)."""


class Admission:
    """Applies the limits of the settings; verdicts about names are cached."""

    def __init__(self, limits: Persist, queues: Iterable[QueueSettings] = ()) -> None:
        """Take over the limits; a message goes to all ``queues`` that take it, or is refused if one refuses it."""
        self.quota = limits.daily_quota_bytes
        self._limits = limits
        self._closed = tuple(topic for queue in queues if queue.ingress == "refuse" for topic in queue.topics)
        self._judge_names = lru_cache(maxsize=65_536)(self._names)

    def judge(self, client: str, topic: str, size: int, *, expired: bool, stored_today: int) -> Verdict:
        """Decide about a message of ``size`` bytes; ``stored_today``: bytes that the client has stored on its day."""
        verdict = self._judge_names(client, topic)
        if size > self._limits.max_message_bytes:
            return Verdict(dispositions.TOO_LARGE, logged=verdict.logged)
        if expired:
            return Verdict(dispositions.EXPIRED, logged=verdict.logged)
        if verdict is ACCEPTED and self.quota and stored_today + size > self.quota:
            return Verdict(dispositions.OVER_QUOTA) if self._limits.reject_over_quota else DROPPED
        return verdict

    def _names(self, client: str, topic: str) -> Verdict:
        limits = self._limits
        logged = not (limits.unlogged and matches_any(limits.unlogged, topic))
        reason = None
        if len(topic.encode()) > MAX_TOPIC_BYTES or (limits.topics and not matches_any(limits.topics, topic)):
            reason = dispositions.INVALID_TOPIC
        elif limits.entitlements and not any(rule.covers(client, topic) for rule in limits.entitlements):
            reason = dispositions.NOT_ENTITLED
        elif limits.subscriptions and not matches_any(limits.subscriptions, topic):
            if not limits.reject_no_match:
                return DROPPED if logged else UNLOGGED
            reason = dispositions.NO_SUBSCRIPTION_MATCH
        elif self._closed and matches_any(self._closed, topic):
            reason = dispositions.QUEUE_SHUTDOWN
        if reason is not None:
            return Verdict(reason, logged=logged)
        return ACCEPTED if logged else UNLOGGED


class AckRun(NamedTuple):
    """Consecutive sequence numbers with one outcome; a failure and a single ack are always runs of one."""

    first: int
    last: int
    reason: str | None
    """Why it failed; ``None``: success."""
    single: str | None = None
    """The command id of an ack that is not merged; ``None``: a merged one."""


class _Mark(NamedTuple):
    """Numbers that no merged success covers: a failure or a single ack (of one number), or withdrawn ones."""

    first: int
    last: int
    reason: str | None
    asked: bool
    repeated: bool = False
    single: str | None = None


class Conflation:
    """Merges the outcomes of one publisher's messages, which may be decided in any order."""

    def __init__(self, expected: int, *, failed: dict[int, str] | None = None, unknown_through: int = -1) -> None:
        """Start with nothing decided; ``expected`` is the first number to acknowledge."""
        # ``failed``: failures of earlier numbers with their reasons; those that follow are added. ``unknown_through``:
        # up to this number, failures may have been forgotten
        self.unknown_through = unknown_through
        self.absent = Intervals(start=expected)
        """The decided numbers that are in no table: failed, withdrawn, skipped, or acknowledged without a row."""
        self._decided = Intervals(start=expected)
        self._asked = Intervals(start=expected)
        self._withdrawn = Intervals(start=expected)
        self._count = 0
        self._failed = {} if failed is None else failed
        self._single: dict[int, str] = {}
        # ascending; every failure, whether or not its ack was requested: a success must not cover it
        self._marks: list[_Mark] = []
        self._position = expected

    def restore(
        self,
        held: Iterable[Interval],
        asked: Iterable[Interval],
        withdrawn: Iterable[Interval],
        single: Mapping[int, str],
    ) -> None:
        """Continue with the result of ``beyond``, the failures of whose numbers are known."""
        for first, last in held:
            self._add(first, last)
        self._asked.merge(asked)
        self._withdrawn.merge(withdrawn)
        self._single = dict(single)
        self._marks = [_Mark(first, last, None, asked=False) for first, last in self._withdrawn]
        self._marks += [
            _Mark(seq, seq, self._failed.get(seq), asked=seq in self._asked, single=self._single.get(seq))
            for seq in self._failed.keys() | self._single.keys()
            if seq >= self._decided.start and seq in self._decided
        ]
        self._marks.sort(key=attrgetter("first"))

    @property
    def watermark(self) -> int:
        """The number up to which all are decided."""
        return self._decided.watermark

    @property
    def beyond(self) -> tuple[list[Interval], list[Interval], list[Interval], dict[int, str]]:
        """The numbers behind the first hole: decided, requested and withdrawn runs; command ids of acks not merged."""
        sets = (self._decided, self._asked, self._withdrawn)
        decided, asked, withdrawn = ([run for run in runs if run[0] > self.watermark] for runs in sets)
        return decided, asked, withdrawn, {seq: cid for seq, cid in self._single.items() if seq > self.watermark}

    @property
    def held_count(self) -> int:
        """The count of decided numbers behind the first hole; a run of withdrawn ones counts as one."""
        watermark = self.watermark
        runs = [(first, last) for first, last in self._withdrawn if first > watermark]
        withdrawn = sum(last - first + 1 for first, last in runs)
        return self._count - (watermark + 1 - self._decided.start) - withdrawn + len(runs)

    def decided(self, seq: int) -> bool:
        """Return whether a number is decided, or lies below the first one to acknowledge."""
        return seq in self._decided

    def undecided(self, first: int, last: int) -> bool:
        """Return whether all numbers of a run are undecided."""
        return first >= self._decided.start and self._decided.missing(first, last) == [(first, last)]

    def repeated(self, seq: int) -> str:
        """Return the reason that answers a repeated, decided number: why it failed, else that it is a duplicate."""
        return self._failed.get(
            seq, dispositions.OUTCOME_UNKNOWN if seq <= self.unknown_through else dispositions.DUPLICATE
        )

    def succeed(self, first: int, last: int, *, asked: bool) -> None:
        """Mark a run of undecided numbers as durable."""
        self._add(first, last)
        if asked:
            self._asked.add(first, last)

    def decide(
        self, seq: int, reason: str | None, *, asked: bool = True, single: str | None = None, stored: bool = True
    ) -> None:
        """Mark a number as durable, or as failed with a reason; runs of which no ack was ``asked`` are not reported."""
        # ``single``: the command id of an ack that is not merged; ``stored``: whether a message that does not fail has
        # a row
        repeated = seq in self._decided
        if repeated:
            reason = self.repeated(seq)
        elif reason is not None:
            self._failed[seq] = reason
        if single is not None and not repeated:
            self._single[seq] = single
        if (reason is not None or single is not None) and (asked or not repeated):
            insort(self._marks, _Mark(seq, seq, reason, asked, repeated, single), key=attrgetter("first"))
        if not repeated:
            self._add(seq, seq)
            if asked:
                self._asked.add(seq)
            if reason is not None or not stored:
                self.absent.add(seq)

    def withdraw(self, first: int, last: int) -> None:
        """Stop waiting for the undecided numbers of a run, which will never arrive."""
        for low, high in self._decided.missing(first, last):
            self._add(low, high)
            self.absent.add(low, high)
            self._withdrawn.add(low, high)
            insort(self._marks, _Mark(low, high, None, asked=False), key=attrgetter("first"))

    def forget(self, expected: int) -> None:
        """Forget the failures of numbers below ``expected``."""
        for seq in sorted(seq for seq in self._failed if seq < expected):
            self.unknown_through = seq
            del self._failed[seq]

    def skip(self, expected: int) -> None:
        """Stop acknowledging below a number after the watermark: undecided numbers there will never arrive."""
        for first, last in self._decided.missing(self._decided.start, expected - 1):
            self._add(first, last)
            self.absent.add(first, last)
        self._marks = [mark for mark in self._marks if mark.first >= expected]
        self._position = max(self._position, expected)

    def take(self) -> list[AckRun]:
        """Return, once, the runs up to the first undecided number."""
        watermark = self.watermark
        runs: list[AckRun] = []
        ready = [mark for mark in self._marks if mark.first <= watermark]
        del self._marks[: len(ready)]
        for first, last, reason, asked, repeated, single in ready:
            self._append_success(runs, first if repeated else first - 1)
            if asked:
                runs.append(AckRun(first, last, reason, single))
            self._position = max(self._position, last + 1)
        self._append_success(runs, watermark)
        return runs

    def _add(self, first: int, last: int) -> None:
        self._decided.add(first, last)
        self._count += last - first + 1

    def _append_success(self, runs: list[AckRun], last: int) -> None:
        first = self._position
        if first > last:
            return
        self._position = last + 1
        if self._asked.missing(first, last) != [(first, last)]:
            runs.append(AckRun(first, last, None))
