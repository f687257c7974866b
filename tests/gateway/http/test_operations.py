from __future__ import annotations

import pytest

from ackstream.gateway.http.operations import OPERATIONS, fill, find
from tests.outcomes import refusal

THING = "/things/org.acme:lamp"


@pytest.mark.parametrize(
    ("method", "path", "kind", "pointer"),
    [
        ("GET", "/things", "many", "/"),
        ("GET", "/things/", "many", "/"),
        ("POST", "/things", "create", "/"),
        ("PUT", THING, "modify", "/"),
        ("PATCH", f"{THING}/", "merge", "/"),
        ("GET", f"{THING}/policyId", "retrieve", "/policyId"),
        ("DELETE", f"{THING}/definition", "delete", "/definition"),
        ("PUT", f"{THING}/attributes", "modify", "/attributes"),
        ("PUT", f"{THING}/attributes/a/b/c", "modify", "/attributes/a/b/c"),
        ("GET", f"{THING}/attributes/a%20b/%C3%BC", "retrieve", "/attributes/a b/ü"),
        ("GET", f"{THING}/attributes/a%2Fb/c~1d", "retrieve", "/attributes/a~1b/c~1d"),
        ("GET", f"{THING}/features", "retrieve", "/features"),
        ("DELETE", f"{THING}/features/f%2F1", "delete", "/features/f~11"),
        ("PUT", f"{THING}/features/f/properties/p/q", "modify", "/features/f/properties/p/q"),
        ("GET", f"{THING}/features/f/desiredProperties", "retrieve", "/features/f/desiredProperties"),
        ("PATCH", f"{THING}/features/f/definition", "merge", "/features/f/definition"),
        ("GET", "/search/things", "search", "/"),
        ("GET", "/search/things/count", "count", "/"),
        ("POST", "/search/things", "search", "/"),
        ("HEAD", f"{THING}/attributes/a", "retrieve", "/attributes/a"),
        ("GET", f"{THING}/inbox/messages/", "messages", "/inbox/messages"),
        ("GET", f"{THING}/features/f/outbox/messages/a/b", "messages", "/features/f/outbox/messages/a/b"),
        ("GET", "/whoami", "whoami", "/"),
        ("POST", f"{THING}/inbox/messages/ask/twice", "message", "/inbox/messages/ask/twice"),
        ("POST", f"{THING}/outbox/messages/told", "message", "/outbox/messages/told"),
        ("POST", f"{THING}/features/f/inbox/messages/ask", "message", "/features/f/inbox/messages/ask"),
        ("POST", f"{THING}/inbox/claim", "message", "/inbox/messages/claim"),
    ],
)
def test_a_path_names_what_is_addressed(method: str, path: str, kind: str, pointer: str) -> None:
    match = find(method, path)
    assert (match.operation.kind, match.path) == (kind, pointer)


def test_the_thing_id_is_decoded() -> None:
    assert find("GET", "/things/org.acme%3Alamp%201").values == {"thingId": "org.acme:lamp 1"}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: f"{operation.method} {operation.template}")
def test_every_operation_is_found_by_its_own_path(operation: object) -> None:
    names = {"thingId": "a:b", "featureId": "f", "attributePath": "x/y", "propertyPath": "p", "subject": "s/t"}
    assert find(operation.method, fill(operation.template, names)).operation is operation  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "path", ["", "/", "/nothing", "/things//attributes", f"{THING}/nothing", f"{THING}/inbox", "/search"]
)
def test_a_path_that_is_not_there_is_404(path: str) -> None:
    error = refusal(find, "GET", path)
    assert (error.status, error.error) == (404, "gateway:resource.notfound")


def test_a_method_that_is_not_there_is_405_and_names_the_others() -> None:
    error = refusal(find, "DELETE", f"{THING}/policyId")
    assert (error.status, error.error) == (405, "gateway:method.notallowed")
    assert error.headers == (("allow", "GET, PUT, PATCH, HEAD, OPTIONS"),)  # type: ignore[attr-defined]
