"""What the three headers requested-acks, response-required and timeout come to, per kind of signal and API.

Source of the rules: Eclipse Ditto, ``AbstractCommandAckRequestSetter``, ``AcknowledgementAggregatorActorStarter``,
``StreamingSessionActor``, ``AbstractRoute``, ``MessagesRoute``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ackstream.protocol.ditto.errors import (
    acks_without_response,
    command_headers_invalid,
    gateway_timeout_invalid,
    message_timeout_invalid,
    zero_timeout,
)
from ackstream.protocol.ditto.headers import CHANNEL, LIVE_CHANNEL_CONDITION, REQUESTED_ACKS, RESPONSE_REQUIRED, TIMEOUT
from ackstream.protocol.ditto.labels import LIVE_RESPONSE, SEARCH_PERSISTED, TWIN_PERSISTED
from ackstream.protocol.ditto.topics import COMMAND_ACTIONS
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackstream.protocol.ditto.topics import TopicPath

Api = Literal["HTTP", "WebSocket", "Connectivity"]
SignalKind = Literal["twin", "live", "message", "liveQuery", "twinQuery", "smartQuery", "other", "otherQuery"]
"""Modifying commands on a twin or a thing itself, messages, queries; ``smartQuery`` is a twin query with a
live-channel-condition; ``other`` and ``otherQuery`` are commands no acknowledgement can be requested for."""

HTTP_TIMEOUT_MS = 60_000
STREAM_TIMEOUT_MS = 65_000
SMART_EXTRA_MS = 10_000
SMART_MAXIMUM_MS = 86_400_000
"""Ditto has no bound here; a day keeps a single query from being open for ever."""


class _HeaderRule(msgspec.Struct, frozen=True):
    implicit: str
    filtered: frozenset[str]
    binds: bool


_TWIN_RULE = _HeaderRule(TWIN_PERSISTED, frozenset({LIVE_RESPONSE}), binds=False)
_LIVE_RULE = _HeaderRule(LIVE_RESPONSE, frozenset({TWIN_PERSISTED, SEARCH_PERSISTED}), binds=True)
_RULES: dict[SignalKind, _HeaderRule] = {
    "twin": _TWIN_RULE,
    "live": _LIVE_RULE,
    "liveQuery": _LIVE_RULE,
    "smartQuery": _LIVE_RULE,
    "message": _LIVE_RULE,
}
_QUERIES = frozenset({"liveQuery", "twinQuery", "smartQuery", "otherQuery"})
LIVE_KINDS = frozenset({"live", "liveQuery", "smartQuery", "message"})
"""Kinds whose response counts as ``live-response``."""


def signal_kind(topic: TopicPath, headers: Mapping[str, Any]) -> SignalKind | None:
    """Return which kind of request a topic path (of a message without status) is; ``None``: none at all.

    The ``channel`` header makes a command live where it is exactly ``live``.
    """
    if topic.criterion == "messages":
        return "message" if topic.group == "things" and topic.subject is not None else None
    if topic.criterion in ("search", "streaming"):
        return "other" if topic.stream_action in _STREAM_COMMANDS else None
    if topic.criterion != "commands" or topic.action not in COMMAND_ACTIONS:
        return None
    query = topic.action == "retrieve"
    if topic.group == "things":
        return _thing_command(topic.channel, headers, query=query)
    if topic.group == "policies":
        return "otherQuery" if query else "other"
    return None


_STREAM_COMMANDS = frozenset({"subscribe", "subscribeForPersistedEvents", "request", "cancel"})


def _thing_command(channel: str | None, headers: Mapping[str, Any], *, query: bool) -> SignalKind | None:
    if channel is None:
        return None
    if channel == "live" or headers.get(CHANNEL) == "live":
        return "liveQuery" if query else "live"
    if not query:
        return "twin"
    return "smartQuery" if LIVE_CHANNEL_CONDITION in headers else "twinQuery"


def default_headers(kind: SignalKind, headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers with requested-acks and response-required filled in; timeout is never written.

    Everything is computed from the headers as the user set them; later steps overwrite the result of earlier ones, so
    that filtering labels undoes what was added or removed before.

    :param headers: as ``read_headers`` returns them
    :raises DittoError: 400 ``command.headers.invalid``: a query that would get no response
    """
    result = dict(headers)
    rule = _RULES.get(kind)
    if rule is not None:
        _apply(rule, headers, result)
    if kind in _QUERIES and result.get(RESPONSE_REQUIRED) is False:
        raise command_headers_invalid()
    return result


def _apply(rule: _HeaderRule, headers: Mapping[str, Any], result: dict[str, Any]) -> None:
    zero = _is_zero(headers)
    response_required = headers.get(RESPONSE_REQUIRED, True)
    requested = headers.get(REQUESTED_ACKS)
    labels = list(dict.fromkeys(requested or ()))
    if requested is None:
        result[REQUESTED_ACKS] = [rule.implicit] if response_required and not zero else []
    elif rule.binds and not response_required:
        result[REQUESTED_ACKS] = [label for label in labels if label != rule.implicit]
    elif rule.binds and labels:
        result[REQUESTED_ACKS] = labels if rule.implicit in labels else [*labels, rule.implicit]
    kept = [label for label in labels if label not in rule.filtered]
    if len(kept) != len(labels):
        result[REQUESTED_ACKS] = kept
    if RESPONSE_REQUIRED not in headers:
        result[RESPONSE_REQUIRED] = not zero


def _is_zero(headers: Mapping[str, Any]) -> bool:
    timeout = headers.get(TIMEOUT)
    return timeout is not None and Duration.parse(timeout).is_zero


def takes_acks(kind: SignalKind) -> bool:
    """Tell whether acknowledgements can be requested for a signal at all."""
    return kind in _RULES


def waits_for_acks(kind: SignalKind, labels: Iterable[str]) -> bool:
    """Tell whether acknowledgements are awaited, given the labels after the defaults."""
    if kind == "twin":
        return any(label != LIVE_RESPONSE for label in labels)
    if kind == "smartQuery":
        return True
    return kind in LIVE_KINDS and any(label != TWIN_PERSISTED for label in labels)


def check_combination(api: Api, kind: SignalKind, headers: Mapping[str, Any]) -> None:
    """Check the three headers against each other, after the defaults.

    :raises DittoError: 400 ``header.invalid``: a timeout of zero although something is to be waited for; on a WebSocket
        acknowledgements without a response
    """
    response_required = headers.get(RESPONSE_REQUIRED, True)
    labels = headers.get(REQUESTED_ACKS) or ()
    if (response_required or labels) and _is_zero(headers):
        raise zero_timeout()
    if api == "WebSocket" and not response_required and labels and waits_for_acks(kind, labels):
        raise acks_without_response()


def timeout_milliseconds(
    api: Api, kind: SignalKind, headers: Mapping[str, Any], default: int | None = None, maximum: int | None = None
) -> int:
    """Return how long is waited at most, in milliseconds.

    :param default: without a timeout header; 60 s for HTTP, 65 s for WebSocket and Connectivity
    :param maximum: likewise; above it HTTP refuses, the others wait as long as the maximum
    :raises DittoError: 400 ``gateway:timeout.invalid`` (messages: ``timeout.invalid``): above the maximum of HTTP
    """
    usual = HTTP_TIMEOUT_MS if api == "HTTP" else STREAM_TIMEOUT_MS
    maximum = usual if maximum is None else maximum
    timeout = headers.get(TIMEOUT)
    if kind == "smartQuery":
        smart = HTTP_TIMEOUT_MS if timeout is None else Duration.parse(timeout).capped(SMART_MAXIMUM_MS)
        if api == "HTTP":
            _check_http_bound(kind, smart, maximum)
        return smart + SMART_EXTRA_MS
    if timeout is None:
        return usual if default is None else default
    duration = Duration.parse(timeout)
    if api == "HTTP":
        _check_http_bound(kind, duration.capped(SMART_MAXIMUM_MS), maximum)
    return duration.capped(maximum)


def _check_http_bound(kind: SignalKind, timeout: int, maximum: int) -> None:
    if kind == "message":
        # the route of messages compares whole seconds
        if timeout // 1000 > maximum // 1000:
            raise message_timeout_invalid(timeout, maximum)
    elif timeout > maximum:
        raise gateway_timeout_invalid(timeout, maximum)


class Effect(msgspec.Struct, frozen=True):
    """What headers lead to on an API.

    ``headers`` are the three after defaults, timeout with the API's default. With an ``error`` nothing is awaited:
    ``waits_for_acks`` and ``content`` are ``None``. ``settlement`` is that of a consumed message (Connectivity alone).
    """

    headers: dict[str, Any]
    error: DittoError | None
    waits_for_acks: bool | None
    reply: str
    content: str | None
    settlement: str | None


def effect(api: Api, kind: SignalKind, headers: Mapping[str, Any]) -> Effect:
    """Return what the headers of a signal lead to.

    :param headers: as ``read_headers`` returns them
    """
    connectivity = api == "Connectivity"
    effective = dict(headers)
    try:
        effective = default_headers(kind, headers)
        check_combination(api, kind, effective)
        timeout = _effective_timeout(api, kind, effective)
    except DittoError as error:
        settlement = "reject-without-redelivery" if connectivity else None
        three = _three(effective, headers.get(TIMEOUT, _default_text(api)))
        return Effect(three, error, None, "error", None, settlement)
    labels = effective.get(REQUESTED_ACKS) or []
    waits = waits_for_acks(kind, labels)
    if effective.get(RESPONSE_REQUIRED, True):
        reply = "published-at-reply-target" if connectivity else "full"
        content = "aggregate-or-single-response" if waits else "plain-response"
    elif api == "HTTP":
        reply, content = "202-without-body", "none-on-success"
    else:
        reply = content = "none"
    settlement = ("after-acks" if waits else "immediately") if connectivity else None
    return Effect(_three(effective, timeout), None, waits, reply, content, settlement)


def _effective_timeout(api: Api, kind: SignalKind, headers: Mapping[str, Any]) -> str:
    timeout = headers.get(TIMEOUT)
    if timeout is None:
        return _default_text(api)
    milliseconds = timeout_milliseconds(api, kind, headers)
    written = Duration.parse(timeout)
    if kind == "smartQuery" or written.capped(SMART_MAXIMUM_MS) == milliseconds:
        return str(timeout)
    return f"{milliseconds // 1000}s"


def _default_text(api: Api) -> str:
    return f"{(HTTP_TIMEOUT_MS if api == 'HTTP' else STREAM_TIMEOUT_MS) // 1000}s"


def _three(headers: Mapping[str, Any], timeout: str) -> dict[str, Any]:
    return {
        REQUESTED_ACKS: headers.get(REQUESTED_ACKS),
        RESPONSE_REQUIRED: headers.get(RESPONSE_REQUIRED),
        TIMEOUT: timeout,
    }
