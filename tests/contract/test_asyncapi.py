"""The document itself: it is valid AsyncAPI, complete, up to date, and its examples are what it describes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft7Validator

from ackstream.cli.monitoring import of_settings
from ackstream.kafka.topics import TOPICS
from ackstream.protocol import record_headers
from ackstream.protocol.ditto.envelopes import STATUS_MAX, STATUS_MIN
from ackstream.protocol.ditto.record_requests import ACK_HEADERS, REQUEST_HEADERS, cancels, read_record, read_record_ack
from ackstream.protocol.ledger import reply_id
from ackstream.protocol.messages import CommandAck
from ackstream.settings import Kafka
from tests.contract.asyncapi import APPLICATIONS, FORMATS, HEADERS, TYPES, RecordFormat
from tests.contract.checking import Contract

VECTORS = Path(__file__).parent.parent / "vectors"
CONTRACT = Contract()


def test_it_is_valid_asyncapi() -> None:
    # https://github.com/asyncapi/spec-json-schemas, Apache-2.0
    schema = json.loads(gzip.decompress((VECTORS / "asyncapi-3.0.0.json.gz").read_bytes()))
    assert [error.message for error in Draft7Validator(schema).iter_errors(CONTRACT.document)] == []


def test_it_has_every_topic_and_no_other() -> None:
    assert CONTRACT.document["channels"].keys() == TOPICS.keys()


def test_its_schemas_are_json_schemas_and_all_are_used() -> None:
    schemas = CONTRACT.document["components"]["schemas"]
    for schema in schemas.values():
        Draft7Validator.check_schema(schema)
    text = json.dumps(CONTRACT.document)
    assert not {name for name in schemas if f'"#/components/schemas/{name}"' not in text}


def test_the_statuses_of_messages_are_those_of_the_protocol() -> None:
    schemas = CONTRACT.document["components"]["schemas"]
    for name in ("CommandResponse", "AckEntry"):
        status = schemas[name]["properties"]["status"]
        assert (status["minimum"], status["maximum"]) == (STATUS_MIN, STATUS_MAX)


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for one in part.values():
            yield from _references(one)
    elif isinstance(part, list):
        for one in part:
            yield from _references(one)


def test_its_references_lead_somewhere() -> None:
    for reference in set(_references(CONTRACT.document)):
        part = CONTRACT.document
        for key in reference.removeprefix("#/").split("/"):
            assert key in part, reference
            part = part[key]


@pytest.mark.parametrize(
    ("topic", "name", "number"),
    [(topic, one.name, number) for topic, about in FORMATS.items() for one in about.formats
     for number in range(len(one.examples))],
)  # fmt: skip
def test_an_example_is_a_record_of_its_kind(topic: str, name: str, number: int) -> None:
    message = CONTRACT.document["channels"][topic]["messages"][name]
    example = message["examples"][number]
    assert CONTRACT.errors(message["payload"], example["payload"]) == []
    assert CONTRACT.errors(message["headers"], example.get("headers", {})) == []


@pytest.mark.parametrize(
    ("name", "number"), [(one.name, number) for one in APPLICATIONS.formats for number in range(len(one.examples))]
)
def test_an_example_of_an_applications_record_is_read_as_such(name: str, number: int) -> None:
    message = CONTRACT.document["components"]["messages"][name]
    example = message["examples"][number]
    assert CONTRACT.errors(message["headers"], example["headers"]) == []
    assert CONTRACT.errors(message["payload"], example["payload"]) == []
    headers = {header: text.encode() for header, text in example["headers"].items()}
    if "request" in name:
        request, _ = read_record(headers, default_timeout_ms=60_000, max_timeout_ms=60_000)
        assert "warehouse:packed" in request.awaited or "bank:paid" in request.awaited
    elif name == "cancellation":
        assert cancels(headers, None)
    else:
        assert read_record_ack(headers, "order-17", None)[0].label == example["headers"]["label"]


def test_applications_records_have_the_headers_that_are_read() -> None:
    named = {one.name: {*one.headers["properties"]} for one in APPLICATIONS.formats}
    asked, answered = named["request-by-headers"] | named["event-request-by-headers"], "acknowledgement-by-headers"
    assert asked >= REQUEST_HEADERS
    # a weak acknowledgement is issued by the service
    assert named[answered] >= ACK_HEADERS - {"ditto-weak-ack"}


def test_the_headers_of_a_message_have_the_course_of_a_request() -> None:
    properties = CONTRACT.document["components"]["schemas"]["Headers"]["properties"]
    assert {"ack-quorum", "progress", "amend", "extend"} <= properties.keys()


@pytest.mark.parametrize("one", [one for about in FORMATS.values() for one in about.formats if one.value in TYPES],
                         ids=lambda one: one.name)  # fmt: skip
def test_an_example_of_a_type_is_as_the_product_writes_it(one: RecordFormat) -> None:
    for example in one.examples:
        record = msgspec.json.decode(example.value, type=TYPES[one.value])
        assert msgspec.json.decode(msgspec.json.encode(record)) == example.payload


def test_the_identities_of_the_examples_are_those_that_the_product_gives() -> None:
    acks = [example.value for one in FORMATS["publisher-acks"].formats if one.value == "CommandAck"
            for example in one.examples]  # fmt: skip
    for text in acks:
        ack = msgspec.json.decode(text, type=CommandAck)
        assert msgspec.structs.replace(ack, ack_id=None).identified() == ack
    replies = [example for one in FORMATS["replies"].formats for example in one.examples]
    assert {each.headers["reply-id"] for each in replies} == {reply_id("c-1", "signals", 3, 1042)}


def test_every_kind_of_record_that_a_client_writes_has_an_example() -> None:
    lacking = {
        (topic, one.name) for topic, about in FORMATS.items() for one in about.formats if not one.examples and one.value
    }
    assert lacking == set()


def test_every_record_header_of_the_protocol_is_described() -> None:
    named = {value for name, value in vars(record_headers).items() if name.isupper() and isinstance(value, str)}
    of_applications = {"dmq-eligible", "barrier", "routed-by", "original-writer", "original-seq"}
    assert HEADERS.keys() == named - of_applications - {record_headers.APPLICATION}


def test_the_topics_of_a_system_have_its_prefix_and_the_document_its_brokers() -> None:
    settings = Kafka(bootstrap="kafka.example:9093,other.example:9093", topic_prefix="plant.")
    found = of_settings(Contract().document, settings)
    assert [server["host"] for server in found["servers"].values()] == ["kafka.example:9093", "other.example:9093"]
    assert {channel["address"] for channel in found["channels"].values()} == {f"plant.{name}" for name in TOPICS}
