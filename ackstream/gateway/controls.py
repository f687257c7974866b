"""The messages by which a WebSocket client subscribes: ``START-SEND-EVENTS?namespaces=…&filter=…&extraFields=…``.

Source of the forms: Eclipse Ditto, ``ProtocolMessageType``, ``ProtocolMessageExtractor``.
"""

from __future__ import annotations

from urllib.parse import unquote_plus

import msgspec

from ackstream.protocol.subscriptions import Stream, Subscription, subscription

_NAMES: dict[str, Stream] = {
    "EVENTS": "events",
    "MESSAGES": "messages",
    "LIVE-COMMANDS": "live-commands",
    "LIVE-EVENTS": "live-events",
}
_ACK = ":ACK"


class Control(msgspec.Struct, frozen=True):
    """What a client wants of a stream: its signals by a subscription, or no more of them (``None``)."""

    stream: Stream
    subscription: Subscription | None
    confirmation: str


def read_control(text: str) -> Control | None:
    """Read such a message; ``None`` where it is none.

    :raises DittoError: 400, the filter cannot be parsed or evaluated
    """
    for name, stream in _NAMES.items():
        if text.startswith(start := f"START-SEND-{name}"):
            return Control(stream, _subscription(stream, text), start + _ACK)
        if text.startswith(stop := f"STOP-SEND-{name}"):
            return Control(stream, None, stop + _ACK)
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
