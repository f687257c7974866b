"""Subscriptions: which signals a subscriber receives, with which labels, and the weak acknowledgements of the others.

Everything here is decided from values; reading topics and publishing acknowledgements is left to the callers. Source of
the rules: Eclipse Ditto, ``StreamingSessionActor``, ``StreamingSession``, ``WebSocketRoute``,
``AcknowledgementForwarderActorStarter``, ``AckExtractor``, ``OutboundMappingProcessorActor`` (ditto.md 2, 5, 10).
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

import msgspec

from ackstream.protocol.ditto import headers as names
from ackstream.protocol.ditto.acknowledgements import OK, Acknowledgement, live_response
from ackstream.protocol.ditto.aggregates import write_acks
from ackstream.protocol.ditto.envelopes import Envelope, raw
from ackstream.protocol.ditto.labels import BUILT_IN, LIVE_RESPONSE, RESPONSE_LABELS, TWIN_PERSISTED
from ackstream.protocol.ditto.requests import read_request
from ackstream.protocol.ditto.signal_defaults import SMART_MAXIMUM_MS
from ackstream.protocol.ditto.twin.things import merged, partial_thing, placeholders
from ackstream.protocol.durations import Duration
from ackstream.protocol.json import parse_selector
from ackstream.protocol.rql import evaluation, parser
from ackstream.protocol.rql.patterns import Effort

Stream = Literal["events", "live-commands", "live-events", "messages"]
STREAM_OF: dict[tuple[str | None, str], Stream] = {
    ("twin", "events"): "events",
    ("live", "commands"): "live-commands",
    ("live", "events"): "live-events",
    ("live", "messages"): "messages",
}
"""The streams by channel and criterion of their signals."""

STREAMS = tuple(STREAM_OF.values())

_WEAK = (
    "Acknowledgement was issued automatically as weak ack, because the signal is not relevant for the subscriber. "
    "Possible reasons are: "
)
NOT_SUBSCRIBED = f"{_WEAK}the subscriber was not authorized, or the subscriber did not subscribe for the signal type."
"""Text from a subscriber that holds the label, but has no subscription for the signal or may not see it."""

FILTERED = (
    f"{_WEAK}the subscriber did not subscribe for the signal type, or the signal was dropped by a configured RQL "
    "filter."
)
"""Text from a subscriber whose filter drops the signal."""

DROPPED_BY_CONNECTION = (
    f"{_WEAK}the subscriber was not authorized, the subscriber did not subscribe for the signal type, the signal was "
    "dropped by a configured RQL filter, or the signal was dropped by all payload mappers."
)
"""Text from a connection whose targets do not publish the signal."""


class Publication(msgspec.Struct, frozen=True, dict=True):
    """A signal on its way to subscribers; made once, and decided for each of them.

    ``labels`` are the requested custom labels whose acknowledgements are forwarded back, in order of the request,
    without duplicates; ``response_required`` is that of a live command or message; ``timeout_ms`` is how long
    acknowledgements are accepted, ``None`` if the signal does not specify it; by the ``correlation_id`` they find their
    request, even if the envelope shows another.
    """

    envelope: Envelope
    stream: Stream
    labels: tuple[str, ...]
    response_required: bool
    timeout_ms: int | None
    correlation_id: str

    @property
    def thing_id(self) -> str:
        """The id of the thing."""
        return self.envelope.topic.thing_id

    @cached_property
    def thing(self) -> dict[str, Any]:
        """The partial thing that the signal reports, for filters; empty unless it is an event."""
        return partial_thing(self.envelope)

    @cached_property
    def plain(self) -> Envelope:
        """The signal as delivered to subscribers from which no acknowledgement is requested."""
        return as_delivered(self, ())

    @cached_property
    def placeholders(self) -> dict[str, Mapping[str, str | list[str]]]:
        """The placeholders of the signal itself for filters: ``topic:action``, ``resource:path`` and others."""
        return placeholders(self.envelope, self.thing)


def publication(envelope: Envelope, correlation_id: str) -> Publication | None:
    """Return a signal for subscribers, ``None`` for twin commands, responses, acks and errors, which none receives."""
    # its headers get the ``correlation_id`` of its record; raises 400 for headers that correlate refuses
    envelope = _on_its_channel(envelope)
    stream = stream_of(envelope)
    if stream is None:
        return None
    headers = {name: value for name, value in envelope.headers.items() if name.lower() != names.CORRELATION_ID}
    signal = msgspec.structs.replace(envelope, headers=headers | {names.CORRELATION_ID: correlation_id})
    if stream in ("events", "live-events"):
        user = names.read_headers(envelope.headers)
        requested, wanted, timeout = user.get(names.REQUESTED_ACKS) or (), False, user.get(names.TIMEOUT)
        timeout_ms = None if timeout is None else Duration.parse(timeout).capped(SMART_MAXIMUM_MS)
    else:
        # correlate accepts answers for the same time
        request = read_request(envelope, max_timeout_ms=SMART_MAXIMUM_MS)
        requested, wanted, timeout_ms = request.awaited, request.response_required, request.timeout_ms
    forwarded = dict.fromkeys(requested) if forwards_acks(stream, requested, response_required=wanted) else ()
    labels = tuple(label for label in forwarded if label not in BUILT_IN)
    return Publication(signal, stream, labels, wanted, timeout_ms, correlation_id)


def _on_its_channel(envelope: Envelope) -> Envelope:
    """Return a command that a header makes live as one of the live channel, on which it is answered."""
    topic = envelope.topic
    if (topic.channel, topic.criterion) != ("twin", "commands"):
        return envelope
    if not any(name.lower() == names.CHANNEL and value == "live" for name, value in envelope.headers.items()):
        return envelope
    return msgspec.structs.replace(envelope, topic=msgspec.structs.replace(topic, channel="live"))


def stream_of(envelope: Envelope) -> Stream | None:
    """Return the stream that a message belongs to, if any."""
    topic = envelope.topic
    if topic.group != "things" or envelope.status is not None:
        return None
    return STREAM_OF.get((topic.channel, topic.criterion))


def forwards_acks(stream: Stream, labels: Iterable[str], *, response_required: bool) -> bool:
    """Return whether acknowledgements of subscribers are forwarded to the sender, who requested the labels."""
    match stream:
        case "events":
            return any(label not in RESPONSE_LABELS.values() for label in labels)
        case "live-commands" | "messages":
            return response_required or any(label != TWIN_PERSISTED for label in labels)
    return False


class Subscription(msgspec.Struct, frozen=True):
    """A subscription of one stream.

    ``namespaces``: empty means all; ``filter``: a checked RQL tree; ``extra_fields``: a selector of fields of the thing
    that are added to the signal (``attributes/location,features``).
    """

    stream: Stream
    namespaces: frozenset[str] = frozenset()
    filter: parser.Node | None = None
    extra_fields: str | None = None

    def covers(self, signal: Publication) -> bool:
        """Return whether the signal belongs to the stream and to one of the namespaces."""
        namespace = signal.envelope.topic.namespace
        return signal.stream == self.stream and (not self.namespaces or namespace in self.namespaces)

    def matches(
        self,
        signal: Publication,
        extra: Mapping[str, Any] | None = None,
        time: datetime | None = None,
        effort: Effort | None = None,
    ) -> bool:
        """Return whether a signal passes the filter.

        An event is filtered on the partial thing (id, revision, timestamp, change) and the extra fields, any other
        signal only on the extra fields; the signal's own fields win.

        :param extra: the fields that ``extra_fields`` selects
        :param time: the value of ``time:now``
        :param effort: limits the steps of a filter from outside: raises as ``Effort.spend`` does
        """
        if self.filter is None:
            return True
        thing = merged(dict(extra), signal.thing) if extra else signal.thing
        return evaluation.matches(self.filter, thing, time=time, effort=effort, **signal.placeholders)


def subscription(
    stream: Stream,
    *,
    namespaces: Iterable[str] = (),
    filter: str | None = None,  # noqa: A002 - Ditto's name
    extra_fields: str | None = None,
) -> Subscription:
    """Return a subscription; an empty filter or selector counts as absent. Raises 400 for one that is wrong."""
    tree = evaluation.checked(parser.parse(filter)) if filter else None
    if extra_fields:
        parse_selector(extra_fields)
    return Subscription(stream, frozenset(namespaces), tree, extra_fields or None)


PARAMETERS = ("namespaces", "filter", "extraFields")
"""Parameters of a subscription that is a URI or looks like one."""


def subscription_of(stream: Stream, parameters: Mapping[str, str]) -> Subscription:
    """Return the subscription that :data:`PARAMETERS` describe, by :func:`subscription`; others are ignored."""
    namespaces, chosen, extra = (parameters.get(name) for name in PARAMETERS)
    given = filter(None, (namespaces or "").split(","))
    return subscription(stream, namespaces=given, filter=chosen, extra_fields=extra)


class SubscriberState(msgspec.Struct, frozen=True):
    """A subscriber: the labels it declared, and its subscriptions by stream."""

    labels: frozenset[str] = frozenset()
    subscriptions: dict[Stream, Subscription] = {}


class SignalDelivery(msgspec.Struct, frozen=True):
    """A signal as one subscriber receives it (others may share the envelope), and the labels requested of it."""

    envelope: Envelope
    labels: tuple[str, ...]


class Drop(msgspec.Struct, frozen=True):
    """A signal that a subscriber does not receive; each of the labels is acknowledged weakly with the text."""

    labels: tuple[str, ...]
    text: str


def decide(
    subscriber: SubscriberState,
    signal: Publication,
    *,
    visible: bool = True,
    extra: Mapping[str, Any] | None = None,
    time: datetime | None = None,
    effort: Effort | None = None,
) -> SignalDelivery | Drop:
    """Decide whether one subscriber receives a signal; the last three are those of :meth:`Subscription.matches`."""
    # ``visible``: whether it may see the signal by its access rules
    labels = tuple(label for label in signal.labels if label in subscriber.labels)
    wanted = subscriber.subscriptions.get(signal.stream)
    if wanted is None or not visible or not wanted.covers(signal):
        return Drop(labels, NOT_SUBSCRIBED)
    if not wanted.matches(signal, extra, time, effort):
        return Drop(labels, FILTERED)
    return SignalDelivery(as_delivered(signal, labels, extra) if labels or extra else signal.plain, labels)


def as_delivered(signal: Publication, labels: Iterable[str], extra: Mapping[str, Any] | None = None) -> Envelope:
    """Return a signal with the requested-acks for one subscriber, and no internal headers; an explicit ``[]`` stays."""
    envelope = signal.envelope
    headers = {name: value for name, value in envelope.headers.items() if name.lower() not in names.NEVER_WRITTEN}
    asked = [headers.pop(name) for name in [*headers] if name.lower() == names.REQUESTED_ACKS]
    shown = list(labels)
    if shown or any(labels in ([], "[]") for labels in asked):
        headers[names.REQUESTED_ACKS] = shown
    return msgspec.structs.replace(envelope, headers=headers, extra=raw(extra) if extra else msgspec.UNSET)


def weak_acks(signal: Publication, drop: Drop) -> list[Acknowledgement]:
    """Return the weak acknowledgements of a dropped signal: status 200 and the headers of the signal."""
    if not drop.labels:
        return []
    own = {names.WEAK_ACK: True, names.CORRELATION_ID: signal.correlation_id}
    headers = names.reply_headers(names.read_headers(signal.envelope.headers)) | own
    return [Acknowledgement(label, OK, raw(drop.text), headers) for label in drop.labels]


def dropped_by_targets(
    requested: Iterable[str],
    declared: Collection[str],
    issued: Collection[str],
    targets: Collection[tuple[str | None, bool]],
) -> tuple[str, ...]:
    """Return the labels that a connection acknowledges weakly for a signal, in order of the request."""
    # If no target publishes it, these are all labels that the connection declares or issues; else the issued labels of
    # subscribed targets that dropped it. live-response is never among them. ``targets``: for each subscribed one the
    # label it issues (if any), and whether it publishes the signal.
    if any(published for _, published in targets):
        weak: Collection[str | None] = {label for label, published in targets if not published}
    else:
        weak = {*declared, *issued}
    return tuple(label for label in dict.fromkeys(requested) if label in weak and label != LIVE_RESPONSE)


def answers_of(signal: Publication, acks: list[Acknowledgement]) -> list[Envelope]:
    """Return the messages that acknowledge a signal: an aggregate, and the live response that a target issues."""
    channel = "live" if signal.stream != "events" else "twin"
    headers = signal.envelope.headers | ({names.CHANNEL: "live"} if channel == "live" else {})
    found = [live_response(signal.envelope, ack) for ack in acks if ack.label == LIVE_RESPONSE]
    custom = [ack for ack in acks if ack.label != LIVE_RESPONSE]
    if custom:
        found.append(write_acks(custom, thing_id=signal.thing_id, channel=channel, headers=headers))
    return found
