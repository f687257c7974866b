from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ackstream.protocol import errors
from ackstream.protocol.ditto.envelopes import MAX_PARTS, Envelope, decode, encode, error_envelope, json_or_text, raw
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError, zero_timeout
from ackstream.protocol.json import BYTE_ORDER_MARK, MAX_DEPTH
from tests.harness.effort import soon
from tests.outcomes import outcome, refusal
from tests.prose import each

ACK = {"topic": "ns/name/things/twin/acks/my-ack", "headers": {"correlation-id": "c"}, "path": "/", "status": 200}


def wire(**fields: Any) -> bytes:
    return json.dumps(ACK | fields).encode()


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in ACK.items() if key != name}).encode()


def refused(data: bytes) -> DittoError:
    error = refusal(decode, data)
    assert error.status == 400
    return error


def test_keys_are_written_in_order_of_ditto_and_absent_ones_are_left_out() -> None:
    full = {
        "topic": "ns/name/things/twin/events/modified", "headers": {"correlation-id": "c"}, "path": "/attributes",
        "value": {"a": 1}, "extra": {"b": [1.50]}, "status": 200, "revision": 3, "timestamp": "2026-01-01T00:00:00Z",
        "metadata": {}, "fields": "attributes",
    }  # fmt: skip
    shuffled = json.dumps(dict(reversed(full.items()))).encode()
    assert list(json.loads(encode(decode(shuffled)))) == list(full)
    assert json.loads(encode(decode(shuffled))) == full
    assert list(json.loads(encode(decode(without("headers"))))) == ["topic", "headers", "path", "status"]


def test_a_value_keeps_its_text() -> None:
    value = b'{"n": 1.500e0, "big":123456789012345678901234567890}'
    data = b'{"topic":"ns/name/things/twin/acks/my-ack","path":"/","value":' + value + b"}"
    assert b'"value":' + value in encode(decode(data))


def test_null_counts_as_absent_but_not_as_value() -> None:
    envelope = decode(wire(headers=None, value=None, status=None, revision=None, timestamp=None, fields=None))
    assert bytes(envelope.value) == b"null"
    assert (envelope.headers, envelope.status, envelope.revision) == ({}, None, None)
    assert json.loads(encode(envelope)) == {"topic": ACK["topic"], "headers": {}, "path": "/", "value": None}


@pytest.mark.parametrize("status", [0, 19, 99, 600, 999, -1, 2**31 - 1])
def test_a_status_out_of_range_counts_as_absent(status: int) -> None:
    assert decode(wire(status=status)).status is None


@pytest.mark.parametrize("status", [100, 200, 599])
def test_a_status_in_range_stays(status: int) -> None:
    assert decode(wire(status=status)).status == status


@pytest.mark.parametrize(
    ("status", "shown"),
    [("200", '"200"'), (200.0, "200.0"), (True, "true"), ([], "[]"), (2**31, "2147483648"), (10**30, str(10**30))],
)
def test_a_status_that_is_no_integer_is_refused(status: Any, shown: str) -> None:
    error = refused(wire(status=status))
    assert (error.error, error.message) == (
        "json.invalid",
        f"Value <{shown}> for </status> is not of type <Integer>!",
    )


@pytest.mark.parametrize("field", ["topic", "path"])
def test_topic_and_path_are_required(field: str) -> None:
    for data in (without(field), wire(**{field: None})):
        error = refused(data)
        assert (error.error, error.message) == (
            "json.field.missing",
            f"JSON did not include required </{field}> field!",
        )


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("topic", 5, "String"),
        ("topic", ["a"], "String"),
        ("path", {}, "String"),
        ("headers", [], "JsonObject"),
        ("headers", "x", "JsonObject"),
        ("revision", "1", "Long"),
        ("revision", True, "Long"),
        ("timestamp", 5, "String"),
        ("fields", 5, "String"),
    ],
)
def test_a_field_of_a_wrong_type_is_refused(field: str, value: Any, kind: str) -> None:
    error = refused(wire(**{field: value}))
    assert error.error == "json.invalid"
    assert error.message == f"Value <{json.dumps(value)}> for </{field}> is not of type <{kind}>!"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"not JSON",
        b'{"topic":"ns/name/things/twin/acks/my-ack","path":"/"',
        b'{"topic":"ns/name/things/twin/acks/my-ack","path":"/"} x',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"text"',
        b"5",
        wire().replace(b'"c"', b'"\xff"'),
        wire(value="v").replace(b'"v"', b'"\xff"'),
        wire(value="v").replace(b'"v"', b'"\\ud800x"'),
        wire(value="v").replace(b'"v"', b"1e999"),
        wire(value="v").replace(b'"v"', b"NaN"),
        wire(value="v").replace(b'"v"', b"1" * 5_000),
        wire(headers={"n": 10**30}),
        wire(headers={"n": {"deep": [10**30]}}),
        wire(revision=2**63),
        wire(topic="ns/name/things/twin/invalid"),
        wire(topic=""),
    ],
)
def test_what_is_no_envelope_is_refused(data: bytes) -> None:
    assert refused(data).message


def test_a_byte_order_mark_before_json_is_ignored() -> None:
    assert decode(BYTE_ORDER_MARK + wire(value="v")) == decode(wire(value="v"))
    assert json_or_text(BYTE_ORDER_MARK + b"[1]") == json_or_text(b"[1]")
    assert json_or_text(BYTE_ORDER_MARK + b"no JSON") == raw("\ufeffno JSON")


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000, 1_000_000])
def test_a_nesting_bomb_is_refused(opening: bytes, depth: int) -> None:
    closing = b"]" if opening == b"[" else b"}"
    bomb = opening * depth + b"1" + closing * depth
    for field in (b'"value":', b'"unknown":'):
        error = refused(b'{"topic":"ns/name/things/twin/acks/my-ack","path":"/",' + field + bomb + b"}")
        assert error.error == "json.invalid"
    assert refused(opening * depth).error == "json.invalid"


def test_brackets_within_texts_and_side_by_side_are_no_nesting() -> None:
    value = {"text": '[{"\\' * 1_000, "list": [{"a": []}] * 1_000}
    assert msgspec.json.decode(decode(wire(value=value)).value) == value
    deep: Any = 1
    for _ in range(MAX_DEPTH - 2):
        deep = [deep, {}]
    assert msgspec.json.decode(decode(wire(value=deep)).value) == deep
    assert "nested more than" in refused(wire(value=[deep])).message


def test_a_message_of_too_many_parts_is_refused_before_it_is_read() -> None:
    accepted = wire(value=[{}] * (MAX_PARTS - 3))
    assert decode(accepted).path == "/"
    deep = b"[" + b",".join([b"[" * 190 + b"]" * 190] * 2_500) + b"]"
    for value in (b"[" + b",".join([b"{}"] * MAX_PARTS) + b"]", deep):
        data = wire(value="v").replace(b'"v"', value)
        with soon(0.1):
            assert "more than 100000 arrays and objects" in refused(data).message
    # those in texts are none
    assert decode(wire(value=['"[{' * 2] * 60_000)).path == "/"


def test_ten_thousand_headers_and_a_huge_one_are_read() -> None:
    headers = {f"header-{number}": "x" for number in range(10_000)} | {"huge": "y" * 1_000_000}
    assert decode(wire(headers=headers)).headers == headers


# errors


@each("protocol_acks", "error-")
def test_prose_error_envelope(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    thing_id = given_["thingId"]
    known = {
        "notfound": errors.thing_not_found(str(thing_id)),
        "precondition": errors.thing_precondition_failed("if-match", '"rev:1"', '"rev:2"'),
        "headerinvalid": zero_timeout(),
        "acktimeout": errors.ack_request_timeout(1337),
    }
    headers = given_.get("headers", {"correlation-id": "c"})
    envelope = error_envelope(
        known[given_["exception"]], thing_id=thing_id, channel=headers.get("channel"), headers=headers
    )
    assert json.loads(encode(envelope)) == expect["protocol"]


def test_an_error_does_not_repeat_what_only_concerns_the_request() -> None:
    headers = {"requested-acks": ["my-ack"], "response-required": True, "content-type": "text/plain", "foo": "bar"}
    envelope = error_envelope(zero_timeout(), thing_id="a:b", channel="twin", headers=headers)
    assert envelope.headers == {"foo": "bar", "response-required": False, "content-type": "application/json"}


# laws


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
TOPICS = st.sampled_from(
    [
        "ns/name/things/twin/acks/my-ack",
        "ns/name/things/live/acks",
        "ns/name/things/twin/commands/modify",
        "ns/name/things/live/messages/ask",
        "ns/name/policies/commands/retrieve",
    ]
)
ENVELOPES = st.fixed_dictionaries(
    {"topic": TOPICS | JSON, "path": st.sampled_from(["/", "/attributes/x"]) | JSON},
    optional={
        "headers": st.dictionaries(st.sampled_from(["correlation-id", "timeout", "requested-acks", "x"]), JSON) | JSON,
        "value": JSON,
        "extra": JSON,
        "status": st.integers(90, 610) | JSON,
        "revision": st.integers() | JSON,
        "timestamp": JSON,
        "metadata": JSON,
        "fields": JSON,
    },
)


@given(st.binary())
@example(b"{")
def test_any_bytes_are_an_envelope_or_refused(data: bytes) -> None:
    assert refused(data).to_dict()


@given(JSON | ENVELOPES)
def test_any_json_is_an_envelope_or_refused_and_writing_is_stable(message: Any) -> None:
    envelope = outcome(decode, json.dumps(message).encode())
    if isinstance(envelope, DittoError):
        assert msgspec.json.decode(msgspec.json.encode(envelope.to_dict())) == envelope.to_dict()
    else:
        written = encode(envelope)
        assert encode(decode(written)) == written


@given(st.binary(max_size=4), st.integers(0, 120))
def test_a_corrupted_envelope_is_an_envelope_or_refused(noise: bytes, at: int) -> None:
    data = wire(value={"a": [1, 2.5, None]})
    assert isinstance(outcome(decode, data[:at] + noise + data[at + len(noise) :]), Envelope | DittoError)


def test_raw_is_compact_json() -> None:
    assert bytes(raw({"a": [1, None]})) == b'{"a":[1,null]}'
    assert TopicPath.parse(str(decode(wire()).topic)) == decode(wire()).topic
