"""Requests and acknowledgements in record headers: what is read, what is refused, how values are written."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.correlation_ids import MAX_BYTES
from ackstream.protocol.ditto.record_requests import read_record, read_record_ack, write_value
from ackstream.protocol.errors import DittoError

LIMITS = {"default_timeout_ms": 60_000, "max_timeout_ms": 3_600_000}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def given_headers(**headers: str) -> dict[str, bytes]:
    return {name.replace("_", "-"): text.encode() for name, text in headers.items()}


@pytest.mark.parametrize(
    ("headers", "labels", "timeout", "required"),
    [
        ({"requested-acks": '["bank:booked", "stock:packed"]'}, ("bank:booked", "stock:packed"), 60_000, True),
        ({"requested-acks": "bank:booked, stock:packed"}, ("bank:booked", "stock:packed"), 60_000, True),
        ({"requested-acks": "bank:booked,bank:booked", "timeout": "500ms"}, ("bank:booked",), 500, True),
        ({"ce_requestedacks": "bank:booked", "ce_timeout": "2m"}, ("bank:booked",), 120_000, True),
        ({"requested-acks": "bank:booked", "ce_requestedacks": "other:label"}, ("bank:booked",), 60_000, True),
        ({"requested-acks": "bank:booked", "timeout": "2h"}, ("bank:booked",), 3_600_000, True),
        ({"requested-acks": "bank:booked", "response-required": "false"}, ("bank:booked",), 60_000, False),
    ],
)
def test_a_record_asks_for_labels(
    headers: dict[str, str],
    labels: tuple[str, ...],
    timeout: int,
    required: bool,  # noqa: FBT001
) -> None:
    request, stored = read_record({name: text.encode() for name, text in headers.items()}, **LIMITS)
    assert (request.awaited, request.timeout_ms, request.response_required) == (labels, timeout, required)
    assert request.waits_for_acks
    assert (request.thing_id, request.criterion) == (None, "records")
    assert tuple(dict.fromkeys(stored["requested-acks"])) == labels


def test_an_answer_repeats_the_trace_of_the_record_and_no_other_header_of_the_application() -> None:
    request, stored = read_record(given_headers(requested_acks="bank:booked", traceparent=TRACE, tag="x"), **LIMITS)
    assert request.headers == {"traceparent": TRACE, "response-required": False}
    assert stored == {"requested-acks": ["bank:booked"], "traceparent": TRACE}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"requested-acks": "[]"}, "header.invalid"),
        ({"requested-acks": ","}, "header.invalid"),
        ({"requested-acks": "no label"}, "header.invalid"),
        ({"requested-acks": "bank:booked,"}, None),
        ({"requested-acks": '["bank:booked", 5]'}, "header.invalid"),
        ({"requested-acks": ",".join(["bank:booked"] * 10_001)}, "header.invalid"),
        ({"requested-acks": "twin-persisted"}, "ditto.acklabel.forbidden"),
        ({"requested-acks": "live-response"}, "ditto.acklabel.forbidden"),
        ({"requested-acks": "bank:booked", "timeout": "soon"}, "timeout.invalid"),
        ({"requested-acks": "bank:booked", "timeout": "0s"}, "header.invalid"),
        ({"requested-acks": "bank:booked", "response-required": "perhaps"}, "header.invalid"),
        ({"requested-acks": "bank:booked", "content-type": "x" * (MAX_BYTES + 1)}, "header.invalid"),
    ],
)
def test_an_invalid_header_is_refused_with_its_name(headers: dict[str, str], code: str | None) -> None:
    given = {name: text.encode() for name, text in headers.items()}
    if code is None:
        assert read_record(given, **LIMITS)[0].awaited == ("bank:booked",)
        return
    with pytest.raises(DittoError) as caught:
        read_record(given, **LIMITS)
    assert caught.value.status == 400
    assert code in caught.value.error


@pytest.mark.parametrize(
    "sent", ["x", "bank:booked,x", '["x"]', "[]", '["bank:booked", 5]', "a b c", "ä:bank", "x" * 166]
)
def test_a_refused_label_is_quoted_as_sent_with_the_rule_of_labels(sent: str) -> None:
    with pytest.raises(DittoError) as caught:
        read_record({"requested-acks": sent.encode()}, **LIMITS)
    assert f"The value '{sent}' of the header 'requested-acks'" in caught.value.message
    assert "3 to 165 characters" in (caught.value.description or "")
    assert caught.value.error == "header.invalid"


@given(st.dictionaries(st.sampled_from(["requested-acks", "timeout", "ce_timeout", "content-type"]), st.binary()))
def test_no_header_breaks_the_reading_of_a_request(headers: dict[str, bytes]) -> None:
    try:
        request, stored = read_record(headers, **LIMITS)
    except DittoError as error:
        assert error.status == 400  # noqa: PT017
    else:
        assert len(request.awaited) > 0
        json.dumps(stored)


@pytest.mark.parametrize(
    ("headers", "status", "weak"),
    [
        ({"label": "bank:booked"}, 200, False),
        ({"label": "bank:booked", "status": "409"}, 409, False),
        ({"label": "bank:booked", "status": "599", "ditto-weak-ack": "true"}, 599, True),
    ],
)
def test_a_record_acknowledges_under_a_label(headers: dict[str, str], status: int, weak: bool) -> None:  # noqa: FBT001
    ack, codec = read_record_ack({name: text.encode() for name, text in headers.items()}, "id", b"")
    assert (ack.label, ack.status, ack.weak, codec) == ("bank:booked", status, weak, "none")
    assert ack.payload is msgspec.UNSET
    assert ack.headers["correlation-id"] == "id"


@pytest.mark.parametrize(
    "headers",
    [
        {"label": "no label"},
        {"label": "twin-persisted"},
        {"label": "bank:booked", "status": "99"},
        {"label": "bank:booked", "status": "600"},
        {"label": "bank:booked", "status": "0200"},
        {"label": "bank:booked", "status": "٢٠٠"},
        {"label": "bank:booked", "status": "ok"},
        {"label": "bank:booked", "content-type": "x" * (MAX_BYTES + 1)},
        {"label": "bank:booked", "ditto-weak-ack": "maybe"},
    ],
)
def test_an_invalid_acknowledgement_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(DittoError) as caught:
        read_record_ack({name: text.encode() for name, text in headers.items()}, "id", None)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("value", "content_type", "written", "codec"),
    [
        (None, "application/json", None, "none"),
        (b"", "", None, "none"),
        (b'{"a": [1]}', "application/json", {"a": [1]}, "json"),
        (b'{"a": 1}', "application/vnd.acme+json; charset=utf-8", {"a": 1}, "json"),
        (b"{broken", "application/json", "{broken", "text"),
        (b"\xff", "application/json", base64.b64encode(b"\xff").decode(), "base64"),
        (b"[" * 1000 + b"]" * 1000, "application/json", "[" * 1000 + "]" * 1000, "text"),
        (b'{"a": 1}', "", '{"a": 1}', "text"),
        ("grün".encode(), "text/plain", "grün", "text"),
        (b"\x00\xff", "", base64.b64encode(b"\x00\xff").decode(), "base64"),
        (b"abc", "application/avro", base64.b64encode(b"abc").decode(), "base64"),
    ],
)
def test_a_value_is_written_by_its_content_type(
    value: bytes | None, content_type: str, written: Any, codec: str
) -> None:
    found, named = write_value(value, content_type)
    assert named == codec
    assert (None if found is msgspec.UNSET else json.loads(bytes(found))) == written


@given(st.binary(), st.sampled_from(["", "application/json", "text/plain", "application/x-protobuf"]))
def test_any_value_becomes_json(value: bytes, content_type: str) -> None:
    found, codec = write_value(value, content_type)
    assert (codec == "none") == (not value)
    if value:
        json.loads(bytes(found))


def test_the_entry_of_a_payload_in_base64_names_its_encoding() -> None:
    ack, codec = read_record_ack(given_headers(label="bank:booked", content_type="application/avro"), "id", b"\x01")
    assert codec == "base64"
    assert ack.headers["content-transfer-encoding"] == "base64"
    assert ack.headers["content-type"] == "application/avro"
