"""What holds after a storm, looked at from outside: topics, tables, and what the clients have noted."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from ackstream.protocol import queues, readers
from ackstream.protocol.messages import SESSION_OVER
from ackstream.protocol.readers import AppAck, AppAckConf
from tests.harness.lake import commit_times, rows
from tests.harness.storm import lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.harness.storm import Storm


def complete(storm: Storm) -> bool:
    """Look whether everything that was sent has its end in tables and readers."""
    last = storm.last()
    handled = {line for line in (line.partition(",")[2] for line in lines(storm.notes["reader"])) if "p1" in line}
    seen = {line.split()[1] for line in lines(storm.notes["subscriber"])}
    asked = {_id(record) for record in storm.system.records("signals")}
    delivered = sum(
        row["last"] - row["first"] + 1 for row in rows(storm.lake, "deliveries", "first", "last", "writer")
        if row["writer"] == "p1"
    )  # fmt: skip
    return (
        last is not None
        and len(handled) >= last
        and delivered >= last
        and seen >= {row["correlation_id"] for row in rows(storm.lake, "thing_events", "correlation_id")}
        and {row["correlation_id"] for row in rows(storm.lake, "outcomes", "correlation_id")} >= asked
        and storm.queued is not None
        and sum(row["event"] == "left" for row in rows(storm.lake, "queue_events", "event")) >= storm.queued
    )


def check_things(storm: Storm) -> None:
    """No revision is lost or doubled, a command acts once, and only what is stored is acknowledged."""
    journal = rows(storm.lake, "thing_events", "thing_id", "revision", "correlation_id")
    revisions = defaultdict(list)
    for row in journal:
        revisions[row["thing_id"]].append(row["revision"])
    assert {thing: sorted(found) for thing, found in revisions.items()} == {
        thing: list(range(1, len(found) + 1)) for thing, found in revisions.items()
    }
    changes = Counter(row["correlation_id"] for row in journal)
    assert set(changes.values()) == {1}
    events = {
        (record.key, json.loads(record.value)["revision"], record.value) for record in storm.system.records("events")
    }
    # an event may be written again, always in the same words
    assert len(events) == len({(key, revision) for key, revision, _ in events}) == len(journal)
    persisted = [record for record in storm.system.records("acks") if b"/twin/commands/" in record.value]
    assert {_id(record) for record in persisted if json.loads(record.value)["status"] < 300} <= changes.keys()
    for key, (status, body) in storm.answers.items():
        # none at all while the gateway is away; 503 where it cannot reach Kafka
        assert status in (0, 200, 408, 424, 503), (key, status, body)
        if status in (200, 424):
            entry = json.loads(body)["twin-persisted"]
            assert entry["status"] >= 300 or key in changes, key
            assert body.count(b'"correlation-id":"') == body.count(f'"correlation-id":"{key}"'.encode()), key
    # the subscriber handles every event, and none again that was committed when it was killed
    handled: dict[str, int] = Counter(line.split()[1] for line in lines(storm.notes["subscriber"]))
    assert handled.keys() == changes.keys()
    final = {_id(record) for record in storm.system.records("events")
             if record.offset < storm.committed.get((record.topic, record.partition), 0)}  # fmt: skip
    assert storm.committed
    assert {handled[key] for key in final} <= {1}


def check_answers(storm: Storm) -> None:
    """Every request has one outcome, in the table too, and its replies never differ."""
    asked = Counter(_id(record) for record in storm.system.records("signals"))
    outcomes = rows(storm.lake, "outcomes", "correlation_id", "reply_id")
    assert Counter(row["correlation_id"] for row in outcomes) == Counter(asked.keys())
    replies = {(r.key.decode(), dict(r.headers)["reply-id"].decode(), r.value) for r in storm.system.records("replies")}
    assert len(replies) == len({key for key, _, _ in replies})
    assert {(key, identity) for key, identity, _ in replies} == {
        (row["correlation_id"], row["reply_id"]) for row in outcomes
    }
    acks = rows(storm.lake, "acknowledgements", "topic", "partition", "offset", "index")
    assert set(Counter(tuple(row.values()) for row in acks).values()) == {1}


def check_messages(storm: Storm) -> None:
    """Every message is stored once, here and at the destination, and reported stored no earlier."""
    last = storm.last()
    columns = ("client", "seq", "value", "reason", "batch")
    # what the connection of a killed publisher still held may arrive after the next logon: its successor sends it too
    here, there = (
        [row for row in rows(lake, "messages", *columns) if row["reason"] != SESSION_OVER]
        for lake in (storm.lake, storm.standby)
    )
    stored = {row["seq"]: row for row in here if row["client"] == "p1"}
    numbers = Counter((row["client"], row["seq"]) for row in here)
    assert set(numbers.values()) == {1}
    assert stored.keys() == set(range(1, last + 1))
    assert all(row["reason"] is None and row["value"] == b"%d" % row["seq"] for row in stored.values())
    assert Counter((row["client"], row["seq"]) for row in there) == numbers
    commits = commit_times(storm.lake, "messages")
    for line in lines(storm.notes["publisher"]):
        moment, seq = line.split(",")
        if moment != "end":
            assert commits[stored[int(seq)]["batch"]] <= int(moment), line


def check_reader(storm: Storm) -> None:
    """Every sample is handled, once in a run, and not again once settle has confirmed its acknowledgement."""
    runs: list[tuple[int, list[int]]] = []
    for line in lines(storm.notes["reader"]):
        moment, writer, seq = line.split(",")
        if writer == "begin":
            runs.append((int(moment), []))
        elif writer == "p1":
            runs[-1][1].append(int(seq))
    assert set().union(*(handled for _, handled in runs)) == set(range(1, storm.last() + 1))
    # the consumer of the queue writes there, too
    values = [record.value for record in storm.system.records("app-acks")]
    reports = [readers.read(value) for value in values if json.loads(value)["type"] not in queues.TYPES]
    answers = [readers.read_answer(record.value) for record in storm.system.records("publisher-acks")]
    confirmed = {(conf.writer, conf.epoch, conf.count) for conf in answers if isinstance(conf, AppAckConf)}
    acks = [ack for ack in reports if isinstance(ack, AppAck) and (ack.writer, ack.epoch, ack.count) in confirmed]
    confirmed_before_a_run = set()
    for began, handled in runs:
        assert len(handled) == len(set(handled))
        before = _samples(ack for ack in acks if ack.writer == "p1" and ack.epoch < began)
        confirmed_before_a_run |= before
        assert not before & set(handled)
    assert len(runs) > 1
    assert confirmed_before_a_run


def _samples(acks: Iterable[AppAck]) -> set[int]:
    return {seq for ack in acks for run in ack.intervals for seq in range(run.first, run.last + 1)}


def check_queue(storm: Storm) -> None:
    """Every message of the queue is accepted once, and no delivery comes twice."""
    handed = Counter(storm.handed)
    assert set(handed.values()) == {1}
    assert storm.queued
    assert sorted(storm.accepted) == list(range(storm.queued))
    events = rows(storm.lake, "queue_events", "event", "message", "count")
    assert Counter((row["message"], row["count"]) for row in events if row["event"] == "delivered") == handed
    assert sum(row["event"] == "left" for row in events) == storm.queued


def check_query(storm: Storm) -> None:
    """The query client has received every message of its topic once, in order."""
    assert storm.received == list(range(1, storm.last() + 1))


CHECKS = (check_things, check_answers, check_messages, check_reader, check_queue, check_query)


def _id(record: Any) -> str:
    return dict(record.headers)["correlation-id"].decode()
