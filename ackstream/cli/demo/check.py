"""Whether everything adds up: what was sent, what the devices said, what was answered and what is in the tables.

What should have happened is worked out here once more, from the topics alone, by the rules in one sentence each: the
first acknowledgement of a label counts, an error ends the wait, what is missing at the deadline is a 408.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ackstream.protocol.ditto.acknowledgements import combined_status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TIMED_OUT = 408
SHOWN = 3
"""So many examples of what differs are named."""


@dataclass(frozen=True)
class DeviceAnswer:
    """What a device or the twin said, as it stands in the topic acks; no label: an error. Epoch milliseconds."""

    correlation_id: str
    label: str | None
    status: int
    at: int
    place: tuple[str, int, int]


@dataclass(frozen=True)
class Answered:
    """One answer: a reply, or a row of outcomes. ``statuses`` are by label; empty for an error."""

    correlation_id: str
    reply_id: str
    status: int
    completed_by: str
    statuses: Mapping[str, int]
    content: bytes = b""


@dataclass(frozen=True)
class Evidence:
    """All there is to compare.

    :param sent: correlation-ids of the commands
    :param received: what the requester got
    :param commands: when each command came to the broker, epoch milliseconds, one entry a record
    :param said: the topic acks
    :param replies: the topic replies, repeats included
    :param signal_rows: the correlation-ids in the table signals
    :param outcome_rows: the table outcomes
    :param ack_rows: coordinates in the table acknowledgements
    """

    sent: Sequence[str]
    received: Sequence[Answered]
    commands: Sequence[tuple[str, int]]
    said: Sequence[DeviceAnswer]
    replies: Sequence[Answered]
    signal_rows: Sequence[str]
    outcome_rows: Sequence[Answered]
    ack_rows: Sequence[tuple[str, int, int]]
    dead_letters: int


@dataclass(frozen=True)
class Finding:
    """One thing that was checked; ``differences`` is empty where it holds."""

    text: str
    differences: Sequence[str]


def check(evidence: Evidence, labels: Sequence[str], timeout: int) -> list[Finding]:
    """Compare everything.

    :param labels: those every command asked for
    :param timeout: of every command, milliseconds
    """
    sent, received, outcomes = evidence.sent, evidence.received, evidence.outcome_rows
    said, ack_rows = [_named(entry.place) for entry in evidence.said], [_named(place) for place in evidence.ack_rows]
    commands = [
        *_once("the replies", sent, [reply.correlation_id for reply in received]),
        *_once("outcomes", sent, [row.correlation_id for row in outcomes]),
        *_once("signals", sent, evidence.signal_rows),
    ]
    if evidence.dead_letters:
        commands.append(f"{evidence.dead_letters:,} rows in dead_letters")
    return [
        Finding(
            f"{len(sent):,} commands sent = {len(received):,} replies received = {len(outcomes):,} rows in outcomes"
            f" = {len(evidence.signal_rows):,} rows in signals",
            commands,
        ),
        Finding(
            f"{len(said):,} acknowledgements, responses and errors of devices and twin = {len(ack_rows):,} rows in"
            " acknowledgements",
            _once("acknowledgements", said, ack_rows),
        ),
        Finding("no command has two different answers; each reply is the one in outcomes", _one_answer(evidence)),
        Finding(
            "each status is what the device said: 408 only where nothing came within the timeout",
            _truthful(evidence, labels, timeout),
        ),
    ]


def _once(where: str, wanted: Sequence[str], found: Sequence[str]) -> list[str]:
    expected, there = Counter(wanted), Counter(found)
    differences = []
    for what, entries in (("lacks", expected - there), ("has once too often", there - expected)):
        if entries:
            differences.append(f"{where}: {what} {_examples(entries)}")
    return differences


def _one_answer(evidence: Evidence) -> list[str]:
    contents: dict[str, set[tuple[str, bytes]]] = defaultdict(set)
    for reply in evidence.replies:
        contents[reply.correlation_id].add((reply.reply_id, reply.content))
    differences = []
    if several := [key for key, found in contents.items() if len(found) > 1]:
        differences.append(f"several different replies to {_examples(several)}")
    outcomes = {row.correlation_id: _facts(row) for row in evidence.outcome_rows}
    if other := [
        entry.correlation_id for entry in evidence.received if outcomes.get(entry.correlation_id) != _facts(entry)
    ]:
        differences.append(f"another outcome than the reply: {_examples(other)}")
    return differences


def _facts(answered: Answered) -> tuple[str, int, str, dict[str, int]]:
    return answered.reply_id, answered.status, answered.completed_by, dict(answered.statuses)


def _truthful(evidence: Evidence, labels: Sequence[str], timeout: int) -> list[str]:
    said: dict[str, list[DeviceAnswer]] = defaultdict(list)
    for entry in sorted(evidence.said, key=lambda entry: (entry.at, entry.place)):
        said[entry.correlation_id].append(entry)
    deadlines = {key: at + timeout for key, at in evidence.commands}
    wrong = []
    for reply in evidence.received:
        wanted = expected(labels, said[reply.correlation_id], deadlines.get(reply.correlation_id, 0))
        if wanted != (reply.status, reply.completed_by, dict(reply.statuses)):
            wrong.append(reply.correlation_id)
    return [f"another answer than the acknowledgements say: {_examples(wrong)}"] if wrong else []


def expected(labels: Sequence[str], said: Iterable[DeviceAnswer], deadline: int) -> tuple[int, str, dict[str, int]]:
    """Work out the answer to a command: its status, what completed it, the statuses by label.

    :param said: what its device said, in order of time
    :param deadline: epoch milliseconds
    """
    statuses: dict[str, int] = {}
    for entry in said:
        if entry.at > deadline:
            break
        if entry.label is None:
            return entry.status, "error", {}
        statuses.setdefault(entry.label, entry.status)
        if statuses.keys() >= set(labels):
            break
    complete = statuses.keys() >= set(labels)
    entries = {label: statuses.get(label, TIMED_OUT) for label in labels}
    return combined_status(list(entries.values())), "acknowledgements" if complete else "timeout", entries


def _named(place: tuple[str, int, int]) -> str:
    return "-".join(map(str, place))


def _examples(entries: Any) -> str:
    names = list(entries)
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
