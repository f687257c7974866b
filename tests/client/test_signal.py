from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ackstream.client.signals import Signal, read_signal
from ackstream.protocol.errors import DittoError

COMMAND = "org.acme/lamp/things/twin/commands/modify"


def record(value: bytes | None, headers: list[tuple[str, bytes | None]] | None = None) -> Any:
    return SimpleNamespace(value=value, headers=headers or [], topic="signals", partition=2, offset=40, timestamp=1_700)


def command(topic: str = COMMAND, **headers: Any) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return msgspec.json.encode({"topic": topic, "headers": named, "path": "/attributes/x", "value": {"on": True}})


def read(topic: str = COMMAND, labels: set[str] | None = None, **headers: Any) -> Signal:
    return read_signal(record(command(topic, correlation_id="c-1", **headers)), labels)


def test_a_signal_has_what_a_handler_needs():
    signal = read(requested_acks=["meter", "twin-persisted"], timeout="3s")
    assert (signal.correlation_id, signal.thing_id, signal.path, signal.value) == (
        "c-1", "org.acme:lamp", "/attributes/x", {"on": True},
    )  # fmt: skip
    assert (signal.timestamp, signal.topic, signal.partition, signal.offset) == (1_700, "signals", 2, 40)
    assert (signal.channel, signal.timeout_ms) == ("twin", 3_000)


def test_only_the_labels_that_the_responder_issues_are_shown_in_order_of_the_request():
    requested = ["b-b", "twin-persisted", "c-c", "a-a", "b-b"]
    assert read(requested_acks=requested).labels == ("b-b", "c-c", "a-a")
    assert read(requested_acks=requested, labels={"a-a", "b-b", "d-d"}).labels == ("b-b", "a-a")
    assert read(labels={"a-a"}).labels == ()


@pytest.mark.parametrize(
    ("topic", "labels", "headers", "wanted"),
    [
        (COMMAND, None, {}, False),
        ("org.acme/lamp/things/live/commands/modify", None, {}, True),
        ("org.acme/lamp/things/live/messages/dim", {"live-response"}, {}, True),
        ("org.acme/lamp/things/live/messages/dim", {"meter"}, {}, False),
        ("org.acme/lamp/things/live/messages/dim", None, {"response_required": False}, False),
    ],
)
def test_who_responds_to_live_commands_declares_live_response(topic, labels, headers, wanted):
    assert read(topic, labels, **headers).response_wanted is wanted


@pytest.mark.parametrize(
    ("record_headers", "json_headers", "identity"),
    [
        ([("correlation-id", b"of-record")], {"correlation_id": "of-json"}, "of-record"),
        ([], {"correlation_id": "of-json"}, "of-json"),
        ([], {}, "signals-2-40"),
    ],
)
def test_the_correlation_id_is_found_where_the_service_finds_it(record_headers, json_headers, identity):
    assert read_signal(record(command(**json_headers), record_headers), None).correlation_id == identity


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff",
        b"[]",
        b"[" * 5_000,
        command("org.acme/lamp/things/twin/events/modified"),
        command(timeout="soon"),
        command(requested_acks=["?"]),
    ],
)
def test_what_is_no_valid_request_is_no_signal(value):
    with pytest.raises(DittoError):
        read_signal(record(value), None)


def test_a_signal_without_value_has_none():
    value = msgspec.json.encode({"topic": "org.acme/lamp/things/twin/commands/delete", "headers": {}, "path": "/"})
    assert read_signal(record(value), None).value is None
