"""A publisher's message as a reader gets it, from a record of ``messages`` or a row of the table of that name."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ackstream.protocol.intervals import Intervals
from ackstream.protocol.messages import read_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyarrow.dataset import Expression

    from ackstream.client.readers.sample_reader import SampleReader
    from ackstream.protocol.intervals import Interval
    from ackstream.settings import Lake


SERVICE_HEADERS = frozenset(
    {"client", "seq", "command", "cid", "ack", "topic", "ttl", "first", "ack-conflation", "key"}
)
"""Record headers that say something to the service; the others are the application's own."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One message.

    :ivar writer: the client that published it
    :ivar seq: the client's number of it
    :ivar topic: the subject that the publisher named
    :ivar headers: the application's own record headers; of a name that comes twice the last value
    :ivar timestamp_ms: the broker's time of it, in epoch milliseconds
    :ivar partition: with ``offset`` its place in the Kafka topic ``messages``
    """

    writer: str
    seq: int
    topic: str | None
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]
    timestamp_ms: int
    partition: int
    offset: int
    _reader: SampleReader | None = field(default=None, repr=False)

    def acknowledge(self, response: bytes | None = None) -> None:
        """Say that the application has finished with it; see :meth:`SampleReader.acknowledge_sample`."""
        if self._reader is not None:
            self._reader.acknowledge_sample(self, response)

    def reject(self, reason: str, status: int = 400) -> None:
        """Say that the application could not do it; see :meth:`SampleReader.reject_sample`."""
        if self._reader is not None:
            self._reader.reject_sample(self, reason, status)


def of_record(record: Any, reader: SampleReader | None = None) -> Sample | None:
    """Return the message in a record; ``None`` for a command, and for what no writer or no number claims."""
    headers = dict(record.headers)
    command = headers.get("command")
    client = (headers.get("client") or b"").decode("utf-8", "replace")
    seq = read_number((headers.get("seq") or b"").decode("utf-8", "replace"))
    if command not in (None, b"publish") or not client or seq is None:
        return None
    topic = headers.get("topic")
    return Sample(
        client,
        seq,
        None if topic is None else topic.decode("utf-8", "replace"),
        headers.get("key"),
        record.value,
        {name: value for name, value in headers.items() if name not in SERVICE_HEADERS},
        record.timestamp,
        record.partition,
        record.offset,
        reader,
    )


def of_row(row: dict[str, Any], reader: SampleReader | None = None) -> Sample:
    """Return the message in a row of the table ``messages``."""
    return Sample(
        row["client"],
        row["seq"],
        row["subject"],
        row["key"],
        row["value"],
        {header["name"]: header["value"] for header in row["headers"] or ()},
        round(row["received_at"].timestamp() * 1000),
        row["partition"],
        row["offset"],
        reader,
    )


COLUMNS = ("client", "seq", "subject", "key", "value", "headers", "received_at", "partition", "offset")
"""Those that :func:`of_row` needs."""


# -- The table ``messages`` as readers see it: what Kafka has deleted is there still. Read without Spark.


def stored_rows(
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


def read_stored_samples(
    lake: Lake, writer: str, runs: Iterable[Interval], limit: int, reader: SampleReader
) -> tuple[list[Sample], list[Interval]]:
    """Return the samples of the first ``limit`` numbers in ``runs``, in order, and those numbers that it lacks.

    :param runs: ascending, not empty
    :raises Exception: the table cannot be read; of which kind depends on where it is
    """
    chosen = list(_first(runs, limit))
    first, last = chosen[0][0], chosen[-1][1]
    taken = stored_rows(
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
