"""The search protocol: a client subscribes to the results of a search, and requests pages as it has room.

Topics ``_/_/things/twin/search/ACTION``: subscribe, request and cancel from the client; created, next, complete and
failed to it. Source of the rules: Eclipse Ditto, ``SubscriptionManager``, ``SubscriptionActor``,
``SearchSourceBuilder``, ``ThingSearchCommandMappingStrategies``.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw

from ackstream.protocol import errors
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, Envelope, raw
from ackstream.protocol.ditto.headers import CONTENT_TYPE
from ackstream.protocol.ditto.topics import TopicPath

Action = Literal["created", "next", "complete", "failed"]
PATH = "/search/things"
"""Path of the query for one page, as in the HTTP API."""

_QUERY_TOPIC = TopicPath("_", "_", "things", "twin", "commands", "retrieve")
_TOPIC = TopicPath("_", "_", "things", "twin", "search")
_OPTION = re.compile(r"\s*((\w+)\([^()]*\))\s*(?:,|$)")
_NO_SIZE = re.compile(r"size\(0*\)")

subscription_not_found = errors.subscription_not_found
subscription_timeout = errors.subscription_timeout
subscription_cancelled = errors.subscription_cancelled


class Subscribe(msgspec.Struct, frozen=True):
    """The search of a client: an RQL filter, namespaces, ``sort(…),size(…)``, and a field selector."""

    filter: str | None = None
    options: str | None = None
    namespaces: list[str] | None = None
    fields: str | None = None


class RequestPages(msgspec.Struct, frozen=True, rename="camel"):
    """A client has room for a number of further pages."""

    subscription_id: str
    demand: int = 0


class Cancel(msgspec.Struct, frozen=True, rename="camel"):
    """A client wants no further pages."""

    subscription_id: str


SearchCommand = Subscribe | RequestPages | Cancel
_Payload = TypeVar("_Payload", Subscribe, RequestPages, Cancel)


def read_search(envelope: Envelope) -> SearchCommand:
    """Read a command of the search protocol. Raises 400 for another message, or a value of the wrong form."""
    topic = envelope.topic
    if msgspec.structs.replace(topic, stream_action=None) == _TOPIC:
        match topic.stream_action:
            case "subscribe":
                return msgspec.structs.replace(_payload(envelope, Subscribe), fields=envelope.fields)
            case "request":
                return _payload(envelope, RequestPages)
            case "cancel":
                return _payload(envelope, Cancel)
    raise errors.unknown_topic_path(str(topic), "Send subscribe, request or cancel to _/_/things/twin/search.")


def _payload(envelope: Envelope, kind: type[_Payload]) -> _Payload:
    try:
        return msgspec.json.decode(Raw(b"{}") if envelope.value is UNSET else envelope.value, type=kind)
    except msgspec.ValidationError as error:
        raise errors.json_invalid(f"The value of the search is not valid: {error}.") from error


class Page(msgspec.Struct):
    """The answer to the query for one page: things, and where the next one begins, if there is one."""

    items: list[Raw]
    cursor: str | None = None


class Search:
    """The subscription of a client to one search, which the client names by its ``identity``.

    ``headers``: of the client's latest command about it, repeated in its events; ``demand``: pages requested and not
    sent.
    """

    def __init__(self, identity: str, wanted: Subscribe, headers: dict[str, Any]) -> None:
        self.identity = identity
        self.headers = headers
        self.demand = 0
        self._wanted = wanted
        self._cursor: str | None = None

    def request(self, pages: int, headers: dict[str, Any]) -> None:
        """Add to the demand. Raises 400 if the number is not positive."""
        self.headers = headers
        if pages <= 0:
            raise errors.demand_not_positive()
        self.demand += pages

    def query(self) -> Envelope:
        """Return the query for the next page, without headers. Raises 400 for an option that is not allowed here."""
        options = read_options(self._wanted.options or "")
        if self._cursor is not None:
            options.append(f"cursor({self._cursor})")
        wanted = self._wanted
        value = {"filter": wanted.filter, "namespaces": wanted.namespaces, "options": options, "fields": wanted.fields}
        return Envelope(_QUERY_TOPIC, {}, PATH, raw({name: part for name, part in value.items() if part}))

    def receive(self, page: Page) -> list[Envelope]:
        """Return the events for a page: ``next``, unless it is empty, and ``complete`` after the last one."""
        self.demand -= 1
        self._cursor = page.cursor
        events = [self.event("next", items=page.items)] if page.items else []
        return events if page.cursor else [*events, self.event("complete")]

    def event(self, action: Action, **value: Any) -> Envelope:
        """Return an event of the subscription."""
        return event(action, self.identity, self.headers, **value)


def event(action: Action, identity: str, headers: Mapping[str, Any], **value: Any) -> Envelope:
    """Return an event. ``headers``: of the command that it follows."""
    topic = msgspec.structs.replace(_TOPIC, stream_action=action)
    return Envelope(
        topic, {**headers, CONTENT_TYPE: JSON_CONTENT_TYPE}, "/", raw({"subscriptionId": identity, **value})
    )


def failed(identity: str, headers: Mapping[str, Any], error: errors.DittoError | Raw) -> Envelope:
    """Return the event that ends a subscription with an error (or its JSON), or answers a command after its end."""
    return event("failed", identity, headers, error=error if isinstance(error, Raw) else error.to_dict())


def read_options(text: str) -> list[str]:
    """Read options such as ``size(10),sort(+thingId,-attributes/x)``; not a cursor. Raises 400."""
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        option = _OPTION.match(text, position)
        if option is None:
            raise errors.option_invalid(f"Invalid options: {text}")
        position = option.end()
        if option[2] not in ("sort", "size"):
            raise errors.option_invalid(f"The option {option[1]} is not supported at this endpoint.")
        if option[2] in found:
            raise errors.option_invalid(f"Too many {option[2]} options.")
        if _NO_SIZE.fullmatch(option[1]):
            raise errors.option_invalid(f"Invalid option: '{option[1]}'. A page has at least one thing.")
        found[option[2]] = option[1]
    return list(found.values())
