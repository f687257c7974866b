"""Other numbers of shards: whatever a state holds is found again, and nothing is decided differently."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.correlate import pending
from ackstream.jobs.correlate.state import STATE_VERSION, Record, ShardState, decode_state, divide, unite
from tests.harness.pieces import MemoryPieces
from tests.jobs.correlate.shards import Log, Run
from tests.jobs.correlate.test_state import REQUESTS

IDS = [f"id-{number}" for number in range(20)]


class Shards:
    """As many shards as wanted, which get the records that Spark would give them."""

    def __init__(self, count: int, *, aside: bool = False, **limits: Any) -> None:
        self.limits = limits
        self.runs = [Run(store=MemoryPieces() if aside else None, **limits) for _ in range(count)]

    def feed(self, *records: Record, watermark: int = 0) -> None:
        for index, run in enumerate(self.runs):
            run.feed(*(record for record in records if record.hash % len(self.runs) == index), watermark=watermark)

    def migrated(self, count: int) -> Shards:
        """The same requests in another number of shards."""
        parts: list[list[tuple[int, bytes]]] = [[] for _ in range(count)]
        for run in self.runs:
            if run.state is not None:
                for shard, state in divide(count, *run.state, run.store).items():
                    parts[shard].append(state)
        other = Shards(count, aside=self.runs[0].store is not None, **self.limits)
        for run, own in zip(other.runs, parts, strict=True):
            run.state = unite(own) if own else None
        return other

    def decisions(self) -> Counter[str]:
        """Replies and ledger records, without the batch that wrote them."""
        return Counter(
            repr((emission.topic, emission.key, _decision(emission.value)))
            for run in self.runs
            for emission in run.emissions
        )


def _decision(value: bytes | None) -> Any:
    found = json.loads(value or b"{}")
    for part in (found, found.get("outcome"), found.get("signal")):
        if isinstance(part, dict):
            part.pop("batch_id", None)
    return found


def _event(log: Log, kind: str, time: int, key: str) -> Record:
    if kind == "command":
        return log.command(time, key, requested_acks=["a-ack", "b-ack"], timeout="5s")
    return log.ack(time, kind, correlation_id=key)


EVENTS = st.lists(st.tuples(st.sampled_from(["command", "a-ack", "b-ack"]), st.sampled_from(IDS)), max_size=60)


@given(
    events=EVENTS, cut=st.integers(0, 60), before=st.integers(1, 7), after=st.integers(1, 7), passed=st.booleans(),
    aside=st.booleans(),
)  # fmt: skip
def test_no_decision_depends_on_a_migration(
    events: list[tuple[str, str]], cut: int, before: int, after: int, *, passed: bool, aside: bool
) -> None:
    """Nor on open requests beside the checkpoint: all are, here, after each batch."""
    log = Log()
    records = [_event(log, kind, 1000 + 200 * number, key) for number, (kind, key) in enumerate(events)]
    watermark = records[cut].timestamp if passed and cut < len(records) else 0
    shards, same = Shards(before, recent_memory="2s", aside=aside), Shards(before, recent_memory="2s")
    with patch.multiple(pending, HOT_BYTES=0, TOUCHED_BYTES=0):
        for target in (shards, same):
            target.feed(*records[:cut], watermark=watermark)
        migrated = shards.migrated(after)
        for target in (migrated, same):
            target.feed(*records[cut:], watermark=watermark)
            target.feed(watermark=100_000)
    assert shards.decisions() + migrated.decisions() == same.decisions()


@pytest.mark.parametrize("shards", [1, 2, 3, 64])
def test_open_early_and_decided_requests_of_a_state_are_all_kept(shards: int) -> None:
    parts = divide(shards, STATE_VERSION, REQUESTS)
    (version, blob) = unite(parts.values())
    state, before = decode_state(version, blob), decode_state(STATE_VERSION, REQUESTS)
    assert version == STATE_VERSION
    assert state == before
    assert (len(state.open.entries), len(state.held.entries)) == (1, 1)


def test_the_order_of_the_parts_does_not_matter() -> None:
    shards = Shards(3)
    log = Log()
    shards.feed(*(log.command(10, key, requested_acks=["a-ack"]) for key in IDS))
    parts = [part for run in shards.runs if run.state for part in divide(1, *run.state).values()]
    assert len(parts) == 3
    assert unite(parts) == unite(parts[::-1])


def test_a_state_has_no_part_that_a_migration_does_not_know() -> None:
    assert ShardState.__struct_fields__ == (
        "open", "held", "undeclared", "recent", "declared", "timed_out",
    )  # fmt: skip
