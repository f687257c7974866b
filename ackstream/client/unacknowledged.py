"""Messages that are not acknowledged yet: what is kept, what is on its way, and who waits for what."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ackstream.client.errors import refused
from ackstream.client.publish_window import PublishStore, SequenceError
from ackstream.client.receipts import FailedMessage, FlushTimeout, PublishStatistics, Receipt, Stage, WouldBlockError
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.messages import DUPLICATE, CommandAck

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from ackstream.client.publish_window import FailedWrite, PublishWindow
    from ackstream.client.storage import MemoryMessages, SqliteMessages

log = logging.getLogger(__name__)


class Kept(msgspec.Struct, array_like=True):
    """A message as the store has it."""

    value: bytes
    headers: list[tuple[str, bytes]]
    key: bytes | None = None


class Handlers(NamedTuple):
    """What the application wants to be called for."""

    receipt: Callable[[Receipt], None] | None
    failed_write: Callable[[FailedMessage], None] | None
    ack: Callable[[CommandAck], None] | None


class _Open(NamedTuple):
    future: Future[Receipt]
    context: Any


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Kept).decode


class Outstanding:
    """The state of a publisher; safe to use from several threads. Futures and handlers are called without a lock."""

    def __init__(
        self,
        messages: MemoryMessages | SqliteMessages,
        window: PublishWindow,
        stage: Stage,
        handlers: Handlers,
        *,
        windowed: bool,
        error_on_gap: bool,
    ) -> None:
        """Take over what is kept already; it is not on its way before :meth:`logged_on`."""
        self.changed = threading.Condition()
        self.ended: Exception | None = None
        self.resent = 0
        self._messages = messages
        self._store = PublishStore(messages, error_on_gap=error_on_gap)
        self._window = window
        self._stage = stage
        self._handlers = handlers
        self._windowed = windowed
        self._open: dict[int, _Open] = {}
        self._sending: set[int] = set()
        self._not_taken: set[int] = set()
        self._accepted = Intervals()
        self._counts = {"published": 0, "accepted": 0, "acknowledged": 0, "failed": 0, "window_closed": 0}

    # -- what is kept ------------------------------------------------------------------------------------------------

    @property
    def unpersisted(self) -> list[int]:
        """The numbers of what is kept."""
        return self._store.unpersisted

    @property
    def unpersisted_count(self) -> int:
        """How many messages are kept."""
        return self._store.unpersisted_count

    @property
    def next_seq(self) -> int:
        """The number of the next message."""
        return self._store.next_seq

    @property
    def discarded(self) -> int:
        """The number up to which nothing is kept."""
        return self._messages.discarded

    @property
    def statistics(self) -> PublishStatistics:
        """What has happened so far."""
        return PublishStatistics(**self._counts, unpersisted=self.unpersisted_count, resent=self.resent)

    def begin_after(self, seq: int) -> None:
        """Let numbers begin higher."""
        with self.changed:
            self._messages.drop(seq)

    def logged_on(self, last: int) -> list[int]:
        """Drop what the service has; return what is to be sent again now, the rest follows as there is room.

        :raises GapError: the service lacks what was dropped, where that is an error
        """
        with self.changed:
            again = [seq for seq, _ in self._store.logged_on(last) if self._window.offer(seq, _milliseconds())]
            self._accepted = Intervals(start=self.discarded + 1)
            return again

    def get(self, seq: int) -> Kept | None:
        """Return a message that is kept."""
        with self.changed:
            message = self._messages.get(seq)
        return None if message is None else _decode(message)

    # -- on the way --------------------------------------------------------------------------------------------------

    def add(self, kept: Kept, future: Future[Receipt], context: Any, wanted: int | None) -> int | None:
        """Give a message its number and keep it; ``None`` where there is no room in the window.

        :raises SequenceError: ``wanted`` is not the next number
        :raises StoreError: it cannot be kept
        """
        with self.changed:
            if self.ended is not None:
                raise self.ended
            if self._window.full:
                return None
            number = self.next_seq
            if wanted is not None and wanted != number:
                raise SequenceError(
                    f"Sequence number {wanted} is not the next one, which is {number}: a gap would never be"
                    " acknowledged, and an earlier number is taken."
                )
            self._store.add(number, _encode(kept))
            self._window.offer(number, _milliseconds())
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
            self.changed.wait_for(lambda: not self._window.full or self.ended is not None)

    def sending(self, seq: int) -> None:
        """Note that Kafka has a message to store."""
        with self.changed:
            self._sending.add(seq)

    def accepted(self, seq: int) -> list[int]:
        """Note that Kafka has stored a message; return what there is room for now."""
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

    def not_accepted(self, seq: int) -> None:
        """Note that Kafka did not take a message."""
        with self.changed:
            self._sending.discard(seq)
            self._not_taken.add(seq)

    def late(self) -> list[int]:
        """Return what is to be sent again: not taken by Kafka, or not answered in time."""
        with self.changed:
            if self.ended is not None:
                return []
            late = (set(self._window.overdue(_milliseconds())) - self._sending) | self._not_taken
            self._not_taken.clear()
            return sorted(late)

    def flush(self, stage: Stage, timeout: float | None) -> None:
        """Wait until everything so far has reached a stage, or was refused.

        :param stage: the publisher's own, or ``accepted``
        :raises FlushTimeout: it did not
        """
        with self.changed:
            last = self.next_seq - 1
            done = self.changed.wait_for(lambda: self._flushed(last, stage) or self.ended is not None, timeout)
            if self.ended is not None:
                raise self.ended
            if not done:
                kept = self.unpersisted_count
                raise FlushTimeout(f"{kept} messages were not acknowledged within {timeout:g} s; they are kept.")

    def _flushed(self, last: int, stage: Stage) -> bool:
        if stage != self._stage:
            return not any(seq <= last for seq in self._sending | self._not_taken)
        return self.discarded >= last or self.unpersisted_count == 0

    # -- answers -----------------------------------------------------------------------------------------------------

    def acknowledged(self, ack: CommandAck) -> list[int]:
        """Let go of what an ack is about, and tell who waits for it; return what there is room for now."""
        if ack.seq is None:
            return []
        with self.changed:
            failed = self._store.failed(ack)
            entry = self._open.get(ack.seq)
        if failed is not None:
            # before it is let go: of a refusal that a crash keeps from the application the next logon tells again
            self._give_back(failed, None if entry is None else entry.context)
        with self.changed:
            self._store.acknowledged(ack)
            done = self._window.acknowledged(ack.seq)
            opened = {seq: self._open.pop(seq, None) for seq in done}
            refusal = ack.reason if ack.status == "failure" and ack.reason != DUPLICATE else None
            good = [seq for seq in done if refusal is None or seq != ack.seq]
            self._counts["acknowledged"] += len(good)
            self._counts["failed"] += len(done) - len(good)
            admitted = self._window.admit(_milliseconds())
            self.changed.notify_all()
        self._give_receipts(good, opened, duplicate=ack.seq if ack.reason == DUPLICATE else None)
        entry = opened.get(ack.seq)
        if entry is not None and refusal is not None:
            entry.future.set_exception(refused(refusal, f"Message {ack.seq}"))
        return admitted

    def raw(self, ack: CommandAck) -> None:
        """Show an ack as it came."""
        _call(self._handlers.ack, ack)

    def end(self, error: Exception) -> None:
        """Fail all futures that are open, and everything that comes later, with an error; the first one counts."""
        with self.changed:
            self.ended = self.ended or error
            opened, self._open = self._open, {}
            self.changed.notify_all()
        for entry in opened.values():
            entry.future.set_exception(self.ended)

    def _give_receipts(self, numbers: list[int], opened: dict[int, _Open | None], duplicate: int | None) -> None:
        now = time.time_ns() // 1_000_000
        for seq in numbers:
            entry = opened[seq]
            receipt = Receipt(
                seq=seq,
                stage=self._stage,
                context=None if entry is None else entry.context,
                first=numbers[0] if self._windowed else seq,
                timestamp_ms=now,
                duplicate=seq == duplicate,
            )
            if entry is not None:
                entry.future.set_result(receipt)
            if not self._windowed or seq == numbers[-1]:
                _call(self._handlers.receipt, receipt)

    def _give_back(self, failed: FailedWrite, context: Any) -> None:
        kept = Kept(b"", []) if failed.message is None else _decode(failed.message)
        value = None if failed.message is None else kept.value
        given = FailedMessage(failed.seq, failed.reason, value, kept.key, kept.headers, context)
        _call(self._handlers.failed_write, given)


def _call(handler: Callable[[Any], None] | None, argument: Any) -> None:
    if handler is None:
        return
    try:
        handler(argument)
    except Exception:
        log.exception("A handler of the publisher failed.")


def _milliseconds() -> int:
    return time.monotonic_ns() // 1_000_000
