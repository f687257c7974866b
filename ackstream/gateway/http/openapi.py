"""The OpenAPI document, generated from the table of operations and the schemas of their bodies."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ackstream import __version__
from ackstream.gateway.http import bodies
from ackstream.gateway.http.event_streams import MEDIA_TYPE
from ackstream.gateway.http.operations import (
    COUNT_PARAMETERS,
    OPERATIONS,
    PREFIX,
    SEARCH_PARAMETERS,
    Body,
    EventKind,
    Operation,
)
from ackstream.gateway.http.translation import FORM, HEADER_PARAMETERS, MERGE_PATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.contract.schemas import Json

_PARAMETERS = {
    "fields": "Which fields to return, such as `thingId,attributes(location)`.",
    "ids": "Comma-separated thing ids.",
    "namespace": "The namespace of the new thing.",
    "namespaces": "Only things of these namespaces, comma-separated.",
    "filter": "An RQL filter, such as `and(eq(attributes/floor,3),exists(features/lamp))`.",
    "option": "`size(25)`, `sort(+thingId)`, `cursor(…)`, comma-separated.",
    "extraFields": "Fields of the thing that are added to each event, though they have not changed.",
}
_NAMES = {
    "thingId": "The id of the thing, `namespace:name`.",
    "featureId": "The id of the feature.",
    "attributePath": "The JSON pointer of the attribute; may contain slashes.",
    "propertyPath": "The JSON pointer of the property; may contain slashes.",
    "subject": "The subject of the message; may contain slashes.",
}
_EVENTS: dict[EventKind, str] = {
    "events": "each change as it happens, as the changed part of the thing.",
    "messages": "each message as it is sent; the subject is the name of the event.",
    "search": "all things found; the thing's id is that of the event, and `last-event-id` continues behind it.",
}
_BODIES: dict[Body, str] = {"json": "application/json", "merge-patch": MERGE_PATCH, "any": "*/*", "form": FORM}
_TAGS = {
    "many": "Things", "create": "Things", "search": "Search", "count": "Search", "message": "Messages",
    "messages": "Messages", "whoami": "Sender", "permissions": "Sender",
}  # fmt: skip
_ERRORS = {
    "400": "The request is not valid.",
    "401": "The sender is not authenticated.",
    "403": "The sender lacks permission, or is a page of another site.",
    "404": "The thing or part does not exist, or the sender may not see it.",
    "406": "Messages are sent as server-sent events only.",
    "408": "The response did not arrive in time.",
    "409": "The correlation-id is in use, or the thing already exists.",
    "412": "A precondition or the condition does not hold.",
    "413": "The body is too large.",
    "415": "The media type of the body is not supported.",
    "429": "The sender has too many requests, searches or streams: retry after Retry-After seconds.",
    "501": "A header, field or member is not available.",
    "503": "Kafka or the service is unavailable, or the gateway is stopping: retry after Retry-After seconds.",
}
_OWN_ERRORS = {
    "406": ("messages",),
    "409": ("create",),
    "413": ("json", "merge-patch", "any", "form"),
    "415": ("json", "merge-patch", "form"),
}


_FAILED_ACKS = "Some acknowledgements failed or did not arrive in time; the body has an entry for each."
_OTHER = "The status of the only acknowledgement, or of the device, with what it has sent."
_TEXTS = {
    "/": ("Show the live page", "text/html"),
    "/page/{name}": ("Load a part of the live page", "*/*"),
    "/doc": ("Show this document, and try its operations", "text/html"),
    "/doc/{name}": ("Load a part of that page", "*/*"),
    "/doc/openapi.json": ("Read this document", "application/json"),
}
"""What the gateway serves besides the API, and its media types."""

_PROBES = {
    "/health/live": ("Ask whether the process works", "It works."),
    "/health/ready": ("Ask whether requests can be answered", "They can."),
}
_DATA = {
    "/live.json": ("Read what the live page shows", "View"),
    "/story.json": ("Read the history of a request", "Story"),
    "/message.json": ("Read the history of a message", "Story"),
    "/trace.json": ("Find the requests of a trace", "Trace"),
}
_GIVEN = {
    "/page/{name}": ("name", "path", "The name of the file."),
    "/doc/{name}": ("name", "path", "The name of the file."),
    "/story.json": ("correlation-id", "query", "The id of the request, as its client or the wire has it."),
    "/message.json": ("message", "query", "The message, as CLIENT/SEQ: its publisher and its number."),
    "/trace.json": ("trace-id", "query", "The id of the trace, 32 hexadecimal digits, or the whole traceparent."),
}


@cache
def document() -> Json:
    """Return the document, OpenAPI 3.1."""
    paths: Json = {}
    for operation in OPERATIONS:
        template = PREFIX + operation.template.replace("+}", "}")
        paths.setdefault(template, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ackstream",
            "version": __version__,
            "description": "Things, their twins and messages over HTTP, as in Eclipse Ditto's HTTP API 2.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This gateway."}],
        "security": [{}, {"basic": []}, {"bearer": []}, {"certificate": []}],
        "tags": [{"name": name} for name in dict.fromkeys(("Things", "Features", *_TAGS.values(), "Pages"))],
        "paths": paths | {path: {"get": operation} for path, operation in _pages()},
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic", "description": "A user of `gateway.users`."},
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "A token of one of `gateway.issuers`.",
                },
                "certificate": {"type": "mutualTLS", "description": "A certificate of `gateway.tls.client_ca`."},
            },
            "headers": {name: {"description": about, "schema": {"type": "string"}} for name, about in _HEADERS.items()},
            "parameters": {name: _parameter(name, description) for name, description in HEADER_PARAMETERS.items()},
            "responses": {
                status: _with_headers(status, {"description": about, "content": bodies.content("Error")})
                for status, about in _ERRORS.items()
            },
            "schemas": bodies.SCHEMAS,
        },
    }


_HEADERS = {
    "correlation-id": "The id of the request.",
    "location": "The path of what was created.",
    "retry-after": "Seconds until the request may succeed.",
    "www-authenticate": "How to authenticate.",
}
_OF_STATUS = {"201": "location", "401": "www-authenticate", "429": "retry-after", "503": "retry-after"}


def _pages() -> Iterator[tuple[str, Json]]:
    """Describe what the gateway serves besides the API."""
    for path, (summary, media_type) in _TEXTS.items():
        yield path, _page(path, summary, {media_type: {"schema": {"type": "string"}}})
    for path, (summary, name) in _DATA.items():
        yield path, _page(path, summary, bodies.content(name))
    for path, (summary, about) in _PROBES.items():
        yield path, _page(path, summary, {}) | {"security": [], "responses": _probed(about)}
    socket = _page("/ws/2", "Open a WebSocket for Ditto Protocol messages", {})
    socket["responses"] = {"101": {"description": "The WebSocket is open."}} | _errors("401", "403", "429", "503")
    yield "/ws/2", socket


def _page(path: str, summary: str, content: Json) -> Json:
    given = [_GIVEN[path]] if path in _GIVEN else []
    placed = [where for _, where, _ in given]
    return {
        "summary": summary,
        "operationId": f"get{path.translate(_PUNCTUATION)}",
        "tags": ["Pages"],
        "parameters": [{**_parameter(name, about), "in": where, "required": True} for name, where, about in given],
        "responses": {
            "200": {"description": "The content.", "content": content},
            **_errors(*(("400",) if "query" in placed else ()), "401", *(("404",) if "path" in placed else ()), "429"),
        },
    }


def _probed(about: str) -> Json:
    content = bodies.content("Health")
    return {
        "200": {"description": about, "content": content},
        "503": {"description": "Not now; the body has the reasons.", "content": content},
    }


def _operation(operation: Operation) -> Json:
    names = [part.strip("{+}") for part in operation.template.split("/") if part.startswith("{")]
    parameters = [{**_parameter(name, _NAMES[name]), "in": "path", "required": True} for name in names]
    own = dict.fromkeys((*operation.parameters, *operation.event_parameters))
    parameters += [_parameter(name, _PARAMETERS[name]) for name in own]
    parameters += [{"$ref": f"#/components/parameters/{name}"} for name in HEADER_PARAMETERS]
    found: Json = {
        "summary": operation.summary,
        "operationId": f"{operation.method.lower()}{operation.template.translate(_PUNCTUATION)}",
        "tags": [_TAGS.get(operation.kind) or ("Features" if "/features" in operation.template else "Things")],
        "parameters": parameters,
        "responses": _responses(operation),
    }
    if operation.events is not None:
        found["description"] = f"With `accept: {MEDIA_TYPE}`: {_EVENTS[operation.events]}"
    if operation.body is not None:
        content = _body(operation, _BODIES[operation.body])
        found["requestBody"] = {"required": operation.body != "any", "content": content}
    return found


def _body(operation: Operation, media_type: str) -> Json:
    if operation.body != "form":
        return bodies.content(bodies.of_request(operation), media_type)
    names = SEARCH_PARAMETERS if operation.kind == "search" else COUNT_PARAMETERS
    fields = {name: {"type": "string", "description": _PARAMETERS[name]} for name in names}
    example = {"filter": "eq(attributes/floor,3)"}
    return {media_type: {"schema": {"type": "object", "properties": fields}, "example": example}}


_PUNCTUATION = str.maketrans({"/": "_", "{": "", "}": "", "+": "", ".": "_"})


def _parameter(name: str, description: str) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}


def _responses(operation: Operation) -> Json:
    query = operation.kind in ("retrieve", "many", "search", "count", "messages", "whoami", "permissions")
    result, entries = bodies.content(bodies.of_result(operation)), bodies.content("Acknowledgements")
    found: Json = {}
    if query:
        found["200"] = {"description": "The result.", "content": {} if operation.kind == "messages" else result}
    elif operation.kind == "message":
        found["200"] = {"description": "What the device has answered.", "content": bodies.content("Value", "*/*")}
    else:
        found["200"] = {"description": "An entry for each acknowledgement.", "content": entries}
    if operation.events is not None:
        found["200"]["content"] = found["200"]["content"] | {MEDIA_TYPE: {"schema": {"type": "string"}}}
    if operation.kind in ("create", "modify", "merge"):
        found["201"] = {"description": "Created.", "content": result}
    if not query:
        found |= {"202": {"description": "Accepted; no response was requested."}, "204": {"description": "Done."}}
        found["424"] = {"description": _FAILED_ACKS, "content": entries}
        found["default"] = {"description": _OTHER, "content": bodies.content("Value", "*/*")}
    elif operation.kind == "retrieve":
        found["304"] = {"description": "Not modified since `if-none-match`."}
    return {status: _with_headers(status, response) for status, response in found.items()} | _errors(
        *(
            status
            for status in _ERRORS
            if status not in _OWN_ERRORS or {operation.kind, operation.body} & {*_OWN_ERRORS[status]}
        )
    )


def _errors(*statuses: str) -> Json:
    return {status: {"$ref": f"#/components/responses/{status}"} for status in statuses}


def _with_headers(status: str, response: Json) -> Json:
    names = ["correlation-id", *([_OF_STATUS[status]] if status in _OF_STATUS else [])]
    return response | {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}}
