"""The OpenAPI document: valid, complete, and what the gateway really answers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Mount, Route, WebSocketRoute

from ackstream.gateway.http.operations import HEADER_PARAMETERS, OPERATIONS, PREFIX
from ackstream.gateway.page.live import View
from ackstream.gateway.page.pages import DOCUMENT as FILE
from ackstream.gateway.page.pages import ActionOrder
from ackstream.gateway.page.stories import Story, Trace
from ackstream.gateway.server import application
from ackstream.protocol.errors import thing_not_found
from tests.contract.asyncapi import of_types
from tests.contract.openapi import EXAMPLES, TEXTS
from tests.gateway.page.test_pages import TRACE_ID, Seen
from tests.gateway.parts import Web, aggregate, failure, response

DOCUMENT: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]
METHODS = [(path, method, found) for path, item in DOCUMENT["paths"].items() for method, found in item.items()]
THING = "/things/org.acme:lamp-7"
LAMP = EXAMPLES["Thing"]


def test_it_is_valid_openapi() -> None:
    assert [str(error) for error in OpenAPIV31SpecValidator(DOCUMENT).iter_errors()] == []


def test_it_has_every_operation_of_the_table_and_no_other() -> None:
    described = {(method.upper(), path) for path, method, _ in METHODS if path.startswith(PREFIX)}
    assert described == {(operation.method, PREFIX + operation.template.replace("+}", "}")) for operation in OPERATIONS}


def test_it_has_every_route_that_is_served_and_no_other() -> None:
    routes = application(Web().dependencies).app.routes
    assert [route.path for route in routes if isinstance(route, Mount)] == [PREFIX]
    served = {route.path for route in routes if isinstance(route, (Route, WebSocketRoute))}
    assert served == {path for path, *_ in METHODS if not path.startswith(PREFIX)}


def test_every_header_that_a_query_may_have_is_described() -> None:
    assert tuple(DOCUMENT["components"]["parameters"]) == HEADER_PARAMETERS


def test_every_text_is_of_an_operation() -> None:
    shown = {operation["summary"] for *_, operation in METHODS}
    assert {text for name, text in TEXTS["summaries"].items() if " " in name} <= shown


def test_every_reference_and_every_name_in_a_path_is_described() -> None:
    for path, _, operation in METHODS:
        named = {parameter["name"] for parameter in operation["parameters"] if parameter.get("in") == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path))
        for parameter in operation["parameters"]:
            if "$ref" in parameter:
                assert parameter["$ref"].split("/")[-1] in DOCUMENT["components"]["parameters"]
        assert ("401" in operation["responses"]) is (operation.get("security") != [])
    names = [operation["operationId"] for *_, operation in METHODS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("method", "operation"), [one[1:] for one in METHODS], ids=[f"{one[1]} {one[0]}" for one in METHODS]
)
def test_every_body_and_every_answer_has_a_schema(method: str, operation: dict[str, Any]) -> None:
    without = {"101", "202", "204", "304"}
    contents = [operation["requestBody"]["content"]] if "requestBody" in operation else []
    for status, answer in operation["responses"].items():
        found = DOCUMENT["components"]["responses"][status] if "$ref" in answer else answer
        assert (status in without) is ("content" not in found)
        contents += [found["content"]] if status not in without else []
    assert all(content and all(one["schema"] for one in content.values()) for content in contents)
    assert ("requestBody" in operation) is (method in ("post", "put", "patch"))


def _errors(schema: Any, value: Any) -> list[str]:
    whole = {"allOf": [schema], "components": DOCUMENT["components"]}
    return [error.message for error in Draft202012Validator(whole).iter_errors(value)]


def test_no_type_of_the_page_has_the_name_of_a_body() -> None:
    assert not of_types([View, Story, Trace, ActionOrder]).keys() & EXAMPLES.keys()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_fits_its_schema(name: str) -> None:
    assert _errors(SCHEMAS[name], EXAMPLES[name]) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Thing", []),
        ("Definition", "lamp"),
        ("Feature", {"definition": "org.acme:lamp:1.0.0"}),
        ("SearchPage", {"cursor": "x"}),
        ("Error", {"status": 404}),
        ("Acknowledgements", {"fleet:done": {"payload": 1}}),
        ("Acknowledgements", {"a b": {"status": 200}}),
        ("PermissionQuestions", {"a": {"resource": "policy:/", "entityId": "a:b", "hasPermissions": ["READ"]}}),
        ("PermissionAnswers", {"a": "yes"}),
        ("ThingCount", -1),
    ],
)
def test_a_wrong_body_does_not_fit_its_schema(name: str, value: Any) -> None:
    assert _errors(SCHEMAS[name], value)


ACKS = aggregate(("twin-persisted", 204, None), ("fleet:done", 503, {"why": "no power"}))
FOUND = {"items": [LAMP], "cursor": "x"}


@pytest.mark.parametrize(
    ("method", "path", "template", "answer", "options", "status"),
    [
        ("GET", "/whoami", "/whoami", response(200), {}, 200),
        ("POST", "/checkPermissions", "/checkPermissions", response(200),
         {"json": EXAMPLES["PermissionQuestions"]}, 200),
        ("GET", THING, "/things/{thingId}", response(200, LAMP), {}, 200),
        ("GET", THING, "/things/{thingId}", failure(thing_not_found("org.acme:lamp-7")), {}, 404),
        ("GET", f"{THING}/features/lamp", "/things/{thingId}/features/{featureId}",
         response(200, LAMP["features"]["lamp"]), {}, 200),
        ("GET", "/things?ids=org.acme:lamp-7", "/things", response(200, [LAMP]), {}, 200),
        ("GET", "/search/things", "/search/things", response(200, FOUND), {}, 200),
        ("GET", "/search/things/count", "/search/things/count", response(200, 42), {}, 200),
        ("PUT", THING, "/things/{thingId}", response(201, LAMP), {"json": LAMP}, 201),
        ("PUT", THING, "/things/{thingId}", response(204), {"json": LAMP}, 204),
        ("PUT", f"{THING}?timeout=0", "/things/{thingId}", response(204), {"json": LAMP}, 202),
        ("PUT", THING, "/things/{thingId}", ACKS, {"json": LAMP}, 424),
        ("PUT", THING, "/things/{thingId}", response(204), {"content": b"{"}, 400),
        ("PATCH", THING, "/things/{thingId}", response(204), {"json": LAMP}, 415),
        ("POST", "/things", "/things", response(201, LAMP), {"json": {}}, 201),
        ("POST", f"{THING}/inbox/messages/dim", "/things/{thingId}/inbox/messages/{subject}",
         response(200, {"to": 30}), {"json": {"to": 30}}, 200),
        ("GET", f"{THING}/inbox/messages", "/things/{thingId}/inbox/messages", response(200), {}, 406),
    ],
)  # fmt: skip
def test_what_the_gateway_answers_is_what_the_document_says(
    method: str, path: str, template: str, answer: Any, options: dict[str, Any], status: int
) -> None:
    found = Web(answer)(method, path, **options)
    assert found.status_code == status
    said = DOCUMENT["paths"][PREFIX + template][method.lower()]["responses"][str(status)]
    said = DOCUMENT["components"]["responses"][str(status)] if "$ref" in said else said
    assert set(found.headers) & DOCUMENT["components"]["headers"].keys() <= said["headers"].keys()
    if not found.content:
        assert "content" not in said
        return
    content = said["content"].get(found.headers["content-type"]) or said["content"]["*/*"]
    assert _errors(content["schema"], found.json()) == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("//live.json", "View"),
        ("//story.json?correlation-id=lamp", "Story"),
        (f"//trace.json?trace-id={TRACE_ID}", "Trace"),
    ],
)
def test_the_data_of_the_page_fit_their_schemas(path: str, name: str) -> None:
    assert _errors(SCHEMAS[name], Web(live=Seen())("GET", path).json()) == []
