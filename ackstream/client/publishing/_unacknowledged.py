"""The messages of a publisher that are not acknowledged: numbering, the window, retransmission, and acknowledgements.

Rules: brokers.md 1.1 A14 to A17 and 3.1 S3, S4, S7, S13. An ack, positive or negative, drops all messages up to its
number. After a logon the messages that the service lacks are sent again, in order; an unanswered one is, too.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import takewhile

from ackstream.client.core.lifetime import Awaited, call_handler
from ackstream.client.core.storage import KeptMessage, PublishStore
from ackstream.client.errors import FlushTimeout, GapError, RefusedError, WindowError, WouldBlockError
from ackstream.client.options import PublisherOptions
from ackstream.client.publishing._acks import RENUMBERED, Logon, Retransmission, Takeovers, last_own
from ackstream.client.publishing.publications import FailedMessage, Open, PublishStatistics, Receipt, Stage
from ackstream.kafka.clients import monotonic_ms
from ackstream.protocol.dispositions import DUPLICATE, NOT_ENTITLED, WITHDRAWN
from ackstream.protocol.intervals import Intervals
from ackstream.protocol.messages import CommandAck

log = logging.getLogger(__name__)


class UnacknowledgedMessages(Awaited):
    """Decides when messages are sent and when they are done. Futures and handlers are called without the lock."""

    def __init__(
        self, messages: PublishStore, options: PublisherOptions, clock: Callable[[], int] = monotonic_ms
    ) -> None:
        """Take over an earlier run's messages, unsent until :meth:`logged_on`; windows may exceed Solace's 1 to 255.

        Raises WindowError: the sizes of the window let nothing through, or unanswered messages have no timeout.
        """
        super().__init__()
        if options.window < 1 or options.window_bytes < 1:
            sizes = f"{options.window} messages and {options.window_bytes} bytes"
            raise WindowError(f"A publish window of {sizes} lets nothing through: use 1 or more.")
        timeout_ms = round(options.ack_timeout * 1000)
        if options.stage == "persisted" and timeout_ms < 1:
            raise WindowError(f"An ack timeout of {timeout_ms} ms would resend forever: use 1 ms or more.")
        self._messages, self._options = messages, options
        self.timer = Retransmission(timeout_ms, options.conflation_ms)
        self._clock = clock
        self._open: dict[int, Open] = {}
        # by number, ascending: when it was last sent
        self._in_flight: dict[int, int] = {}
        self._bytes = 0
        # messages of an earlier run that do not fit into the window yet
        self._waiting: deque[int] = deque()
        # not stored by Kafka, by number: when to send it again; None: Kafka has not answered
        self._unstored: dict[int, int | None] = {}
        self._refused: set[int] = set()
        self._accepted = Intervals()
        # until the answer to the logon shows whose numbers they are about
        self._refusals: list[CommandAck] | None = []
        self._counts: Counter[str] = Counter()

    @property
    def statistics(self) -> PublishStatistics:
        counts = {name: self._counts[name] for name in PublishStatistics.__struct_fields__}
        return PublishStatistics(**counts | {"unpersisted": len(self._messages)})

    def logged_on(self, last: int, begin: int = 0, takeovers: Takeovers | None = ()) -> Logon:
        """Drop the messages up to the service's last one; return those to send now (the others follow), and the holes.

        Holes are numbers of no message between those that are kept, and up to the first new one (above ``begin``).
        Where another store has used numbers, messages get new ones; if that is not known (``None``), all do.
        """
        if self._options.error_on_gap and last < self._messages.discarded:
            raise GapError(last + 1, self._messages.discarded)
        session, refusals = self._messages.session, self._refusals or []
        own = 0 if takeovers is None else last_own(session, takeovers)
        self._refusals = None
        for refusal in refusals:
            if (refusal.seq or 0) <= own:
                self.acknowledged(refusal)
        others = [seq for seq in self._messages.numbers() if seq > own]
        if others:
            log.warning("Another publisher may have used numbers of %s kept messages, which get new ones.", len(others))
        for seq in filter(self._waits, others):
            # before it has the new one: after a crash in between, it is reported again
            self._return(seq, RENUMBERED)
        with self.changed:
            if takeovers or others:
                new, session = max(begin, last, self._messages.last) + 1, takeovers[-1][0] if takeovers else session
                self._messages.take_over(session, {seq: new + at for at, seq in enumerate(others)})
            self._messages.drop(last)
            kept = self._messages.numbers()
            first = last + 1 if others else kept[0] if kept else self._messages.last + 1
            if begin > self._messages.last:
                (self._messages.advance if kept else self._messages.drop)(begin)
            known = Intervals(((seq, seq) for seq in kept), start=first)
            holes = known.missing(first, self._messages.last) if first <= self._messages.last else []
            self._accepted = Intervals(holes, start=first)
            self._waiting.extend(kept)
            return Logon(self._admit(), holes)

    def add(self, new: Sequence[tuple[KeptMessage, Open]]) -> range:
        """Keep messages under new numbers, as many as the window has room for; return the numbers."""
        with self.changed:
            if self.ended is not None:
                raise self.ended
            fitting = [] if self._waiting else new[: self._fits(message.size for message, _ in new)]
            first = self._messages.last + 1
            if not fitting:
                return range(first, first)
            try:
                self._messages.add(first, *[message for message, _ in fitting])
                self._enter(first, fitting)
            except BaseException:
                # an interrupt: they may be kept already
                self._enter(first, fitting[: self._messages.last + 1 - first])
                raise
            return range(first, first + len(fitting))

    def _enter(self, first: int, new: Sequence[tuple[KeptMessage, Open]]) -> None:
        now = self._clock()
        for number, (message, opened) in enumerate(new, first):
            if number in self._open:
                continue
            if not opened.future.running():
                # from now on it cannot be cancelled: a cancelled one could not be ended
                opened.future.set_running_or_notify_cancel()
            self._in_flight[number], self._unstored[number], self._open[number] = now, None, opened
            self._bytes += message.size
            self._counts["published"] += 1

    def wait_for_room(self, size: int = 0, timeout: float | None = None) -> None:
        """Wait until the window has room for a message of this size; raise the error that has ended the publisher."""
        with self.changed:
            self._counts["window_closed"] += 1
        if not self.wait_for(lambda: not self._waiting and bool(self._fits([size])), timeout, self.describe):
            raise WouldBlockError(f"The publish window is full. {self.describe()}")

    def describe(self) -> str:
        with self.changed:
            count, first = len(self._messages), next(iter(self._messages.numbers()), None)
        return (
            f"The publisher {self._options.name} waits for acknowledgements of {count} messages, from number {first} on"
            ": check that Kafka and `ackstream submit persist` run, or enlarge the window."
        )

    def resend(self, seq: int) -> KeptMessage | None:
        with self.changed:
            if (message := self._messages.get(seq)) is not None:
                self._counts["resent"] += 1
                self._unstored[seq] = None
            return message

    def accepted(self, seq: int) -> list[int]:
        """Note that Kafka has stored a message; return the messages to send now."""
        with self.changed:
            self._unstored.pop(seq, None)
            self._refused.discard(seq)
            self._counts["accepted"] += 1
            if seq in self._in_flight:
                self._in_flight[seq] = self._clock()
            before = self._accepted.watermark
            self._accepted.add(seq)
            up_to = self._accepted.watermark
            self.changed.notify_all()
        if self._options.stage == "persisted" or up_to == before:
            return []
        return self.acknowledged(CommandAck(ack_type="persisted", first=before + 1, seq=up_to))

    def rejected(self, seq: int, refusal: RefusedError | None = None) -> None:
        """Note that Kafka did not store a message; it is sent again, or, after a refusal for good, withdrawn.

        The number is sent without the message until the service knows that the message will not come: it would wait.
        """
        with self.changed:
            self._unstored.pop(seq, None)
            if (message := self._messages.get(seq)) is None:
                return
            if refusal is None or message.withdrawn:
                self._refused.add(seq)
                # a withdrawal that Kafka refused like its message waits
                self._unstored[seq] = self._clock() + (0 if refusal is None else 5_000)
                return
        # before it is withdrawn: after a crash in between, it is refused again
        self._return(seq, refusal.reason)
        with self.changed:
            if self._messages.get(seq) is not message:
                # an earlier copy of it was stored after all
                return
            self._messages.withdraw(seq)
            self._bytes -= message.size if seq in self._in_flight else 0
            self._unstored[seq] = self._clock()
            self._counts["failed"] += 1
            entry = self._open.pop(seq, None)
            self.changed.notify_all()
        if entry is not None:
            entry.future.set_exception(refusal)

    def overdue(self) -> list[int]:
        """Return the messages to send again now: not stored by Kafka, or not acknowledged in time."""
        with self.changed:
            if self.ended is not None:
                return []
            now = self._clock()
            late = {seq for seq, at in self._unstored.items() if at is not None and at <= now}
            for seq in late:
                del self._unstored[seq]
            if self._options.stage == "persisted":
                timed_out = self.timer.due(self._in_flight, now)
                self._in_flight.update(dict.fromkeys(timed_out, now))
                late |= set(timed_out) - self._unstored.keys()
            return sorted(late)

    def flush(self, stage: Stage, timeout: float | None, wait: Callable[..., bool] | None = None) -> None:
        """Wait until every message up to now has reached a stage, or was refused."""
        last = self._messages.last
        waiting = wait or partial(self.wait_for, lasting=self.describe)
        if not waiting(lambda: self._flushed(last, stage), timeout):
            raise FlushTimeout(
                f"{len(self._messages)} messages were not acknowledged within {timeout:g} s; they are kept."
            )

    def acknowledged(self, ack: CommandAck) -> list[int]:
        """Drop the messages that an ack covers, end their futures; return those to send. A repeated ack is ignored."""
        if self._refusals is not None:
            self._refusals.append(ack)
            return []
        last = ack.seq
        if last is None or last <= self._messages.discarded:
            self.timer.note(ack.reason)
            return []
        if ack.status == "failure" or ack.reason in (DUPLICATE, NOT_ENTITLED):
            # before it is dropped: after a crash in between, the next logon reports the refusal again
            self._return(last, ack.reason or "")
        refusal = ack.reason if ack.status == "failure" and ack.reason != DUPLICATE else None
        with self.changed:
            done = list(takewhile(lambda seq: seq <= last, self._in_flight))
            self._bytes -= sum(map(self._size, done))
            self.timer.answered({seq: self._in_flight.pop(seq) for seq in done}, self._clock())
            self.timer.note(ack.reason)
            while self._waiting and self._waiting[0] <= last:
                # sent by an earlier run
                done.append(self._waiting.popleft())
            # the futures of withdrawn numbers have ended
            done = [seq for seq in done if (kept := self._messages.get(seq)) is None or not kept.withdrawn]
            self._messages.drop(last)
            opened = {seq: self._open.pop(seq, None) for seq in done}
            good = [seq for seq in done if refusal is None or seq != last]
            self._counts["acknowledged"] += len(good)
            self._counts["failed"] += len(done) - len(good)
            admitted = self._admit()
            self.changed.notify_all()
        stage, windowed, now = self._options.stage, self._options.windowed, time.time_ns() // 1_000_000
        for seq in good:
            # a message of an earlier run has no context
            entry, duplicate = opened[seq], seq == last and ack.reason == DUPLICATE
            context, first = None if entry is None else entry.context, good[0] if windowed else seq
            receipt = Receipt(seq, stage, context, first, now, duplicate)
            if entry is not None:
                entry.future.set_result(receipt)
            if not windowed or seq == good[-1]:
                call_handler(self._options.on_receipt, receipt)
        if refusal is not None and (entry := opened.get(last)) is not None:
            entry.future.set_exception(RefusedError.of(refusal, f"Message {last}"))
        return admitted

    def wait_for_refused(self, timeout: float) -> None:
        """Wait until Kafka has stored the messages that it did not store at first, or all have ended."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended is not None or not any(map(self._waits, self._refused)), timeout)

    def _waits(self, seq: int) -> bool:
        message = self._messages.get(seq)
        return message is not None and not message.withdrawn

    def close(self, timeout: float) -> list[int]:
        """Report the messages that Kafka has not stored, and return their numbers; without a file they are lost."""
        with self.changed:
            left = [seq for seq in self._messages.numbers() if seq not in self._accepted and self._waits(seq)]
        if left and self._options.store is not None:
            log.warning("Kafka has not stored %s messages; the next publisher with this store sends them.", len(left))
        elif left:
            log.error("Kafka did not store %s messages within %g s; they are lost.", len(left), timeout)
            for seq in left:
                self._return(seq, "closed")
        return left

    def end(self, error: Exception) -> None:
        """Fail all open futures and all later calls with an error; the first call decides which."""
        super().end(error)
        with self.changed:
            opened, self._open = self._open, {}
        for entry in opened.values():
            entry.future.set_exception(self.ended)

    def _fits(self, sizes: Iterable[int]) -> int:
        """Return the number of messages of these sizes that fit into the window; a larger one is sent alone."""
        many, taken = len(self._in_flight), self._bytes
        for size in sizes:
            if many and (many >= self._options.window or taken + size > self._options.window_bytes):
                break
            many, taken = many + 1, taken + size
        return many - len(self._in_flight)

    def _admit(self) -> list[int]:
        admitted = [self._waiting.popleft() for _ in range(self._fits(map(self._size, self._waiting)))]
        self._in_flight.update(dict.fromkeys(admitted, self._clock()))
        self._bytes += sum(map(self._size, admitted))
        return admitted

    def _size(self, seq: int) -> int:
        message = self._messages.get(seq)
        return 0 if message is None else message.size

    def _flushed(self, last: int, stage: Stage) -> bool:
        if stage != self._options.stage:
            # the newest are stored last
            return all(seq in self._accepted for seq in reversed(self._messages.numbers()) if seq <= last)
        return self._messages.discarded >= last or len(self._messages) == 0

    def _return(self, seq: int, reason: str) -> None:
        """Report a refused, duplicate or renumbered message; withdrawn ones were reported before."""
        if reason == WITHDRAWN:
            return
        with self.changed:
            message, entry = self._messages.get(seq), self._open.get(seq)
        context = None if entry is None else entry.context
        call_handler(self._options.on_failed_write, FailedMessage.of(seq, reason, message, context))
