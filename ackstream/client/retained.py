"""The table ``messages`` as readers see it: what Kafka has deleted is there still. Read without Spark."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ackstream.client.samples import COLUMNS, of_row
from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyarrow.dataset import Expression

    from ackstream.client.sample_reader import SampleReader
    from ackstream.client.samples import Sample
    from ackstream.protocol.intervals import Interval
    from ackstream.settings import Lake


def rows(
    lake: Lake, columns: Iterable[str], wanted: Callable[[Callable[[str], Expression]], Expression]
) -> list[dict[str, Any]]:
    """Return rows of messages that were taken.

    :param wanted: makes the condition, given what makes a field of a name
    :raises Exception: the table cannot be read; of which kind depends on where it is
    """
    # these load slowly, and most clients never need them
    from deltalake import DeltaTable  # noqa: PLC0415
    from pyarrow.dataset import field  # noqa: PLC0415

    table = DeltaTable(lake.table("messages")).to_pyarrow_dataset()
    found: list[dict[str, Any]] = table.to_table(
        columns=list(columns), filter=wanted(field) & field("reason").is_null()
    ).to_pylist()
    return found


def read(
    lake: Lake, writer: str, runs: Iterable[Interval], limit: int, reader: SampleReader
) -> tuple[list[Sample], list[Interval]]:
    """Return the samples of the first ``limit`` numbers in ``runs``, in order, and those numbers that it lacks.

    :param runs: ascending, not empty
    :raises Exception: the table cannot be read; of which kind depends on where it is
    """
    chosen = list(_first(runs, limit))
    first, last = chosen[0][0], chosen[-1][1]
    taken = rows(
        lake,
        COLUMNS,
        lambda field: (field("client") == writer) & (field("seq") >= first) & (field("seq") <= last),
    )
    wanted = Intervals(chosen, start=first)
    found = [of_row(row, reader) for row in sorted(taken, key=itemgetter("seq")) if row["seq"] in wanted]
    there = Intervals(((sample.seq, sample.seq) for sample in found), start=first)
    return found, [run for low, high in chosen for run in there.missing(low, high)]


def _first(runs: Iterable[Interval], limit: int) -> Iterator[Interval]:
    for first, last in runs:
        if limit <= 0:
            return
        yield first, min(last, first + limit - 1)
        limit -= last - first + 1
