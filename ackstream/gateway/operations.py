"""The operations of the HTTP API: the table behind routing, the OpenAPI document and the tests.

In a template, ``{name}`` matches one path segment and a trailing ``{name+}`` all remaining ones. Source: Eclipse
Ditto, HTTP API 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from ackstream.gateway.errors import method_not_allowed, not_found

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "/api/2"
THING = "/things/{thingId}"
Kind = Literal["create", "retrieve", "modify", "merge", "delete", "many", "search", "count", "message"]
Body = Literal["json", "merge-patch", "any"]


@dataclass(frozen=True)
class Operation:
    """One method of one resource.

    ``pointer`` is the part of the template after the thing, a JSON pointer. ``parameters`` lists the query parameters
    other than those that stand for headers.
    """

    method: str
    template: str
    kind: Kind
    summary: str
    pointer: str = ""
    body: Body | None = None
    parameters: tuple[str, ...] = ()


_PARTS = {
    "": "a thing",
    "/policyId": "the policy id of a thing",
    "/definition": "the definition of a thing",
    "/attributes": "all attributes of a thing",
    "/attributes/{attributePath+}": "an attribute of a thing",
    "/features": "all features of a thing",
    "/features/{featureId}": "a feature",
    "/features/{featureId}/definition": "the definition of a feature",
    "/features/{featureId}/properties": "all properties of a feature",
    "/features/{featureId}/properties/{propertyPath+}": "a property of a feature",
    "/features/{featureId}/desiredProperties": "all desired properties of a feature",
    "/features/{featureId}/desiredProperties/{propertyPath+}": "a desired property of a feature",
}
_NOT_DELETED = ("/policyId",)
_BOXES = {"inbox": "to", "outbox": "from"}
SEARCH_PARAMETERS = ("filter", "namespaces", "option", "fields")


def _operations() -> Iterator[Operation]:
    yield Operation("GET", "/things", "many", "Retrieve several things by their ids", parameters=("ids", "fields"))
    yield Operation(
        "POST", "/things", "create", "Create a thing under a generated id", body="json", parameters=("namespace",)
    )
    for part, title in _PARTS.items():
        template = THING + part
        yield Operation("GET", template, "retrieve", f"Retrieve {title}", part, parameters=("fields",))
        yield Operation("PUT", template, "modify", f"Create or replace {title}", part, "json")
        yield Operation("PATCH", template, "merge", f"Merge a patch (RFC 7396) into {title}", part, "merge-patch")
        if part not in _NOT_DELETED:
            yield Operation("DELETE", template, "delete", f"Delete {title}", part)
    yield Operation(
        "GET", "/search/things", "search", "Search for things with an RQL filter", parameters=SEARCH_PARAMETERS
    )
    yield Operation(
        "GET",
        "/search/things/count",
        "count",
        "Count the things that match an RQL filter",
        parameters=SEARCH_PARAMETERS[:2],
    )
    yield Operation("POST", f"{THING}/inbox/claim", "message", "Send a claim message", "/inbox/messages/claim", "any")
    for of, whose in (("", "a thing"), ("/features/{featureId}", "a feature")):
        for box, direction in _BOXES.items():
            part = f"{of}/{box}/messages/{{subject+}}"
            yield Operation("POST", THING + part, "message", f"Send a message {direction} {whose}", part, "any")


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
    """Find the operation of a request.

    :param raw_path: below :data:`PREFIX`, percent-encoded; a trailing slash is ignored
    :raises DittoError: 404 for an unknown path, 405 for an unsupported method
    """
    path = raw_path.removesuffix("/")
    allowed = []
    for operation, pattern in _PATTERNS:
        if found := pattern.fullmatch(path):
            if operation.method == method:
                values = {name: _decoded(operation.template, name, text) for name, text in found.groupdict().items()}
                return Match(operation, values)
            allowed.append(operation.method)
    if allowed:
        raise method_not_allowed(method, dict.fromkeys(allowed))
    raise not_found(PREFIX + raw_path)


def _pattern(template: str) -> re.Pattern[str]:
    several = re.sub(r"\{(\w+)\+\}", r"(?P<\1>[^/].*)", template)
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", several))


_PATTERNS = [(operation, _pattern(operation.template)) for operation in OPERATIONS]


def _decoded(template: str, name: str, text: str) -> str:
    if f"{{{name}+}}" not in template:
        return unquote(text)
    # an encoded slash is part of a segment
    return "/".join(unquote(segment).replace("/", "~1") for segment in text.split("/"))
