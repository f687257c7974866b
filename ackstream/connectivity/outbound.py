"""Publish to targets; rules: Ditto, ``OutboundMappingProcessorActor``, ``BasePublisherActor`` (ditto.md 2, 5, 6)."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET

from ackstream.client.core.worker import Worker
from ackstream.client.parties.signals import read_publication
from ackstream.connectivity.system import AloneAway, Place, System
from ackstream.connectivity.transports import transport
from ackstream.kafka.clients import CLOSE_SECONDS, Closing
from ackstream.observe.metrics import CONNECTION_MESSAGES, FIGURES
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, acknowledgement, issued_ack, live_response
from ackstream.protocol.ditto.aggregates import write_acks
from ackstream.protocol.ditto.connection_rules import resolve_label, target_subscription
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, PROTOCOL_CONTENT_TYPE, Envelope
from ackstream.protocol.ditto.headers import CHANNEL, CONTENT_TYPE
from ackstream.protocol.ditto.labels import LIVE_RESPONSE
from ackstream.protocol.ditto.twin.access import OPEN, Access
from ackstream.protocol.ditto.twin.permissions import seen_by
from ackstream.protocol.ditto.twin.subscriptions import (
    DROPPED_BY_CONNECTION,
    Drop,
    Publication,
    Stream,
    as_delivered,
    dropped_by_targets,
    weak_acks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackstream.client.core.labels import Labels
    from ackstream.client.core.messages import Work
    from ackstream.protocol.ditto.twin.subscriptions import Subscription
    from ackstream.settings import Kafka
    from ackstream.settings.connections import Connection, Target

    Extra = Callable[[str, str], Mapping[str, Any]]
    Quote = Callable[[str], str]

log = logging.getLogger(__name__)


class Publishing(NamedTuple):
    """A message for a target; ``label`` is acknowledged once the transport confirms."""

    message: transport.OutgoingMessage
    label: str | None


class Plan(NamedTuple):
    """The messages to publish for a signal, the labels to acknowledge weakly, and failed acknowledgements."""

    publishings: list[Publishing]
    weak: Drop
    failed: list[Acknowledgement]


class Outbound:
    """The rules of one connection."""

    def __init__(self, connection: Connection, access: Access, quote: Quote | None = None) -> None:
        """Decide by the settings; ``quote`` is applied to the texts of placeholders in addresses."""
        self._labels = connection.labels
        self._targets = [_TargetRules(connection.id, target, access, quote) for target in connection.targets]

    @property
    def streams(self) -> frozenset[Stream]:
        """The streams to read: those of the targets, and all that may request a declared label."""
        if self._labels.to_declare:
            return frozenset({"events", "live-commands", "messages"})
        return frozenset(wanted.stream for target in self._targets for wanted in target.subscriptions)

    def plan(
        self, signal: Publication, time: datetime | None = None, extra: Extra | None = None, *, held: bool = True
    ) -> Plan:
        """Decide which messages and acknowledgements a signal gets.

        :param time: the value of ``time:now`` in filters
        :param extra: returns fields of a thing (id, selector) for topics with ``extraFields``; if it raises, the label
            of the target gets the error
        :param held: whether the connection holds its labels; without them only ``live-response`` is issued
        """
        own = {*self._labels.declared, *self._labels.issued} if held else set()
        shown = [label for label in signal.labels if label in own]
        publishings, failed = [], []
        fates: list[tuple[str | None, bool]] = []
        for target in self._targets:
            covering = [each for each in target.subscriptions if each.covers(signal)]
            if not covering:
                continue
            label = target.label if target.is_requested(signal) and (held or target.label == LIVE_RESPONSE) else None
            visible = target.visible(signal)
            if visible is None:
                fates.append((target.label, False))
                continue
            try:
                wanted, fields = target.evaluate(covering, visible, time, extra)
            except Exception as error:  # noqa: BLE001 - reported in the acknowledgement
                fates.append((target.label, True))
                if label is not None:
                    failed.append(issued_ack(label, error, signal.envelope.headers))
                continue
            delivered = as_delivered(visible, [each for each in shown if each != target.label], fields)
            publishes = wanted and not (target.sends_value and delivered.value is UNSET)
            fates.append((target.label, publishes))
            message = target.message(delivered) if publishes else None
            if message is not None:
                publishings.append(Publishing(message, label))
        weak = dropped_by_targets(signal.labels, self._labels.declared, self._labels.issued, fates) if held else ()
        return Plan(publishings, Drop(weak, DROPPED_BY_CONNECTION), failed)


class _TargetRules:
    def __init__(self, connection_id: str, target: Target, access: Access, quote: Quote | None) -> None:
        self._id, self._target, self._access, self._quote = connection_id, target, access, quote
        self.label = None if target.issued_ack is None else resolve_label(connection_id, target.issued_ack)
        self.sends_value = target.payload == "value"
        self.subscriptions = [target_subscription(topic) for topic in target.topics]

    def visible(self, signal: Publication) -> Publication | None:
        return seen_by(self._access, self._target.subjects, signal)

    def evaluate(
        self, subscriptions: list[Subscription], signal: Publication, time: datetime | None, extra: Extra | None
    ) -> tuple[bool, Mapping[str, Any] | None]:
        """Return whether one of the filters accepts the signal, and the extra fields."""
        for each in subscriptions:
            fields = self._fields(extra, signal.thing_id, each.extra_fields) if each.extra_fields else None
            if each.matches(signal, fields, time):
                return True, fields
        return False, None

    def _fields(self, extra: Extra | None, thing_id: str, selector: str) -> Mapping[str, Any]:
        found = {} if extra is None else extra(thing_id, selector)
        if self._access is OPEN or not found:
            return found
        seen: Any = self._access.visible(self._target.subjects, thing_id, "/", found)
        return {} if seen is UNSET else seen

    def is_requested(self, signal: Publication) -> bool:
        if self.label == LIVE_RESPONSE:
            return signal.response_required and signal.stream in ("live-commands", "messages")
        return self.label in signal.labels

    def message(self, signal: Envelope) -> transport.OutgoingMessage | None:
        value = bytes(signal.value) if self.sends_value and signal.value is not UNSET else None
        kind = PROTOCOL_CONTENT_TYPE if value is None else JSON_CONTENT_TYPE
        address, mapping = self._target.address, self._target.header_mapping
        return transport.outgoing(
            signal, address, mapping, self._id, payload=value, content_type=kind, quote=self._quote
        )


def answers_of(signal: Publication, acks: list[Acknowledgement]) -> list[Envelope]:
    """Return the messages that acknowledge a signal: an aggregate, and the live response that a target issues."""
    channel = "live" if signal.stream != "events" else "twin"
    headers = signal.envelope.headers | ({CHANNEL: "live"} if channel == "live" else {})
    found = [live_response(signal.envelope, ack) for ack in acks if ack.label == LIVE_RESPONSE]
    custom = [ack for ack in acks if ack.label != LIVE_RESPONSE]
    if custom:
        found.append(write_acks(custom, thing_id=signal.thing_id, channel=channel, headers=headers))
    return found


PASSED_ON = frozenset({CONTENT_TYPE, "last-modified", "retry-after", "x-correlation-id", "x-request-id"})
"""Headers of responses that acknowledgements have; any other may be a credential, or have another meaning here."""


def issued(label: str, result: transport.Published, headers: Mapping[str, Any]) -> Acknowledgement:
    """Return the acknowledgement that a target issues; headers of the signal take precedence over the transport's."""
    passed = {name: value for name, value in result.headers.items() if name in PASSED_ON}
    return acknowledgement(label, result.status, result.payload, {**passed, **headers})


MAX_PUBLISHING = 1_000
"""Maximum number of messages in flight to the other system before reading pauses."""


class _Handed(NamedTuple):
    signal: Publication
    publishing: Publishing
    work: Work
    place: Place


class OutboundWorker(Closing):
    """Publishes signals to the targets at least once: after a crash some are published again, none is lost.

    It ends when the other system accepts nothing: a signal whose requester would not be informed stays uncommitted, and
    the next worker publishes it and those after it. A signal that is refused, or never accepted while others are,
    becomes a dead letter unless its requester is informed. While the lease of the labels is late, signals and
    acknowledgements wait.
    """

    def __init__(
        self,
        connection: Connection,
        kafka: Kafka,
        publisher: transport.TargetPublisher,
        system: System,
        labels: Labels,
        away: AloneAway,
        access: Access,
    ) -> None:
        """Start; once this returns, every further signal is published. Raises ``UnreachableError``: no Kafka, or topic.

        :param labels: acknowledgements are rejected while another client holds one of them
        :param away: the failures that earlier workers of the connection met
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
        group = f"ackstream-target-{connection.id}"
        self._worker = Worker(kafka, topics, self._handle, group=group, start="latest", labels=labels)
        away.begin()
        self._worker.run()

    @property
    def alive(self) -> bool:
        """Whether signals are still read and published."""
        return self._worker.life.alive and not self._away

    @property
    def fault(self) -> str:
        """Why it no longer publishes: the error that has ended it, unless the other system is away."""
        return f"It no longer publishes to its targets. {self._worker.life.error or ''}".rstrip()

    def close(self) -> None:
        """Wait for confirmations for at most 5 s, then stop; unconfirmed signals are published at the next start."""
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
            place = Place(record.topic, record.partition, record.offset, publishing.message.address)
            handed = _Handed(signal, publishing, work, place)
            self._publisher.publish(publishing.message, partial(self._published, handed))

    def _published(self, handed: _Handed, result: transport.Published) -> None:
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

    def _decide(self, handed: _Handed, result: transport.Published) -> None:
        signal, (_, label), work, place = handed
        # labels may have been lost since the signal was read
        reports = label == LIVE_RESPONSE or (label is not None and self._labels.complete)
        if result.away and not reports:
            if self._alone.failed(place):
                self._give_up(handed, f"accepted others, but never this one: {result.reason}")
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
            if result.succeeded or reports:
                self._worker.outbox.release(work)
            else:
                self._give_up(handed, f"refused it: {result.reason}")

    def _give_up(self, handed: _Handed, why: str) -> None:
        message, signal = handed.publishing.message, handed.signal
        letter = transport.ExternalMessage(
            f"{self._id}-{signal.correlation_id}", {"kafka.key": signal.thing_id}, message.payload
        )

        def stored(answer: Any) -> None:
            if answer is None:
                self._end()
            else:
                self._worker.outbox.release(handed.work)

        self._system.give_up(letter, f"{message.address} {why}", stored)

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
