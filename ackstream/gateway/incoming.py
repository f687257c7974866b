"""Read what a WebSocket client sends: requests, answers to signals, live events, and control messages.

Source of the rules: Eclipse Ditto, ``WebSocketRoute#buildSignal``, ``StreamingSessionActor``, ``ProtocolMessageType``,
``ProtocolMessageExtractor``; the table is in ``ditto.md`` 1.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import unquote_plus

import msgspec

from ackstream.client.signals import check_answer
from ackstream.gateway.operations import Kind
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.errors import json_field_missing, unknown_topic_path
from ackstream.protocol.ditto.headers import (
    CORRELATION_ID,
    DECLARED_ACKS,
    DEFINITIONS,
    RESPONSE_REQUIRED,
    TIMEOUT,
    read_correlation_id,
    read_headers,
    taken_headers,
)
from ackstream.protocol.ditto.signal_defaults import STREAM_TIMEOUT_MS, check_combination, default_headers, signal_kind
from ackstream.protocol.ditto.subscriptions import Stream, Subscription, stream_of, subscription
from ackstream.protocol.durations import Duration

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


_INHERITED = DEFINITIONS.keys() - {CORRELATION_ID, DECLARED_ACKS}
"""Headers of the connection that apply to its messages."""


class Incoming(msgspec.Struct, frozen=True):
    """A message: a request, with ``response`` if one is required, or an answer or a live event to forward."""

    what: Literal["request", "answer", "event"]
    envelope: Envelope
    kind: Kind = "modify"
    response: bool = False


def read_incoming(envelope: Envelope, given: Mapping[str, Any], declared: Collection[str], new_id: str) -> Incoming:
    """Read a message; its headers become those to forward.

    :param given: headers of the connection; those of the message take precedence
    :param new_id: the correlation-id of a request that has none
    :raises DittoError: 400
    """
    if envelope.status is not None or envelope.topic.criterion in ("acks", "errors"):
        envelope.headers = _named(envelope.headers)
        check_answer(envelope, declared, "Only acknowledgements and live responses can be sent as answers.")
        return Incoming("answer", envelope)
    inherited = {name: value for name, value in given.items() if name in _INHERITED}
    envelope.headers = {**inherited, CORRELATION_ID: new_id, **_named(taken_headers(envelope.headers))}
    if stream_of(envelope) == "live-events":
        read_correlation_id(envelope.headers[CORRELATION_ID])
        return Incoming("event", envelope)
    return _request(envelope)


def _named(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers with the name of the correlation-id in lower case."""
    return {(CORRELATION_ID if name.lower() == CORRELATION_ID else name): value for name, value in headers.items()}


def _request(envelope: Envelope) -> Incoming:
    user = read_headers(envelope.headers)
    kind = signal_kind(envelope.topic, user)
    if kind is None or kind in ("other", "otherQuery"):
        raise unknown_topic_path(str(envelope.topic), "Only commands and messages of things can be sent here.")
    headers = default_headers(kind, user)
    check_combination("WebSocket", kind, headers)
    timeout = user.get(TIMEOUT)
    if timeout is not None and kind != "smartQuery" and Duration.parse(timeout).capped(2**53) > STREAM_TIMEOUT_MS:
        user[TIMEOUT] = f"{STREAM_TIMEOUT_MS // 1000}s"
    envelope.headers = user
    return Incoming("request", envelope, _kind(envelope), bool(headers.get(RESPONSE_REQUIRED, True)))


def _kind(envelope: Envelope) -> Kind:
    """Return the operation, which decides the required access."""
    topic = envelope.topic
    if topic.criterion == "messages":
        return "message"
    match topic.action:
        case "retrieve" if topic.thing_id == "_:_":
            _check_ids(envelope)
            return "many"
        case "create" | "retrieve" | "merge" | "delete" as action:
            return action
    return "modify"


def _check_ids(envelope: Envelope) -> None:
    value = None if envelope.value is msgspec.UNSET else msgspec.json.decode(envelope.value)
    ids = value.get("thingIds") if isinstance(value, dict) else None
    if not isinstance(ids, list) or not all(isinstance(thing_id, str) for thing_id in ids):
        raise json_field_missing("/thingIds")


class Control(msgspec.Struct, frozen=True):
    """A change of the subscription to a stream, ``None`` to end it, and the text that confirms it."""

    stream: Stream
    subscription: Subscription | None
    confirmation: str


def read_control(text: str) -> Control | None:
    """Read a control message such as ``START-SEND-EVENTS?namespaces=…&filter=…``; ``None`` for any other message.

    :raises DittoError: 400, the filter cannot be parsed or evaluated
    """
    for stream in get_args(Stream):
        if text.startswith(start := f"START-SEND-{stream.upper()}"):
            return Control(stream, _subscription(stream, text), f"{start}:ACK")
        if text.startswith(stop := f"STOP-SEND-{stream.upper()}"):
            return Control(stream, None, f"{stop}:ACK")
    return None


def _subscription(stream: Stream, text: str) -> Subscription:
    pairs = (pair.partition("=") for pair in text.partition("?")[2].split("&"))
    given = {unquote_plus(name): unquote_plus(value) for name, _, value in pairs}
    return subscription(
        stream,
        namespaces=[name for name in given.get("namespaces", "").split(",") if name],
        filter=given.get("filter"),
        extra_fields=given.get("extraFields"),
    )
