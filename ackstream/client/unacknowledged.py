"""The messages of a publisher that are not acknowledged: numbering, the window, retransmission, and acknowledgements.

Rules: brokers.md 1.1 A14 to A17 and 3.1 S3, S4, S7, S13. An ack, positive or negative, drops all messages up to its
number. A refused message goes to the application and is never sent again. After a logon the messages that the service
lacks are sent again, in order.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from ackstream.client.errors import FlushTimeout, GapError, SequenceError, WindowError, WouldBlockError, refused
from ackstream.client.lifetime import call_handler
from ackstream.kafka.clients import monotonic_ms
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.messages import DUPLICATE, NOT_ENTITLED, CommandAck

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from ackstream.client.storage import KeptMessage, MemoryMessages

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
    ``failed`` refused; ``unpersisted`` are still in the store. ``resent`` counts retransmissions, ``window_closed`` how
    often a message had to wait for room.
    """

    published: int
    accepted: int
    acknowledged: int
    failed: int
    unpersisted: int
    resent: int
    window_closed: int


class _Open(NamedTuple):
    future: Future[Receipt]
    context: Any


class UnacknowledgedMessages:
    """Decides when messages are sent and when they are done; the publisher sends them.

    Safe to use from several threads. Futures and handlers are called without the lock.
    """

    def __init__(
        self,
        messages: MemoryMessages,
        *,
        on_receipt: Callable[[Receipt], None] | None = None,
        on_failed_write: Callable[[FailedMessage], None] | None = None,
        stage: Stage = "persisted",
        window: int = 1000,
        ack_timeout_ms: int = 60_000,
        windowed: bool = False,
        error_on_gap: bool = False,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        """Take over the messages of an earlier run; they are not sent before :meth:`logged_on`.

        The options are those of a publisher; a window is 1 to 255 in Solace, and may be larger here.

        :param clock: monotonic milliseconds
        :raises WindowError: the window or the timeout is too small to send anything
        """
        if window < 1:
            raise WindowError(f"A publish window of {window} lets nothing through: use 1 or more.")
        if stage == "persisted" and ack_timeout_ms < 1:
            raise WindowError(f"An ack timeout of {ack_timeout_ms} ms would resend forever: use 1 ms or more.")
        self.changed = threading.Condition()
        self.ended: Exception | None = None
        self._messages = messages
        self._on_receipt = on_receipt
        self._on_failed_write = on_failed_write
        self._stage: Stage = stage
        self._window = window
        self._ack_timeout_ms = ack_timeout_ms
        self._windowed = windowed
        self._error_on_gap = error_on_gap
        self._clock = clock
        self._open: dict[int, _Open] = {}
        # by number: when it was last sent
        self._in_flight: dict[int, int] = {}
        # messages of an earlier run that do not fit into the window yet
        self._waiting: deque[int] = deque()
        # handed to Kafka, which has not answered
        self._sending: set[int] = set()
        self._rejected: set[int] = set()
        self._accepted = Intervals()
        self._counts: Counter[str] = Counter()

    @property
    def statistics(self) -> PublishStatistics:
        """The counts since the start."""
        counts = {name: self._counts[name] for name in PublishStatistics.__struct_fields__}
        return PublishStatistics(**counts | {"unpersisted": len(self._messages)})

    def logged_on(self, last: int) -> list[int]:
        """Drop the messages up to the service's last one; return those to send again now.

        The others follow when the window has room.

        :raises GapError: the service lacks messages that were dropped, and gaps are errors
        """
        with self.changed:
            if self._error_on_gap and last < self._messages.discarded:
                raise GapError(last + 1, self._messages.discarded)
            self._messages.drop(last)
            self._accepted = Intervals(start=self._messages.discarded + 1)
            self._waiting.extend(self._messages.numbers())
            return self._admit()

    def add(self, message: KeptMessage, future: Future[Receipt], context: Any, wanted: int | None) -> int | None:
        """Give a message its number and keep it; return ``None`` if the window has no room.

        :raises SequenceError: ``wanted`` is not the next number
        :raises StoreError: it cannot be kept
        """
        with self.changed:
            if self.ended is not None:
                raise self.ended
            if self._full:
                return None
            number = self._messages.last + 1
            if wanted is not None and wanted != number:
                raise SequenceError(
                    f"Sequence number {wanted} is not the next one, which is {number}: a gap would never be"
                    " acknowledged, and an earlier number is in use."
                )
            self._messages.add(number, message)
            self._in_flight[number] = self._clock()
            self._open[number] = _Open(future, context)
            self._counts["published"] += 1
            return number

    def wait_for_room(self, *, block: bool) -> None:
        """Wait until the window opens, or the publisher has ended.

        :raises WouldBlockError: without ``block``
        """
        with self.changed:
            self._counts["window_closed"] += 1
            if not block:
                raise WouldBlockError("The publish window is full: wait for acknowledgements, or enlarge it.")
            self.changed.wait_for(lambda: not self._full or self.ended is not None)

    def resend(self, seq: int) -> KeptMessage | None:
        """Return a message to be sent again, ``None`` if it has been acknowledged."""
        with self.changed:
            message = self._messages.get(seq)
            self._counts["resent"] += message is not None
            return message

    def sending(self, seq: int) -> None:
        """Note that a message was handed to Kafka."""
        with self.changed:
            self._sending.add(seq)

    def accepted(self, seq: int) -> list[int]:
        """Note that Kafka has stored a message; return the messages to send now."""
        with self.changed:
            self._sending.discard(seq)
            self._counts["accepted"] += 1
            before = self._accepted.watermark
            self._accepted.add(seq)
            up_to = self._accepted.watermark
            self.changed.notify_all()
        if self._stage == "persisted" or up_to == before:
            return []
        return self.acknowledged(CommandAck(ack_type="persisted", first=before + 1, seq=up_to))

    def rejected(self, seq: int) -> None:
        """Note that Kafka did not store a message."""
        with self.changed:
            self._sending.discard(seq)
            self._rejected.add(seq)

    def overdue(self) -> list[int]:
        """Return the messages to send again now: not stored by Kafka, or not acknowledged in time."""
        with self.changed:
            if self.ended is not None:
                return []
            now, late = self._clock(), self._rejected
            self._rejected = set()
            if self._stage == "persisted":
                timed_out = [seq for seq, at in self._in_flight.items() if at + self._ack_timeout_ms <= now]
                self._in_flight.update(dict.fromkeys(timed_out, now))
                late |= set(timed_out) - self._sending
            return sorted(late)

    def flush(self, stage: Stage, timeout: float | None) -> None:
        """Wait until every message so far has reached a stage, or was refused.

        :param stage: the publisher's own, or ``accepted``
        :raises FlushTimeout: some did not
        """
        with self.changed:
            last = self._messages.last
            if not self.wait_for(lambda: self._flushed(last, stage), timeout):
                raise FlushTimeout(
                    f"{len(self._messages)} messages were not acknowledged within {timeout:g} s; they are kept."
                )

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for a condition; return whether it holds, and raise the error of a publisher that has ended."""
        with self.changed:
            done = self.changed.wait_for(lambda: condition() or self.ended is not None, timeout)
            if self.ended is not None:
                raise self.ended
            return done

    def acknowledged(self, ack: CommandAck) -> list[int]:
        """Drop the messages that an ack covers and end their futures; return the messages to send now."""
        if ack.seq is None:
            return []
        if ack.status == "failure" or ack.reason in (DUPLICATE, NOT_ENTITLED):
            # before it is dropped: after a crash in between, the next logon reports the refusal again
            self._return_to_application(ack.seq, ack.reason or "")
        refusal = ack.reason if ack.status == "failure" and ack.reason != DUPLICATE else None
        with self.changed:
            self._messages.drop(ack.seq)
            done = [seq for seq in self._in_flight if seq <= ack.seq]
            for seq in done:
                del self._in_flight[seq]
            while self._waiting and self._waiting[0] <= ack.seq:
                # sent by an earlier run
                done.append(self._waiting.popleft())
            opened = {seq: self._open.pop(seq, None) for seq in done}
            good = [seq for seq in done if refusal is None or seq != ack.seq]
            self._counts["acknowledged"] += len(good)
            self._counts["failed"] += len(done) - len(good)
            admitted = self._admit()
            self.changed.notify_all()
        self._give_receipts(good, opened, duplicate=ack.seq if ack.reason == DUPLICATE else None)
        entry = opened.get(ack.seq)
        if entry is not None and refusal is not None:
            entry.future.set_exception(refused(refusal, f"Message {ack.seq}"))
        return admitted

    def end(self, error: Exception) -> None:
        """Fail all open futures and all later calls with an error; the first call decides which."""
        with self.changed:
            self.ended = self.ended or error
            opened, self._open = self._open, {}
            self.changed.notify_all()
        for entry in opened.values():
            entry.future.set_exception(self.ended)

    @property
    def _full(self) -> bool:
        return bool(self._waiting) or len(self._in_flight) >= self._window

    def _admit(self) -> list[int]:
        now, admitted = self._clock(), []
        while self._waiting and len(self._in_flight) < self._window:
            admitted.append(self._waiting.popleft())
            self._in_flight[admitted[-1]] = now
        return admitted

    def _flushed(self, last: int, stage: Stage) -> bool:
        if stage != self._stage:
            return not any(seq <= last for seq in self._sending | self._rejected)
        return self._messages.discarded >= last or len(self._messages) == 0

    def _give_receipts(self, numbers: list[int], opened: dict[int, _Open | None], duplicate: int | None) -> None:
        now = time.time_ns() // 1_000_000
        for seq in numbers:
            future, context = opened[seq] or (None, None)
            first = numbers[0] if self._windowed else seq
            receipt = Receipt(seq, self._stage, context, first, now, duplicate=seq == duplicate)
            if future is not None:
                future.set_result(receipt)
            if not self._windowed or seq == numbers[-1]:
                call_handler(self._on_receipt, receipt)

    def _return_to_application(self, seq: int, reason: str) -> None:
        with self.changed:
            message, entry = self._messages.get(seq), self._open.get(seq)
        value, key, headers = (None, None, []) if message is None else (message.value, message.key, message.headers)
        failed = FailedMessage(seq, reason, value, key, headers, None if entry is None else entry.context)
        call_handler(self._on_failed_write, failed)
