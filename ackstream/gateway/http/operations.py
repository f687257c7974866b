"""The table of HTTP operations (Ditto, HTTP API 2).

With their texts of ``tests/contract/openapi_texts.json`` it makes the OpenAPI document, ``gateway/page/openapi.json``.
In a template ``{name}`` is one path segment, a trailing ``{name+}`` the rest.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from ackstream.gateway.errors import method_not_allowed, not_found
from ackstream.protocol.ditto.twin.permissions import Kind

HEADER_PARAMETERS = (
    "channel",
    "correlation-id",
    "requested-acks",
    "response-required",
    "timeout",
    "condition",
    "live-channel-condition",
    "live-channel-timeout-strategy",
    "allow-policy-lockout",
)
"""Query parameters that stand for headers."""

PREFIX = "/api/2"
THING = "/things/{thingId}"
Body = Literal["json", "merge-patch", "any", "form"]
EventKind = Literal["events", "messages", "search", "request"]
MERGE_PATCH, FORM = "application/merge-patch+json", "application/x-www-form-urlencoded"
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True)
class Operation:
    """One method of one resource; ``pointer`` is the part of the template after the thing."""

    method: str
    template: str
    kind: Kind
    pointer: str = ""
    body: Body | None = None
    # in the query, other than those that stand for headers
    parameters: tuple[str, ...] = ()
    # the kind of server-sent events, if any, and their parameters
    events: EventKind | None = None
    event_parameters: tuple[str, ...] = ()


_FEATURE = "/features/{featureId}"
_PARTS = (
    "",
    "/policyId",
    "/definition",
    "/attributes",
    "/attributes/{attributePath+}",
    "/features",
    _FEATURE,
    f"{_FEATURE}/definition",
    f"{_FEATURE}/properties",
    f"{_FEATURE}/properties/{{propertyPath+}}",
    f"{_FEATURE}/desiredProperties",
    f"{_FEATURE}/desiredProperties/{{propertyPath+}}",
)
"""The parts of a thing, as templates of their JSON pointers."""
SEARCH_PARAMETERS = ("filter", "namespaces", "option", "fields")
COUNT_PARAMETERS = SEARCH_PARAMETERS[:2]
_OF_EVENTS = ("filter", "namespaces", "extraFields")

LIST = Operation("GET", "/search/things", "list", parameters=("namespaces", "option", "fields"))
"""GET of all things without ids."""

OF_MANY = ("ids", "fields")
"""The parameters of GET of all things with ids."""


def _operations() -> Iterator[Operation]:
    yield Operation("GET", "/whoami", "whoami")
    yield Operation("POST", "/checkPermissions", "permissions", body="json")
    many, streamed = ("ids", *LIST.parameters), ("ids", "fields", *_OF_EVENTS)
    yield Operation("GET", "/things", "many", "", None, many, "events", streamed)
    yield Operation("POST", "/things", "create", body="json", parameters=("namespace",), events="request")
    for part in _PARTS:
        template = THING + part
        # the path of a part stands for the fields of an event
        shown = _OF_EVENTS if part else ("fields", *_OF_EVENTS)
        yield Operation("GET", template, "retrieve", part, None, ("fields",), "events", shown)
        yield Operation("PUT", template, "modify", part, "json", events="request")
        yield Operation("PATCH", template, "merge", part, "merge-patch", events="request")
        if part != "/policyId":
            yield Operation("DELETE", template, "delete", part, events="request")
    search, count = "/search/things", "/search/things/count"
    yield Operation("GET", search, "search", "", None, SEARCH_PARAMETERS, "search", SEARCH_PARAMETERS)
    yield Operation("POST", search, "search", body="form")
    yield Operation("GET", count, "count", parameters=COUNT_PARAMETERS)
    yield Operation("POST", count, "count", body="form")
    yield Operation("POST", f"{THING}/inbox/claim", "message", "/inbox/messages/claim", "any", events="request")
    for of in ("", _FEATURE):
        for box in ("inbox", "outbox"):
            whole = f"{of}/{box}/messages"
            part = f"{whole}/{{subject+}}"
            yield Operation("POST", THING + part, "message", part, "any", events="request")
            yield Operation("GET", THING + whole, "messages", whole, events="messages")
            yield Operation("GET", THING + part, "messages", part, events="messages")


OPERATIONS = tuple(_operations())


@dataclass(frozen=True)
class Match:
    """An operation and the decoded values of its template variables."""

    operation: Operation
    values: dict[str, str]

    @property
    def path(self) -> str:
        """The JSON pointer of the addressed value; ``/`` for a whole thing."""
        return fill(self.operation.pointer, self.values) or "/"


def fill(template: str, values: dict[str, str]) -> str:
    """Fill a template as a JSON pointer, writing a slash within a segment as ``~1``."""

    def value(name: re.Match[str]) -> str:
        return values[name[1]] if name[2] else values[name[1]].replace("/", "~1")

    return re.sub(r"\{(\w+)(\+?)\}", value, template)


def find(method: str, raw_path: str) -> Match:
    """Find the operation of a request below :data:`PREFIX`, HEAD that of GET; raises 404, or 405 for the method."""
    wanted = "GET" if method == "HEAD" else method
    for operation, found in _at(raw_path, wanted):
        values = {name: _decoded(operation.template, name, text) for name, text in found.groupdict().items()}
        return Match(operation, values)
    raise method_not_allowed(method, methods(raw_path))


def methods(raw_path: str) -> list[str]:
    """Return the methods of a resource; raises 404 for an unknown path."""
    found = [operation.method for operation, _ in _at(raw_path)]
    if not found:
        raise not_found(PREFIX + raw_path)
    return [*dict.fromkeys(found), *(("HEAD",) if "GET" in found else ()), "OPTIONS"]


def _at(raw_path: str, method: str | None = None) -> Iterator[tuple[Operation, re.Match[str]]]:
    # a trailing slash is ignored
    path = raw_path.removesuffix("/")
    for operation, pattern in _PATTERNS:
        if method in (None, operation.method) and (found := pattern.fullmatch(path)):
            yield operation, found


def _pattern(template: str) -> re.Pattern[str]:
    several = re.sub(r"\{(\w+)\+\}", r"(?P<\1>[^/].*)", template)
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", several))


_PATTERNS = [(operation, _pattern(operation.template)) for operation in OPERATIONS]


def _decoded(template: str, name: str, text: str) -> str:
    if f"{{{name}+}}" not in template:
        return unquote(text)
    # an encoded slash is part of a segment
    return "/".join(unquote(segment).replace("/", "~1") for segment in text.split("/"))
