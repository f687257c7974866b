"""What holds after a storm, looked at from outside: topics, tables, and what the clients have noted.

Each check returns a sentence for each promise of docs/project/evidence/reliability.md that was broken; none if all were
kept.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ackstream.protocol import queues, readers
from ackstream.protocol.dispositions import SESSION_OVER
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.protocol.readers import AppAck, AppAckConf
from tests.harness.lake import commit_times, rows
from tests.harness.storm import Storm, lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ackstream.settings import Lake
    from tests.harness.system import System

SHOWN = 10
SENT = ("partition", "offset", "timeout_ms")
STATUSES = {0, 200, 408, 424, 503}
"""Of answers to HTTP requests: none at all while the gateway is away; 503 where it cannot reach Kafka or correlate."""


class Answered(NamedTuple):
    """What the checks of requests look at: less than a storm."""

    system: System
    lake: Lake


def compare(what: str, found: Iterable[Any], wanted: Iterable[Any]) -> Iterator[str]:
    """Say which of the wanted ones are missing, and which are more than wanted."""
    # of a dict the keys
    found, wanted = Counter(iter(found)), Counter(iter(wanted))
    for how, difference in (("missing", wanted - found), ("too many", found - wanted)):
        if difference:
            yield f"{what}: {difference.total()} {how}: {_some(difference)}"


def single(what: str, found: Iterable[Any]) -> Iterator[str]:
    """Say which are there more than once."""
    twice = {each: number for each, number in Counter(found).items() if number > 1}
    if twice:
        yield f"{what}: {len(twice)} more than once: {_some(twice)}"


def _some(found: Iterable[Any]) -> str:
    shown = list(islice(found, SHOWN + 1))
    return ", ".join(map(str, shown[:SHOWN])) + (", …" if len(shown) > SHOWN else "")


def missing(storm: Storm) -> list[str]:
    """Return what has not reached its end yet in tables and readers, of everything that was sent."""
    last = storm.last()
    if last is None or storm.queued is None:
        return ["the publishers still send"]
    handled = {line for line in (line.partition(",")[2] for line in lines(storm.notes["reader"])) if "p1" in line}
    delivered = sum(
        row["last"] - row["first"] + 1 for row in rows(storm.lake, "deliveries", "first", "last", "writer")
        if row["writer"] == "p1"
    )  # fmt: skip
    seen = {line.split()[1] for line in lines(storm.notes["subscriber"])}
    changed = {row["correlation_id"] for row in rows(storm.lake, "thing_events", "correlation_id")}
    decided = {row["correlation_id"] for row in rows(storm.lake, "outcomes", "correlation_id")}
    asked = {_id(record) for record in storm.system.records("signals")}
    left = sum(row["event"] == "left" for row in rows(storm.lake, "queue_events", "event"))
    mirrored = sum(row["reason"] != SESSION_OVER for row in rows(storm.standby, "messages", "reason"))
    counts = {
        "samples that no reader has handled": last - len(handled),
        "samples without a row in deliveries": last - delivered,
        "messages that standby does not have": last + storm.queued - mirrored,
        "changes that the subscriber has not handled": len(changed - seen),
        "requests without an outcome": len(asked - decided),
        "messages that have not left the queue": storm.queued - left,
    }
    return [f"{number} {what}" for what, number in counts.items() if number > 0]


def complete(storm: Storm) -> bool:
    """Look whether everything that was sent has its end in tables and readers."""
    return not missing(storm)


def check_things(storm: Storm) -> Iterator[str]:
    """No revision is lost or doubled, a command acts once, and only what is stored is acknowledged."""
    journal = rows(storm.lake, "thing_events", "thing_id", "revision", "correlation_id", "partition", "offset")
    revisions = defaultdict(list)
    for row in journal:
        revisions[row["thing_id"]].append(row["revision"])
    for thing, found in revisions.items():
        yield from compare(f"revisions of {thing}", found, range(1, len(found) + 1))
    # a record acts once; a sender that was not told that Kafka had stored its command may have sent it again
    yield from single("changes by a record of signals", ((row["partition"], row["offset"]) for row in journal))
    sent = {(record.partition, record.offset): _id(record) for record in storm.system.records("signals")}
    acted = {(row["partition"], row["offset"]): row["correlation_id"] for row in journal}
    yield from compare("changes by commands of signals", acted.items(), acted.items() & sent.items())
    changed = set(acted.values())
    events = {
        (record.key, json.loads(record.value)["revision"], record.value) for record in storm.system.records("events")
    }
    # an event may be written again, always in the same words
    yield from single("contents of an event", ((key, revision) for key, revision, _ in events))
    yield from compare(
        "events of changes",
        {(key.decode(), revision) for key, revision, _ in events},
        ((row["thing_id"], row["revision"]) for row in journal),
    )
    persisted = [record for record in storm.system.records("twin-acks") if b"/twin/commands/" in record.value]
    told = {_id(record) for record in persisted if json.loads(record.value)["status"] < 300}
    yield from compare("commands that the twin acknowledged but did not store", told - changed, ())
    # a gateway sends its clients' commands under ids of its own
    shown = set(map(shown_id, changed))
    for key, (status, body) in storm.answers.items():
        if status not in STATUSES:
            yield f"the answer to {key} has the status {status}: {body[:500]!r}"
        elif status in (200, 424):
            entry = json.loads(body).get("twin-persisted", {})
            if entry.get("status", 0) < 300 and key not in shown:
                yield f"{key} was answered {entry} but is not in thing_events"
            if body.count(b'"correlation-id":"') != body.count(f'"correlation-id":"{key}"'.encode()):
                yield f"the answer to {key} has acknowledgements of another request: {body[:500]!r}"


def check_subscriber(storm: Storm) -> Iterator[str]:
    """The subscriber handles the event of every change, and none again that it had committed."""
    events = storm.system.records("events")
    handled = [(float(moment), key) for moment, key in map(str.split, lines(storm.notes["subscriber"]))]
    yield from compare("events that were handled", {key for _, key in handled}, {_id(record) for record in events})
    if not storm.committed:
        yield "the subscriber has never committed"
    for moment, committed in storm.committed:
        final = Counter(_id(r) for r in events if r.offset < committed.get((r.topic, r.partition), 0))
        # the same command, acting twice because it was sent twice, has two events
        later = Counter(_id(r) for r in events if r.offset >= committed.get((r.topic, r.partition), 0))
        again = {key for at, key in handled if at > moment and key in final and key not in later}
        yield from compare(f"events that were committed at {moment:.3f} and handled again", again, ())


def check_answers(storm: Storm | Answered) -> Iterator[str]:
    """Every request has one outcome, in the table too, and its replies never differ."""
    memory = storm.system.settings.correlate.recent_memory
    timeouts = {(r["partition"], r["offset"]): r["timeout_ms"] for r in rows(storm.lake, "signals", *SENT)}
    asked = requests(storm.system.records("signals"), timeouts, memory)
    outcomes = rows(storm.lake, "outcomes", "correlation_id", "reply_id")
    decided = Counter(row["correlation_id"] for row in outcomes)
    yield from compare("requests with an outcome", decided, asked)
    yield from compare("outcomes of a request", (decided - asked).elements(), ())
    replies = {(r.key.decode(), dict(r.headers)["reply-id"].decode(), r.value) for r in storm.system.records("replies")}
    yield from single("different replies of one id", (identity for _, identity, _ in replies))
    yield from compare(
        "replies of outcomes",
        {(key, identity) for key, identity, _ in replies},
        ((row["correlation_id"], row["reply_id"]) for row in outcomes),
    )
    acks = rows(storm.lake, "acknowledgements", "topic", "partition", "offset", "index")
    yield from single("rows of an acknowledgement", (tuple(row.values()) for row in acks))


def requests(signals: Iterable[Any], timeouts: Mapping[tuple[int, int], int], memory_ms: int) -> Counter[str]:
    """Return how many requests the records of each id may be, as ``docs/reference/wire.md`` says.

    A record that is sent again is another request once ``correlate.recent_memory`` after the deadline has passed, which
    it does at once where the broker's clock is set ahead. An id that was in use may so have two outcomes.

    :param timeouts: milliseconds, by partition and offset
    """
    found: Counter[str] = Counter()
    ends: dict[str, int] = {}
    clock: dict[int, int] = {}
    for record in sorted(signals, key=lambda each: (each.partition, each.offset)):
        now = clock[record.partition] = max(record.timestamp, clock.get(record.partition, 0))
        if now > ends.get(identity := _id(record), -1):
            found[identity] += 1
            ends[identity] = record.timestamp + timeouts.get((record.partition, record.offset), 0) + memory_ms
    return found


def check_deadlines(storm: Storm | Answered) -> Iterator[str]:
    """No request was timed out without an acknowledgement that Kafka had by its deadline."""
    signals = {row["id"]: row["timeout_ms"] for row in rows(storm.lake, "signals", "id", "timeout_ms")}
    came = defaultdict(list)
    for row in rows(storm.lake, "acknowledgements", "correlation_id", "label", "received_at", "disposition"):
        # what is invalid answers nothing; an orphan waited for a request that had not been made
        if row["disposition"] not in ("invalid", "orphan"):
            came[row["correlation_id"], row["label"]].append(row["received_at"])
    for row in rows(storm.lake, "outcomes", "correlation_id", "reply_id", "missing", "started_at", "completed_by"):
        if row["completed_by"] != "timeout":
            continue
        timeout = signals.get(row["reply_id"])
        if timeout is None:
            yield f"the request {row['correlation_id']} has an outcome but no row in signals with its timeout"
            continue
        deadline = row["started_at"] + timedelta(milliseconds=timeout)
        for label in row["missing"]:
            early = [moment for moment in came[row["correlation_id"], label] if row["started_at"] <= moment <= deadline]
            if early:
                yield (
                    f"the request {row['correlation_id']} of {row['started_at']} was timed out without {label}, which"
                    f" came at {min(early)}, before its deadline {deadline}"
                )


def check_messages(storm: Storm) -> Iterator[str]:
    """Every message is stored once, here and at the destination, and reported stored no earlier."""
    last = storm.last() or 0
    columns = ("client", "seq", "value", "reason", "batch")
    # what the connection of a killed publisher still held may arrive after the next logon: its successor sends it too
    here, there = (
        [row for row in rows(lake, "messages", *columns) if row["reason"] != SESSION_OVER]
        for lake in (storm.lake, storm.standby)
    )
    stored = {row["seq"]: row for row in here if row["client"] == "p1"}
    numbers = [(row["client"], row["seq"]) for row in here]
    yield from single("rows of a message", numbers)
    yield from compare("messages of p1", stored, range(1, last + 1))
    for seq, row in stored.items():
        if row["reason"] is not None or row["value"] != b"%d" % seq:
            yield f"message {seq} of p1 is stored as {row}"
    yield from compare("messages of standby", ((row["client"], row["seq"]) for row in there), numbers)
    commits = commit_times(storm.lake, "messages")
    for line in lines(storm.notes["publisher"]):
        moment, _, seq = line.partition(",")
        if moment == "end":
            continue
        row = stored.get(int(seq))
        if row is None or commits[row["batch"]] > int(moment):
            yield f"the publisher was told at {moment} ns that {seq} is stored: {row}, commit {row and row['batch']}"


def check_reader(storm: Storm) -> Iterator[str]:
    """Every sample is handled, once in a run, and not again once settle has confirmed its acknowledgement."""
    runs: list[tuple[int, list[int]]] = []
    for line in lines(storm.notes["reader"]):
        moment, writer, seq = line.split(",")
        if writer == "begin":
            runs.append((int(moment), []))
        elif writer == "p1":
            runs[-1][1].append(int(seq))
    handled = set().union(*(found for _, found in runs))
    yield from compare("samples that were handled", handled, range(1, (storm.last() or 0) + 1))
    # the consumer of the queue writes there, too
    values = [record.value for record in storm.system.records("app-acks")]
    reports = [readers.read(value) for value in values if json.loads(value)["type"] not in queues.TYPES]
    answers = [readers.read_answer(record.value) for record in storm.system.records("publisher-acks")]
    confirmed = {(conf.writer, conf.epoch, conf.count) for conf in answers if isinstance(conf, AppAckConf)}
    acks = [ack for ack in reports if isinstance(ack, AppAck) and (ack.writer, ack.epoch, ack.count) in confirmed]
    confirmed_before_a_run = set()
    for began, found in runs:
        yield from single(f"samples in the run of the reader that began at {began}", found)
        before = _samples(ack for ack in acks if ack.writer == "p1" and ack.epoch < began * 1_000)
        confirmed_before_a_run |= before
        yield from compare(f"samples of the run {began} that were confirmed before", before & set(found), ())
    if len(runs) > 1 and not confirmed_before_a_run:
        yield "no acknowledgement of the reader was confirmed before it began again"


def _samples(acks: Iterable[AppAck]) -> set[int]:
    return {seq for ack in acks for run in ack.intervals for seq in range(run.first, run.last + 1)}


def check_queue(storm: Storm) -> Iterator[str]:
    """Every message of the queue is accepted once, no delivery comes twice, and none counts that no handler saw."""
    yield from single("deliveries that were handed out", storm.handed)
    yield from compare("messages of the queue that were accepted", storm.accepted, range(storm.queued or 0))
    events = rows(storm.lake, "queue_events", "event", "message", "count", "consumer", "reason", "outcome")
    found = defaultdict(Counter)
    for row in events:
        found[row["event"]][row["message"], row["count"]] += 1
    handed = Counter(storm.handed)
    yield from compare("deliveries that were handed out, not in queue_events", handed - found["delivered"], ())
    # of what is returned without having been handed out the next delivery has the same number
    untouched = found["delivered"] - found["returned"] - handed
    yield from compare("deliveries in queue_events, neither handed out nor returned", untouched.elements(), ())
    seen = {message for message, _ in storm.handed}
    given_up = [row["message"] for row in events if row["event"] == "left" and row["outcome"] != "accepted"]
    yield from compare("messages that were given up and that no handler saw", set(given_up) - seen, ())
    left = found["left"].total()
    if left != storm.queued:
        yield f"{left} messages have left the queue, {storm.queued} were sent"


def check_query(storm: Storm) -> Iterator[str]:
    """The query client has received every message of its topic once, in order."""
    wanted = list(range(1, (storm.last() or 0) + 1))
    yield from compare("messages of the query", storm.received, wanted)
    if storm.received != sorted(storm.received):
        yield "the query client received messages out of order"


CHECKS = (
    check_things,
    check_subscriber,
    check_answers,
    check_deadlines,
    check_messages,
    check_reader,
    check_queue,
    check_query,
)


def broken(storm: Storm) -> list[str]:
    """Return all promises that were broken."""
    found = []
    for check in CHECKS:
        try:
            found += [f"{check.__name__}: {sentence}" for sentence in check(storm)]
        except Exception as error:  # noqa: BLE001 - what a check cannot read is a broken promise, too
            found.append(f"{check.__name__} failed: {error!r}")
    return found


def _id(record: Any) -> str:
    return dict(record.headers)["correlation-id"].decode()
