"""Wrong records fit no schema: as the product refuses them, so does a reader of the document."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol import queues, readers
from ackstream.protocol.json import RecordError
from tests.contract.asyncapi import FORMATS
from tests.contract.checking import Contract

FITS = Contract().fits

MODIFY = {"topic": "org.acme/lamp/things/twin/commands/modify", "path": "/attributes/a", "value": 1}
ACK = {"topic": "org.acme/lamp/things/twin/acks/a:b", "path": "/", "status": 200}


@pytest.mark.parametrize(
    ("topic", "value"),
    [
        ("signals", MODIFY | {"topic": "org.acme/lamp/things/twin/commands/change"}),
        ("signals", MODIFY | {"topic": "org.acme/lamp/things/commands/modify"}),
        ("signals", {"topic": MODIFY["topic"], "value": 1}),
        ("signals", MODIFY | {"headers": {"requested-acks": "a:b"}}),
        ("signals", MODIFY | {"headers": {"requested-acks": ["a b"]}}),
        ("signals", MODIFY | {"headers": {"progress": "perhaps"}}),
        ("signals", MODIFY | {"headers": {"ack-quorum": 0}}),
        ("signals", MODIFY | {"headers": []}),
        ("signals", MODIFY | {"status": 200}),
        ("signals", ACK),
        ("signals", [MODIFY]),
        ("acks", MODIFY),
        ("acks", ACK | {"status": "200"}),
        ("acks", ACK | {"status": 99}),
        ("acks", ACK | {"topic": "org.acme/lamp/things/twin/acks/twin-persisted"}),
        ("acks", ACK | {"topic": "org.acme/lamp/things/twin/acks", "value": {}}),
        ("acks", ACK | {"topic": "org.acme/lamp/things/twin/errors", "value": {"status": 400}}),
        ("declarations", {"labels": "a:b"}),
        ("declarations", {"group": "g"}),
        ("publisher-acks", {"c": "ack", "a": "stored"}),
        ("stored", {"type": "stored", "client": "p", "first": 1, "batch": 1}),
        ("stored", {"type": "stored", "client": "p", "first": 1, "last": 2, "batch": 1, "refused": [[1]]}),
        ("app-acks", {"type": "app_ack", "reader": "", "writer": "w", "epoch": 1, "count": 1, "intervals": []}),
        ("app-acks", {"type": "app_ack", "reader": "r", "writer": "w", "epoch": 1, "count": 1, "intervals": [[1, 2]]}),
        ("app-acks", {"type": "reader_started", "reader": "r", "epoch": 1}),
        ("app-acks", {"type": "queue_settle", "queue": "q", "consumer": "c", "session": 1, "messages": [""]}),
        ("app-acks", {"type": "queue_settle", "queue": "q", "consumer": "c", "session": 1, "messages": ["m"],
                      "outcome": "done"}),
        ("queue-deliveries", {"type": "bound", "queue": "q", "consumer": "c", "session": 1, "number": 1}),
        ("ledger", {"kind": "outcome", "id": "x", "batch_id": 1}),
        ("events", MODIFY),
    ],
)  # fmt: skip
def test_a_wrong_value_is_no_record(topic: str, value: Any) -> None:
    assert FITS(topic, [], json.dumps(value).encode()) == []


@pytest.mark.parametrize(
    ("topic", "headers"),
    [
        ("messages", [("client", b"p")]),
        ("messages", [("seq", b"1")]),
        ("messages", [("client", b"p"), ("seq", b"one")]),
        ("messages", [("client", b"p"), ("seq", b"1"), ("ack", b"stored")]),
        ("messages", [("client", b"p"), ("command", b"log on")]),
        ("messages", [("client", b"p" * 256), ("seq", b"1")]),
        ("queries", [("command", b"select")]),
        ("queries", [("command", b"sow"), ("top_n", b"few")]),
        ("query-results", [("command", b"sow")]),
        ("dead-letters", []),
        ("replies", [("correlation-id", b"c"), ("reply-id", b"r"), ("status", b"200")]),
    ],
)
def test_wrong_headers_are_those_of_no_record(topic: str, headers: list[tuple[str, bytes]]) -> None:
    reply = ACK if topic == "replies" else None
    assert FITS(topic, headers, None if reply is None else json.dumps(reply).encode()) == []


_NAMES = st.sampled_from(
    ["type", "reader", "writer", "epoch", "count", "intervals", "start", "role", "queue", "session"]
)
_VALUES = st.one_of(st.none(), st.integers(-2, 2**64), st.text(max_size=3), st.booleans(), st.just([]), st.just({}))


@given(st.sampled_from([one.examples[0].payload for one in FORMATS["app-acks"].formats]), _NAMES, _VALUES)
def test_the_schemas_refuse_what_the_product_refuses(example: dict[str, Any], name: str, value: Any) -> None:
    changed = json.dumps(example | {name: value}).encode()
    read = queues.read if msgspec.json.decode(changed).get("type") in queues.TYPES else readers.read
    try:
        read(changed)
    except RecordError:
        accepted = False
    else:
        accepted = True
    assert bool(FITS("app-acks", [], changed)) == accepted
