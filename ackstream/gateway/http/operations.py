"""The table of HTTP operations (Ditto, HTTP API 2), and the OpenAPI document of it, with the data of ``openapi.json``.

In a template ``{name}`` is one path segment, a trailing ``{name+}`` the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

import msgspec

from ackstream import __version__
from ackstream.contract.asyncapi import DITTO_SCHEMAS, Json, of_types, reference
from ackstream.gateway.errors import method_not_allowed, not_found
from ackstream.observe.overview import View
from ackstream.observe.stories import Story, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.protocol.ditto.twin.permissions import Kind

TEXTS: Json = msgspec.json.decode(Path(__file__).with_name("openapi.json").read_bytes())
HEADER_PARAMETERS: tuple[str, ...] = tuple(TEXTS["headerParameters"])
"""Query parameters that stand for headers."""

PREFIX = "/api/2"
THING = "/things/{thingId}"
Body = Literal["json", "merge-patch", "any", "form"]
EventKind = Literal["events", "messages", "search"]
MERGE_PATCH, FORM = "application/merge-patch+json", "application/x-www-form-urlencoded"
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True)
class Operation:
    """One method of one resource; ``pointer`` is the part of the template after the thing."""

    method: str
    template: str
    kind: Kind
    summary: str
    pointer: str = ""
    body: Body | None = None
    # in the query, other than those that stand for headers
    parameters: tuple[str, ...] = ()
    # the kind of server-sent events, if any, and their parameters
    events: EventKind | None = None
    event_parameters: tuple[str, ...] = ()


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
COUNT_PARAMETERS = SEARCH_PARAMETERS[:2]
_OF_EVENTS = ("filter", "namespaces", "extraFields")

LIST = Operation(
    "GET", "/search/things", "list", "Retrieve all things, page by page", parameters=("namespaces", "option", "fields")
)
"""GET of all things without ids."""

OF_MANY = ("ids", "fields")
"""The parameters of GET of all things with ids."""


def _operations() -> Iterator[Operation]:
    yield Operation("GET", "/whoami", "whoami", "Retrieve the subjects and roles of the sender")
    yield Operation("POST", "/checkPermissions", "permissions", "Check the permissions of the sender", body="json")
    yield Operation(
        "GET",
        "/things",
        "many",
        "Retrieve several things by their ids, or all of them page by page",
        parameters=("ids", *LIST.parameters),
        events="events",
        event_parameters=("ids", "fields", *_OF_EVENTS),
    )
    yield Operation(
        "POST", "/things", "create", "Create a thing under a generated id", body="json", parameters=("namespace",)
    )
    for part, title in _PARTS.items():
        template = THING + part
        # the path of a part stands for the fields of an event
        shown = _OF_EVENTS if part else ("fields", *_OF_EVENTS)
        yield Operation("GET", template, "retrieve", f"Retrieve {title}", part, None, ("fields",), "events", shown)
        yield Operation("PUT", template, "modify", f"Create or replace {title}", part, "json")
        yield Operation("PATCH", template, "merge", f"Merge a patch (RFC 7396) into {title}", part, "merge-patch")
        if part not in _NOT_DELETED:
            yield Operation("DELETE", template, "delete", f"Delete {title}", part)
    search, found = "/search/things", "Search for things with an RQL filter"
    yield Operation("GET", search, "search", found, "", None, SEARCH_PARAMETERS, "search", SEARCH_PARAMETERS)
    yield Operation("POST", search, "search", f"{found} in a form", body="form")
    count, counted = f"{search}/count", "Count the things that match an RQL filter"
    yield Operation("GET", count, "count", counted, parameters=COUNT_PARAMETERS)
    yield Operation("POST", count, "count", f"{counted} in a form", body="form")
    yield Operation("POST", f"{THING}/inbox/claim", "message", "Send a claim message", "/inbox/messages/claim", "any")
    for of, whose in (("", "a thing"), ("/features/{featureId}", "a feature")):
        for box, direction in _BOXES.items():
            whole = f"{of}/{box}/messages"
            part = f"{whole}/{{subject+}}"
            yield Operation("POST", THING + part, "message", f"Send a message {direction} {whose}", part, "any")
            for path, which in ((whole, "all messages"), (part, "the messages of a subject")):
                title = f"Receive {which} {direction} {whose}"
                yield Operation("GET", THING + path, "messages", title, path, events="messages")


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
    for operation, found in _at(raw_path):
        if operation.method == wanted:
            values = {name: _decoded(operation.template, name, text) for name, text in found.groupdict().items()}
            return Match(operation, values)
    raise method_not_allowed(method, methods(raw_path))


def methods(raw_path: str) -> list[str]:
    """Return the methods of a resource; raises 404 for an unknown path."""
    found = [operation.method for operation, _ in _at(raw_path)]
    if not found:
        raise not_found(PREFIX + raw_path)
    return [*dict.fromkeys(found), *(("HEAD",) if "GET" in found else ()), "OPTIONS"]


def _at(raw_path: str) -> Iterator[tuple[Operation, re.Match[str]]]:
    """Yield the operations of a path."""
    # a trailing slash is ignored
    path = raw_path.removesuffix("/")
    for operation, pattern in _PATTERNS:
        if found := pattern.fullmatch(path):
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


# -- the OpenAPI document ----------------------------------------------------------------------------------------------

EXAMPLES: Json = TEXTS["examples"]
"""An example of each body."""

SCHEMAS: Json = {
    **TEXTS["schemas"],
    "Acknowledgements": TEXTS["schemas"]["Acknowledgements"]
    | {"propertyNames": DITTO_SCHEMAS["Aggregate"]["properties"]["value"]["propertyNames"]},
    **{name: DITTO_SCHEMAS[name] for name in ("AckEntry", "Headers")},
    "Error": DITTO_SCHEMAS["DittoError"],
    **of_types([View, Story, Trace]),
}
"""All schemas, by name."""

_BODIES: dict[Body, str] = {"json": "application/json", "merge-patch": MERGE_PATCH, "any": "*/*", "form": FORM}
_PUNCTUATION = str.maketrans({"/": "_", "{": "", "}": "", "+": "", ".": "_"})


@cache
def document() -> Json:
    """Return the document, OpenAPI 3.1."""
    paths: Json = {}
    for operation in OPERATIONS:
        template = PREFIX + operation.template.replace("+}", "}")
        paths.setdefault(template, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": TEXTS["info"] | {"version": __version__},
        "servers": TEXTS["servers"],
        "security": TEXTS["security"],
        "tags": [{"name": name} for name in dict.fromkeys(("Things", "Features", *TEXTS["tags"].values(), "Pages"))],
        "paths": paths | {path: {"get": operation} for path, operation in _pages()},
        "components": {
            "securitySchemes": TEXTS["securitySchemes"],
            "headers": {
                name: {"description": about, "schema": {"type": "string"}} for name, about in TEXTS["headers"].items()
            },
            "parameters": {name: _parameter(name, TEXTS["headerParameters"][name]) for name in HEADER_PARAMETERS},
            "responses": {
                status: _with_headers(status, {"description": about, "content": content("Error")})
                for status, about in TEXTS["errors"].items()
            },
            "schemas": SCHEMAS,
        },
    }


def content(name: str, media_type: str = "application/json") -> Json:
    """Return the content of a body, with its schema and its example."""
    found: Json = {"schema": reference(name)}
    if name in EXAMPLES:
        found["example"] = EXAMPLES[name]
    return {media_type: found}


def _pages() -> Iterator[tuple[str, Json]]:
    """Describe the routes outside the API."""
    for path, page in TEXTS["pages"].items():
        text = {page.get("mediaType"): {"schema": {"type": "string"}}}
        yield path, _page(path, page, content(page["schema"]) if "schema" in page else text)
    for path, probe in TEXTS["probes"].items():
        responses = {
            "200": {"description": probe["description"], "content": content("Health")},
            "503": {"description": "Not now; the body has the reasons.", "content": content("Health")},
        }
        yield path, _page(path, probe, {}) | {"security": [], "responses": responses}
    socket = _page("/ws/2", {"summary": "Open a WebSocket for Ditto Protocol messages"}, {})
    socket["responses"] = {"101": {"description": "The WebSocket is open."}} | _errors("401", "403", "429", "503")
    yield "/ws/2", socket


def _page(path: str, page: Json, body: Json) -> Json:
    given = page.get("parameter", {})
    statuses = [*(["400"] if given.get("in") == "query" else []), "401", *(["404"] if "{" in path else []), "429"]
    return {
        "summary": page["summary"],
        "operationId": f"get{path.translate(_PUNCTUATION)}",
        "tags": ["Pages"],
        "parameters": [_parameter(given["name"], given["description"], given["in"]) | {"required": True}]
        if given
        else [],
        "responses": {"200": {"description": "The content.", "content": body}, **_errors(*statuses)},
    }


def _operation(operation: Operation) -> Json:
    names = [part.strip("{+}") for part in operation.template.split("/") if part.startswith("{")]
    parameters = [_parameter(name, TEXTS["pathParameters"][name], "path") | {"required": True} for name in names]
    own = dict.fromkeys((*operation.parameters, *operation.event_parameters))
    parameters += [_parameter(name, TEXTS["queryParameters"][name]) for name in own]
    parameters += [{"$ref": f"#/components/parameters/{name}"} for name in HEADER_PARAMETERS]
    found: Json = {
        "summary": operation.summary,
        "operationId": f"{operation.method.lower()}{operation.template.translate(_PUNCTUATION)}",
        "tags": [TEXTS["tags"].get(operation.kind) or ("Features" if "/features" in operation.template else "Things")],
        "parameters": parameters,
        "responses": _responses(operation),
    }
    if operation.events is not None:
        found["description"] = f"With `accept: {EVENT_STREAM}`: {TEXTS['events'][operation.events]}"
    if operation.body is not None:
        found["requestBody"] = {"required": operation.body != "any", "content": _body(operation, operation.body)}
    return found


def _body(operation: Operation, body: Body) -> Json:
    if body == "form":
        names = SEARCH_PARAMETERS if operation.kind == "search" else COUNT_PARAMETERS
        fields = {name: {"type": "string", "description": TEXTS["queryParameters"][name]} for name in names}
        example = {"filter": "eq(attributes/floor,3)"}
        return {FORM: {"schema": {"type": "object", "properties": fields}, "example": example}}
    if operation.kind == "permissions":
        return content("PermissionQuestions")
    names_of = {"merge-patch": "MergePatch", "any": "Value"}
    return content(names_of.get(body) or TEXTS["parts"].get(operation.pointer, "Value"), _BODIES[body])


def _parameter(name: str, description: str, where: str = "query") -> Json:
    return {"name": name, "in": where, "description": description, "schema": {"type": "string"}}


def _responses(operation: Operation) -> Json:
    texts = TEXTS["results"]
    query = operation.kind in ("retrieve", "many", "search", "count", "messages", "whoami", "permissions")
    result = content(texts["schemas"].get(operation.kind) or TEXTS["parts"].get(operation.pointer, "Value"))
    entries, anything = content("Acknowledgements"), content("Value", "*/*")
    found: Json = {}
    if query:
        found["200"] = {"description": texts["query"], "content": {} if operation.kind == "messages" else result}
    elif operation.kind == "message":
        found["200"] = {"description": texts["message"], "content": anything}
    else:
        found["200"] = {"description": texts["command"], "content": entries}
    if operation.events is not None:
        found["200"]["content"] = found["200"]["content"] | {EVENT_STREAM: {"schema": {"type": "string"}}}
    if operation.kind in ("create", "modify", "merge"):
        found["201"] = {"description": "Created.", "content": result}
    if not query:
        found |= {"202": {"description": "Accepted; no response was requested."}, "204": {"description": "Done."}}
        found["424"] = {"description": texts["failedAcks"], "content": entries}
        found["default"] = {"description": texts["other"], "content": anything}
    elif operation.kind == "retrieve":
        found["304"] = {"description": "Not modified since `if-none-match`."}
    own = {operation.kind, operation.body}
    errors = [status for status in TEXTS["errors"] if own & {*TEXTS["errorsOf"].get(status, own)}]
    return {status: _with_headers(status, response) for status, response in found.items()} | _errors(*errors)


def _errors(*statuses: str) -> Json:
    return {status: {"$ref": f"#/components/responses/{status}"} for status in statuses}


def _with_headers(status: str, response: Json) -> Json:
    names = ["correlation-id", *TEXTS["headersOf"].get(status, [])]
    return response | {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}}
