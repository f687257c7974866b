"""Reports of the service about publishers' messages: acknowledgements, and which messages are stored where.

An acknowledgement names the stage that was reached (brokers.md 1.2, 1.3): ``received`` (arrived, nothing checked),
``processed`` (checked, perhaps not executed), ``persisted`` (durable), ``completed`` (the immediate part has ended),
``stats`` (numbers, after the command has ended). Each is a message of its own.

Readers, settle and queues rely on a message only once the persist job has reported it as stored: one in Kafka may still
be refused. A mirror copies all rows of ``messages`` to a further lake, its *destination* (brokers.md 1.1 A9, A12, A13),
batch by batch in ascending order, each as a whole: the newest batch there is the position of the destination.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from operator import itemgetter
from typing import Final, Literal, TypeAlias

import msgspec

from ackstream.protocol.dispositions import DUPLICATE
from ackstream.protocol.json import reader

MAX_SESSION_CHARACTERS = 64
MAX_SESSIONS = 8
"""Superseded sessions of a publisher that are remembered, and changes of its store; a deployment has one."""

CONFLATION_MS = 1_000
"""How long merged acks wait unless a logon has another interval (seed002; seed004: one second)."""

MAX_CLIENT_CHARACTERS = 255
"""Longest name of a client, that is a publisher or a reader; the reports of a reader name both."""

MAX_NUMBER = 2**63 - 1
_MAX_DIGITS = len(str(MAX_NUMBER))


def read_number(text: str | None) -> int | None:
    """Read a number from a record header; return ``None`` if it is not a whole number of at most 64 bits."""
    # digits are those that SQL reads too: with digits of another script the table would have no number
    if text is None or len(text) > _MAX_DIGITS or not text.isdecimal() or not text.isascii():
        return None
    number = int(text)
    return number if number <= MAX_NUMBER else None


AckType: TypeAlias = Literal["received", "processed", "persisted", "completed", "stats"]
"""The order in which acks are sent, as far as they can be ordered."""

Status: TypeAlias = Literal["success", "failure", "retry"]


class CommandAck(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="c",
    tag="ack",
    rename={"ack_type": "a", "seq": "s"},
):
    """One acknowledgement of a command or of published messages.

    A conflated one has no command id: ``first`` and ``seq`` are the first and last sequence numbers it covers. With
    ``success`` everything before has been answered; with ``failure`` the two are equal, as for a topic without a log.

    :ivar session: the session of the publisher whose numbers these are; another one uses them for other messages
    :ivar highest: in the answer to a publisher's logon: the highest number ever received, where new numbers begin
    :ivar takeovers: in that answer: the sessions with which a publisher of another ``publisher-store``, or of none,
        followed, the oldest first, the present one last; each with the number up to which all were decided before
    :ivar detail: a sentence about the reason
    :ivar effective_conflation_ms: the conflation interval in force if it is not the one requested
    :ivar ack_id: see :meth:`identified`
    """

    ack_type: AckType
    status: Status = "success"
    client: str | None = None
    cid: str | None = None
    first: int | None = None
    seq: int | None = None
    session: str | None = None
    highest: int | None = None
    takeovers: tuple[tuple[str, int], ...] = ()
    reason: str | None = None
    detail: str | None = None
    bookmark: str | int | None = None
    sub_id: str | None = None
    topic_matches: int | None = None
    matches: int | None = None
    records_returned: int | None = None
    records_deleted: int | None = None
    effective_conflation_ms: int | None = None
    ack_id: str | None = None

    def identified(self) -> CommandAck:
        """Return the ack with its stable id: a replayed batch produces the same id, so receivers can drop repeats."""
        parts = (self.client, self.cid, self.first, self.seq, self.ack_type, self.status, self.reason, self.bookmark)
        return msgspec.structs.replace(self, ack_id=blake2b(msgspec.json.encode(parts), digest_size=12).hexdigest())


encode_ack = msgspec.json.Encoder().encode
decode_ack = msgspec.json.Decoder(CommandAck).decode

Support: TypeAlias = Literal["yes", "yes, merged", "with a bookmark", "with a filter"]
"""Support of a command for a type of acknowledgement; merged: one ack for many sequence numbers."""

_BASIC: dict[AckType, Support] = {"received": "yes", "processed": "yes"}
_PUBLISH = _BASIC | {"persisted": "yes, merged", "completed": "yes"}
_SUBSCRIBE = _BASIC | {"persisted": "with a bookmark", "completed": "with a bookmark"}
_QUERY = _BASIC | {"completed": "yes", "stats": "yes"}

SUPPORTED: dict[str, dict[AckType, Support]] = {
    "logon": _BASIC,
    "publish": _PUBLISH,
    "subscribe": _SUBSCRIBE,
    "sow": _QUERY,
    "sow_and_subscribe": _QUERY,
    "sow_delete": _BASIC | {"persisted": "yes, merged", "completed": "with a filter", "stats": "yes"},
    "unsubscribe": _BASIC,
    "flush": _BASIC | {"persisted": "yes", "completed": "yes"},
    "heartbeat": _BASIC,
}
"""The types that each command supports; no others, and no commands for deltas, are supported."""


def expected(command: str, asked: Collection[str], *, bookmark: bool = False, filtered: bool = False) -> set[str]:
    """Return the requested types that will be sent if the command succeeds."""
    conditions = {"with a bookmark": bookmark, "with a filter": filtered}
    return {
        name for name, support in SUPPORTED.get(command, {}).items() if name in asked and conditions.get(support, True)
    }


NOT_SUPPORTED: Final = "not supported"


@dataclass(frozen=True)
class ClientCommand:
    """One command of a publisher or query client; ``asked``: types of ack; ``top_n``: how many records."""

    name: str
    cid: str | None = None
    asked: frozenset[str] = frozenset()
    seq: int | None = None
    filter: str | None = None
    top_n: int | None = None


def asked(types: Iterable[str]) -> frozenset[str]:
    """Return the acknowledgement types that a command requests; ``none`` requests nothing."""
    return frozenset(types) - {"none", ""}


def refusal(command: ClientCommand) -> str | None:
    """Return the reason to refuse a command for a type of acknowledgement it never gets, else ``None``."""
    return None if command.asked <= SUPPORTED[command.name].keys() else NOT_SUPPORTED


def opening(command: ClientCommand, reason: str | None, detail: str | None = None) -> list[CommandAck]:
    """Return the acknowledgements that precede everything else a command does."""
    # ``processed`` is sent unrequested if the command requested a type that it cannot have: otherwise the client would
    # wait forever. A duplicate was processed successfully; its failure is reported with ``persisted``.
    acks = [CommandAck(ack_type="received", cid=command.cid)] if "received" in command.asked else []
    if "processed" in command.asked or reason == NOT_SUPPORTED:
        why = None if reason == DUPLICATE else reason
        acks.append(CommandAck(ack_type="processed", status=status(why), cid=command.cid, reason=why, detail=detail))
    return acks


def status(reason: str | None) -> Status:
    """Return the status that belongs to a reason."""
    return "success" if reason is None else "failure"


def completed(command: ClientCommand, bookmark: str | None = None) -> list[CommandAck]:
    """Return the ``completed`` acknowledgement if the client requested it."""
    if "completed" not in command.asked or (command.name == "sow_delete" and command.filter is None):
        return []
    return [CommandAck(ack_type="completed", cid=command.cid, bookmark=bookmark)]


SessionRun: TypeAlias = tuple[int, int, str | None]
"""First and last number, and the session of the messages; empty: they named none; ``None``: it is not known."""


class SessionRuns:
    """The sessions of a publisher's numbers, as ascending runs, each as long as it can be."""

    def __init__(self, runs: Iterable[SessionRun] = ()) -> None:
        self._runs: list[SessionRun] = []
        for run in runs:
            self.add(*run)

    def add(self, first: int, last: int, session: str | None) -> None:
        """Note the session of numbers, in place of the one that they had."""
        runs = self._runs
        low, high = bisect_left(runs, first, key=itemgetter(1)), bisect_right(runs, last, key=itemgetter(0))
        left = [(begin, first - 1, name) for begin, _, name in runs[low:high][:1] if begin < first]
        right = [(last + 1, end, name) for _, end, name in runs[low:high][-1:] if end > last]
        before = max(0, low - 1)
        joined: list[SessionRun] = []
        for begin, end, name in (*runs[before:low], *left, (first, last, session), *right, *runs[high : high + 1]):
            continues = joined and joined[-1][1:] == (begin - 1, name)
            joined.append((joined.pop()[0] if continues else begin, end, name))
        runs[before : high + 1] = joined

    def within(self, first: int, last: int) -> list[SessionRun]:
        """Return the parts of the runs between two numbers."""
        low, high = bisect_left(self._runs, first, key=itemgetter(1)), bisect_right(self._runs, last, key=itemgetter(0))
        return [(max(begin, first), min(end, last), name) for begin, end, name in self._runs[low:high]]

    def at(self, number: int) -> str | None:
        """Return the session of a number; ``None`` if it is not known."""
        index = bisect_left(self._runs, number, key=itemgetter(1))
        return self._runs[index][2] if index < len(self._runs) and self._runs[index][0] <= number else None

    def divided(self, first: int, last: int) -> list[SessionRun]:
        """Divide a range, perhaps an empty one, where the session changes; numbers of none join the part before."""
        parts: list[SessionRun] = []
        for begin, _, session in self.within(first, last) if first <= last else ():
            if not parts:
                parts.append((first, last, session))
            elif session != parts[-1][2]:
                parts[-1:] = [(parts[-1][0], begin - 1, parts[-1][2]), (begin, last, session)]
        return parts or ([(first, last, None)] if first <= last else [])

    def forget(self, last: int) -> None:
        """Forget the numbers up to one."""
        self._runs = self.within(last + 1, MAX_NUMBER)

    def __iter__(self) -> Iterator[SessionRun]:
        return iter(self._runs)


class StoredRange(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="stored"):
    """Messages ``first`` to ``last`` of a client are decided: stored in ``messages``, except the runs in ``refused``.

    Those were refused, accepted and dropped, or are numbers that the client never used. ``first`` follows the ``last``
    of the client's previous record; a batch that is replayed after a crash repeats its record.

    :ivar batch: the column of that name in ``messages``
    :ivar session: the ``publisher-session`` of all stored ones: a record of another one that has such a number was
        refused. Empty: they named none; ``None``: it is not known
    """

    client: str
    first: int
    last: int
    batch: int
    refused: tuple[tuple[int, int], ...] = ()
    session: str | None = None


read_stored: Callable[[bytes | None], StoredRange] = reader(StoredRange, "stored messages")
write_stored = msgspec.json.Encoder().encode

NO_BATCH: Final = -1
"""The position of an empty table."""


class Replicated(msgspec.Struct, frozen=True, tag_field="type", tag="replicated"):
    """A mirror job's destination has all rows of ``messages`` up to a batch; published on a compacted topic.

    The mirror reports its position when it starts, and after each advance; a repeated report changes nothing.

    :ivar source: the id of the table that the rows come from; batches of another table are unrelated
    :ivar batch: the column of that name in ``messages``; -1 if there is nothing yet
    """

    destination: str
    source: str
    batch: int


read_replicated: Callable[[bytes | None], Replicated] = reader(Replicated, "a destination")
write_replicated = msgspec.json.Encoder().encode
