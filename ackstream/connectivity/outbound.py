"""Publish to targets; rules: Ditto, ``OutboundMappingProcessorActor``, ``BasePublisherActor`` (ditto.md 2, 5, 6)."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Any, Literal, NamedTuple

from msgspec import UNSET

from ackstream.client.core.labels import Labels
from ackstream.client.core.messages import Work
from ackstream.client.core.worker import Worker
from ackstream.client.parties.signals import read_publication
from ackstream.connectivity.system import Lanes, Place, System
from ackstream.connectivity.transports import transport
from ackstream.kafka.clients import CLOSE_SECONDS, Closing
from ackstream.observe.metrics import CONNECTION_MESSAGES, FIGURES
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, acknowledgement, issued_ack
from ackstream.protocol.ditto.connection_rules import resolve_label, target_subscription
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, PROTOCOL_CONTENT_TYPE, Envelope, encode
from ackstream.protocol.ditto.headers import CONTENT_TYPE
from ackstream.protocol.ditto.labels import LIVE_RESPONSE
from ackstream.protocol.ditto.twin import subscriptions as rules
from ackstream.protocol.ditto.twin.access import OPEN, Access
from ackstream.protocol.ditto.twin.permissions import seen_by
from ackstream.protocol.ditto.twin.subscriptions import Subscription
from ackstream.settings import Kafka
from ackstream.settings.base import without_secrets
from ackstream.settings.connections import Connection, Target

Extra = Callable[[str, str], Mapping[str, Any]]
Quote = Callable[[str], str]

log = logging.getLogger(__name__)


class Publishing(NamedTuple):
    """A message for a target; ``label`` is acknowledged once the transport confirms."""

    message: transport.OutgoingMessage
    label: str | None


class Plan(NamedTuple):
    """The messages for a signal, labels to acknowledge weakly, failed acknowledgements, and reasons to give it up."""

    publishings: list[Publishing]
    weak: rules.Drop
    failed: list[Acknowledgement]
    lost: list[str]


class Outbound:
    """The rules of one connection."""

    def __init__(self, connection: Connection, access: Access, quote: Quote | None = None) -> None:
        """Decide by the settings; ``quote`` is applied to the texts of placeholders in addresses."""
        self._labels = connection.labels
        self._targets = [_TargetRules(connection.id, target, access, quote) for target in connection.targets]

    @property
    def streams(self) -> frozenset[rules.Stream]:
        """The streams to read: those of the targets, and any that may request a declared label."""
        if self._labels.to_declare:
            return frozenset({"events", "live-commands", "messages"})
        return frozenset(wanted.stream for target in self._targets for wanted in target.subscriptions)

    def plan(
        self, signal: rules.Publication, time: datetime | None = None, extra: Extra | None = None, *, held: bool = True
    ) -> Plan:
        """Decide which messages and acknowledgements a signal gets; ``time`` is the value of ``time:now`` in filters.

        ``extra`` returns fields of a thing; if it raises, the label of the target gets the error. Without its labels
        ``held`` the connection issues only ``live-response``.
        """
        labels = self._labels
        own = {*labels.declared, *labels.issued} if held else set()
        shown = [label for label in signal.labels if label in own]
        publishings, failed, lost = [], [], []
        fates: list[tuple[str | None, bool]] = []
        for target in self._targets:
            covering = [each for each in target.subscriptions if each.covers(signal)]
            if not covering:
                continue
            label = target.label if target.is_requested(signal) and (held or target.label == LIVE_RESPONSE) else None
            visible = seen_by(target.access, target.settings.subjects, signal)
            if visible is None:
                fates.append((target.label, False))
                continue
            try:
                wanted, fields = target.evaluate(covering, visible, time, extra)
            except Exception as error:  # noqa: BLE001 - reported in the acknowledgement
                fates.append((target.label, True))
                if label is not None:
                    failed.append(issued_ack(label, error, signal.envelope.headers))
                else:
                    lost.append(f"{without_secrets(target.settings.address)} did not get it: {error}")
                continue
            delivered = rules.as_delivered(visible, [each for each in shown if each != target.label], fields)
            publishes = wanted and not (target.sends_value and delivered.value is UNSET)
            fates.append((target.label, publishes))
            message = target.message(delivered) if publishes else None
            if message is not None:
                publishings.append(Publishing(message, label))
        weak = rules.dropped_by_targets(signal.labels, labels.declared, labels.issued, fates) if held else ()
        return Plan(publishings, rules.Drop(weak, rules.DROPPED_BY_CONNECTION), failed, lost)


class _TargetRules:
    def __init__(self, connection_id: str, target: Target, access: Access, quote: Quote | None) -> None:
        self._id, self.settings, self.access, self._quote = connection_id, target, access, quote
        self.label = None if target.issued_ack is None else resolve_label(connection_id, target.issued_ack)
        self.sends_value = target.payload == "value"
        self.subscriptions = [target_subscription(topic) for topic in target.topics]

    def evaluate(
        self, subscriptions: list[Subscription], signal: rules.Publication, time: datetime | None, extra: Extra | None
    ) -> tuple[bool, Mapping[str, Any] | None]:
        """Return whether one of the filters accepts the signal, and the extra fields."""
        for each in subscriptions:
            fields = self._fields(extra, signal.thing_id, each.extra_fields) if each.extra_fields else None
            if each.matches(signal, fields, time):
                return True, fields
        return False, None

    def _fields(self, extra: Extra | None, thing_id: str, selector: str) -> Mapping[str, Any]:
        found = {} if extra is None else extra(thing_id, selector)
        if self.access is OPEN or not found:
            return found
        seen: Any = self.access.visible(self.settings.subjects, thing_id, "/", found)
        return {} if seen is UNSET else seen

    def is_requested(self, signal: rules.Publication) -> bool:
        if self.label == LIVE_RESPONSE:
            return signal.response_required and signal.stream in ("live-commands", "messages")
        return self.label in signal.labels

    def message(self, signal: Envelope) -> transport.OutgoingMessage | None:
        value = bytes(signal.value) if self.sends_value and signal.value is not UNSET else None
        kind = PROTOCOL_CONTENT_TYPE if value is None else JSON_CONTENT_TYPE
        address, mapping, quote = self.settings.address, self.settings.header_mapping, self._quote
        return transport.outgoing(signal, address, mapping, self._id, payload=value, content_type=kind, quote=quote)


PASSED_ON = frozenset({CONTENT_TYPE, "last-modified", "retry-after", "x-correlation-id", "x-request-id"})
"""Headers of responses that acknowledgements have; any other may be a credential, or have another meaning here."""


def issued(label: str, result: transport.Published, headers: Mapping[str, Any]) -> Acknowledgement:
    """Return the acknowledgement that a target issues; headers of the signal take precedence over the transport's."""
    passed = {name: value for name, value in result.headers.items() if name in PASSED_ON}
    return acknowledgement(label, result.status, result.payload, {**passed, **headers})


MAX_PUBLISHING = 1_000
"""Maximum number of messages in flight to the other system before reading pauses."""


class _Handed(NamedTuple):
    signal: rules.Publication
    publishing: Publishing
    work: Work
    place: Place


class OutboundWorker(Closing):
    """Publishes signals to the targets at least once: after a crash some are published again, none is lost.

    One that is not accepted, and whose requester would not be informed, is published again (:class:`.Lanes`), or, if it
    is refused, a dead letter. The worker ends if the other system accepts no message. While the lease of the labels is
    late, all wait.
    """

    def __init__(
        self,
        connection: Connection,
        kafka: Kafka,
        publisher: transport.TargetPublisher,
        system: System,
        labels: Labels,
        lanes: Lanes,
        access: Access,
    ) -> None:
        """Start; every further signal is published then. Raises ``UnreachableError``: no Kafka, or topic."""
        self._id = connection.id
        self._outbound = Outbound(connection, access, publisher.quoted)
        self._publisher = publisher
        self._system = system
        self._labels = labels
        # shared by the successive workers of the connection
        self._lanes, self._changed = lanes, lanes.changed
        # those that were handed to the publisher, or wait
        self._open: dict[Place, _Handed] = {}
        self._bytes = self._publishing = 0
        # the publisher gets no more messages: it is closed, or the other system is unavailable
        self._ended = threading.Event()
        topics = ["events", "signals"] if self._outbound.streams & {"live-commands", "messages"} else ["events"]
        group = f"ackstream-target-{connection.id}"
        self._worker = Worker(kafka, topics, self._handle, group=group, start="latest", labels=labels)
        with self._changed:
            lanes.begin()
        self._worker.run()

    @property
    def alive(self) -> bool:
        """Whether signals are still read and published."""
        return self._worker.life.alive and not self._ended.is_set()

    @property
    def fault(self) -> str:
        """The reason why it no longer publishes: the error that ended it, unless the other system is unavailable."""
        return f"It no longer publishes to its targets. {self._worker.life.error or ''}".rstrip()

    def close(self) -> None:
        """Wait for confirmations for at most 5 s, then stop; unconfirmed signals are published at the next start."""
        with self._changed:
            # unless it is unavailable, or its connection is lost
            waits = self.alive and self._publisher.alive
            self._ended.set()
            self._changed.notify_all()
            if waits:
                self._changed.wait_for(lambda: not self._publishing, CLOSE_SECONDS)
        self._worker.close()

    def turn(self) -> None:
        """Publish the messages that have waited and are due; called regularly by one thread."""
        while not self._ended.is_set():
            with self._changed:
                place = self._lanes.next(time.monotonic())
                if place is None:
                    return
                self._publishing += 1
            self._publish(self._open[place])

    def _handle(self, record: Any, work: Work) -> None:
        signal = read_publication(record, self._worker.originator_key)
        if signal is None:
            return
        moment = datetime.fromtimestamp(record.timestamp / 1000, timezone.utc)
        plan = self._outbound.plan(signal, moment, self._system.extra, held=not self._labels.taken)
        self._answer(signal, [*rules.weak_acks(signal, plan.weak), *plan.failed], work)
        for why in plan.lost:
            self._worker.outbox.hold(work)
            self._dead_letter(signal, encode(signal.envelope), why, partial(self._worker.outbox.release, work))
        for number, publishing in enumerate(plan.publishings):
            place = Place(record.topic, record.partition, record.offset, number, publishing.message.address)
            handed = _Handed(signal, publishing, work, place)
            self._worker.outbox.hold(work)
            with self._changed:
                self._changed.wait_for(lambda: self._has_room or self._ended.is_set())
                if self._ended.is_set():
                    # uncommitted: the next worker publishes it
                    return
                if publishing.label is None and self._lanes.settled_before(place):
                    self._worker.outbox.release(work)
                    continue
                self._open[place] = handed
                self._bytes += len(publishing.message.payload)
                waits = self._lanes.waits(place, time.monotonic())
                self._publishing += not waits
            if not waits:
                self._publish(handed)

    @property
    def _has_room(self) -> bool:
        return self._publishing < MAX_PUBLISHING and self._bytes < transport.MAX_BYTES

    def _publish(self, handed: _Handed) -> None:
        self._publisher.publish(handed.publishing.message, partial(self._published, handed))

    def _published(self, handed: _Handed, result: transport.Published) -> None:
        signal, (message, label), _, place = handed
        FIGURES.count(CONNECTION_MESSAGES, self._id, "outbound", "published" if result.succeeded else "failed")
        if not result.succeeded:
            name, where = signal.correlation_id, without_secrets(message.address)
            log.warning("%s of %s was not published to %s: %s", name, self._id, where, result.reason)
        # labels may have been lost since the signal was read
        reports = not result.unsent and (label == LIVE_RESPONSE or (label is not None and self._labels.complete))
        becomes: Literal["reported", "waits", "away"] | list[Place] = "reported"
        with self._changed:
            self._publishing -= 1
            if result.away and not reports:
                now, doubtful = time.monotonic(), result.doubtful
                becomes = "waits" if self._ended.is_set() else self._lanes.failed(place, now, doubtful=doubtful)
            self._changed.notify_all()
        if becomes == "reported":
            try:
                # while the lease is late it waits
                if label is not None:
                    self._answer(signal, [issued(label, result, signal.envelope.headers)], handed.work)
            except Exception:
                log.exception("The acknowledgement of %s was not sent.", signal.correlation_id)
            finally:
                if result.succeeded or reports:
                    self._settled(handed, accepted=result.succeeded)
                else:
                    self._give_up([place], f"refused it: {result.reason}")
        elif isinstance(becomes, list):
            self._give_up(becomes, f"has not accepted it: {result.reason}")
        elif becomes == "away":
            self._end()

    def _settled(self, handed: _Handed, *, accepted: bool) -> None:
        self._worker.outbox.release(handed.work)
        with self._changed:
            del self._open[handed.place]
            self._bytes -= len(handed.publishing.message.payload)
            self._lanes.settled(handed.place, accepted=accepted)
            self._changed.notify_all()

    def _give_up(self, places: list[Place], why: str) -> None:
        for handed in [self._open[each] for each in places]:
            message, settled = handed.publishing.message, partial(self._settled, handed, accepted=False)
            address = without_secrets(message.address)
            self._dead_letter(handed.signal, message.payload, f"{address} {why}", settled)

    def _dead_letter(self, signal: rules.Publication, payload: bytes, why: str, stored: Callable[[], None]) -> None:
        identity = f"{self._id}-{signal.correlation_id}"
        letter = transport.ExternalMessage(identity, {"kafka.key": signal.thing_id}, payload)
        self._system.give_up(letter, why, lambda answer: self._end() if answer is None else stored())

    def _end(self) -> None:
        """Publish nothing more: the work of a signal stays open, so that its offset is not committed."""
        self._publisher.halt()
        with self._changed:
            self._ended.set()
            self._changed.notify_all()

    def _answer(self, signal: rules.Publication, acks: list[Acknowledgement], work: Work) -> None:
        for message in rules.answers_of(signal, acks):
            self._worker.outbox.send(signal.correlation_id, message, work)
