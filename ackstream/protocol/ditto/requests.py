"""Requests (commands and messages), the acknowledgements that each awaits, and whether a response answers one.

Source of the rules: Eclipse Ditto, ``AcknowledgementAggregatorActorStarter`` as connections use it, and
``CommandAndCommandResponseMatchingValidator``; the names of signals are those of its command classes
(``modifyAttribute``, ``thingMessage`` …).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import msgspec

from ackstream.protocol import errors
from ackstream.protocol.ditto import headers as names
from ackstream.protocol.ditto import signal_defaults as defaults
from ackstream.protocol.ditto.envelopes import Envelope
from ackstream.protocol.ditto.topics import UNKNOWN_THING, TopicPath
from ackstream.protocol.ditto.twin.things import resource
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import DittoError, not_available, shown, unknown_topic_path
from ackstream.protocol.json import keys_of


class Request(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The parts of a command or message that correlation needs.

    ``thing_id`` is ``None`` if it does not concern a thing; ``channel`` is ``twin`` or ``live``; ``awaited`` are the
    awaited labels, in order, without duplicates; ``headers`` are those of an answer. The next fields describe the
    command, so that responses can be compared with it. ``quorum``: see :func:`read_quorum`; ``progress``: whether the
    requester gets acknowledgements as they come; ``amend_ms``: see :func:`read_amend`.
    """

    thing_id: str | None
    channel: str
    kind: defaults.SignalKind
    awaited: tuple[str, ...]
    response_required: bool
    waits_for_acks: bool
    timeout_ms: int
    headers: dict[str, Any]
    criterion: str
    action: str | None
    subject: str | None
    path: str
    quorum: dict[str, int] | None = None
    progress: bool = False
    amend_ms: int = 0

    @property
    def awaits(self) -> bool:
        """Return whether a client waits for the outcome: a response is required, or acknowledgements are requested."""
        return self.response_required or self.waits_for_acks

    @property
    def live(self) -> bool:
        """Return whether the response counts as ``live-response``: live commands, messages and smart queries."""
        return self.kind in defaults.LIVE_KINDS


def check_available(headers: Mapping[str, Any]) -> None:
    """Reject the (read) headers of a twin command if it could not be carried out as one of them demands. Raises 501."""
    for name, reason in names.UNAVAILABLE_HEADERS.items():
        if headers.get(name, False) is not False:
            raise not_available(f"The header '{name}'", reason)


_ASK_FIRST = "The gateway decides it; elsewhere query the twin with the condition first."


def read_request(
    envelope: Envelope,
    *,
    default_timeout_ms: int = defaults.DEFAULT_TIMEOUT_MS,
    max_timeout_ms: int = defaults.STREAM_TIMEOUT_MS,
) -> Request:
    """Read a request by the rules of Ditto's connections."""
    # Longer timeouts are cut to ``max_timeout_ms``, without an error. DittoError 400: a header or the combination of
    # headers is invalid, or it is not a command or message; 501: it has a condition that is not checked before the
    # device acts
    topic = envelope.topic
    user = names.read_headers(envelope.headers)
    reply = names.request_reply_headers(user)
    kind = defaults.signal_kind(topic, user) if envelope.status is None else None
    if kind is None:
        raise unknown_topic_path(str(topic), _why_not(envelope))
    requested = user.get(names.REQUESTED_ACKS)
    labels = None if requested is None else tuple(requested)
    required, timeout = user.get(names.RESPONSE_REQUIRED), user.get(names.TIMEOUT)
    expected = expectation(kind, labels, required, timeout, default_timeout_ms, max_timeout_ms)
    live = kind in ("live", "liveQuery", "message")
    if live and names.CONDITION in user:
        raise not_available(f"The header '{names.CONDITION}' of a live command or message", _ASK_FIRST)
    if live:
        reply[names.CHANNEL] = "live"
    thing_id, channel = topic.thing_id if topic.group == "things" else None, "live" if live else "twin"
    compared = (topic.criterion, topic.action, topic.subject, envelope.path)
    return Request(thing_id, channel, kind, *expected, reply, *compared, *read_course(user, expected[0]))


def read_course(headers: Mapping[str, Any], labels: Sequence[str]) -> tuple[dict[str, int] | None, bool, int]:
    """Return quorum, progress and ``amend_ms`` of a request, given its (read) headers. Raises DittoError 400."""
    progress = headers.get(names.PROGRESS, "false")
    if progress not in ("true", "false"):
        raise errors.header_type_invalid(names.PROGRESS, progress, "boolean")
    return read_quorum(headers, labels), progress == "true", read_amend(headers)


AS_REMEMBERED = -1
MOST_AMEND_MS = 86_400_000


def read_amend(headers: Mapping[str, Any]) -> int:
    """Return the milliseconds after its deadline in which a request may still succeed; 0: none."""
    # The header ``amend`` is a duration, of which more than a day counts as a day, or ``true`` for ``AS_REMEMBERED``:
    # as long as the service remembers decided requests (``correlate.recent_memory``). Raises DittoError 400 otherwise.
    text = headers.get(names.AMEND, "false")
    if text in ("true", "false"):
        return AS_REMEMBERED if text == "true" else 0
    try:
        return Duration.parse(text).capped(MOST_AMEND_MS)
    except DittoError:
        message = f"The value '{shown(text)}' of the header '{names.AMEND}' is not a duration."
        raise errors.header_invalid(names.AMEND, message, "Give a duration such as 10m, or true.") from None


def read_quorum(headers: Mapping[str, Any], labels: Sequence[str]) -> dict[str, int] | None:
    """Return how many of the awaited labels have to be positive, by group; ``None``: all of them."""
    # The header ``ack-quorum`` is a number, of all labels (the group ``""``), or a JSON object of numbers by group, the
    # part of a label before its first colon: of groups that it does not name, all. Raises DittoError 400: a number is
    # below 1, or above that of the group's labels.
    if (text := headers.get(names.ACK_QUORUM)) is None:
        return None
    given: int | dict[str, int] = {}
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        given = _decode_quorum(text)
    numbers = given if isinstance(given, dict) else {"": given}
    sizes = Counter("" if "" in numbers else label.partition(":")[0] for label in labels)
    if not given or any(number > sizes[group] for group, number in numbers.items()):
        raise errors.header_invalid(
            names.ACK_QUORUM,
            f"The value '{shown(text)}' of the header '{names.ACK_QUORUM}' fits no quorum of the requested labels.",
            "Give a number from 1 to that of the labels, or a JSON object of such numbers by the part of the labels "
            "before their first colon.",
        )
    return {**sizes, **numbers}


_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
_decode_quorum = msgspec.json.Decoder(_Number | dict[Annotated[str, msgspec.Meta(min_length=1)], _Number]).decode


def quorum_reached(quorum: Mapping[str, int], labels: Sequence[str], positive: Mapping[str, bool]) -> bool | None:
    """Return whether a quorum is reached, given the answers so far by label: whether each is positive."""
    # ``False``: it cannot be reached any more; ``None``: that is open.
    good, left = Counter[str](), Counter[str]()
    for label in labels:
        group = "" if "" in quorum else label.partition(":")[0]
        good[group] += positive.get(label, False)
        left[group] += positive.get(label, True)
    if any(left[group] < number for group, number in quorum.items()):
        return False
    return all(good[group] >= number for group, number in quorum.items()) or None


# a producer's requests differ in their ids, rarely in these headers
@lru_cache(maxsize=4096)
def expectation(
    kind: defaults.SignalKind,
    requested: tuple[str, ...] | None,
    response_required: bool | None,  # noqa: FBT001 - a cached function takes no keywords cheaply
    timeout: str | None,
    default_ms: int,
    maximum_ms: int,
) -> tuple[tuple[str, ...], bool, bool, int]:
    """Return awaited labels, response-required, waits-for-acks and timeout by the three headers (``None``: not set)."""
    set_ = {names.REQUESTED_ACKS: requested, names.RESPONSE_REQUIRED: response_required, names.TIMEOUT: timeout}
    headers = defaults.effective_headers(kind, {name: value for name, value in set_.items() if value is not None})
    defaults.check_combination("Connectivity", kind, headers)
    labels = tuple(dict.fromkeys(headers.get(names.REQUESTED_ACKS) or ()))
    waits = defaults.waits_for_acks(kind, labels)
    timeout_ms = defaults.timeout_milliseconds("Connectivity", kind, headers, default_ms, maximum_ms)
    return labels if waits else (), headers.get(names.RESPONSE_REQUIRED, True), waits, timeout_ms


_NAMES = {"events": "an event", "acks": "an acknowledgement", "errors": "an error", "announcements": "an announcement"}


def _why_not(envelope: Envelope) -> str:
    criterion = envelope.topic.criterion
    kind = _NAMES.get(criterion) or (None if envelope.status is None else "a response, because it has a status")
    if kind is not None:
        return f"Only commands and messages can be requested; this is {kind}."
    live = "Messages are sent on the channel 'live', with a subject."
    return live if criterion == "messages" else "Check if the topic path is correct."


def foreign_to(request: Request, topic: TopicPath, headers: Mapping[str, Any]) -> str | None:
    """Return the reason if an answer is for another thing or channel than a request, else ``None``."""
    # An acknowledgement has no channel of its own: one of a live signal may use either. No document has a thing.
    # ``topic``: of the answer; ``headers``: of a response or an error.
    thing_id, ack = f"{topic.namespace}:{topic.entity}", topic.criterion == "acks"
    if thing_id == request.thing_id and (ack or topic.channel == request.channel):
        # nearly all
        return None
    if ack:
        same = thing_id == UNKNOWN_THING
        return None if same else _differs("Entity ID", thing_id, request.thing_id, "acknowledgement")
    if request.kind == "record":
        return "Only acknowledgements answer a record."
    if request.thing_id is None:
        return None if topic.group != "things" else _differs("Entity type", topic.group, "policies", "response")
    if thing_id != request.thing_id:
        return _differs("Entity ID", thing_id, request.thing_id, f"{request.channel} response")
    same = headers.get(names.CHANNEL) == request.channel
    return None if same else _differs("Channel", topic.channel, request.channel, "response")


def response_matches(request: Request, response: Envelope) -> str | None:
    """Return the reason if a response does not answer a live or smart command, else ``None``."""
    # The correlation-id (equal, or with a suffix; if both have one), the type, the thing and the resource path are
    # compared. Acknowledgements and errors have no type and no path of their own.
    topic = response.topic
    wanted, found = request.headers.get(names.CORRELATION_ID), response.headers.get(names.CORRELATION_ID)
    if wanted is not None and found is not None and not str(found).startswith(str(wanted)):
        return _differs("Correlation ID", found, wanted, "live response")
    typed = topic.criterion not in ("acks", "errors")
    if typed:
        # only requests about things are validated
        wanted = _type("commands", "things", request.criterion, request.action, request.subject, request.path)
        found = _type("responses", topic.group, topic.criterion, topic.action, topic.subject, response.path)
        if found.replace("responses:", "commands:") != wanted:
            found = found.replace("Message", "ResponseMessage")
            return f"Type of live response <{found}> is not related to type of command <{wanted}>."
    if topic.thing_id != request.thing_id:
        return _differs("Entity ID", topic.thing_id, request.thing_id, "live response")
    wanted, found = request.path or "/", response.path or "/"
    if typed and request.criterion == "commands" and found != wanted:
        return _differs("Resource path", found, wanted, "live response")
    return None


def _differs(what: str, found: object, wanted: object, answer: str) -> str:
    same = what[0].lower() + what[1:]
    return f"{what} of {answer} <{shown(found)}> differs from {same} of command <{shown(wanted)}>."


def message_headers(envelope: Envelope) -> dict[str, str]:
    """Return the headers of a message that follow from its topic and path: direction, subject, thing, feature."""
    topic = envelope.topic
    match envelope.path.split("/"):
        case ["", "features", feature, box, *_]:
            of_feature = {"ditto-message-feature-id": feature}
        case ["", box, *_]:
            of_feature = {}
        case _:
            box, of_feature = "", {}
    return {
        "ditto-message-direction": "FROM" if box == "outbox" else "TO",
        "ditto-message-subject": topic.subject or "",
        "ditto-message-thing-id": topic.thing_id,
    } | of_feature


_WHOLE = {"merge": "mergeThing", "migrate": "migrateThingDefinition"}
"""The types of actions that concern the whole thing, at any path."""


def _type(side: str, group: str, criterion: str, action: str | None, subject: str | None, path: str) -> str:
    """Return Ditto's name of a signal's type, such as ``things.commands:modifyAttribute``."""
    if criterion == "messages":
        claim = "claimMessage" if subject == "claim" else "thingMessage"
        return f"messages.{side}:{'featureMessage' if keys_of(path)[:1] == ('features',) else claim}"
    name = _WHOLE.get(action or "") or f"{action}{_resource(path)}"
    return f"{group}.{side}:{name}"


def _resource(path: str) -> str:
    try:
        kind = resource(path).kind
    except DittoError:
        return "Thing"
    return "ThingDefinition" if kind == "definition" else kind[0].upper() + kind[1:]
