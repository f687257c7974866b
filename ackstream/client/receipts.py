"""What a publisher gets for a message, and what it gets instead."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from ackstream.client.errors import ClientError

Stage: TypeAlias = Literal["accepted", "persisted"]
"""How far a message has got: Kafka has stored it (milliseconds), or the tables hold it (a batch later)."""


class Receipt(msgspec.Struct, frozen=True):
    """A message was acknowledged.

    :ivar stage: what it was acknowledged for
    :ivar context: what the application gave along
    :ivar first: the first message this receipt is about; ``seq`` itself unless receipts are windowed
    :ivar duplicate: the service had it already; its first copy counts
    """

    seq: int
    stage: Stage
    context: Any
    first: int
    timestamp_ms: int
    duplicate: bool = False


class FailedMessage(msgspec.Struct, frozen=True):
    """A message that was refused, with the stored copy, for the failed-write handler."""

    seq: int
    reason: str
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes]]
    context: Any


class PublishStatistics(msgspec.Struct, frozen=True):
    """Counts since the publisher began.

    ``published`` messages were numbered; ``accepted`` were stored by Kafka, ``acknowledged`` at the publisher's stage,
    ``failed`` refused; ``unpersisted`` are kept still. ``resent`` counts transmissions that were not the first, and
    ``window_closed`` how often a message had to wait for room.
    """

    published: int
    accepted: int
    acknowledged: int
    failed: int
    unpersisted: int
    resent: int
    window_closed: int


class WouldBlockError(ClientError):
    """The publish window is full, and the publisher was told not to wait."""


class AcknowledgementTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """No acknowledgement in time: the outcome is unknown. The message is kept, and may be stored or stored later."""


class ReaderTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """Readers have not acknowledged in time: what they were waited for with is kept, and nothing is lost."""


class FlushTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """Not everything was acknowledged in time; what was not is kept and goes on being sent."""


class LogonTimeout(ClientError, TimeoutError):  # noqa: N818 - the word of the field
    """No answer to the logon: the job that persists messages is not running, or far behind."""


class PublisherClosedError(ClientError):
    """The publisher was closed before the acknowledgement came; a store in a file keeps the message."""
