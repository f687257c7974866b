"""A publisher's message as a reader gets it, and the settings of a reader and of a writer.

The settings have Connext's names, and its defaults where these lose nothing (brokers.md 2.1, RTI-PY).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from ackstream.client.core.arguments import check_length, check_word
from ackstream.client.core.messages import Message, text
from ackstream.client.errors import SettleTimeout
from ackstream.errors import AckstreamError, InconsistentQosError
from ackstream.protocol import record_headers
from ackstream.protocol.messages import MAX_SESSION_CHARACTERS, read_number
from ackstream.protocol.readers import MAX_RESPONSE_BYTES, MAX_ROLES
from ackstream.settings import Lake

log = logging.getLogger(__name__)

MAX_NAME_CHARACTERS = 255


class Acknowledger(Protocol):
    """Acknowledges samples: the reader that has handed them out."""

    def acknowledge_sample(self, sample: Sample, response: bytes | None = None) -> None:
        """Acknowledge a sample to its publisher."""

    def reject_sample(self, sample: Sample, reason: str, status: int = 400) -> None:
        """Reject a sample towards the requester of a label."""


@dataclass(frozen=True, eq=False)
class Sample(Message):
    """A message as a reader receives it.

    :ivar seq: the publisher's sequence number of it
    :ivar partition: that of the Kafka topic ``messages``, as is ``offset``
    :ivar session: the publisher's, empty if it named none; ``None`` in a message from the table
    """

    seq: int
    partition: int
    offset: int
    session: str | None = field(default=None, repr=False)
    _reader: Acknowledger | None = field(default=None, repr=False)

    def acknowledge(self, response: bytes | None = None) -> None:
        """Acknowledge the sample to its publisher; see :meth:`SampleReader.acknowledge_sample`."""
        if self._reader is not None:
            self._reader.acknowledge_sample(self, response)

    def reject(self, reason: str, status: int = 400) -> None:
        """Reject the sample; see :meth:`SampleReader.reject_sample`."""
        if self._reader is not None:
            self._reader.reject_sample(self, reason, status)


def of_record(record: Any, reader: Acknowledger | None = None) -> Sample | None:
    """Return the message in a record; ``None`` for a command, and for a record without a client or a number."""
    headers = dict(record.headers)
    publisher, seq = text(headers.get(record_headers.CLIENT)), read_number(text(headers.get(record_headers.SEQ)))
    command = headers.get(record_headers.COMMAND)
    if command not in (None, b"publish") or not publisher or seq is None:
        return None
    topic = text(headers[record_headers.TOPIC]) if headers.get(record_headers.TOPIC) is not None else None
    own = {name: value for name, value in headers.items() if name not in record_headers.PUBLISHER}
    content = (headers.get(record_headers.KEY), record.value, own, record.timestamp)
    session = text(headers.get(record_headers.SESSION))[:MAX_SESSION_CHARACTERS]
    return Sample(publisher, topic, *content, seq, record.partition, record.offset, session, reader)


def of_row(row: dict[str, Any], reader: Acknowledger | None = None) -> Sample:
    """Return the message in a row of the table ``messages``."""
    own = {header["name"]: header["value"] for header in row["headers"] or ()}
    content = (row["key"], row["value"], own, round(row["received_at"].timestamp() * 1000))
    place = (row["seq"], row["partition"], row["offset"])
    return Sample(row["client"], row["subject"], *content, *place, None, reader)


def check_lake(lake: Lake | None) -> None:
    """Open the table with the messages; raise ``MissingExtraError``, or ``StartError`` with the cause."""
    if lake is None:
        return
    from ackstream.lake import reading  # noqa: PLC0415 - it loads slowly, and most clients never need it

    reading.check(lake, "messages")


def usable_lake(lake: Lake | None) -> Lake | None:
    """Return the lake of the settings, ``None`` if it cannot be read: Kafka has most samples, and the log the cause."""
    try:
        check_lake(lake)
    except AckstreamError as error:
        log.warning("Samples that Kafka has deleted cannot be read from the table: %s", error)
        return None
    return lake


Kind: TypeAlias = Literal["protocol", "application-auto", "application-explicit"]
"""When a sample is acknowledged: when the library has it, when the application has accessed it, or explicitly."""

History: TypeAlias = Literal["keep-all", "keep-last"]


class ReaderQos(msgspec.Struct, frozen=True, kw_only=True):
    """How a reader acknowledges.

    :ivar kind: Connext's own default is ``protocol``, with which a crash of the application loses samples
    :ivar reliable: a best-effort reader sends no acknowledgements
    :ivar depth: with ``keep-last``, how many samples of an instance (a topic and key) are kept for the application
    :ivar minimum_separation_ms: the time-based filter: of samples of an instance that were published closer together,
        only the first reaches the application; the others are acknowledged as ``filtered``
    :ivar samples_per_app_ack: an AppAck is sent when this number of samples is waiting, or after the period
    :ivar app_ack_period_ms: how often waiting and unconfirmed samples are reported
    :ivar max_response_length: maximum bytes of response data in an acknowledgement
    :ivar response_keep_ms: how long after the acknowledgement repeated AppAcks contain the response
    """

    kind: Kind = "application-auto"
    reliable: bool = True
    history: History = "keep-all"
    depth: int = 1
    minimum_separation_ms: int = 0
    samples_per_app_ack: int = 1
    app_ack_period_ms: int = 5_000
    max_response_length: int = 1
    response_keep_ms: int = 0

    def __post_init__(self) -> None:
        check_word("kind", self.kind, Kind)
        check_word("history", self.history, History)
        if self.kind != "protocol" and not self.reliable:
            raise InconsistentQosError(f"A best-effort reader cannot acknowledge as {self.kind}; make it reliable.")
        if not 0 <= self.max_response_length <= MAX_RESPONSE_BYTES:
            raise InconsistentQosError(
                f"max_response_length is {self.max_response_length}; it must be 0 to {MAX_RESPONSE_BYTES} bytes."
            )
        check_at_least(1, depth=self.depth, samples_per_app_ack=self.samples_per_app_ack)
        check_at_least(1, app_ack_period_ms=self.app_ack_period_ms)
        check_at_least(0, response_keep_ms=self.response_keep_ms, minimum_separation_ms=self.minimum_separation_ms)


class WriterQos(msgspec.Struct, frozen=True, kw_only=True):
    """How a writer keeps samples and waits.

    :ivar max_samples: the maximum number of samples it keeps; ``None``: no limit
    :ivar max_blocking_ms: with ``keep-all``, how long a write waits for room
    :ivar propagate_no_response: whether acknowledgements without response data reach the callback
    :ivar required: roles besides those of the settings, and how many different readers of each; they apply until a
        publisher of the name names others. ``None`` leaves them; an empty dict removes them, which completes samples
    """

    reliable: bool = True
    history: History = "keep-all"
    max_samples: int | None = None
    max_blocking_ms: int = 100
    propagate_no_response: bool = True
    required: dict[str, int] | None = None

    def __post_init__(self) -> None:
        check_word("history", self.history, History)
        if self.max_samples is not None:
            check_at_least(1, max_samples=self.max_samples)
        check_at_least(0, max_blocking_ms=self.max_blocking_ms)
        if self.required and not self.reliable:
            raise InconsistentQosError("A best-effort writer waits for no reader: make it reliable, or omit the roles.")
        if len(self.required or {}) > MAX_ROLES:
            raise InconsistentQosError(f"A writer requires at most {MAX_ROLES} roles, not {len(self.required or {})}.")
        for role, quorum in (self.required or {}).items():
            check_length("role", role, MAX_NAME_CHARACTERS)
            check_at_least(1, **{f"The quorum of {role}": quorum})


def check_at_least(least: int, **values: int) -> None:
    """Refuse a number below ``least``, with :class:`InconsistentQosError`."""
    for name, value in values.items():
        if value < least:
            raise InconsistentQosError(f"{name} is {value}; it must be at least {least}.")


def settle_silent(event: str, timeout: float) -> SettleTimeout:
    """Return the error of a wait of ``timeout`` seconds for the settle job."""
    return SettleTimeout(
        f"{event} within {timeout:g} s: start the job that settles acknowledgements (`ackstream submit settle`)."
    )
