"""The messages of one source that are on their way through the system."""

from __future__ import annotations

import logging
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from ackstream.connectivity.collector import Collector
from ackstream.connectivity.inbound import Asked, Inbound, Refused, Relayed
from ackstream.connectivity.replies import Failure, published_error, published_reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.connections import Source
    from ackstream.connectivity.messages import ExternalMessage, Outgoing
    from ackstream.connectivity.publishing import Publisher
    from ackstream.connectivity.system import Received, System
    from ackstream.protocol.envelopes import Envelope
    from ackstream.protocol.settlement import Answer, Settlement

    Done = Callable[[Settlement], None]

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""So often is looked for messages whose wait is to be given up."""


class Intake:
    """Takes messages, and says of each what becomes of it; for one thread, which calls ``turn`` again and again."""

    def __init__(self, connection_id: str, source: Source, system: System, publisher: Publisher) -> None:
        """Send what the messages mean to ``system``, and their answers to ``publisher``."""
        self._connection_id = connection_id
        self._reply_target = source.reply_target
        self._inbound = Inbound(connection_id, source)
        self._limit = source.max_in_flight
        self._system = system
        self._publisher = publisher
        self._open: dict[Collector, Done] = {}
        # filled by the threads of the clients, emptied by ours
        self._news: SimpleQueue[tuple[Collector, Answer | Failure | None]] = SimpleQueue()
        self._check_at = 0.0

    @property
    def room(self) -> int:
        """How many more messages may be taken: beyond the limit none is read."""
        return max(0, self._limit - len(self._open))

    def take(self, message: ExternalMessage, done: Done, *, redelivered: bool = False) -> None:
        """Take a message; ``done`` is called once, in this thread, with what becomes of it.

        :param redelivered: it may have come before
        """
        now = time.monotonic()
        collector = Collector(now)
        self._open[collector] = done
        try:
            parts = self._inbound.read(message)
        except Exception:
            # it would fail the next time, too
            log.exception("A message of %s was left out (%s).", self._connection_id, message.identity)
            parts = []
        expected = 0
        for part in parts:
            if isinstance(part, Refused):
                self._publish(published_error(part, self._reply_target, self._connection_id))
                if part.rejects:
                    collector.receive(Failure(part.error.status), now)
                continue
            expected += 1
            try:
                self._send(part, partial(self._receive, collector), redelivered=redelivered)
            except Exception:
                log.exception("A signal of %s was not sent (%s).", self._connection_id, message.identity)
                collector.receive(None, now)
        collector.expect(expected, now)
        self._decide(collector, now)

    def _send(self, part: Asked | Relayed, received: Received, *, redelivered: bool) -> None:
        if isinstance(part, Relayed):
            self._system.relay(part.envelope, received)
        else:
            self._system.ask(part, redelivered=redelivered, replied=partial(self._reply, part), received=received)

    def turn(self, timeout: float = 0.0) -> None:
        """Let answers count that have come; wait for the first one at most so many seconds."""
        try:
            news = self._news.get(timeout=timeout) if timeout > 0 else self._news.get_nowait()
            while True:
                collector, answer = news
                now = time.monotonic()
                collector.receive(answer, now)
                self._decide(collector, now)
                news = self._news.get_nowait()
        except Empty:
            pass
        now = time.monotonic()
        if now >= self._check_at:
            self._check_at = now + CHECK_SECONDS
            for collector in list(self._open):
                self._decide(collector, now)

    def forget(self) -> None:
        """Let go of all messages: they come again."""
        self._open.clear()

    def _decide(self, collector: Collector, now: float) -> None:
        settlement = collector.settlement(now)
        done = None if settlement is None else self._open.pop(collector, None)
        if settlement is not None and done is not None:
            done(settlement)

    def _receive(self, collector: Collector, answer: Answer | Failure | None) -> None:
        self._news.put((collector, answer))

    def _reply(self, asked: Asked, answer: Envelope) -> None:
        headers = asked.envelope.headers
        self._publish(published_reply(answer, headers, self._reply_target, self._connection_id))

    def _publish(self, message: Outgoing | None) -> None:
        if message is not None:
            self._publisher.publish(message, self._published)

    def _published(self, result: object) -> None:
        if isinstance(result, BaseException):
            log.warning("An answer of %s was not published: %s", self._connection_id, result)
