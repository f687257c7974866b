"""The OpenAPI document: written from the table of operations, their texts in ``openapi_texts.json``, and types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ackstream import __version__
from ackstream.gateway.http.operations import EVENT_STREAM, FORM, HEADER_PARAMETERS, MERGE_PATCH, OPERATIONS, PREFIX
from ackstream.gateway.page.live import View
from ackstream.gateway.page.pages import ActionOrder
from ackstream.gateway.page.stories import Story, Trace
from tests.contract.asyncapi import DITTO_SCHEMAS, Json, of_types, reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.gateway.http.operations import Body, Operation

TEXTS: Json = msgspec.json.decode(Path(__file__).with_name("openapi_texts.json").read_bytes())
DOCUMENT: Json = TEXTS["document"]
EXAMPLES: Json = TEXTS["examples"]
"""An example of each body."""

SCHEMAS: Json = {
    **TEXTS["schemas"],
    "Acknowledgements": TEXTS["schemas"]["Acknowledgements"]
    | {"propertyNames": DITTO_SCHEMAS["Aggregate"]["properties"]["value"]["propertyNames"]},
    **{name: DITTO_SCHEMAS[name] for name in ("AckEntry", "Headers")},
    "Error": DITTO_SCHEMAS["DittoError"],
    **of_types([View, Story, Trace, ActionOrder]),
}
"""All schemas, by name."""

_BODIES: dict[Body, str] = {"json": "application/json", "merge-patch": MERGE_PATCH, "any": "*/*", "form": FORM}
_PUNCTUATION = str.maketrans({"/": "_", "{": "", "}": "", "+": ""})


def as_json() -> str:
    """Return the text of the file that the gateway serves."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def document() -> Json:
    """Return the document, OpenAPI 3.1: the one of the texts, with its version, the operations and all schemas."""
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
        "summary": _summary(operation),
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


def _summary(operation: Operation) -> str:
    own = TEXTS["summaries"].get(f"{operation.method} {operation.template}")
    return str(own or TEXTS["summaries"][operation.kind].format(TEXTS["parts"][operation.pointer]["title"]))


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
