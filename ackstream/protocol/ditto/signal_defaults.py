"""The kinds of requests, and the meaning of requested-acks, response-required and timeout for each, on each API.

All rules of timeouts are here. Source of the rules: Eclipse Ditto, ``AbstractCommandAckRequestSetter``,
``AcknowledgementAggregatorActorStarter``, ``StreamingSessionActor``, ``AbstractRoute``, ``MessagesRoute``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ackstream.protocol import errors
from ackstream.protocol.ditto.headers import CHANNEL, LIVE_CHANNEL_CONDITION, REQUESTED_ACKS, RESPONSE_REQUIRED, TIMEOUT
from ackstream.protocol.ditto.labels import BUILT_IN, RESPONSE_LABELS
from ackstream.protocol.ditto.topics import COMMAND_ACTIONS, TopicPath
from ackstream.protocol.durations import Duration

Api = Literal["HTTP", "WebSocket", "Connectivity"]
SignalKind = Literal["twin", "live", "message", "liveQuery", "twinQuery", "smartQuery", "other", "otherQuery", "record"]
"""Modifying commands on a twin or a thing itself, messages, queries; ``smartQuery`` is a twin query with a
live-channel-condition; ``other`` and ``otherQuery`` are commands for which no acknowledgement can be requested; a
``record`` is of any kind, for which only acknowledgements can be requested."""

DEFAULT_TIMEOUT_MS = HTTP_TIMEOUT_MS = 60_000
"""Timeout of a request that names none, on every way in."""

STREAM_TIMEOUT_MS = 65_000
"""The longest timeout of WebSockets and connections; in Ditto's code also their default, which it documents as 60 s."""

SMART_EXTRA_MS = 10_000
SMART_MAXIMUM_MS = 86_400_000
"""Ditto has no bound here; a day keeps a single query from staying open forever."""

_QUERIES = frozenset({"liveQuery", "twinQuery", "smartQuery", "otherQuery"})
LIVE_KINDS = frozenset({"live", "liveQuery", "smartQuery", "message"})
"""Kinds whose response counts as ``live-response``."""

TWIN_KINDS = frozenset({"twin", "twinQuery"})
"""Kinds that only the twin answers."""

_STREAM_COMMANDS = frozenset({"subscribe", "subscribeForPersistedEvents", "request", "cancel"})


def signal_kind(topic: TopicPath, headers: Mapping[str, Any]) -> SignalKind | None:
    """Return which kind of request a topic path (of a message without status) is, ``None`` if it is not a request."""
    # The ``channel`` header makes a command live if it is exactly ``live``. A message is live by its topic: on another
    # channel no subscriber would get it, and its condition would not be checked.
    if topic.criterion == "messages":
        live = topic.group == "things" and topic.channel == "live"
        return "message" if live and topic.subject is not None else None
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


def _thing_command(channel: str | None, headers: Mapping[str, Any], *, query: bool) -> SignalKind | None:
    if channel is None:
        return None
    if channel == "live" or headers.get(CHANNEL) == "live":
        return "liveQuery" if query else "live"
    if not query:
        return "twin"
    return "smartQuery" if LIVE_CHANNEL_CONDITION in headers else "twinQuery"


def effective_headers(kind: SignalKind, headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the (read) headers of a request with defaults, as all ways in apply them."""
    # Labels of the twin in a live signal are removed before the defaults are found: live-response is added or removed
    # with response-required, independently of other labels. Source: seed: Interaction between headers. DittoError 400
    # command.headers.invalid: a query would get no response.
    requested = headers.get(REQUESTED_ACKS)
    if requested and kind in LIVE_KINDS:
        kept = [label for label in requested if BUILT_IN.get(label, "live") == "live"]
        if len(kept) < len(requested):
            own = {name: value for name, value in headers.items() if name != REQUESTED_ACKS}
            headers = own | ({REQUESTED_ACKS: kept} if kept else {})
    return default_headers(kind, headers)


def default_headers(kind: SignalKind, headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the (read) headers with requested-acks and response-required filled in, as Ditto does."""
    # Every step starts from the headers as the user set them, and later steps overwrite the result of earlier ones; so
    # removing labels of other channels undoes earlier changes. Raises as effective_headers() does.
    result = dict(headers)
    if takes_acks(kind):
        _fill_in("live" if kind in LIVE_KINDS else "twin", headers, result)
    if kind in _QUERIES and result.get(RESPONSE_REQUIRED) is False:
        raise errors.command_headers_invalid()
    return result


def _fill_in(channel: str, headers: Mapping[str, Any], result: dict[str, Any]) -> None:
    implied = RESPONSE_LABELS[channel]
    zero = _is_zero(headers)
    response_required = headers.get(RESPONSE_REQUIRED, True)
    requested = headers.get(REQUESTED_ACKS)
    labels = list(dict.fromkeys(requested or ()))
    if requested is None:
        result[REQUESTED_ACKS] = [implied] if response_required and not zero else []
    elif channel == "live" and not response_required:
        # a live response and its label go together
        result[REQUESTED_ACKS] = [label for label in labels if label != implied]
    elif channel == "live" and labels:
        result[REQUESTED_ACKS] = labels if implied in labels else [*labels, implied]
    kept = [label for label in labels if BUILT_IN.get(label, channel) == channel]
    if len(kept) != len(labels):
        result[REQUESTED_ACKS] = kept
    if RESPONSE_REQUIRED not in headers:
        result[RESPONSE_REQUIRED] = not zero


def _timeout(headers: Mapping[str, Any]) -> Duration | None:
    text = headers.get(TIMEOUT)
    return None if text is None else Duration.parse(text)


def _is_zero(headers: Mapping[str, Any]) -> bool:
    timeout = _timeout(headers)
    return timeout is not None and timeout.amount == 0


def takes_acks(kind: SignalKind) -> bool:
    """Return whether acknowledgements can be requested for a signal at all."""
    return kind == "twin" or kind in LIVE_KINDS


def waits_for_acks(kind: SignalKind, labels: Iterable[str]) -> bool:
    """Return whether acknowledgements are awaited, given the labels after the defaults."""
    if kind == "twin":
        return any(label != RESPONSE_LABELS["live"] for label in labels)
    if kind == "smartQuery":
        return True
    if kind == "record":
        return bool(labels)
    return kind in LIVE_KINDS and any(label != RESPONSE_LABELS["twin"] for label in labels)


def check_combination(api: Api, kind: SignalKind, headers: Mapping[str, Any]) -> None:
    """Check the three headers against each other, after the defaults. Raises 400 ``header.invalid``."""
    response_required = headers.get(RESPONSE_REQUIRED, True)
    labels = headers.get(REQUESTED_ACKS) or ()
    if (response_required or labels) and _is_zero(headers):
        raise errors.zero_timeout()
    if api == "WebSocket" and not response_required and labels and waits_for_acks(kind, labels):
        raise errors.acks_without_response()


def timeout_milliseconds(
    api: Api, kind: SignalKind, headers: Mapping[str, Any], default: int, maximum: int | None = None
) -> int:
    """Return the longest wait in milliseconds; ``default`` without a timeout header."""
    # ``maximum``: 60 s for HTTP, which refuses longer timeouts (400), 65 s for the other APIs, which cut them
    if maximum is None:
        maximum = HTTP_TIMEOUT_MS if api == "HTTP" else STREAM_TIMEOUT_MS
    timeout = _timeout(headers)
    if kind == "smartQuery":
        smart = HTTP_TIMEOUT_MS if timeout is None else timeout.capped(SMART_MAXIMUM_MS)
        if api == "HTTP":
            _check_http_bound(kind, smart, maximum)
        return smart + SMART_EXTRA_MS
    if timeout is None:
        return default
    if api == "HTTP":
        _check_http_bound(kind, timeout.capped(SMART_MAXIMUM_MS), maximum)
    return timeout.capped(maximum)


def _check_http_bound(kind: SignalKind, timeout: int, maximum: int) -> None:
    if kind == "message":
        # the route of messages compares whole seconds
        if timeout // 1000 > maximum // 1000:
            raise errors.message_timeout_invalid(timeout, maximum)
    elif timeout > maximum:
        raise errors.gateway_timeout_invalid(timeout, maximum)
