"""The law: decisions do not depend on where batches are cut, nor on which partition is read first.

The records of one request are in one partition of each topic (they are keyed by the thing), where the broker's clock
may be set back. The two topics of answers have no order between them, so here all answers are in one. A tick is read
only after all records before its time: that is what the clock guarantees.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ackstream.jobs.correlate import pending, shard
from ackstream.jobs.correlate.state import ACKS, SIGNALS, TWIN_ACKS, Record
from ackstream.protocol.ledger import reply_id
from ackstream.protocol.record_headers import REPLY_ID
from ackstream.spark import records
from tests.harness.pieces import MemoryPieces
from tests.jobs.correlate.cuts import HORIZON, SECOND, decided, fed_in_cuts
from tests.jobs.correlate.shards import Log, Run

LABELS = ["a-ack", "b-ack", "twin-persisted"]

actions = st.tuples(
    st.integers(0, 150).map(lambda seconds: seconds * SECOND),
    st.sampled_from([0, 0, 0, 1, 5, 30]).map(lambda seconds: seconds * SECOND),
    st.sampled_from(["request", "ack", "response", "error", "garbage", "foreign"]),
    st.sampled_from(["x", "y"]),
    st.lists(st.sampled_from(LABELS), min_size=1, max_size=3, unique=True),
    st.integers(1, 70),
)
"""Real time, how far the broker's clock is set back just then, and what is sent."""


def _log(steps: list[Any]) -> tuple[list[Record], list[Record]]:
    log = Log()
    signals: list[Record] = []
    acks: list[Record] = []
    answered: list[str] = []
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
        elif what == "foreign":
            forged = log.acks(time, labels[0], source=TWIN_ACKS, correlation_id=key, thing="org.acme/other")
            acks.append(forged if seconds % 2 else log.response(time, 204, key, thing="org.acme/other"))
        else:
            acks.append(log.record(ACKS, time, key, b"garbage"))
        if what != "request":
            answered.append(reply_id(key, "signals", 0, log.asked.get(key, log.offsets[SIGNALS])))
    return signals, [
        replace(record, source=TWIN_ACKS, offset=offset, headers={REPLY_ID: answered[offset].encode()})
        for offset, record in enumerate(acks)
    ]


def _whole(signals: list[Record], acks: list[Record]) -> tuple[Any, ...]:
    run = Run()
    run.feed(*signals, *acks)
    run.feed(watermark=HORIZON)
    return decided(run)


def _without_set_back(acks: list[Record], found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return decisions with one word for late and orphan of those acks for which the broker's clock was set back.

    Their own time is earlier than that of their place in the partition: a hold may end before or after their request.
    """
    latest = accumulate((ack.timestamp for ack in acks), max)
    places = {f"('offset', {ack.offset})" for ack, time in zip(acks, latest, strict=True) if ack.timestamp < time}
    replies, outcomes, rows, *others = found
    words = [row.replace("'orphan'", "'late'") if any(place in row for place in places) else row for row in rows]
    return replies, outcomes, sorted(words), *others


@settings(max_examples=400)
@given(st.lists(actions, max_size=14), st.booleans(), st.data())
def test_outcomes_do_not_depend_on_batch_cuts(steps: list[Any], aside: bool, data: st.DataObject) -> None:  # noqa: FBT001
    """Nor on open requests beside the checkpoint: all are, here, after each batch."""
    partitions = _log(steps)
    with patch.multiple(pending, HOT_BYTES=0, TOUCHED_BYTES=0):
        cut = fed_in_cuts(partitions, data, store=MemoryPieces() if aside else None)
    assert _without_set_back(partitions[1], decided(cut)) == _without_set_back(partitions[1], _whole(*partitions))


@settings(max_examples=400)
@given(st.lists(actions, max_size=14), st.integers(1, 3_000), st.booleans(), st.sampled_from(["1s", "60s"]), st.data())
def test_the_emissions_are_the_same_sequence_whatever_the_budget(
    steps: list[Any],
    budget: int,
    refuse: bool,  # noqa: FBT001
    memory: str,
    data: st.DataObject,
) -> None:
    """Within a share: what is put aside comes back in order, and a pause to hand emissions over changes nothing."""
    partitions = _log(steps)
    limits: dict[str, Any] = {"refuse_undeclared": refuse, "slack": 0, "recent_memory": memory}
    if refuse:
        partitions = (*partitions, [Log().claim(0, "a-ack", "b-ack", lease_ms=20 * SECOND)])
    moments = data.draw(st.lists(st.integers(0, HORIZON), max_size=3).map(sorted))
    whole, bounded = Run(**limits), Run(store=MemoryPieces(), **limits)
    for run, bound in ((whole, 10**9), (bounded, budget)):
        with (
            patch.multiple(pending, HOT_BYTES=bound // 3, TOUCHED_BYTES=0),
            patch.multiple(shard, BUDGET=bound, HOT_BYTES=bound // 3),
        ):
            unread = [record for records in partitions for record in records]
            for moment in [*moments, HORIZON]:
                batch = [record for record in unread if record.timestamp < moment]
                unread = [record for record in unread if record.timestamp >= moment]
                run.feed(*batch, watermark=moment)
            run.feed(*unread, watermark=HORIZON)
            run.feed(watermark=2 * HORIZON)
    assert bounded.emissions == whole.emissions


@pytest.mark.parametrize("budget", [1, 10**9])
def test_a_successor_is_judged_by_its_predecessor_although_it_paused_in_between(budget: int) -> None:
    log, run = Log(), Run(orphan_hold="10s", recent_memory="1s")
    uses = [(0, 1), (10, 20), (11, 20)]
    commands = [log.command(at * SECOND, requested_acks=["a-ack"], timeout=f"{timeout}s") for at, timeout in uses]
    with patch.object(shard, "BUDGET", budget):
        run.feed(*commands, log.ack(10 * SECOND + 500, "a-ack"), watermark=50 * SECOND)
    # the third came within the time in which the second claims the id
    assert [reply["status"] for reply in run.replies()] == [408, 200]
    assert len(run.reasons()) == 1


@settings(max_examples=200)
@given(st.lists(actions, max_size=14), st.integers(1, 3_000))
def test_a_share_that_is_cut_by_its_bytes_has_the_same_outcomes(steps: list[Any], budget: int) -> None:
    partitions = _log(steps)
    run = Run()
    with patch.multiple(records, BUDGET=budget, RECORD_BYTES=budget):
        run.feed(*partitions[0], *partitions[1])
    run.feed(watermark=HORIZON)
    assert decided(run) == _whole(*partitions)


announced = st.tuples(
    st.integers(0, 60).map(lambda seconds: seconds * SECOND),
    st.sampled_from(["request", "ack", "ack", "answer", "error", "claim"]),
    st.sampled_from(["x", "y"]),
    st.lists(st.sampled_from(["a-ack", "b-ack"]), min_size=1, max_size=2, unique=True),
    st.sampled_from([200, 400]),
)


@settings(max_examples=300)
@given(st.lists(announced, max_size=12), st.sampled_from([0, 2 * SECOND]), st.data())
def test_what_is_undeclared_does_not_depend_on_batch_cuts(steps: list[Any], slack: int, data: st.DataObject) -> None:
    """The answers are in one partition, in their order: those of the twin, too."""
    log = Log()
    partitions: dict[str, list[Record]] = {"request": [], "answer": [], "claim": []}
    for number, (second, what, key, labels, status) in enumerate(sorted(steps, key=lambda step: step[0])):
        # in the same order, whatever their topic
        time = second + number
        if what == "request":
            partitions[what].append(log.command(time, key, requested_acks=["a-ack", "b-ack"], timeout="20s"))
        elif what == "ack":
            partitions["answer"].append(log.acks(time, *labels, status=status, correlation_id=key))
        elif what == "claim":
            partitions[what].append(log.claim(time, *labels, lease_ms=10 * SECOND))
        else:
            answer = log.response(time, status, key) if what == "answer" else log.error(time, correlation_id=key)
            partitions["answer"].append(answer)
    cut = fed_in_cuts(list(partitions.values()), data, refuse_undeclared=True, slack=slack)
    whole = Run(refuse_undeclared=True, slack=slack)
    whole.feed(*(record for records in partitions.values() for record in records))
    whole.feed(watermark=HORIZON)
    assert decided(cut) == decided(whole)


apart = st.tuples(
    st.sampled_from([5, 10, 20]).map(lambda seconds: seconds * SECOND),
    st.sampled_from(["a-ack", "b-ack"]),
    st.booleans(),
    st.sampled_from([200, 400]),
)


@settings(max_examples=300)
@given(st.lists(apart, min_size=2, max_size=6), st.sampled_from([0, 2 * SECOND]), st.data())
def test_what_is_undeclared_delays_no_answer_of_another_partition(
    steps: list[Any], slack: int, data: st.DataObject
) -> None:
    """Each label has a partition of its own: what the reply says does not depend on which of them is read first."""
    log, logs = Log(), {"a-ack": Log(0), "b-ack": Log(1)}
    request = log.command(SECOND, requested_acks=["a-ack", "b-ack"], timeout="10s")
    answers: dict[str, list[Record]] = {name: [] for name in logs}
    for number, (second, label, undeclared, status) in enumerate(sorted(steps, key=lambda step: step[0])):
        labels = [label, "z-ack"] if undeclared else [label]
        answers[label].append(logs[label].acks(second + number, *labels, status=status))
    partitions = [[request], [log.claim(SECOND, "a-ack"), log.claim(SECOND, "b-ack")], *answers.values()]
    cut = fed_in_cuts(partitions, data, 15 * SECOND, refuse_undeclared=True, slack=slack)
    whole = Run(refuse_undeclared=True, slack=slack)
    whole.feed(*(record for records in partitions for record in records))
    whole.feed(watermark=HORIZON)
    assert decided(cut)[0] == decided(whole)[0]


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
    assert sorted(used + [(d["partition"], d["offset"]) for d in dead if d["topic"] == "twin-acks"]) == sorted(
        (record.partition, record.offset) for record in acks
    )
    assert len(outcomes) + sum(d["topic"] == "signals" for d in dead) == len(signals)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=200) | st.none() | st.text().map(str.encode)), max_size=20)
)
def test_no_bytes_stop_the_operator(values: list[tuple[int, bytes | None]]) -> None:
    log = Log()
    run = Run()
    run.feed(*(log.record(source, index, f"id{index % 3}", value) for index, (source, value) in enumerate(values)))
    run.feed(watermark=HORIZON)
    assert len(run.reasons()) + len(run.acks()) + len(run.outcomes()) >= len(values)
