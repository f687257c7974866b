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
from ackstream.gateway.page.live import View
from ackstream.gateway.page.stories import Story, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.protocol.ditto.twin.permissions import Kind

TEXTS: Json = msgspec.json.decode(Path(__file__).with_name("openapi.json").read_bytes())
DOCUMENT: Json = TEXTS["document"]
HEADER_PARAMETERS: tuple[str, ...] = tuple(DOCUMENT["components"]["parameters"])
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
    for part, about in TEXTS["parts"].items():
        title = about["title"]
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
_PUNCTUATION = str.maketrans({"/": "_", "{": "", "}": "", "+": ""})


@cache
def document() -> Json:
    """Return the document, OpenAPI 3.1: the one in the file, with its version, the operations and all schemas."""
    paths: Json = {}
    for operation in OPERATIONS:
        template = PREFIX + operation.template.replace("+}", "}")
        paths.setdefault(template, {})[operation.method.lower()] = _operation(operation)
    return DOCUMENT | {
        "info": DOCUMENT["info"] | {"version": __version__},
        "paths": paths | DOCUMENT["paths"],
        "components": DOCUMENT["components"] | {"schemas": SCHEMAS},
    }


def _operation(operation: Operation) -> Json:
    names = [part.strip("{+}") for part in operation.template.split("/") if part.startswith("{")]
    own = dict.fromkeys((*operation.parameters, *operation.event_parameters))
    found: Json = {
        "summary": operation.summary,
        "operationId": f"{operation.method.lower()}{operation.template.translate(_PUNCTUATION)}",
        "tags": [TEXTS["tags"].get(operation.kind) or ("Features" if "/features" in operation.template else "Things")],
        "parameters": [
            *(TEXTS["pathParameters"][name] for name in names),
            *(TEXTS["queryParameters"][name] for name in own),
            *({"$ref": f"#/components/parameters/{name}"} for name in HEADER_PARAMETERS),
        ],
        "responses": dict(_responses(operation)),
    }
    if operation.events is not None:
        found["description"] = f"With `accept: {EVENT_STREAM}`: {TEXTS['events'][operation.events]}"
    if operation.body is not None:
        found["requestBody"] = {"required": operation.body != "any", "content": _body(operation, operation.body)}
    return found


def _body(operation: Operation, body: Body) -> Json:
    if body == "form":
        return {FORM: TEXTS["forms"][operation.kind]}
    given = {"merge-patch": "MergePatch", "any": "Value"}.get(body)
    return {_BODIES[body]: _content(given or TEXTS["bodies"].get(operation.kind) or _schema(operation))}


def _schema(operation: Operation) -> str:
    return str(TEXTS["parts"].get(operation.pointer, {}).get("schema", "Value"))


def _content(name: str) -> Json:
    return {"schema": reference(name)} | ({"example": EXAMPLES[name]} if name in EXAMPLES else {})


def _responses(operation: Operation) -> Iterator[tuple[str, Json]]:
    """Yield the responses by status, as the table of the file has them; ``<result>``: the body of the operation."""
    result = TEXTS["results"].get(operation.kind) or _schema(operation)
    for row in TEXTS["responses"]:
        if operation.kind not in row["kinds"]:
            continue
        headers = {
            name: {"$ref": f"#/components/headers/{name}"} for name in ("correlation-id", *row.get("headers", ()))
        }
        response: Json = {"description": row["description"], "headers": headers}
        if "content" in row:
            bodies = row["content"].items()
            content = {kind: _content(result if name == "<result>" else name) for kind, name in bodies}
            events = operation.events is not None and row["status"] == "200"
            response["content"] = content | ({EVENT_STREAM: {"schema": {"type": "string"}}} if events else {})
        yield row["status"], response
    own = {operation.kind, operation.body}
    for status in DOCUMENT["components"]["responses"]:
        if own & {*TEXTS["errorsOf"].get(status, own)}:
            yield status, {"$ref": f"#/components/responses/{status}"}
