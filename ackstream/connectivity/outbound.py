"""Publish signals to the targets of a connection and issue their acknowledgements.

Source of the rules: Eclipse Ditto, ``OutboundMappingProcessorActor``, ``BasePublisherActor`` (ditto.md 2, 5, 6).
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from ackstream.client.signals import read_publication
from ackstream.client.worker import Worker
from ackstream.connectivity.transport import OutgoingMessage, outgoing
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, acknowledgement, issued_ack, write_acks
from ackstream.protocol.ditto.connections import resolve_label, target_subscription
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, PROTOCOL_CONTENT_TYPE
from ackstream.protocol.ditto.headers import CHANNEL
from ackstream.protocol.ditto.labels import LIVE_RESPONSE
from ackstream.protocol.ditto.subscriptions import (
    DROPPED_BY_CONNECTION,
    Drop,
    Publication,
    as_delivered,
    dropped_by_targets,
    weak_acks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackstream.client.group import Work
    from ackstream.connectivity.transport import Published, TargetPublisher
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.protocol.ditto.subscriptions import Stream, Subscription
    from ackstream.settings import Kafka
    from ackstream.settings.connections import KafkaConnection, MqttConnection, Target

    Extra = Callable[[str, str], Mapping[str, Any]]


log = logging.getLogger(__name__)


class Publishing(msgspec.Struct, frozen=True):
    """A message for a target; ``label`` is acknowledged once the transport confirms."""

    message: OutgoingMessage
    label: str | None


class Plan(msgspec.Struct, frozen=True):
    """What to publish for a signal, which labels get weak acknowledgements, and which failed ones."""

    publishings: list[Publishing]
    weak: Drop
    failed: list[Acknowledgement] = []


class Outbound:
    """The rules of one connection."""

    def __init__(self, connection: KafkaConnection | MqttConnection) -> None:
        """Decide according to the settings of ``connection``."""
        self._id = connection.id
        self._labels = connection.labels
        self._targets = [_TargetRules(connection.id, target) for target in connection.targets]

    @property
    def streams(self) -> frozenset[Stream]:
        """The streams to read: those of the targets, and all that may request a declared label."""
        if self._labels.to_declare:
            return frozenset({"events", "live-commands", "messages"})
        return frozenset(wanted.stream for target in self._targets for wanted in target.subscriptions)

    def plan(self, signal: Publication, time: datetime | None = None, extra: Extra | None = None) -> Plan:
        """Decide what to publish and acknowledge for a signal.

        :param time: the value of ``time:now`` in filters
        :param extra: returns fields of a thing (id, selector) for topics with ``extraFields``; if it raises, the filter
            cannot be evaluated, and the label of the target gets the error
        """
        own = {*self._labels.declared, *self._labels.issued}
        shown = [label for label in signal.labels if label in own]
        publishings, failed = [], []
        fates: list[tuple[str | None, bool]] = []
        for target in self._targets:
            covering = [each for each in target.subscriptions if each.covers(signal)]
            if not covering:
                continue
            label = target.label if target.is_requested(signal) else None
            try:
                wanted, fields = _evaluate(covering, signal, time, extra)
            except Exception as error:  # noqa: BLE001 - reported in the acknowledgement
                fates.append((target.label, True))
                if label is not None:
                    failed.append(issued_ack(label, error, signal.envelope.headers))
                continue
            delivered = as_delivered(signal, [each for each in shown if each != target.label], fields)
            publishes = wanted and not (target.sends_value and delivered.value is UNSET)
            fates.append((target.label, publishes))
            message = target.message(delivered) if publishes else None
            if message is not None:
                publishings.append(Publishing(message, label))
        weak = dropped_by_targets(signal.labels, self._labels.declared, self._labels.issued, fates)
        return Plan(publishings, Drop(weak, DROPPED_BY_CONNECTION), failed)


class _TargetRules:
    def __init__(self, connection_id: str, target: Target) -> None:
        self._id = connection_id
        self._target = target
        self.label = None if target.issued_ack is None else resolve_label(connection_id, target.issued_ack)
        self.sends_value = target.payload == "value"
        self.subscriptions = [target_subscription(topic) for topic in target.topics]

    def is_requested(self, signal: Publication) -> bool:
        if self.label == LIVE_RESPONSE:
            return signal.response_required and signal.stream in ("live-commands", "messages")
        return self.label in signal.labels

    def message(self, signal: Envelope) -> OutgoingMessage | None:
        payload, kind = None, PROTOCOL_CONTENT_TYPE
        if self.sends_value and signal.value is not UNSET:
            payload, kind = bytes(signal.value), JSON_CONTENT_TYPE
        target = self._target
        return outgoing(signal, target.address, target.header_mapping, self._id, payload=payload, content_type=kind)


def _evaluate(
    subscriptions: list[Subscription], signal: Publication, time: datetime | None, extra: Extra | None
) -> tuple[bool, Mapping[str, Any] | None]:
    """Return whether one of the filters accepts the signal, and the extra fields."""
    for each in subscriptions:
        fields = extra(signal.thing_id, each.extra_fields) if extra and each.extra_fields else None
        if each.matches(signal, fields, time):
            return True, fields
    return False, None


def answer_of(signal: Publication, acks: list[Acknowledgement]) -> Envelope:
    """Aggregate the acknowledgements of a connection for the topic acks.

    Unlike a single acknowledgement, an aggregate may contain ``live-response``.
    """
    channel = "live" if signal.stream != "events" else "twin"
    headers = signal.envelope.headers | ({CHANNEL: "live"} if channel == "live" else {})
    return write_acks(acks, thing_id=signal.thing_id, channel=channel, headers=headers)


MAX_PUBLISHING = 1_000
"""Maximum number of messages in flight to the other system before reading pauses."""

WAIT_SECONDS = 0.5


class OutboundWorker(Closing):
    """Publishes signals to the targets at least once: after a crash some are published again, none is lost.

    It ends when the other system accepts nothing: a signal whose requester would not learn of that stays uncommitted,
    and is published, with those after it, once the connection is open again.
    """

    def __init__(
        self, connection: KafkaConnection | MqttConnection, kafka: Kafka, publisher: TargetPublisher, extra: Extra
    ) -> None:
        """Connect to the system's Kafka and start; once this returns, every further signal is published.

        :param extra: returns fields of a thing
        :raises UnreachableError: no broker, or a topic is missing
        """
        self._id = connection.id
        self._outbound = Outbound(connection)
        self._publisher = publisher
        self._extra = extra
        self._room = threading.BoundedSemaphore(MAX_PUBLISHING)
        self._closing = threading.Event()
        self._away = False
        live = self._outbound.streams & {"live-commands", "messages"}
        topics = ["events", "signals"] if live else ["events"]
        self._worker = Worker(
            kafka, topics, self._handle, group=f"ackstream-connection-{connection.id}", start="latest"
        )
        self._worker.run()

    @property
    def alive(self) -> bool:
        """Whether signals are still read and published."""
        return self._worker.life.alive and not self._away

    def close(self) -> None:
        """Stop; unpublished signals are published at the next start."""
        self._closing.set()
        self._worker.close()

    def _handle(self, record: Any, work: Work) -> None:
        signal = read_publication(record)
        if signal is None:
            return
        moment = datetime.fromtimestamp(record.timestamp / 1000, timezone.utc)
        plan = self._outbound.plan(signal, moment, self._extra)
        self._answer(signal, [*weak_acks(signal, plan.weak), *plan.failed], work)
        for publishing in plan.publishings:
            self._worker.outbox.hold(work)
            while not self._room.acquire(timeout=WAIT_SECONDS):
                if self._closing.is_set():
                    # published at the next start
                    return
            self._publisher.publish(publishing.message, partial(self._published, signal, publishing, work))

    def _published(
        self, signal: Publication, publishing: Publishing, work: Work, result: Published | Exception
    ) -> None:
        headers = signal.envelope.headers
        if isinstance(result, Exception):
            where = publishing.message.address
            log.warning("%s of %s was not published to %s: %s", signal.correlation_id, self._id, where, result)
            if publishing.label is None and self._publisher.is_away(result):
                # its work stays open, so that its offset is not committed
                self._away = True
                self._room.release()
                return
        try:
            if publishing.label is not None:
                if isinstance(result, Exception):
                    ack = issued_ack(publishing.label, result, headers, self._publisher.status_of(result))
                else:
                    ack = acknowledgement(publishing.label, result.status, result.payload, headers)
                self._answer(signal, [ack], work)
        except Exception:
            log.exception("The acknowledgement of %s was not sent.", signal.correlation_id)
        finally:
            self._worker.outbox.release(work)
            self._room.release()

    def _answer(self, signal: Publication, acks: list[Acknowledgement], work: Work) -> None:
        if acks:
            self._worker.outbox.send(signal.correlation_id, answer_of(signal, acks), work)
