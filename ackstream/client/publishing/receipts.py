"""What becomes of a publisher's messages, as the application learns it: receipts, returned messages and counts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from ackstream.client.core.lifetime import call_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from ackstream.client.core.storage import KeptMessage

Stage: TypeAlias = Literal["accepted", "persisted"]
"""What a receipt confirms: Kafka has stored the message (milliseconds), or the tables hold it (a batch later)."""


class Receipt(msgspec.Struct, frozen=True):
    """The acknowledgement of a message.

    :ivar context: what the application passed to ``publish``
    :ivar first: the first message that this receipt covers; ``seq`` itself unless receipts are windowed
    :ivar duplicate: it was already stored; the first copy counts
    """

    seq: int
    stage: Stage
    context: Any
    first: int
    timestamp_ms: int
    duplicate: bool = False


class FailedMessage(msgspec.Struct, frozen=True):
    """A refused message or a duplicate, with the stored copy, for the failed-write handler."""

    seq: int
    reason: str
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes]]
    context: Any


class PublishStatistics(msgspec.Struct, frozen=True):
    """Counts since the publisher started.

    ``published`` messages were numbered, ``accepted`` stored by Kafka, ``acknowledged`` at the publisher's stage,
    ``failed`` refused, by the service or by Kafka; ``unpersisted`` are still in the store. ``resent`` counts
    retransmissions, ``window_closed`` how often a message had to wait for room.
    """

    published: int
    accepted: int
    acknowledged: int
    failed: int
    unpersisted: int
    resent: int
    window_closed: int


class Open(NamedTuple):
    """What belongs to an open message besides the message: where its receipt goes, and the application's own object."""

    future: Future[Receipt]
    context: Any


class Receipts:
    """Ends futures and calls the handlers of the application."""

    def __init__(
        self,
        stage: Stage,
        on_receipt: Callable[[Receipt], None] | None,
        on_failed_write: Callable[[FailedMessage], None] | None,
        *,
        windowed: bool,
    ) -> None:
        """Take over the options of a publisher."""
        self._stage: Stage = stage
        self._on_receipt = on_receipt
        self._on_failed_write = on_failed_write
        self._windowed = windowed

    def give(self, numbers: list[int], opened: Mapping[int, Open | None], duplicate: int | None) -> None:
        """Give the receipts of messages that one ack covers.

        :param opened: ``None`` for a message of an earlier run
        :param duplicate: the one that was stored before
        """
        now = time.time_ns() // 1_000_000
        for seq in numbers:
            future, context = opened[seq] or (None, None)
            first = numbers[0] if self._windowed else seq
            receipt = Receipt(seq, self._stage, context, first, now, duplicate=seq == duplicate)
            if future is not None:
                future.set_result(receipt)
            if not self._windowed or seq == numbers[-1]:
                call_handler(self._on_receipt, receipt)

    def give_back(self, seq: int, reason: str, message: KeptMessage | None, entry: Open | None) -> None:
        """Return a refused message or a duplicate to the application."""
        if message is None or message.withdrawn:
            value, key, headers = None, None, []
        else:
            value, key, headers = message.value, message.key, message.headers
        failed = FailedMessage(seq, reason, value, key, headers, None if entry is None else entry.context)
        call_handler(self._on_failed_write, failed)
