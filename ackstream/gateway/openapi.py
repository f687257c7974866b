"""The OpenAPI document, generated from the table of operations, and a self-contained HTML page of it."""

from __future__ import annotations

from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ackstream import __version__
from ackstream.gateway.event_streams import MEDIA_TYPE
from ackstream.gateway.operations import (
    COUNT_PARAMETERS,
    OPERATIONS,
    PREFIX,
    SEARCH_PARAMETERS,
    Body,
    EventKind,
    Operation,
)
from ackstream.gateway.translation import FORM, HEADER_PARAMETERS, MERGE_PATCH

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    "424": "Some acknowledgements failed or did not arrive in time; the body has an entry for each.",
    "503": "Kafka or the service is unavailable, or the gateway is stopping: retry after Retry-After seconds.",
}
_OWN_ERRORS = {
    "406": ("messages",),
    "409": ("create",),
    "413": ("json", "merge-patch", "any", "form"),
    "415": ("json", "merge-patch", "form"),
}


@cache
def document() -> dict[str, Any]:
    """Return the document, OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        template = PREFIX + operation.template.replace("+}", "}")
        paths.setdefault(template, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ackstream",
            "version": __version__,
            "description": "Things, their twins and messages over HTTP, as in Eclipse Ditto's HTTP API 2.",
        },
        "security": [{}, {"basic": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
            "parameters": {name: _parameter(name, description) for name, description in HEADER_PARAMETERS.items()},
            "schemas": {
                "error": {
                    "type": "object",
                    "required": ["status", "error", "message"],
                    "properties": {
                        "status": {"type": "integer"},
                        **{key: {"type": "string"} for key in ("error", "message", "description", "href")},
                    },
                }
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    names = [part.strip("{+}") for part in operation.template.split("/") if part.startswith("{")]
    parameters = [{**_parameter(name, _NAMES[name]), "in": "path", "required": True} for name in names]
    own = dict.fromkeys((*operation.parameters, *operation.event_parameters))
    parameters += [_parameter(name, _PARAMETERS[name]) for name in own]
    parameters += [{"$ref": f"#/components/parameters/{name}"} for name in HEADER_PARAMETERS]
    found: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method.lower()}{operation.template.translate(_PUNCTUATION)}",
        "tags": [_TAGS.get(operation.kind) or ("Features" if "/features" in operation.template else "Things")],
        "parameters": parameters,
        "responses": _responses(operation),
    }
    if operation.events is not None:
        found["description"] = f"With `accept: {MEDIA_TYPE}`: {_EVENTS[operation.events]}"
    if operation.body is not None:
        found["requestBody"] = {
            "required": operation.body != "any",
            "content": {_BODIES[operation.body]: _body(operation)},
        }
    return found


def _body(operation: Operation) -> dict[str, Any]:
    if operation.body != "form":
        return {}
    names = SEARCH_PARAMETERS if operation.kind == "search" else COUNT_PARAMETERS
    fields = {name: {"type": "string", "description": _PARAMETERS[name]} for name in names}
    return {"schema": {"type": "object", "properties": fields}}


_PUNCTUATION = str.maketrans({"/": "_", "{": "", "}": "", "+": ""})


def _parameter(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}


def _responses(operation: Operation) -> dict[str, Any]:
    query = operation.kind in ("retrieve", "many", "search", "count", "messages", "whoami", "permissions")
    done = {"200": "The result."} if query else {"200": "The response, or an entry for each acknowledgement."}
    if operation.kind in ("create", "modify", "merge"):
        done["201"] = "Created; `location` has the URL."
    if not query:
        done |= {"202": "Accepted; no response was requested.", "204": "Done."}
    elif operation.kind == "retrieve":
        done["304"] = "Not modified since `if-none-match`."
    errors = {
        status: text
        for status, text in _ERRORS.items()
        if status not in _OWN_ERRORS or {operation.kind, operation.body} & {*_OWN_ERRORS[status]}
    }
    described: dict[str, Any] = {status: {"description": text} for status, text in done.items()}
    if operation.events is not None:
        plain: dict[str, Any] = {} if operation.kind == "messages" else {"application/json": {}}
        described["200"]["content"] = plain | {MEDIA_TYPE: {"schema": {"type": "string"}}}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/error"}}}
    return described | {status: {"description": text, "content": content} for status, text in errors.items()}


@cache
def page() -> str:
    """Return the document as one HTML page."""
    found = document()
    headers = found["components"]["parameters"]
    parts = [
        f"<p>{escape(found['info']['description'])} <a href='/doc/openapi.json'>OpenAPI document</a></p>",
        "<h2>Headers</h2><p>Each can be sent as a header or as a query parameter.</p>",
        _list((f"`{name}`", header["description"]) for name, header in headers.items()),
        "<h2>Operations</h2>",
    ]
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            own = [parameter for parameter in operation["parameters"] if "name" in parameter]
            given = [(f"`{parameter['name']}` ({parameter['in']})", parameter["description"]) for parameter in own]
            if "requestBody" in operation:
                given.append(("body", f"`{', '.join(operation['requestBody']['content'])}`"))
            if "description" in operation:
                given.append(("events", operation["description"]))
            answers = [(status, answer["description"]) for status, answer in operation["responses"].items()]
            parts.append(
                f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> "
                f"<span>{escape(operation['summary'])}</span></summary>"
                f"{_list(given)}<h3>Responses</h3>{_list(answers)}</details>"
            )
    frame = (Path(__file__).parent / "page" / "doc.html").read_text("utf-8")
    return frame.replace("<!-- the document -->", "".join(parts))


def _list(entries: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{_text(term)}</dt><dd>{_text(text)}</dd>' for term, text in entries)}</dl>"


def _text(text: str) -> str:
    """Render text between backquotes as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
