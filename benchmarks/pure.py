"""The cost of a message in Python alone: no Spark, no Kafka, one core. In microseconds a message."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from ackstream.jobs.correlate.job import write_frame
from ackstream.jobs.correlate.readings import RecordReader
from ackstream.jobs.correlate.records import Writer, read_records
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.state import SIGNALS, Record
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.protocol.ditto.acknowledgements import read_ack
from ackstream.protocol.ditto.envelopes import decode, encode
from ackstream.protocol.ditto.requests import read_request
from ackstream.settings import Correlate
from ackstream.spark.records import in_order
from ackstream.testing.system import process
from benchmarks import common, progress
from benchmarks.workload import Workload

TOPICS, LIMITS = CorrelateTopics(), Correlate()


def measure(bench: common.Bench) -> dict[str, Any]:
    """Measure each step on the messages of one shard in a batch of 100,000: 12,500 of them."""
    requests = 300 if bench.small else 4_300
    repeats = 3 if bench.small else 9
    workload = Workload(requests)
    records = workload.records()
    signals = [record for record in records if record.source == SIGNALS]
    acks = [record for record in records if record.source != SIGNALS]
    frame = _frame(records)
    envelopes = [decode(record.value or b"") for record in signals]
    answers = [decode(record.value or b"") for record in acks]
    shard, writer = _process(records)
    dumped = shard.dump()
    reader = RecordReader(LIMITS, TOPICS)
    replies = [emission.value for emission in writer.emissions if emission.reply_id is not None]
    decoded_replies = [decode(reply or b"") for reply in replies]
    # name, times it happens, what happens; the first group are steps of the second
    steps: list[tuple[str, int, Callable[[], object]]] = [
        ("decode a request", len(signals), lambda: [decode(record.value or b"") for record in signals]),
        ("decode an acknowledgement", len(acks), lambda: [decode(record.value or b"") for record in acks]),
        ("check a request", len(signals), lambda: [read_request(envelope) for envelope in envelopes]),
        ("check an acknowledgement", len(acks), lambda: [read_ack(envelope) for envelope in answers]),
        ("read a request, whole", len(signals), lambda: [reader.signal_of(record) for record in signals]),
        ("read an acknowledgement, whole", len(acks), lambda: [reader.answer_of(ack) for ack in acks]),
        ("encode a reply", len(replies), lambda: [encode(reply) for reply in decoded_replies]),
        ("rows to records", len(records), lambda: list(read_records(frame))),
        ("put in order", len(records), lambda: in_order(records)),
        ("process, whole", len(records), lambda: _process(records)),
        ("state from and to bytes", len(records), lambda: _cycle(dumped)),
        ("emissions to rows", len(records), lambda: write_frame(writer.emissions)),
    ]
    figures = {name: _time(step, repeats) / times * 1e6 for name, times, step in steps}
    total = sum(figures[name] for name, _, _ in steps[-5:] if name != "put in order")
    figures["a message through the operator"] = total
    sizes = {
        "request_bytes": _mean(signals),
        "acknowledgement_bytes": _mean(acks),
        "reply_bytes": statistics.mean(len(reply or b"") for reply in replies),
        "emissions_a_message": len(writer.emissions) / len(records),
        "emission_bytes_a_message": sum(len(emission.value or b"") for emission in writer.emissions) / len(records),
    }
    bench.table(
        f"Pure Python, one core, {len(records):,} messages of {requests:,} requests, median of {repeats}",
        ("step", "µs each"),
        figures.items(),
    )
    bench.say(f"That is {1e6 / total:,.0f} messages/s a core; {json.dumps(common.rounded(sizes))}")
    return {
        "method": f"median of {repeats} passes over {len(records)} messages in one process; "
        "'a message through the operator' is rows to records + process + state + emissions to rows",
        "messages": len(records),
        "microseconds_each": figures,
        "messages_a_second_a_core": 1e6 / total,
        "sizes": sizes,
    }


def _process(records: Sequence[Record]) -> tuple[CorrelateShard, Writer]:
    writer = Writer(TOPICS, "3f7f2b1e-0c5d-4b43-8a55-0f2d1f9b8e11", 7)
    shard = CorrelateShard(LIMITS, TOPICS, writer)
    process(shard, records)
    return shard, writer


def _cycle(dumped: tuple[int, bytes] | None) -> None:
    shard = CorrelateShard(LIMITS, TOPICS, Writer(TOPICS, "", 0))
    if dumped is not None:
        shard.load(*dumped)
    shard.dump()


def _frame(records: Sequence[Record]) -> pd.DataFrame:
    """Lay records out as Spark hands them to the operator."""
    names = ("timestamp", "source", "partition", "offset", "hash", "correlation_id", "key", "value", "size")
    columns: dict[str, Any] = {name: [getattr(record, name) for record in records] for name in names}
    # the correlation-id, which has a column of its own, is their only header
    columns["headers"] = [None] * len(records)
    return pd.DataFrame(columns)


def _mean(records: Sequence[Record]) -> float:
    return statistics.mean(record.size for record in records)


def _time(step: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a step that was done before."""
    step()
    return progress.seconds(step, repeats)


if __name__ == "__main__":
    common.main("pure", measure, kafka=False)
