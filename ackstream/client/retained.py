"""The table ``messages`` as readers see it: what Kafka has deleted is there still. Read without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.dataset as ds
from deltalake import DeltaTable

from ackstream.client.samples import COLUMNS, of_row
from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.client.sample_reader import SampleReader
    from ackstream.client.samples import Sample
    from ackstream.protocol.intervals import Interval
    from ackstream.settings import Lake


def read(
    lake: Lake, writer: str, runs: Iterable[Interval], limit: int, reader: SampleReader
) -> tuple[list[Sample], list[Interval]]:
    """Return the samples of the first ``limit`` numbers in ``runs``, in order, and those numbers that it lacks.

    :param runs: ascending, not empty
    :raises Exception: the table cannot be read; of which kind depends on where it is
    """
    chosen = list(_first(runs, limit))
    first, last = chosen[0][0], chosen[-1][1]
    seq = ds.field("seq")
    mine = (ds.field("client") == writer) & (seq >= first) & (seq <= last) & ds.field("reason").is_null()
    table = DeltaTable(lake.table("messages")).to_pyarrow_dataset()
    rows = table.to_table(columns=list(COLUMNS), filter=mine).sort_by("seq").to_pylist()
    wanted = Intervals(chosen, start=first)
    found = [of_row(row, reader) for row in rows if row["seq"] in wanted]
    there = Intervals(((sample.seq, sample.seq) for sample in found), start=first)
    return found, [run for low, high in chosen for run in there.missing(low, high)]


def _first(runs: Iterable[Interval], limit: int) -> Iterator[Interval]:
    for first, last in runs:
        if limit <= 0:
            return
        yield first, min(last, first + limit - 1)
        limit -= last - first + 1
