"""The OpenAPI document, generated from the table of operations; texts, schemas and examples are in ``openapi.json``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ackstream import __version__
from ackstream.contract.asyncapi import DITTO_SCHEMAS, of_types, reference
from ackstream.gateway.http.event_streams import MEDIA_TYPE
from ackstream.gateway.http.operations import COUNT_PARAMETERS, OPERATIONS, PREFIX, SEARCH_PARAMETERS, Body, Operation
from ackstream.gateway.http.translation import FORM, HEADER_PARAMETERS, MERGE_PATCH
from ackstream.observe.overview import View
from ackstream.observe.stories import Story, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.contract.asyncapi import Json

TEXTS: Json = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes())
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
        found["description"] = f"With `accept: {MEDIA_TYPE}`: {TEXTS['events'][operation.events]}"
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
        found["200"]["content"] = found["200"]["content"] | {MEDIA_TYPE: {"schema": {"type": "string"}}}
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
