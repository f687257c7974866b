"""Responders and subscribers of a system in memory: the real ones, but for their connections."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

from ackstream.client.core.group import Work
from ackstream.client.core.lifetime import Lifetime
from ackstream.client.parties.receivers import SWEEP, TOPIC_OF, Responder, Subscriber
from ackstream.protocol.ditto.envelopes import encode
from ackstream.protocol.ditto.labels import LIVE_RESPONSE, parse_declared
from ackstream.protocol.ditto.subscriptions import STREAMS
from ackstream.protocol.errors import DittoError
from ackstream.protocol.record_headers import CORRELATION_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.client.parties.signals import Answer, Delivered, Signal
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.protocol.ditto.subscriptions import Subscription
    from ackstream.testing.records import TopicRecord
    from ackstream.testing.system import RequestSystem

log = logging.getLogger(__name__)


class DrivenLabels:
    """The labels of a receiver, which has them until it is closed."""

    def __init__(self, system: RequestSystem, wanted: Iterable[str]) -> None:
        self.held = self.issued = frozenset(map(parse_declared, wanted))
        self._system = system
        system.declare(self.held)

    def release(self) -> None:
        """Let others have them."""
        self._system.release(self.held)
        self.held = self.issued = frozenset()


class DrivenWorker:
    """Gives records to a receiver as they are stored, and stores its answers when they are due: its outbox, too."""

    def __init__(self, system: RequestSystem, topics: Iterable[str], handle: Callable[[Any, Work], None]) -> None:
        self.life = Lifetime()
        self.outbox = self
        self.skipped = self.unreadable = self.stored = self.delayed = self.sending = self.lost = 0
        self.originator_key = system.settings.kafka.originator_key
        self._system, self._handle = system, handle
        for topic in sorted(set(topics)):
            system.listen(topic, self._take)

    def send(self, correlation_id: str, message: Envelope, work: Work, delay: float = 0.0) -> None:
        """Store an answer after ``delay`` seconds of the system's time."""
        value, headers = encode(message), [(CORRELATION_ID, correlation_id.encode())]
        self.hold(work)
        self.delayed += 1

        def store() -> None:
            self.delayed -= 1
            self.stored += 1
            self.release(work)
            self._system.append("acks", value, message.topic.thing_id.encode(), headers)

        if delay > 0:
            # what is not due when the receiver is closed is dropped
            self._system.schedule(delay, lambda: store() if self.life.alive else None)
        else:
            store()

    def hold(self, work: Work) -> None:
        """Keep the work of a record open until ``release``."""
        work.remaining += 1

    def release(self, work: Work) -> None:
        """Undo a ``hold``."""
        work.remaining -= 1

    def close(self) -> None:
        """Handle nothing any more."""
        self.life.close()

    def _take(self, record: TopicRecord) -> None:
        if not self.life.alive:
            return
        try:
            self._handle(record, Work(record.offset))
        except DittoError as error:
            # an invalid signal, which correlate answers
            self.skipped += 1
            log.warning("A record of %s was skipped (offset %s): %s", record.topic, record.offset, error)


class DrivenResponder(Responder):
    """Calls its handler for each signal of a system in memory; made by :meth:`RequestSystem.responder`."""

    def __init__(self, system: RequestSystem, handler: Callable[[Signal], Answer], labels: Iterable[str]) -> None:
        wanted = frozenset(labels)
        self._handler, self._counts = handler, Counter()
        self._responds = wanted & {LIVE_RESPONSE}
        self._labels: Any = DrivenLabels(system, wanted - self._responds)
        self._worker: Any = DrivenWorker(system, ["signals"], self._handle)
        self._life = self._worker.life

    def close(self) -> None:
        """Handle no further signals, and release the labels; may be called twice."""
        self._worker.close()
        self._labels.release()


class DrivenSubscriber(Subscriber):
    """Calls its handler for each signal that it wants; made by :meth:`RequestSystem.subscriber`."""

    def __init__(
        self,
        system: RequestSystem,
        handler: Callable[[Delivered], Answer],
        subscriptions: Iterable[Subscription],
        labels: Iterable[str],
    ) -> None:
        self._handler, self._counts = handler, Counter()
        self._subscriptions = {each.stream: each for each in subscriptions}
        self._automatic, self._visible, self._extra = True, None, None
        self._agenda, self._sweep_at = [], SWEEP
        self._order = count()
        self._labels: Any = DrivenLabels(system, labels)
        streams = STREAMS if self._labels.held else self._subscriptions
        self._worker: Any = DrivenWorker(system, [TOPIC_OF[stream] for stream in streams], self._handle)
        self._life = self._worker.life

    def close(self) -> None:
        """Handle no further signals, and release the labels; may be called twice."""
        self._worker.close()
        self._labels.release()
