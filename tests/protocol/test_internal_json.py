from __future__ import annotations

from typing import Any

import msgspec

from ackstream.protocol.acknowledgements import Acknowledgement, acknowledgement, http_body
from ackstream.protocol.envelopes import raw
from ackstream.protocol.internal_json import ack_from_json, ack_to_json, acks_from_json, acks_to_json
from tests.outcomes import refusal
from tests.prose import each


@each("aggregation", "parse-ack-")
def test_prose_an_acknowledgement(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    body = given_["json"]
    if "error" in expect:
        assert refusal(ack_from_json, body).to_dict().items() >= expect.items()
    else:
        assert ack_to_json(ack_from_json(body), body["entityId"]) == expect["json"]


@each("aggregation", "parse-acks-")
def test_prose_an_aggregate(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    body = given_["json"]
    if "error" in expect:
        error = refusal(acks_from_json, body)
        assert error.error == expect["error"]
        # Ditto prints a whole Java object in the middle of one message
        beginning, _, rest = expect["message"].partition("<Acknowledgement [")
        assert error.message.startswith(beginning)
        assert error.message.endswith(rest.rpartition("> differs")[2])
    else:
        entries = acks_from_json(body)
        assert [ack.label for ack in entries] == expect["labels"]
        assert acks_to_json(entries, body["entityId"]) == body | {"statusCode": expect["status"]}


@each("aggregation", "json-acknowledgements")
def test_prose_internal_json_and_http_body(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert given_["acks"] == ["welcome-ack 200", "twin-persisted 200"]
    headers = {"correlation-id": "c"}
    entries = [
        acknowledgement(label, 200, raw({"known": "payload"}), headers) for label in ("welcome-ack", "twin-persisted")
    ]
    assert acks_to_json(entries, "thing:id") == expect["internalJson"]
    assert msgspec.json.decode(http_body(entries)[1]) == expect["entity"]


def test_a_payload_of_null_stays() -> None:
    body = ack_to_json(Acknowledgement("abc", 200, raw(None), {"response-required": False}), "a:b")
    assert body["payload"] is None
    assert ack_to_json(ack_from_json(body), "a:b") == body
