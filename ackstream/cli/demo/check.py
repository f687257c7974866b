"""Check that the demo adds up: commands sent, acknowledgements of the devices, replies, and rows in the tables.

The expected replies are computed independently from the topics: the first acknowledgement of a label counts, an error
ends the wait, and a label missing at the deadline gets 408.
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
"""Maximum number of examples named per difference."""


@dataclass(frozen=True)
class DeviceAnswer:
    """A record of the topic acks; ``label`` is ``None`` for an error, ``at`` is in epoch milliseconds."""

    correlation_id: str
    label: str | None
    status: int
    at: int
    coordinates: tuple[str, int, int]


@dataclass(frozen=True)
class Answered:
    """A reply, or a row of outcomes; ``statuses`` is keyed by label and empty for an error."""

    correlation_id: str
    reply_id: str
    status: int
    completed_by: str
    statuses: Mapping[str, int]
    content: bytes = b""


@dataclass(frozen=True)
class Evidence:
    """Everything to compare.

    :param sent: correlation-ids of the commands
    :param received: replies the requester received
    :param commands: correlation-id and broker timestamp (epoch milliseconds), one entry per record
    :param acks: the topic acks
    :param replies: the topic replies, including repeats
    :param signal_rows: the correlation-ids in the table signals
    :param outcome_rows: the table outcomes
    :param ack_rows: coordinates in the table acknowledgements
    """

    sent: Sequence[str]
    received: Sequence[Answered]
    commands: Sequence[tuple[str, int]]
    acks: Sequence[DeviceAnswer]
    replies: Sequence[Answered]
    signal_rows: Sequence[str]
    outcome_rows: Sequence[Answered]
    ack_rows: Sequence[tuple[str, int, int]]
    dead_letters: int


@dataclass(frozen=True)
class Finding:
    """One check and its differences, which are empty if it holds."""

    text: str
    differences: Sequence[str]


def check(evidence: Evidence, labels: Sequence[str], timeout: int) -> list[Finding]:
    """Compare sent commands, acknowledgements, replies and tables.

    :param labels: requested by every command
    :param timeout: of every command, in milliseconds
    """
    sent, received, outcomes = evidence.sent, evidence.received, evidence.outcome_rows
    acks, ack_rows = [_named(entry.coordinates) for entry in evidence.acks], list(map(_named, evidence.ack_rows))
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
            f"{len(acks):,} acknowledgements, responses and errors of devices and twin = {len(ack_rows):,} rows in"
            " acknowledgements",
            _once("acknowledgements", acks, ack_rows),
        ),
        Finding("no command has two different answers; each reply is the one in outcomes", _one_answer(evidence)),
        Finding(
            "each status is the one the device sent: 408 only where none arrived within the timeout",
            _truthful(evidence, labels, timeout),
        ),
    ]


def _once(where: str, wanted: Sequence[str], found: Sequence[str]) -> list[str]:
    expected, there = Counter(wanted), Counter(found)
    differences = []
    for what, entries in (("lacks", expected - there), ("has duplicates of", there - expected)):
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
    outcomes = {row.correlation_id: _identity(row) for row in evidence.outcome_rows}
    if other := [
        entry.correlation_id for entry in evidence.received if outcomes.get(entry.correlation_id) != _identity(entry)
    ]:
        differences.append(f"outcome differs from the reply: {_examples(other)}")
    return differences


def _identity(answered: Answered) -> tuple[str, int, str, dict[str, int]]:
    return answered.reply_id, answered.status, answered.completed_by, dict(answered.statuses)


def _truthful(evidence: Evidence, labels: Sequence[str], timeout: int) -> list[str]:
    acks: dict[str, list[DeviceAnswer]] = defaultdict(list)
    for entry in sorted(evidence.acks, key=lambda entry: (entry.at, entry.coordinates)):
        acks[entry.correlation_id].append(entry)
    deadlines = {key: at + timeout for key, at in evidence.commands}
    wrong = []
    for reply in evidence.received:
        wanted = expected(labels, acks[reply.correlation_id], deadlines.get(reply.correlation_id, 0))
        if wanted != (reply.status, reply.completed_by, dict(reply.statuses)):
            wrong.append(reply.correlation_id)
    return [f"reply does not match the acknowledgements: {_examples(wrong)}"] if wrong else []


def expected(labels: Sequence[str], acks: Iterable[DeviceAnswer], deadline: int) -> tuple[int, str, dict[str, int]]:
    """Compute the expected reply to a command: status, ``completed-by``, and statuses by label.

    :param acks: acknowledgements of its device, in time order
    :param deadline: epoch milliseconds
    """
    statuses: dict[str, int] = {}
    for entry in acks:
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


def _named(coordinates: tuple[str, int, int]) -> str:
    return "-".join(map(str, coordinates))


def _examples(entries: Any) -> str:
    names = list(entries)
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
