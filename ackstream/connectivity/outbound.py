"""What becomes of a signal at the targets of a connection.

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

from ackstream.client.worker import Worker
from ackstream.connectivity.transport import OutgoingMessage, outgoing
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, acknowledgement, issued_ack, write_acks
from ackstream.protocol.ditto.connections import resolve_label, target_subscription
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, decode
from ackstream.protocol.ditto.errors import DittoError
from ackstream.protocol.ditto.headers import CHANNEL
from ackstream.protocol.ditto.labels import LIVE_RESPONSE
from ackstream.protocol.ditto.subscriptions import (
    DROPPED_BY_CONNECTION,
    Drop,
    Publication,
    as_delivered,
    dropped_by_targets,
    publication,
    weak_acks,
)
from ackstream.protocol.record_headers import correlation_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.protocol.ditto.subscriptions import Publication, Stream
    from ackstream.settings.connections import KafkaConnection, MqttConnection, Target

    Extra = Callable[[str, str], Mapping[str, Any]]
    from ackstream.client.outbox import Work
    from ackstream.connectivity.transport import Published, TargetPublisher
    from ackstream.settings import Kafka


class Publishing(msgspec.Struct, frozen=True):
    """A message for a target; ``label``: its transport's answer is acknowledged with it."""

    message: OutgoingMessage
    label: str | None


class Plan(msgspec.Struct, frozen=True):
    """What is published of a signal, for which labels weak acknowledgements go out, and which failed ones."""

    publishings: list[Publishing]
    weak: Drop
    failed: list[Acknowledgement] = []


class Outbound:
    """Decides for one connection."""

    def __init__(self, connection: KafkaConnection | MqttConnection) -> None:
        """Decide by the settings of ``connection``."""
        self._id = connection.id
        self._labels = connection.labels
        self._outlets = [_Outlet(connection.id, target) for target in connection.targets]

    @property
    def streams(self) -> frozenset[Stream]:
        """What has to be read: what targets want, and everything that may ask for a declared label."""
        if self._labels.to_declare:
            return frozenset({"events", "live-commands", "messages"})
        return frozenset(wanted.stream for outlet in self._outlets for wanted in outlet.subscriptions)

    def plan(self, signal: Publication, time: datetime | None = None, extra: Extra | None = None) -> Plan:
        """Return what becomes of a signal.

        :param time: the moment of ``time:now`` in filters
        :param extra: gives the fields of a thing (its id, a selector) for topics with ``extraFields``. Where it raises,
            nobody can tell whether the target wants the signal: the label it issues gets the error
        """
        own = {*self._labels.declared, *self._labels.issued}
        shown = [label for label in signal.labels if label in own]
        publishings, failed = [], []
        fates: list[tuple[str | None, bool]] = []
        for outlet in self._outlets:
            if not outlet.is_for(signal):
                continue
            label = outlet.label if outlet.is_asked(signal) else None
            try:
                wanted, fields = outlet.looks_at(signal, time, extra)
            except Exception as error:  # noqa: BLE001 - the acknowledgement tells it
                fates.append((outlet.label, True))
                if label is not None:
                    failed.append(issued_ack(label, error, signal.envelope.headers))
                continue
            delivered = as_delivered(signal, [each for each in shown if each != outlet.label], fields)
            payload = outlet.payload(delivered)
            publishes = wanted and payload is not UNSET
            fates.append((outlet.label, publishes))
            message = outlet.message(delivered, payload) if publishes else None
            if message is not None:
                publishings.append(Publishing(message, label))
        weak = dropped_by_targets(signal.labels, self._labels.declared, self._labels.issued, fates)
        return Plan(publishings, Drop(weak, DROPPED_BY_CONNECTION), failed)


class _Outlet:
    def __init__(self, connection_id: str, target: Target) -> None:
        self._id = connection_id
        self._target = target
        self.label = None if target.issued_ack is None else resolve_label(connection_id, target.issued_ack)
        self.subscriptions = [target_subscription(topic) for topic in target.topics]

    def is_for(self, signal: Publication) -> bool:
        return any(each.covers(signal) for each in self.subscriptions)

    def looks_at(
        self, signal: Publication, time: datetime | None, extra: Extra | None
    ) -> tuple[bool, Mapping[str, Any] | None]:
        """Tell whether a filter lets the signal through, and with which extra fields."""
        for each in self.subscriptions:
            if each.covers(signal):
                fields = extra(signal.thing_id, each.extra_fields) if extra and each.extra_fields else None
                if each.matches(signal, fields, time):
                    return True, fields
        return False, None

    def is_asked(self, signal: Publication) -> bool:
        if self.label == LIVE_RESPONSE:
            return signal.response_required and signal.stream in ("live-commands", "messages")
        return self.label in signal.labels

    def payload(self, signal: Envelope) -> Any:
        """Return the bytes, ``None`` for the protocol JSON, or ``UNSET`` where there is nothing to publish."""
        if self._target.payload == "ditto":
            return None
        return UNSET if signal.value is UNSET else bytes(signal.value)

    def message(self, signal: Envelope, payload: bytes | None) -> OutgoingMessage | None:
        target = self._target
        if payload is None:
            return outgoing(signal, target.address, target.header_mapping, self._id)
        return outgoing(
            signal,
            target.address,
            target.header_mapping,
            self._id,
            payload=payload,
            content_type=JSON_CONTENT_TYPE,
        )


def answer_of(signal: Publication, acks: list[Acknowledgement]) -> Envelope:
    """Return acknowledgements of a connection as the aggregate that goes to the acks topic.

    It may hold ``live-response``, which a single one may not.
    """
    channel = "live" if signal.stream != "events" else "twin"
    headers = signal.envelope.headers | ({CHANNEL: "live"} if channel == "live" else {})
    return write_acks(acks, thing_id=signal.thing_id, channel=channel, headers=headers)


# -- The targets of a connection: what happens in the system goes to them, and is acknowledged.


log = logging.getLogger(__name__)

MAX_PUBLISHING = 1_000
"""With so many messages on their way to the other system, no further signals are read."""

WAIT_SECONDS = 0.5


class Outlets(Closing):
    """Publishes what targets want. After a crash some signals are published again, none is left out."""

    def __init__(
        self, connection: KafkaConnection | MqttConnection, kafka: Kafka, publisher: TargetPublisher, extra: Extra
    ) -> None:
        """Connect to the system's Kafka.

        :param extra: gives the fields of a thing
        :raises UnreachableError: no broker, or a topic is missing
        """
        self._id = connection.id
        self._outbound = Outbound(connection)
        self._publisher = publisher
        self._extra = extra
        self._room = threading.BoundedSemaphore(MAX_PUBLISHING)
        self._closing = threading.Event()
        live = self._outbound.streams & {"live-commands", "messages"}
        topics = ["events", "signals"] if live else ["events"]
        self._worker = Worker(
            kafka, topics, self._handle, group=f"ackstream-connection-{connection.id}", start="latest"
        )

    def start(self) -> None:
        """Begin; when this returns, every signal from now on is published."""
        self._worker.run()

    def close(self) -> None:
        """Stop; what is not published comes again with the next start."""
        self._closing.set()
        self._worker.close()

    def _handle(self, record: Any, work: Work) -> None:
        signal = self._publication(record)
        if signal is None:
            return
        moment = datetime.fromtimestamp(record.timestamp / 1000, timezone.utc)
        plan = self._outbound.plan(signal, moment, self._extra)
        self._answer(signal, [*weak_acks(signal, plan.weak), *plan.failed], work)
        for publishing in plan.publishings:
            self._worker.outbox.hold(work)
            while not self._room.acquire(timeout=WAIT_SECONDS):
                if self._closing.is_set():
                    # it comes again with the next start
                    return
            self._publisher.publish(publishing.message, partial(self._published, signal, publishing, work))

    def _publication(self, record: Any) -> Publication | None:
        try:
            envelope = decode(record.value or b"")
            identity = correlation_id(record.headers, envelope.headers, (record.topic, record.partition, record.offset))
            return publication(envelope, identity)
        except DittoError as error:
            log.warning("A record of %s was skipped (offset %s): %s", record.topic, record.offset, error)
            return None

    def _published(
        self, signal: Publication, publishing: Publishing, work: Work, result: Published | Exception
    ) -> None:
        if isinstance(result, Exception):
            where = publishing.message.address
            log.warning("%s of %s was not published to %s: %s", signal.correlation_id, self._id, where, result)
        try:
            if publishing.label is not None:
                self._answer(signal, [self._issued(signal, publishing.label, result)], work)
        except Exception:
            log.exception("The acknowledgement of %s was not sent.", signal.correlation_id)
        finally:
            self._worker.outbox.release(work)
            self._room.release()

    def _issued(self, signal: Publication, label: str, result: Published | Exception) -> Acknowledgement:
        headers = signal.envelope.headers
        if isinstance(result, Exception):
            return issued_ack(label, result, headers, self._publisher.status_of(result))
        return acknowledgement(label, result.status, result.payload, headers)

    def _answer(self, signal: Publication, acks: list[Acknowledgement], work: Work) -> None:
        if acks:
            self._worker.send(signal.correlation_id, answer_of(signal, acks), work)
