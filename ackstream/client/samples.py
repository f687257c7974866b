"""A publisher's message as a reader gets it, from a record of ``messages`` or a row of the table of that name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ackstream.publishing.persist.facts import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackstream.client.sample_reader import SampleReader

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
    seq = number((headers.get("seq") or b"").decode("utf-8", "replace"))
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
