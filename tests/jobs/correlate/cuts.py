"""What a shard has decided, however the records that it was fed were cut into batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from ackstream.jobs.correlate.state import Record
from tests.jobs.correlate.shards import Run

SECOND = 1000
HORIZON = 400 * SECOND


def decided(run: Run) -> tuple[Any, ...]:
    """Everything that was decided, sorted."""
    # updates are those of a batch
    replies = sorted((reply["reply-id"], repr(reply)) for reply in run.replies() if reply["completed-by"] != "progress")
    outcomes = sorted(repr(sorted(outcome.items())) for outcome in run.outcomes())
    acks = sorted(repr(sorted(ack.items())) for record in run.ledger() for ack in record.get("acks", ()))
    signals = sorted(repr(sorted(r["signal"].items())) for r in run.ledger() if "signal" in r)
    return replies, outcomes, acks, signals, sorted(run.reasons())


def fed_in_cuts(partitions: Sequence[list[Record]], data: st.DataObject, horizon: int = HORIZON, **limits: Any) -> Run:
    """Feed the records of partitions in up to 8 batches, with time passing as far as it may; at last up to the end."""
    run = Run(**limits)
    watermark = 0
    batches = data.draw(st.integers(1, 8))
    cuts = [
        sorted(data.draw(st.lists(st.integers(0, len(records)), min_size=batches - 1, max_size=batches - 1)))
        for records in partitions
    ]
    for starts, ends in pairwise([(0,) * len(partitions), *zip(*cuts, strict=True), tuple(map(len, partitions))]):
        batch = [
            record
            for records, start, end in zip(partitions, starts, ends, strict=True)
            for record in records[start:end]
        ]
        unread = [record.timestamp for records, end in zip(partitions, ends, strict=True) for record in records[end:]]
        # a batch without a tick goes by the second of the last one
        run.feed(*batch, watermark=max(0, watermark - data.draw(st.sampled_from([0, SECOND - 1]))))
        # the tick that may be published now counts from the next batch on
        latest = min(unread, default=horizon)
        watermark = max(watermark, data.draw(st.just(latest) | st.integers(0, latest)))
    run.feed(watermark=watermark)
    run.feed(watermark=HORIZON)
    return run
