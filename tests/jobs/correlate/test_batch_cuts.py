"""The law: decisions do not depend on where batches are cut, nor on which partition is read first.

The records of one request are in one signals and one acks partition (they are keyed by the thing), where the broker's
clock may be set back. A tick is read only after all records before its time: that is what the clock guarantees.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.jobs.correlate.shards import Log, Run

if TYPE_CHECKING:
    from ackstream.jobs.correlate.state import Record

LABELS = ["a-ack", "b-ack", "twin-persisted"]
SECOND = 1000
HORIZON = 400 * SECOND

actions = st.tuples(
    st.integers(0, 150).map(lambda seconds: seconds * SECOND),
    st.sampled_from([0, 0, 0, 1, 5, 30]).map(lambda seconds: seconds * SECOND),
    st.sampled_from(["request", "ack", "response", "error", "garbage"]),
    st.sampled_from(["x", "y"]),
    st.lists(st.sampled_from(LABELS), min_size=1, max_size=3, unique=True),
    st.integers(1, 70),
)
"""Real time, how far the broker's clock is set back just then, and what is sent."""


def _log(steps: list[Any]) -> tuple[list[Record], list[Record]]:
    log = Log()
    signals, acks = [], []
    for real_time, back, what, key, labels, seconds in sorted(steps, key=lambda step: step[0]):
        time = max(0, real_time - back)
        if what == "request":
            signals.append(log.command(time, key, requested_acks=labels, timeout=f"{seconds}s"))
        elif what == "ack":
            acks.append(log.ack(time, labels[0] if labels[0] != "twin-persisted" else "c-ack", 200 + seconds, key))
        elif what == "response":
            acks.append(log.response(time, 204, key))
        elif what == "error":
            acks.append(log.error(time, correlation_id=key))
        else:
            acks.append(log.record(1, time, key, b"garbage"))
    return signals, acks


def _decided(run: Run) -> tuple[Any, ...]:
    """Everything that was decided, sorted."""
    replies = sorted((reply["reply-id"], repr(reply)) for reply in run.replies())
    outcomes = sorted(repr(sorted(outcome.items())) for outcome in run.outcomes())
    acks = sorted(repr(sorted(ack.items())) for record in run.ledger() for ack in record.get("acks", ()))
    signals = sorted(repr(sorted(r["signal"].items())) for r in run.ledger() if "signal" in r)
    return replies, outcomes, acks, signals, sorted(run.reasons())


def _whole(signals: list[Record], acks: list[Record]) -> tuple[Any, ...]:
    run = Run()
    run.feed(*signals, *acks)
    run.feed(watermark=HORIZON)
    return _decided(run)


@settings(max_examples=400)
@given(st.lists(actions, max_size=14), st.data())
def test_outcomes_do_not_depend_on_batch_cuts(steps: list[Any], data: st.DataObject) -> None:
    partitions = _log(steps)
    run = Run()
    watermark = 0
    batches = data.draw(st.integers(1, 8))
    cuts = [
        sorted(data.draw(st.lists(st.integers(0, len(records)), min_size=batches - 1, max_size=batches - 1)))
        for records in partitions
    ]
    for starts, ends in pairwise([(0, 0), *zip(*cuts, strict=True), tuple(map(len, partitions))]):
        batch = [
            record
            for records, start, end in zip(partitions, starts, ends, strict=True)
            for record in records[start:end]
        ]
        unread = [record.timestamp for records, end in zip(partitions, ends, strict=True) for record in records[end:]]
        run.feed(*batch, watermark=watermark)
        # the tick that may be published now counts from the next batch on
        watermark = max(watermark, data.draw(st.integers(0, min(unread, default=HORIZON))))
    run.feed(watermark=HORIZON)
    assert _decided(run) == _whole(*partitions)


@settings(max_examples=100)
@given(st.lists(actions, max_size=14))
def test_each_request_is_answered_once_and_each_ack_recorded_once(steps: list[Any]) -> None:
    signals, acks = _log(steps)
    run = Run()
    run.feed(*signals, *acks)
    run.feed(watermark=HORIZON)
    assert run.state is None or not run.next_timeout
    outcomes = [outcome["reply_id"] for outcome in run.outcomes()]
    assert len(outcomes) == len(set(outcomes))
    dead = [r["dead_letter"] for r in run.ledger() if "dead_letter" in r]
    used = [(ack["partition"], ack["offset"]) for record in run.ledger() for ack in record.get("acks", ())]
    assert sorted(used + [(d["partition"], d["offset"]) for d in dead if d["topic"] == "acks"]) == sorted(
        (record.partition, record.offset) for record in acks
    )
    assert len(outcomes) + sum(d["topic"] == "signals" for d in dead) == len(signals)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=200) | st.none() | st.text().map(str.encode)), max_size=20)
)
def test_no_bytes_stop_the_operator(values: list[tuple[int, bytes | None]]) -> None:
    log = Log()
    run = Run()
    run.feed(*(log.record(source, index, f"id{index % 3}", value) for index, (source, value) in enumerate(values)))
    run.feed(watermark=HORIZON)
    assert len(run.reasons()) + len(run.acks()) + len(run.outcomes()) >= len(values)
