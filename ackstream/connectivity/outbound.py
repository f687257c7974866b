"""What the targets of a connection publish for a signal, and which acknowledgements they issue.

Source of the rules: Eclipse Ditto, ``OutboundMappingProcessorActor``, ``BasePublisherActor`` (ditto.md 2, 5, 6).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from ackstream.connectivity.transport import OutgoingMessage, outgoing
from ackstream.protocol.ditto.access import OPEN
from ackstream.protocol.ditto.acknowledgements import (
    Acknowledgement,
    acknowledgement,
    issued_ack,
    live_response,
)
from ackstream.protocol.ditto.aggregates import write_acks
from ackstream.protocol.ditto.connections import resolve_label, target_subscription
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, PROTOCOL_CONTENT_TYPE
from ackstream.protocol.ditto.headers import CHANNEL
from ackstream.protocol.ditto.labels import LIVE_RESPONSE
from ackstream.protocol.ditto.permissions import seen_by
from ackstream.protocol.ditto.subscriptions import (
    DROPPED_BY_CONNECTION,
    Drop,
    Publication,
    as_delivered,
    dropped_by_targets,
)
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from ackstream.connectivity.transport import Published
    from ackstream.protocol.ditto.access import Access
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.protocol.ditto.subscriptions import Stream, Subscription
    from ackstream.settings.connections import Connection, Target

    Extra = Callable[[str, str], Mapping[str, Any]]
    Quote = Callable[[str], str]


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

    def __init__(self, connection: Connection, access: Access, quote: Quote | None = None) -> None:
        """Decide according to the settings of ``connection``.

        :param access: what the subjects of its targets may read
        :param quote: applied to the texts of placeholders in addresses
        """
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
        """Decide what to publish and acknowledge for a signal.

        :param time: the value of ``time:now`` in filters
        :param extra: returns fields of a thing (id, selector) for topics with ``extraFields``; if it raises, the filter
            cannot be evaluated, and the label of the target gets the error
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
                wanted, fields = _evaluate(covering, visible, time, partial(target.fields, extra))
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
        self._id = connection_id
        self._target = target
        self._access = access
        self._quote = quote
        self.label = None if target.issued_ack is None else resolve_label(connection_id, target.issued_ack)
        self.sends_value = target.payload == "value"
        self.subscriptions = [target_subscription(topic) for topic in target.topics]

    def visible(self, signal: Publication) -> Publication | None:
        """Return the part of a signal that the subjects of the target may read, ``None`` if that is nothing."""
        return seen_by(self._access, self._target.subjects, signal)

    def fields(self, extra: Extra | None, thing_id: str, selector: str) -> Mapping[str, Any]:
        """Return the extra fields of a thing that the subjects of the target may read."""
        found = {} if extra is None else extra(thing_id, selector)
        if self._access is OPEN or not found:
            return found
        seen: Any = self._access.visible(self._target.subjects, thing_id, "/", found)
        return {} if seen is UNSET else seen

    def is_requested(self, signal: Publication) -> bool:
        if self.label == LIVE_RESPONSE:
            return signal.response_required and signal.stream in ("live-commands", "messages")
        return self.label in signal.labels

    def message(self, signal: Envelope) -> OutgoingMessage | None:
        payload, kind = None, PROTOCOL_CONTENT_TYPE
        if self.sends_value and signal.value is not UNSET:
            payload, kind = bytes(signal.value), JSON_CONTENT_TYPE
        target = self._target
        return outgoing(
            signal,
            target.address,
            target.header_mapping,
            self._id,
            payload=payload,
            content_type=kind,
            quote=self._quote,
        )


def _evaluate(
    subscriptions: list[Subscription], signal: Publication, time: datetime | None, extra: Extra
) -> tuple[bool, Mapping[str, Any] | None]:
    """Return whether one of the filters accepts the signal, and the extra fields."""
    for each in subscriptions:
        fields = extra(signal.thing_id, each.extra_fields) if each.extra_fields else None
        if each.matches(signal, fields, time):
            return True, fields
    return False, None


def answers_of(signal: Publication, acks: list[Acknowledgement]) -> list[Envelope]:
    """Return the messages that acknowledge a signal: an aggregate, and the live response that a target issues."""
    channel = "live" if signal.stream != "events" else "twin"
    headers = signal.envelope.headers | ({CHANNEL: "live"} if channel == "live" else {})
    found = [live_response(signal.envelope, ack) for ack in acks if ack.label == LIVE_RESPONSE]
    custom = [ack for ack in acks if ack.label != LIVE_RESPONSE]
    if custom:
        found.append(write_acks(custom, thing_id=signal.thing_id, channel=channel, headers=headers))
    return found


def issued(label: str, result: Published, headers: Mapping[str, Any]) -> Acknowledgement:
    """Return the acknowledgement that a target issues; headers of the signal take precedence over the transport's."""
    try:
        return acknowledgement(label, result.status, result.payload, {**result.headers, **headers})
    except DittoError:
        # a header of the other system that means something else here
        return acknowledgement(label, result.status, result.payload, headers)
