"""Publish signals to the targets of a connection and issue their acknowledgements.

Source of the rules: Eclipse Ditto, ``BasePublisherActor`` (ditto.md 2, 5, 6).
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ackstream.client.core.worker import Worker
from ackstream.client.parties.signals import read_publication
from ackstream.connectivity.outbound import Outbound, answers_of, issued
from ackstream.connectivity.transport import ExternalMessage
from ackstream.kafka.clients import CLOSE_SECONDS, Closing
from ackstream.observe.catalogue import CONNECTION_MESSAGES
from ackstream.observe.figures import FIGURES
from ackstream.protocol.ditto.labels import LIVE_RESPONSE
from ackstream.protocol.ditto.subscriptions import weak_acks

if TYPE_CHECKING:
    from ackstream.client.core.group import Work
    from ackstream.client.core.labels import Labels
    from ackstream.connectivity.away import AloneAway, Place
    from ackstream.connectivity.outbound import Publishing
    from ackstream.connectivity.system import System
    from ackstream.connectivity.transport import Published, TargetPublisher
    from ackstream.protocol.ditto.access import Access
    from ackstream.protocol.ditto.acknowledgements import Acknowledgement
    from ackstream.protocol.ditto.subscriptions import Publication
    from ackstream.settings import Kafka
    from ackstream.settings.connections import Connection


log = logging.getLogger(__name__)

MAX_PUBLISHING = 1_000
"""Maximum number of messages in flight to the other system before reading pauses."""


class _Handed(NamedTuple):
    """A message that was handed to the publisher, and the work and place of its signal."""

    signal: Publication
    publishing: Publishing
    work: Work
    place: Place


class OutboundWorker(Closing):
    """Publishes signals to the targets at least once: after a crash some are published again, none is lost.

    It ends when the other system accepts nothing: a signal whose requester would not learn of that stays uncommitted,
    and is published, with those after it, by the next worker. One that is never accepted while others are becomes a
    dead letter. While the lease of the labels is late, signals wait, and so do acknowledgements.
    """

    def __init__(
        self,
        connection: Connection,
        kafka: Kafka,
        publisher: TargetPublisher,
        system: System,
        labels: Labels,
        away: AloneAway,
        access: Access,
    ) -> None:
        """Connect to the system's Kafka and start; once this returns, every further signal is published.

        :param labels: of the connection; while another client has one, its acknowledgements are rejected
        :param away: what the workers before this one learned
        :param access: what the subjects of its targets may read
        :raises UnreachableError: no broker, or a topic is missing
        """
        self._id = connection.id
        self._outbound = Outbound(connection, access, publisher.quoted)
        self._publisher = publisher
        self._system = system
        self._labels = labels
        self._alone = away
        self._changed = threading.Condition()
        self._publishing = 0
        # nothing more is handed to the publisher: it is closed, or the other system is away
        self._ended = threading.Event()
        self._away = False
        live = self._outbound.streams & {"live-commands", "messages"}
        topics = ["events", "signals"] if live else ["events"]
        self._worker = Worker(
            kafka,
            topics,
            self._handle,
            group=f"ackstream-target-{connection.id}",
            start="latest",
            labels=labels,
        )
        away.begin()
        self._worker.run()

    @property
    def alive(self) -> bool:
        """Whether signals are still read and published."""
        return self._worker.life.alive and not self._away

    def close(self) -> None:
        """Stop, and wait for what the other system has not confirmed yet, for at most 5 s.

        Unconfirmed signals are published at the next start.
        """
        with self._changed:
            self._ended.set()
            self._changed.notify_all()
            # unless it is away, or its connection lost
            if self.alive and self._publisher.alive:
                self._changed.wait_for(lambda: not self._publishing or self._away, CLOSE_SECONDS)
        self._worker.close()

    def _handle(self, record: Any, work: Work) -> None:
        signal = read_publication(record, self._worker.originator_key)
        if signal is None:
            return
        if self._ended.is_set():
            # uncommitted: the next worker publishes it
            self._worker.outbox.hold(work)
            return
        moment = datetime.fromtimestamp(record.timestamp / 1000, timezone.utc)
        plan = self._outbound.plan(signal, moment, self._system.extra, held=not self._labels.taken)
        self._answer(signal, [*weak_acks(signal, plan.weak), *plan.failed], work)
        for publishing in plan.publishings:
            self._worker.outbox.hold(work)
            with self._changed:
                self._changed.wait_for(lambda: self._publishing < MAX_PUBLISHING or self._ended.is_set())
                if self._ended.is_set():
                    return
                self._publishing += 1
            place = (record.topic, record.partition, record.offset, publishing.message.address)
            handed = _Handed(signal, publishing, work, place)
            self._publisher.publish(publishing.message, partial(self._published, handed))

    def _published(self, handed: _Handed, result: Published) -> None:
        FIGURES.count(CONNECTION_MESSAGES, self._id, "outbound", "published" if result.succeeded else "failed")
        if not result.succeeded:
            name, where = handed.signal.correlation_id, handed.publishing.message.address
            log.warning("%s of %s was not published to %s: %s", name, self._id, where, result.reason)
        else:
            self._alone.accepted(handed.place)
        self._decide(handed, result)
        with self._changed:
            self._publishing -= 1
            self._changed.notify_all()

    def _decide(self, handed: _Handed, result: Published) -> None:
        signal, publishing, work, place = handed
        label = publishing.label
        # labels may have been lost since the signal was read
        tells = label == LIVE_RESPONSE or (label is not None and self._labels.complete)
        if result.away and not tells:
            if self._alone.failed(place):
                self._give_up(handed, result)
            else:
                self._end()
            return
        try:
            # while the lease is late it waits
            if label is not None:
                self._answer(signal, [issued(label, result, signal.envelope.headers)], work)
        except Exception:
            log.exception("The acknowledgement of %s was not sent.", signal.correlation_id)
        finally:
            self._worker.outbox.release(work)

    def _give_up(self, handed: _Handed, result: Published) -> None:
        message = handed.publishing.message
        why = f"{message.address} accepted others, but never this one: {result.reason}"
        identity = f"{self._id}-{handed.signal.correlation_id}"
        letter = ExternalMessage(identity, {"kafka.key": handed.signal.thing_id}, message.payload)

        def stored(answer: Any) -> None:
            if answer is None:
                self._end()
            else:
                self._worker.outbox.release(handed.work)

        self._system.give_up(letter, why, stored)

    def _end(self) -> None:
        """Publish nothing more: the work of a signal stays open, so that its offset is not committed."""
        self._publisher.halt()
        with self._changed:
            self._away = True
            self._ended.set()
            self._changed.notify_all()

    def _answer(self, signal: Publication, acks: list[Acknowledgement], work: Work) -> None:
        for message in answers_of(signal, acks):
            self._worker.outbox.send(signal.correlation_id, message, work)
