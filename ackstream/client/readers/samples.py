"""A publisher's message as a reader gets it: from a record of ``messages``, or from a row of that table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ackstream.protocol import record_headers
from ackstream.protocol.messages import read_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class SampleCallbacks(NamedTuple):
    """What a sample calls when the application acknowledges or rejects it."""

    acknowledge: Callable[[Sample, bytes | None], None]
    reject: Callable[[Sample, str, int], None]


@dataclass(frozen=True, eq=False)
class Sample:
    """One message.

    :ivar writer: the client that published it
    :ivar seq: the client's sequence number of it
    :ivar topic: the subject that the publisher named
    :ivar headers: the application's own record headers; the last value of a name that occurs twice
    :ivar timestamp_ms: the broker's time of it, in epoch milliseconds
    :ivar partition: of the Kafka topic ``messages``, as is ``offset``
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
    _callbacks: SampleCallbacks | None = field(default=None, repr=False)

    def acknowledge(self, response: bytes | None = None) -> None:
        """Acknowledge the sample to its writer; see :meth:`SampleReader.acknowledge_sample`."""
        if self._callbacks is not None:
            self._callbacks.acknowledge(self, response)

    def reject(self, reason: str, status: int = 400) -> None:
        """Reject the sample; see :meth:`SampleReader.reject_sample`."""
        if self._callbacks is not None:
            self._callbacks.reject(self, reason, status)


def of_record(record: Any, callbacks: SampleCallbacks | None = None) -> Sample | None:
    """Return the message in a record; ``None`` for a command, and for a record without a client or a number."""
    headers = dict(record.headers)
    writer, seq = text(headers.get(record_headers.CLIENT)), read_number(text(headers.get(record_headers.SEQ)))
    if headers.get(record_headers.COMMAND) not in (None, b"publish") or not writer or seq is None:
        return None
    topic = headers.get(record_headers.TOPIC)
    return Sample(
        writer,
        seq,
        None if topic is None else text(topic),
        headers.get(record_headers.KEY),
        record.value,
        {name: value for name, value in headers.items() if name not in record_headers.PUBLISHER},
        record.timestamp,
        record.partition,
        record.offset,
        callbacks,
    )


def of_row(row: dict[str, Any], callbacks: SampleCallbacks | None = None) -> Sample:
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
        callbacks,
    )


def text(value: bytes | None) -> str:
    """Return the text of a header; bytes that are not UTF-8 are replaced."""
    return (value or b"").decode("utf-8", "replace")
