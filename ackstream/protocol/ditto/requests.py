"""Requests: commands and messages, and what is to be waited for.

Source of the rules: Eclipse Ditto, ``AcknowledgementAggregatorActorStarter`` as connections use it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ackstream.protocol.ditto.errors import unknown_topic_path
from ackstream.protocol.ditto.headers import (
    CHANNEL,
    REQUESTED_ACKS,
    RESPONSE_REQUIRED,
    TIMEOUT,
    read_headers,
    request_reply_headers,
)
from ackstream.protocol.ditto.signal_defaults import (
    LIVE_KINDS,
    STREAM_TIMEOUT_MS,
    SignalKind,
    check_combination,
    default_headers,
    signal_kind,
    timeout_milliseconds,
    waits_for_acks,
)

if TYPE_CHECKING:
    from ackstream.protocol.ditto.envelopes import Envelope


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A command or message, as far as its acknowledgements are concerned.

    ``thing_id`` is ``None`` for what does not concern a thing; ``channel`` is ``twin`` or ``live``; ``awaited`` are the
    labels waited for, in order, without repeats; ``timeout_ms`` is in milliseconds; ``headers`` are those of an answer.
    The rest says what was asked, so that responses can be compared with it.
    """

    thing_id: str | None
    channel: str
    kind: SignalKind
    awaited: tuple[str, ...]
    response_required: bool
    waits_for_acks: bool
    timeout_ms: int
    headers: dict[str, Any]
    criterion: str
    action: str | None
    subject: str | None
    path: str

    @property
    def live(self) -> bool:
        """Tell whether the response counts as ``live-response``: live commands, messages and smart queries."""
        return self.kind in LIVE_KINDS


def read_request(
    envelope: Envelope, *, default_timeout_ms: int = STREAM_TIMEOUT_MS, max_timeout_ms: int = STREAM_TIMEOUT_MS
) -> Request:
    """Read a request by the rules of Ditto's connections.

    :param default_timeout_ms: where the request has no timeout
    :param max_timeout_ms: longer timeouts are cut to this, without an error
    :raises DittoError: 400; a header value or the combination of headers is invalid, or it is no command or message
    """
    topic = envelope.topic
    user = read_headers(envelope.headers)
    kind = signal_kind(topic, user) if envelope.status is None else None
    if kind is None:
        raise unknown_topic_path(str(topic), _why_not(envelope))
    requested = user.get(REQUESTED_ACKS)
    expected = _expectation(
        kind,
        None if requested is None else tuple(requested),
        user.get(RESPONSE_REQUIRED),
        user.get(TIMEOUT),
        default_timeout_ms,
        max_timeout_ms,
    )
    live = kind in ("live", "liveQuery", "message")
    reply = request_reply_headers(user)
    if live:
        reply[CHANNEL] = "live"
    return Request(
        topic.thing_id if topic.group == "things" else None,
        "live" if live else "twin",
        kind,
        expected.awaited,
        expected.response_required,
        expected.waits_for_acks,
        expected.timeout_ms,
        reply,
        topic.criterion,
        topic.action,
        topic.subject,
        envelope.path,
    )


class _Expectation(NamedTuple):
    awaited: tuple[str, ...]
    response_required: bool
    waits_for_acks: bool
    timeout_ms: int


# a producer's requests differ in their ids, seldom in what they ask for
@lru_cache(maxsize=4096)
def _expectation(
    kind: SignalKind,
    requested: tuple[str, ...] | None,
    response_required: bool | None,  # noqa: FBT001 - a cached function takes no keywords cheaply
    timeout: str | None,
    default_ms: int,
    maximum_ms: int,
) -> _Expectation:
    """Apply the rules of the three headers (``None``: not set)."""
    set_ = {REQUESTED_ACKS: requested, RESPONSE_REQUIRED: response_required, TIMEOUT: timeout}
    headers = default_headers(kind, {name: value for name, value in set_.items() if value is not None})
    check_combination("Connectivity", kind, headers)
    labels = tuple(dict.fromkeys(headers.get(REQUESTED_ACKS) or ()))
    waits = waits_for_acks(kind, labels)
    return _Expectation(
        labels if waits else (),
        headers.get(RESPONSE_REQUIRED, True),
        waits,
        timeout_milliseconds("Connectivity", kind, headers, default_ms, maximum_ms),
    )


_NAMES = {
    "events": "an event",
    "acks": "an acknowledgement",
    "errors": "an error",
    "announcements": "an announcement",
}


def _why_not(envelope: Envelope) -> str:
    criterion = envelope.topic.criterion
    what = _NAMES.get(criterion)
    if what is None and envelope.status is not None:
        what = "a response, because it has a status"
    if what is None:
        return "Check if the topic path is correct."
    return f"Only commands and messages can be requested; this is {what}."
