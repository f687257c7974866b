from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.headers import (
    DEFINITIONS,
    external_in,
    read_headers,
    reply_headers,
    request_reply_headers,
    requested_acks_in,
)
from ackstream.protocol.ditto.signal_defaults import default_headers
from ackstream.protocol.errors import DittoError
from tests.outcomes import outcome, refusal
from tests.prose import each
from tests.protocol.ditto.test_envelopes import JSON


def refused(headers: dict[str, Any]) -> DittoError:
    error = refusal(read_headers, headers)
    assert error.status == 400
    return error


def test_unknown_headers_become_text_whatever_their_value() -> None:
    headers = {"n": 5, "f": 1.5, "b": True, "o": {"a": [1]}, "s": "text", "gone": None, "Case": "kept"}
    expected = {"n": "5", "f": "1.5", "b": "true", "o": '{"a":[1]}', "s": "text", "Case": "kept"}
    assert read_headers(headers) == expected


def test_known_headers_have_their_type_and_lower_case_names() -> None:
    headers = {
        "Response-Required": "false", "TIMEOUT": 5, "Requested-Acks": '["foo"]', "entity-revision": "7",
        "Ditto-Weak-Ack": True, "declared-acks": ["x"], "Content-Type": "text/plain",
    }  # fmt: skip
    assert read_headers(headers) == {
        "response-required": False, "timeout": "5", "requested-acks": ["foo"], "entity-revision": 7,
        "ditto-weak-ack": True, "declared-acks": ["x"], "content-type": "text/plain",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("header", "value", "key"),
    [
        ("response-required", 1, "response-required"),
        ("response-required", "TRUE", "response-required"),
        ("response-required", [], "response-required"),
        ("Response-Required", "", "response-required"),
        ("ditto-weak-ack", "x", "ditto-weak-ack"),
        ("entity-revision", "1.5", "entity-revision"),
        ("entity-revision", "1_000", "entity-revision"),
        ("entity-revision", 10**18, "entity-revision"),
        ("version", "9" * 5_000, "version"),
        ("declared-acks", "x", "declared-acks"),
        ("declared-acks", "[" * 100_000, "declared-acks"),
        ("ditto-metadata", '{"a":' * 300 + "1" + "}" * 300, "ditto-metadata"),
        ("ditto-metadata", '{"a":100000000000000000000000}', "ditto-metadata"),
        ("channel", "TWINS", "channel"),
        ("channel", "\u00a0twin", "channel"),
        ("requested-acks", True, "requested-acks"),
        ("requested-acks", ["ok-ack", "no"], "requested-acks"),
        ("requested-acks", ["ok-ack", {}], "requested-acks"),
        ("requested-acks", ["x"] * 10_000, "requested-acks"),
    ],
)
def test_a_value_that_is_not_of_its_headers_type_is_refused(header: str, value: Any, key: str) -> None:
    error = refused({"correlation-id": "c", header: value})
    assert (error.error, error.extra) == ("header.invalid", {"invalidHeaderKey": key})
    assert len(error.message) < 2_000


def test_the_first_bad_label_decides_about_the_message() -> None:
    assert "JSON array of acknowledgement labels" in refused({"requested-acks": ["no", 5]}).message
    assert refused({"requested-acks": [5, "no"]}).message.startswith("JSON array for <requested-acks> contained")


def test_ten_thousand_labels_are_read() -> None:
    labels = [f"label-{number}" for number in range(10_000)]
    assert read_headers({"requested-acks": labels})["requested-acks"] == labels


def test_an_empty_correlation_id_has_no_invalid_header_key() -> None:
    assert refused({"correlation-id": ""}).extra == {}


def test_answers_have_no_internal_headers_and_require_no_response() -> None:
    headers = {
        "correlation-id": "c", "requested-acks": ["foo"], "response-required": True, "ditto-entity-id": "x",
        "ditto-weak-ack": True, "etag": '"rev:1"', "declared-acks": [], "timeout": "5", "foo": "bar",
    }  # fmt: skip
    kept = {"correlation-id": "c", "response-required": False, "timeout": "5", "foo": "bar"}
    assert reply_headers(headers) == kept | {"ditto-weak-ack": True, "etag": '"rev:1"'}
    assert request_reply_headers(headers) == kept


@given(st.dictionaries(st.sampled_from(sorted(DEFINITIONS)) | st.text(max_size=5), JSON, max_size=4))
def test_any_headers_are_read_or_refused_and_read_again_alike(headers: dict[str, Any]) -> None:
    read = outcome(read_headers, headers)
    assert read.status == 400 if isinstance(read, DittoError) else read_headers(read) == read


# requested-acks as text


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", []),
        ("null", []),
        ("foo,,bar", ["foo", "bar"]),
        ("foo, ,bar", ["foo", "", "bar"]),
        (",", []),
        (" ", [""]),
        ('["foo", "bar"]', ["foo", "bar"]),
        ("[" * 100_000, ["[" * 100_000]),
    ],
)
def test_requested_acks_of_external_headers_are_an_array_or_split_at_commas(text: str, labels: list[str]) -> None:
    assert requested_acks_in(text) == labels


@each("header_validation", "external-")
def test_prose_external_headers_in(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    ((name, value),) = given_["headers"].items()
    read = external_in(given_["headers"])
    if "unchanged" in expect:
        assert read == {name: value}
    else:
        assert json.loads(read[name.lower()]) == expect["asJsonArray"]


@each("header_validation", "from-external-")
def test_prose_clients_may_not_set_internal_headers(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert external_in(given_["headers"]) == expect["kept"]


@each("header_validation", "protocol-acks-comma-string")
def test_prose_the_comma_form_is_refused_inside_the_protocol(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert refused(given_["headersJson"]).to_dict().items() >= expect["error"].items()


@each("header_validation", "protocol-acks-json-null")
def test_prose_null_counts_as_absent(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert expect == {"treatedAs": "absent"}
    assert read_headers(given_["headersJson"]) == {}


@each("header_validation", "header-name-case-")
def test_prose_names_are_looked_up_without_regard_to_case(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert default_headers(given_["signal"], read_headers(given_["headers"])).items() >= expect.items()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("response-required", "not a valid boolean"),
        ("version", "not a valid int"),
        ("declared-acks", "not a valid JSON array"),
        ("channel", "not a valid channel"),
        ("timeout", '"null"'),
        ("Timeout", '"null"'),
    ],
)
def test_a_typed_header_with_null_is_an_error(name: str, expected: str) -> None:
    assert expected in refused({"correlation-id": "c", name: None}).message


@pytest.mark.parametrize("value", [1767225600.123, 1e7, -0.0, [1.5], {"a": 1}, True], ids=str)
def test_a_correlation_id_that_each_language_writes_in_its_own_way_is_refused(value: Any) -> None:
    error = refused({"correlation-id": value})
    assert (error.status, error.error, error.extra) == (400, "header.invalid", {"invalidHeaderKey": "correlation-id"})
    assert "neither text nor a whole number" in error.message


@pytest.mark.parametrize(("value", "text"), [(17, "17"), (-(2**63), str(-(2**63))), ("1.5", "1.5")], ids=str)
def test_a_whole_number_is_a_correlation_id(value: Any, text: str) -> None:
    assert read_headers({"correlation-id": value}) == {"correlation-id": text}


@pytest.mark.parametrize("name", ["requested-acks", "correlation-id", "if-match", "tag"])
def test_a_header_without_a_type_that_is_null_is_absent(name: str) -> None:
    assert read_headers({name: None}) == {}
