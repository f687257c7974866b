"""What requests and responses of the HTTP API carry: a JSON Schema and an example of each body, for OpenAPI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.contract.schemas import ENTRY, ERROR, HEADERS, LABEL, of_types, reference
from ackstream.observe.live import Story, Trace, View

if TYPE_CHECKING:
    from ackstream.contract.schemas import Json
    from ackstream.gateway.http.operations import Operation

_LAMP: Json = {
    "thingId": "org.acme:lamp-7",
    "attributes": {"power": "on", "floor": 3},
    "features": {"lamp": {"definition": ["org.acme:lamp:1.0.0"], "properties": {"brightness": 30}}},
}
_FEATURE = _LAMP["features"]["lamp"]
_DEFINITION = r"^(?:[_a-zA-Z0-9\-.]+:[_a-zA-Z0-9\-.]+:[_a-zA-Z0-9\-.]+|https?://[^\s/]\S*)$"

SCHEMAS: dict[str, Json] = {
    "Thing": {
        "type": "object",
        "description": "A thing; with `fields` only the parts that they select.",
        "properties": {
            "thingId": {"type": "string", "description": "`namespace:name`."},
            "policyId": {"type": "string"},
            "definition": reference("Definition"),
            "attributes": reference("Attributes"),
            "features": reference("Features"),
        },
    },
    "PolicyId": {"type": "string", "description": "There are no policies: it is kept, and has no effect."},
    "Definition": {
        "type": ["string", "null"],
        "pattern": _DEFINITION,
        "description": "`namespace:name:version`, or a URL.",
    },
    "Attributes": {"type": ["object", "null"], "description": "Any JSON values by their names."},
    "Features": {
        "type": ["object", "null"],
        "description": "Features by their ids.",
        "additionalProperties": reference("Feature"),
    },
    "Feature": {
        "type": ["object", "null"],
        "properties": {
            "definition": reference("FeatureDefinition"),
            "properties": reference("Properties"),
            "desiredProperties": reference("Properties"),
        },
    },
    "FeatureDefinition": {
        "type": ["array", "null"],
        "items": {"type": "string", "pattern": _DEFINITION},
        "description": "One or more of `namespace:name:version`, the most specific first.",
    },
    "Properties": {"type": ["object", "null"], "description": "Any JSON values by their names."},
    "Value": {"description": "Any JSON value."},
    "MergePatch": {"description": "A patch as in RFC 7396: `null` removes a member."},
    "Things": {"type": "array", "items": reference("Thing")},
    "ThingCount": {"type": "integer", "minimum": 0, "description": "How many things match."},
    "SearchPage": {
        "type": "object",
        "required": ["items"],
        "properties": {
            "items": reference("Things"),
            "cursor": {
                "type": "string",
                "description": "For the option `cursor(…)` of the next page; absent at the end.",
            },
        },
    },
    "Sender": {
        "type": "object",
        "required": ["defaultSubject", "subjects", "roles"],
        "properties": {
            "defaultSubject": {"type": "string"},
            "subjects": {"type": "array", "items": {"type": "string"}},
            "roles": {"type": "array", "items": {"type": "string"}},
        },
    },
    "PermissionQuestions": {
        "type": "object",
        "description": "Questions by names of your own.",
        "additionalProperties": {
            "type": "object",
            "required": ["resource", "entityId", "hasPermissions"],
            "properties": {
                "resource": {"type": "string", "pattern": "^(?:thing|message):/", "description": "`thing:/features`."},
                "entityId": {"type": "string"},
                "hasPermissions": {"type": "array", "items": {"enum": ["READ", "WRITE"]}},
            },
        },
    },
    "PermissionAnswers": {"type": "object", "additionalProperties": {"type": "boolean"}},
    "Acknowledgements": {
        "type": "object",
        "description": "By label, what has been acknowledged; of several that have one label, a list.",
        "propertyNames": LABEL,
        "additionalProperties": {
            "anyOf": [reference("AckEntry"), {"type": "array", "items": reference("AckEntry")}],
        },
    },
    "AckEntry": ENTRY | {"properties": {**ENTRY["properties"], "headers": reference("Headers")}},
    "Headers": HEADERS,
    "Error": ERROR,
    "Health": {
        "type": "object",
        "required": ["status", "problems"],
        "properties": {
            "status": {"enum": ["ok", "failing"]},
            "problems": {"type": "array", "items": {"type": "string"}},
        },
        "additionalProperties": False,
    },
    **of_types([View, Story, Trace]),
}
"""All schemas, by name."""

_MISSING = {
    "status": 408,
    "error": "acknowledgement:request.timeout",
    "message": "The acknowledgement request reached the specified timeout of 10,000ms.",
}
EXAMPLES: dict[str, Any] = {
    "Thing": _LAMP,
    "PolicyId": "org.acme:lamps",
    "Definition": "org.acme:lamp:1.0.0",
    "Attributes": _LAMP["attributes"],
    "Features": _LAMP["features"],
    "Feature": _FEATURE,
    "FeatureDefinition": _FEATURE["definition"],
    "Properties": _FEATURE["properties"],
    "Value": "on",
    "MergePatch": {"power": "off", "floor": None},
    "Things": [_LAMP],
    "ThingCount": 42,
    "SearchPage": {"items": [_LAMP], "cursor": "WyJvcmcuYWNtZTpsYW1wLTciXQ"},
    "Sender": {"defaultSubject": "user:ditto", "subjects": ["user:ditto"], "roles": ["operators"]},
    "PermissionQuestions": {
        "switch": {"resource": "thing:/attributes/power", "entityId": "org.acme:lamp-7", "hasPermissions": ["WRITE"]}
    },
    "PermissionAnswers": {"switch": True},
    "Acknowledgements": {
        "twin-persisted": {"status": 204},
        "fleet:done": {"status": 408, "payload": _MISSING},
    },
    "Error": {
        "status": 404,
        "error": "things:thing.notfound",
        "message": "The Thing with ID 'org.acme:lamp-7' could not be found or requester had insufficient permissions "
        "to access it.",
        "description": "Check if the ID of your requested Thing was correct and you have sufficient permissions.",
    },
}
"""An example of each body."""

_PARTS = {
    "": "Thing",
    "/policyId": "PolicyId",
    "/definition": "Definition",
    "/attributes": "Attributes",
    "/features": "Features",
    "/features/{featureId}": "Feature",
    "/features/{featureId}/definition": "FeatureDefinition",
    "/features/{featureId}/properties": "Properties",
    "/features/{featureId}/desiredProperties": "Properties",
}
_RESULTS = {
    "many": "Things",
    "list": "Things",
    "search": "SearchPage",
    "count": "ThingCount",
    "whoami": "Sender",
    "permissions": "PermissionAnswers",
}


def of_request(operation: Operation) -> str:
    """Return the name of the schema of what an operation is given."""
    if operation.kind == "permissions":
        return "PermissionQuestions"
    if operation.body == "merge-patch":
        return "MergePatch"
    return "Value" if operation.body == "any" else part(operation)


def of_result(operation: Operation) -> str:
    """Return the name of the schema of what an operation finds, or creates."""
    return _RESULTS.get(operation.kind) or ("Value" if operation.kind == "message" else part(operation))


def part(operation: Operation) -> str:
    """Return the name of the schema of the part of a thing that an operation addresses."""
    return _PARTS.get(operation.pointer, "Value")


def content(name: str, media_type: str = "application/json") -> Json:
    """Return the content of a body, with its schema and its example."""
    found: Json = {"schema": reference(name)}
    if name in EXAMPLES:
        found["example"] = EXAMPLES[name]
    return {media_type: found}
