from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

import ackstream
from ackstream.gateway import errors as gateway_errors
from ackstream.protocol import errors
from ackstream.protocol.ditto.twin.things import Kind, not_found, resource
from ackstream.protocol.errors import DittoError, catalogue
from tests.conformance.runner import request_parsing_failed
from tests.prose import each, prose


def test_the_json_has_its_fields_in_order_of_ditto() -> None:
    error = DittoError(400, "code", "message", "description", "https://example.org", invalidHeaderKey="timeout")
    assert list(error.to_dict()) == ["status", "error", "message", "description", "href", "invalidHeaderKey"]


def test_absent_texts_are_left_out_of_the_json() -> None:
    assert DittoError(409, "code", "message").to_dict() == {"status": 409, "error": "code", "message": "message"}


def test_the_message_is_the_text_of_the_exception() -> None:
    assert str(errors.label_invalid("ab")) == "Acknowledgement label <ab> is invalid."


@pytest.mark.parametrize(("milliseconds", "text"), [(0, "0ms"), (999, "999ms"), (60_000, "60,000ms")])
def test_milliseconds_are_grouped_by_thousands(milliseconds: int, text: str) -> None:
    assert f" {text}." in errors.ack_request_timeout(milliseconds).message


def test_a_note_follows_the_description_of_a_command_timeout() -> None:
    assert errors.command_timeout(60_000).description == "Try increasing the command timeout."
    assert errors.command_timeout(60_000, "Why.").description == "Try increasing the command timeout. Why."


@pytest.mark.parametrize(
    "error",
    [
        errors.label_invalid("x" * 5_000),
        errors.unknown_topic_path("x" * 5_000, "y" * 5_000),
        errors.json_type_invalid("x" * 5_000, "/status", "Integer"),
        errors.json_format_invalid("x" * 5_000),
        errors.timeout_invalid("x" * 5_000),
        errors.header_type_invalid("timeout", "x" * 5_000, "duration"),
        errors.thing_not_found("x" * 5_000),
    ],
    ids=lambda error: error.error,
)
def test_a_message_repeats_only_the_beginning_of_a_long_text(error: DittoError) -> None:
    assert sum(len(value) for value in error.to_dict().values() if isinstance(value, str)) < 2_500
    assert "x" * 500 in error.message
    assert "…" in error.message


def test_every_error_of_the_catalogue_is_used() -> None:
    of_parts = {f"{kind}_not_found" for kind in get_args(Kind)}
    assert errors.CATALOGUE.keys() - of_parts - names_of("ackstream.protocol") == set()
    assert catalogue(gateway_errors.__file__).keys() - names_of("ackstream.gateway") == set()


@pytest.mark.parametrize("module", [errors, gateway_errors], ids=lambda module: module.__name__)
def test_every_error_that_the_package_names_exists(module: ModuleType) -> None:
    assert [name for name in names_of(module.__package__ or "") if not hasattr(module, name)] == []
    with pytest.raises(AttributeError, match="has no error thing_not_fuond"):
        _ = module.thing_not_fuond


def names_of(package: str) -> set[str]:
    """Return the names that the sources read from the module ``errors`` of a package, or from its catalogue."""
    found = set()
    for path in Path(ackstream.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        imported = {
            (node.module, alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        names = {name for module, name in imported if module == f"{package}.errors"}
        whole = (package, "errors") in imported
        own = "CATALOGUE" in names or path.parts[-2:] == (package.rpartition(".")[2], "errors.py")
        for node in nodes:
            if whole and isinstance(node, ast.Attribute) and ast.unparse(node.value) == "errors":
                names.add(node.attr)
            elif own and isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("CATALOGUE"):
                names |= {node.slice.value} if isinstance(node.slice, ast.Constant) else set()
        found |= names
    return found


def test_each_part_of_a_thing_has_an_error_that_names_it() -> None:
    paths = ["", "policyId", "definition", "attributes", "attributes/a~1b", "features", "features/~1"]
    paths += [f"features/f/{name}" for name in ("definition", "properties", "desiredProperties")]
    paths += ["features/f/properties/p/q", "features/f/desiredProperties/p"]
    parts = [resource(f"/{path}") for path in paths]
    assert {part.kind for part in parts} == set(get_args(Kind))
    for part in parts:
        message = not_found("ns:thing", part).message
        assert all(f"'{name}'" in message for name in (part.feature, part.pointer) if name is not None)
        assert "ns:thing" in message


@each("labels", "request-parse-error-json")
def test_prose_request_parsing_failed(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert request_parsing_failed(given_["exceptionFor"], given_["cause"]).to_dict() == expect["json"]


@pytest.mark.parametrize(
    ("file", "identity", "error"),
    [
        ("labels", "ws-ack-no-correlation-id", errors.correlation_id_missing()),
        ("labels", "ws-ack-not-declared", errors.label_not_declared("ack2")),
        ("labels", "conn-ack-not-declared-2", errors.label_not_declared("my-connection:not-declared")),
        ("aggregation", "forwarder-no-correlation-id", errors.correlation_id_missing()),
        ("aggregation", "actor-returnErrorResponseForTwin", errors.command_timeout(1)),
        ("aggregation", "actor-returnErrorResponseForLive", errors.command_timeout(1)),
    ],
)
def test_prose_error(file: str, identity: str, error: DittoError) -> None:
    assert error.to_dict().items() >= prose(file)[identity]["expect"]["error"].items()


@each("labels", "declare-localConflict")
def test_prose_label_not_unique(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_
    assert [result["error"] for result in expect["results"][1:]] == [errors.label_not_unique().to_dict()] * 3
