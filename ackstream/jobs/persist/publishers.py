"""Deciding which messages of each publisher are accepted in a batch, and how they are acknowledged."""

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import msgspec

from ackstream.jobs.persist.decisions import ACCEPTED, Admission, Conflation
from ackstream.jobs.persist.records import DAY_MS, MessageMetadata, MessageRun, RejectedRecord
from ackstream.jobs.persist.state import PublisherState
from ackstream.protocol import messages
from ackstream.protocol.dispositions import INVALID_CLIENT, NO_CLIENT, NO_NUMBER, SEQUENCE_GAP, SESSION_OVER, WITHDRAWN
from ackstream.protocol.messages import MAX_SESSION_CHARACTERS, ClientCommand, CommandAck, SessionRuns, read_number

NO_COMMAND = "no such command"
MAX_HELD = 10_000
"""Messages of a publisher behind a hole; further ones are rejected, and accepted when resent after it was filled."""
MAX_RUNS = 10_000
"""Runs of absent numbers in one record of ``stored``: a topic with Kafka's own limit takes it."""
MAX_FLUSHES = 1_000
"""Flush commands of a publisher that may wait behind a hole."""
MAX_REJECTIONS = 10_000
"""Rejections of a publisher that are remembered with their reasons; repeats of older ones never count as stored."""
MAX_REPEATED = 100_000
"""Rejections that the logons of one publisher in one batch repeat: each logon could repeat all of them."""


class PublisherBatch:
    """One publisher's records of a batch, applied to its state; ``urgent`` acks are sent at once: a receiver waits."""

    def __init__(
        self, client: str, state: PublisherState | None, admission: Admission, floor_ms: int, newest: int
    ) -> None:
        """Start from ``state`` (``None``: unknown publisher); ``newest``: the newest timestamp of the batch."""
        self.rejected: list[RejectedRecord] = []
        self.acks: list[CommandAck] = []
        self.urgent = False
        self._client = client
        # the sessions of refused messages, in the order of their first ones
        self._over: dict[str, None] = {}
        self._known = state is not None and state.highest >= 0
        self._repeated = 0
        state = state or PublisherState()
        self._state = msgspec.structs.replace(
            state, refused=dict(state.refused), flushes=list(state.flushes), read=dict(state.read)
        )
        self._admission, self._floor_ms, self._newest = admission, floor_ms, newest
        self._expect(state.watermark + 1)
        self._conflation.absent.merge(state.absent)
        if state.held:
            self._conflation.restore(state.held, state.asked, state.withdrawn, state.single)
        self._sessions = SessionRuns(state.sessions)

    def _expect(self, first: int) -> None:
        state = self._state
        self._first = first
        self._conflation = Conflation(first, failed=state.refused, unknown_through=state.unknown_through)

    def add(self, item: MessageMetadata | MessageRun) -> None:
        """Add the next record, or the next run."""
        if isinstance(item, MessageRun):
            if self._add_run(item):
                self._state.note(item.first.partition, item.last_offset, item.newest)
            else:
                for message in item.members():
                    self.add(message)
        elif self._state.was_read(item.partition, item.offset, item.timestamp):
            self._reject(item, None)
        else:
            self._state.note(item.partition, item.offset, item.timestamp)
            self._add(item)

    def _add_run(self, run: MessageRun) -> bool:
        """Add all messages of a run at once if the same holds for all; return whether it did."""
        message, state = run.first, self._state
        if (
            not self._client
            or state.was_read(message.partition, message.offset, message.timestamp)
            or state.is_superseded(message.session)
        ):
            return False
        asked = messages.asked((run.first.ack or "").split(","))
        first, last = run.numbers[0], run.numbers[-1]
        self._open(first)
        if not asked <= {"persisted"} or not self._conflation.undecided(first, last) or self._too_far(first, last):
            return False
        admission, topic = self._admission, run.first.topic or ""
        if admission.quota or (
            admission.judge(self._client, topic, run.largest, expired=False, stored_today=0) is not ACCEPTED
        ):
            return False
        self.urgent |= run.first.immediately == "true"
        self._count_day(run.first.timestamp)
        self._state.stored += run.total
        self._state.highest = max(self._state.highest, last)
        self._conflation.succeed(first, last, asked=bool(asked))
        self._sessions.add(first, last, (message.session or "")[:MAX_SESSION_CHARACTERS])
        return True

    def _add(self, message: MessageMetadata) -> None:
        asked = messages.asked((message.ack or "").split(","))
        if not self._client:
            self._reject(message, INVALID_CLIENT if message.client else NO_CLIENT)
            return
        if message.command in (None, "publish"):
            self._publish(message, asked)
            return
        self._reject(message, None)
        if message.command == "logon":
            self._log_on(message, asked)
        elif message.command == "flush":
            self._flush(message, asked)
        elif message.command == "withdraw":
            self._withdraw(message, asked)
        else:
            self._acknowledge("processed", cid=message.cid, reason=NO_COMMAND)

    def _publish(self, message: MessageMetadata, asked: frozenset[str]) -> None:
        seq = read_number(message.seq)
        if seq is None:
            self._reject(message, NO_NUMBER)
            return
        command = ClientCommand("publish", message.cid, asked, seq)
        if self._is_over(message.session):
            self._reject(message, SESSION_OVER)
            self._acknowledge_arrival(command, SESSION_OVER)
            return
        self._open(seq)
        repeated = self._conflation.decided(seq)
        if not repeated and self._too_far(seq, seq):
            self._reject(message, SEQUENCE_GAP)
            self._acknowledge_arrival(command, SEQUENCE_GAP)
            return
        self._count_day(message.timestamp)
        # the newest record of the batch gives the time, so that a replayed batch decides alike
        ttl = read_number(message.ttl)
        expired = ttl is not None and message.timestamp + ttl < self._newest
        topic, today = message.topic or "", self._state.stored
        verdict = self._admission.judge(self._client, topic, message.size, expired=expired, stored_today=today)
        reason = verdict.reason
        self.urgent |= message.immediately == "true"
        if repeated:
            # its sender has waited in vain
            self.urgent = True
            reason = self._conflation.repeated(seq)
            self._reject(message, None)
        elif reason is not None:
            self._reject(message, reason)
        elif verdict.stored:
            self._state.stored += message.size
            self._sessions.add(seq, seq, (message.session or "")[:MAX_SESSION_CHARACTERS])
        else:
            self._reject(message, None)
        self._state.highest = max(self._state.highest, seq)
        self._acknowledge_arrival(command, reason)
        single = None if verdict.logged else message.cid or str(seq)
        self._conflation.decide(seq, reason, asked="persisted" in asked, single=single, stored=verdict.stored)

    def _flush(self, message: MessageMetadata, asked: frozenset[str]) -> None:
        waiting, self.urgent = self._state.flushes, True
        if len(waiting) >= MAX_FLUSHES:
            self._acknowledge_decided()
            self._acknowledge_flushes()
        full = len(waiting) >= MAX_FLUSHES
        command = ClientCommand("flush", message.cid, asked & {"received"} if full else asked)
        self._send(messages.opening(command, messages.refusal(command)))
        if full:
            self._acknowledge("processed", cid=message.cid, reason=SEQUENCE_GAP)
        else:
            waiting.append((self._state.highest, message.cid))
            self._state.completing = [*self._state.completing, *(ack.cid for ack in messages.completed(command))]

    def _withdraw(self, message: MessageMetadata, asked: frozenset[str]) -> None:
        """Stop waiting for the numbers ``first`` to ``seq``; a single one can be answered, as a refused message is."""
        first, last = read_number(message.first), read_number(message.seq)
        reason = None
        if first is None or last is None or first > last:
            reason = NO_NUMBER
        elif self._is_over(message.session):
            reason = SESSION_OVER
        elif not self._known and "persisted" not in asked and first <= max(self._state.begins, 1):
            # nothing was received yet: there is no hole, the numbers begin after these
            self._state.begins = last + 1
        else:
            self._open(first)
            if self._conflation.undecided(first, first) and self._too_far(first, first):
                reason = SEQUENCE_GAP
            elif first == last:
                self._conflation.decide(first, WITHDRAWN, asked="persisted" in asked)
            else:
                self._conflation.withdraw(first, last)
            if reason is None:
                self._state.highest = max(self._state.highest, last)
        if reason is not None or "processed" in asked:
            self._acknowledge("processed", cid=message.cid, reason=reason)

    def _is_over(self, session: str | None) -> bool:
        """Return whether a session was superseded; its publisher is notified at the end of the batch."""
        over = self._state.is_superseded(session)
        if over and session is not None:
            self._over[session[:MAX_SESSION_CHARACTERS]] = None
        return over

    def _too_far(self, first: int, last: int) -> bool:
        """Return whether these numbers would leave too many waiting behind a hole."""
        beyond = first > self._conflation.watermark + 1
        return beyond and self._conflation.held_count + last - first + 1 > MAX_HELD

    def _open(self, seq: int) -> None:
        """Expect the number announced at the logon, or a message's own if the publisher never logged on."""
        begins, self._state.begins = self._state.begins, 0
        if not self._known:
            self._known = True
            self._expect(begins or seq)
        elif begins > self._conflation.watermark + 1:
            # the publisher has no lower number: there is no hole to wait for
            self._conflation.skip(begins)

    def _count_day(self, timestamp: int) -> None:
        day = timestamp // DAY_MS
        if day != self._state.day:
            self._state.day, self._state.stored = day, 0

    def _reject(self, message: MessageMetadata, reason: str | None) -> None:
        self.rejected.append(RejectedRecord(message.partition, message.offset, reason))

    def _log_on(self, message: MessageMetadata, asked: frozenset[str]) -> None:
        """Begin a session: report the last known message, and repeat the rejections of those it still keeps."""
        # A publisher that continues with a higher number learns of the gap and may give up: only its next message skips
        # it. One that keeps nothing cannot fill a hole, which is skipped at once; the session begins after all numbers.
        # that it is processed is reported below, asked or not
        self._send(messages.opening(ClientCommand("logon", message.cid, asked & {"received"}), None))
        # the decided ones are still for the session before
        self._acknowledge_decided()
        self.urgent = True
        if not self._state.begin_session(message.session, message.partition):
            self._acknowledge("processed", cid=message.cid, reason=SESSION_OVER)
            return
        watermark, highest = self._conflation.watermark, self._state.highest
        self._state.take_over(message.store, watermark)
        first = read_number(message.first)
        if first is None:
            if highest > watermark:
                self._conflation.skip(highest + 1)
                watermark = highest
            first = watermark + 1
        self._state.begins = first
        # rejections behind a hole keep their reasons
        self._conflation.forget(min(first, watermark + 1))
        self._repeated += len(self._state.refused)
        if first > self._conflation.unknown_through and self._repeated <= MAX_REPEATED:
            for seq, reason in sorted(self._state.refused.items()):
                if seq <= watermark:
                    self._acknowledge("persisted", first=seq, seq=seq, reason=reason)
        else:
            # some rejections are forgotten, or were repeated too often: the publisher is to resend all it keeps, and
            # each message gets its own answer
            watermark = first - 1
        effective = self._state.agree(message.conflation, message.window, self._floor_ms)
        self._acknowledge(
            "processed",
            cid=message.cid,
            seq=watermark,
            highest=highest if highest > watermark else None,
            takeovers=tuple((session, known) for _, session, known in self._state.takeovers),
            # distinguishes logons of one name: the later one counts
            bookmark=message.offset,
            effective_conflation_ms=effective,
        )

    def _acknowledge(self, ack_type: messages.AckType, *, reason: str | None = None, **fields: Any) -> None:
        status, session = messages.status(reason), self._state.session or None
        self.acks.append(
            CommandAck(ack_type=ack_type, status=status, client=self._client, session=session, reason=reason, **fields)
        )

    def _acknowledge_arrival(self, command: ClientCommand, reason: str | None) -> None:
        """Send at once the requested acks other than ``persisted``."""
        failure = messages.refusal(command) or reason
        acks = messages.opening(command, failure) + (messages.completed(command) if failure is None else [])
        self._send(acks)

    def _send(self, acks: list[CommandAck]) -> None:
        self.acks += [msgspec.structs.replace(ack, client=self._client) for ack in acks]

    def _acknowledge_decided(self) -> None:
        for first, last, reason, single in self._conflation.take():
            self._acknowledge("persisted", first=first, seq=last, reason=reason, cid=single)

    def _acknowledge_flushes(self) -> None:
        """Answer the flush commands before which everything is decided: the first ones, as their numbers grow."""
        waiting, watermark = self._state.flushes, self._conflation.watermark
        done = bisect_right(waiting, watermark, key=itemgetter(0))
        for _, cid in waiting[:done]:
            self._acknowledge("persisted", cid=cid)
            if cid in self._state.completing:
                self._acknowledge("completed", cid=cid)
        del waiting[:done]
        if done and self._state.completing:
            left = {cid for _, cid in waiting}
            self._state.completing = [cid for cid in self._state.completing if cid in left]

    def close(self) -> PublisherState:
        """End the batch; return the state for the next one."""
        self._acknowledge_decided()
        for session in self._over:
            self._acknowledge("processed", cid=session, reason=SESSION_OVER)
        state = self._state
        watermark = state.watermark = self._conflation.watermark
        state.held, state.asked, state.withdrawn, state.single = self._conflation.beyond
        state.sessions = self._sessions.within(watermark + 1, messages.MAX_NUMBER)
        state.absent = [run for run in self._conflation.absent if run[0] > watermark]
        self._acknowledge_flushes()
        acknowledged = sorted(seq for seq in state.refused if seq <= watermark)
        if len(acknowledged) > MAX_REJECTIONS:
            self._conflation.forget(acknowledged[-MAX_REJECTIONS])
        state.unknown_through = self._conflation.unknown_through
        return state

    def stored(self, batch: int) -> Iterator[messages.StoredRange]:
        """Yield the range that this batch made reliable, by session, and in parts if very many numbers are absent."""
        for begin, last, session in self._sessions.divided(self._first, self._conflation.watermark):
            first, absent = begin, [run for run in self._conflation.absent if begin <= run[0] <= last]
            while first <= last:
                part, absent = absent[:MAX_RUNS], absent[MAX_RUNS:]
                end = absent[0][0] - 1 if absent else last
                yield messages.StoredRange(self._client, first, end, batch, tuple(part), session)
                first = end + 1
