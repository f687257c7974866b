""""""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from ackstream.client import Command
from ackstream.client.requests.commands import address, address_record, fields_in, retrieval
from ackstream.client.requests.replies import Reply
from ackstream.client.requests.requester import fields_of
from ackstream.errors import BadParameterError
from ackstream.protocol.ditto.correlation_ids import MAX_BYTES
from ackstream.protocol.ditto.envelopes import Envelope, decode, encode
from ackstream.protocol.ditto.requests import read_request
from ackstream.protocol.errors import DittoError

THING = "org.acme:lamp"
TWIN = "org.acme/lamp/things/twin/commands"

COMMANDS = [
    (
        Command.create_thing(THING, {"attributes": {"x": 1}}),
        f"{TWIN}/create",
        "/",
        {"attributes": {"x": 1}, "thingId": THING},
    ),
    (Command.retrieve(THING), f"{TWIN}/retrieve", "/", None),
    (Command.modify_attribute(THING, "location/floor", 3), f"{TWIN}/modify", "/attributes/location/floor", 3),
    (Command.modify_attribute(THING, "/x", None), f"{TWIN}/modify", "/attributes/x", None),
    (Command.modify_property(THING, "lamp", "on", value=True), f"{TWIN}/modify", "/features/lamp/properties/on", True),
    (Command.merge(THING, "/attributes", {"x": None}), f"{TWIN}/merge", "/attributes", {"x": None}),
    (Command.delete(THING, "/features/lamp"), f"{TWIN}/delete", "/features/lamp", None),
    (
        Command.retrieve(THING, "/attributes/x", channel="live"),
        "org.acme/lamp/things/live/commands/retrieve",
        "/attributes/x",
        None,
    ),
    (
        Command.message(THING, "dim", {"to": 5}),
        "org.acme/lamp/things/live/messages/dim",
        "/inbox/messages/dim",
        {"to": 5},
    ),
    (
        Command.message(THING, "hot", feature_id="bulb", box="outbox"),
        "org.acme/lamp/things/live/messages/hot",
        "/features/bulb/outbox/messages/hot",
        None,
    ),
    (Command.of(f"{TWIN}/modify", "/definition", msgspec.Raw(b'"a:b:1"')), f"{TWIN}/modify", "/definition", "a:b:1"),
]


@pytest.mark.parametrize(("command", "topic", "path", "value"), COMMANDS)
def test_a_command_is_what_the_protocol_calls_so(command, topic, path, value):
    wire = msgspec.json.decode(encode(command))
    assert (wire["topic"], wire["path"], wire.get("value")) == (topic, path, value)
    # and the service takes it
    assert read_request(decode(encode(command))).thing_id == THING


def test_no_value_is_something_else_than_null():
    assert "value" not in msgspec.json.decode(encode(Command.delete(THING)))
    assert "value" in msgspec.json.decode(encode(Command.modify_attribute(THING, "x", None)))


@pytest.mark.parametrize("thing_id", ["lamp", ":lamp", "org.acme:", ""])
def test_a_thing_id_without_namespace_or_name_is_refused(thing_id):
    with pytest.raises(ValueError, match=r"namespace:name, such as org\.acme:lamp"):
        Command.delete(thing_id)


def test_an_unknown_topic_path_is_refused():
    with pytest.raises(DittoError, match="is not supported"):
        Command.of("org.acme/lamp/things/twin/commands/explode")


def test_a_sender_adds_deadline_labels_and_correlation_id_to_a_copy():
    command = Command.modify_attribute(THING, "x", 1)
    addressed, identity = address(
        command, timeout=1.5, acks=("a-a", "b-b"), response_required=True, correlation_id="c-1"
    )
    assert identity == "c-1"
    assert addressed.headers == {
        "correlation-id": "c-1",
        "timeout": "1500ms",
        "requested-acks": ["a-a", "b-b"],
        "response-required": True,
    }
    assert command.headers == {}


def test_what_is_not_given_stays_as_the_command_has_it():
    command = Command.of(
        f"{TWIN}/modify", "/", {}, {"Correlation-ID": "c-2", "timeout": "3s", "requested-acks": ["a-a"]}
    )
    addressed, identity = address(command)
    assert identity == "c-2"
    assert addressed.headers == {"correlation-id": "c-2", "timeout": "3s", "requested-acks": ["a-a"]}


def test_a_timeout_may_be_written_as_in_the_protocol():
    assert address(Command.delete(THING), timeout="2m")[0].headers["timeout"] == "2m"


def test_correlation_ids_are_made_up_where_none_is_given():
    command = Command.delete(THING)
    assert address(command)[1] != address(command)[1]


def test_one_text_is_no_list_of_labels() -> None:
    with pytest.raises(BadParameterError, match="acks is 'fleet:done', which is one text"):
        address(Command.retrieve("org.acme:lamp"), acks="fleet:done")


@pytest.mark.parametrize("identity", ["x" * (MAX_BYTES + 1), "\x01" * 171])
def test_a_correlation_id_that_the_service_would_refuse_is_refused(identity: str):
    with pytest.raises(ValueError, match="1,024 bytes"):
        address(Command.delete(THING), correlation_id=identity)
    with pytest.raises(ValueError, match="1,024 bytes"):
        address(Command.of(f"{TWIN}/delete", headers={"Correlation-Id": identity}))
    assert address(Command.delete(THING), correlation_id="x" * MAX_BYTES)[1] == "x" * MAX_BYTES


TOPIC = "org.acme/lamp/things/twin/commands/retrieve"


def reply(status: int, value: Any = None) -> Reply:
    data = msgspec.json.encode({"topic": TOPIC, "headers": {}, "path": "/", "value": value, "status": status})
    return Reply("c", "r", status, "response", data)


class Requester:
    def __init__(self) -> None:
        self.asked: list[tuple[Envelope, Any]] = []

    def request(self, command: Envelope, *, timeout: Any) -> Reply:
        self.asked.append((command, timeout))
        return reply(200, {"attributes": {"x": 1}})


def test_the_twin_is_asked_for_the_fields():
    requester = Requester()
    assert fields_of(requester, 5)(THING, "attributes/x") == {"attributes": {"x": 1}}  # type: ignore[arg-type]
    assert requester.asked == [(retrieval(THING, "attributes/x"), 5)]
    assert (str(retrieval(THING, "attributes/x").topic), retrieval(THING, "attributes/x").fields) == (
        TOPIC, "attributes/x",
    )  # fmt: skip


def test_a_thing_that_is_not_there_has_no_fields():
    assert fields_in(reply(404), THING) == {}


@pytest.mark.parametrize("failed", [reply(503), reply(408), reply(200, 5)])
def test_a_twin_that_cannot_be_asked_is_an_error(failed: Reply):
    with pytest.raises(DittoError, match="enrichment failed") as caught:
        fields_in(failed, THING)
    assert caught.value.status == failed.status


def test_an_id_that_the_program_does_not_choose_is_one_that_nobody_guesses():
    found = {address(Command.retrieve("org.acme:lamp"))[1] for _ in range(100)}
    assert len(found) == 100
    assert {uuid.UUID(identity).version for identity in found} == {4}


def test_an_application_has_headers_of_its_own_but_none_that_decide_how_it_is_answered():
    own = {"tenant": "Zürich", "raw": b"\xff", "ce_id": "7", "content-type": "application/avro", "traceparent": "00-1"}
    _, found = address_record(own, timeout=None, acks=["twin"], correlation_id="c")
    assert found[:2] == [("tenant", "Zürich".encode()), ("raw", b"\xff")]
    assert [name for name, _ in found] == [*own, "correlation-id", "requested-acks"]
    for name in ("correlation-id", "requested-acks", "ce_requestedacks", "response-required", "kafka_replyTopic"):
        with pytest.raises(BadParameterError, match=f"headers has {name}, which is the service's own"):
            address_record({name: "x"}, timeout=None, acks=["twin"], correlation_id="c")
    with pytest.raises(BadParameterError, match="a surrogate alone is not a character"):
        address_record({"tenant": "\ud800"}, timeout=None, acks=["twin"], correlation_id="c")
