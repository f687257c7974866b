"""Hypothesis strategies of protocol messages: valid ones, and valid ones of which some parts have another type.

Random bytes never get past a decoder. These do: each is a message that could have been right, with wrong values in some
of its headers and fields. All are JSON objects; :func:`written` makes bytes of them.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from ackstream.protocol.ditto.headers import DEFINITIONS
from ackstream.protocol.record_headers import (
    REPLY_TO,
    SPRING_CORRELATION_ID,
    SPRING_REPLY_PARTITION,
    SPRING_REPLY_TOPIC,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import SearchStrategy

    Message = dict[str, Any]

THING = "org.acme/lamp"
HEADERS = [*DEFINITIONS, "Correlation-Id", "subject", "status", "direction", "thing-id", "feature-id", "x"]
FIELDS = ["topic", "headers", "path", "value", "extra", "status", "revision", "timestamp", "metadata", "fields"]
LABELS = ["a-ack", "b-ack", "twin-persisted", "live-response", "search-persisted", "{{ header:x }}:c", "x", ""]
TOPICS = [
    f"{THING}/things/twin/commands/modify",
    f"{THING}/things/twin/commands/retrieve",
    f"{THING}/things/twin/commands/merge",
    f"{THING}/things/live/commands/modify",
    f"{THING}/things/live/messages/ask",
    "_/_/things/twin/commands/retrieve",
    f"{THING}/policies/commands/modify",
    "org.acme/other/things/live/commands/modify",
]
ANSWER_TOPICS = [
    *TOPICS,
    *[f"{THING}/things/{channel}/acks{label}" for channel in ("twin", "live") for label in ("", "/a-ack", "/b-ack")],
    f"{THING}/things/twin/errors",
    f"{THING}/things/live/errors",
    "unknown/unknown/things/twin/errors",
]
WRONG_TOPICS = ["", "/", "//x", "a/b/c", f"{THING}/things/twin/events/modified", f"{THING}/things/twin/search/cancel"]
PATHS = ["/", "/attributes/x", "/inbox/messages/ask", "/features/f/outbox/messages/ask", "", "x", "//", "/policyId"]
ODD: list[Any] = [
    None, True, False, 0, -1, 200, 404, 600, 10**20, -(10**20), 1.5, 1e308, 1e-320, "", "x", "x" * 300, "\x00",
    "😀", "\ud800", "\u2028", "true", "False", "null", "0", "1", "-1s", "0s", "10s", "1d", "9" * 30, "[]", "{}", "[[[",
    '["a-ack"]', "[1e400]", '{"a":1}', "twin", "live", "*", 'W/"x"', [], ["a-ack"], ["a-ack", 1], [None], [[[]]], {},
    {"a": 1}, {"a": {"b": [None]}}, {"status": 200}, {"error": 7, "status": "x"},
]  # fmt: skip
"""Values of every JSON type, among them those that are right somewhere else."""

# copies: messages are changed in place
odd: SearchStrategy[Any] = st.sampled_from(ODD).map(deepcopy)


@st.composite
def requests(draw: st.DrawFn, ids: Sequence[str]) -> Message:
    """Return commands and messages that ask for acknowledgements or a response."""
    headers: Message = {"correlation-id": draw(st.sampled_from(ids)), "timeout": f"{draw(st.integers(1, 60))}s"}
    if draw(st.booleans()):
        headers["requested-acks"] = draw(st.lists(st.sampled_from(LABELS[:5]), max_size=3))
    if draw(st.integers(0, 3)) == 0:
        headers["response-required"] = draw(st.booleans())
    path = draw(st.sampled_from(PATHS[:4]))
    return {"topic": draw(st.sampled_from(TOPICS)), "headers": headers, "path": path, "value": draw(odd)}


@st.composite
def answers(draw: st.DrawFn, ids: Sequence[str]) -> Message:
    """Return acknowledgements, aggregates, responses and errors."""
    topic = draw(st.sampled_from(ANSWER_TOPICS))
    value = draw(odd)
    if topic.endswith("/acks"):
        entry = {"status": draw(st.sampled_from([200, 404, 408])), "payload": value}
        value = dict.fromkeys(draw(st.lists(st.sampled_from(LABELS), max_size=3)), entry)
    elif topic.endswith("/errors"):
        value = {"status": 404, "error": draw(st.sampled_from(["things:thing.notfound", "command.timeout"]))}
    headers = {"correlation-id": draw(st.sampled_from(ids))}
    status = draw(st.sampled_from([200, 204, 404, 408, 503]))
    path = draw(st.sampled_from(PATHS[:4]))
    return {"topic": topic, "headers": headers, "path": path, "value": value, "status": status}


@st.composite
def spoiled(draw: st.DrawFn, messages: SearchStrategy[Message], *, places: int = 3) -> Message:
    """Return messages of which up to ``places`` headers, fields and entries of an aggregate are wrong."""
    message = draw(messages)
    for _ in range(draw(st.integers(0, places))):
        what = draw(st.sampled_from(["header", "header", "field", "entry", "topic", "missing"]))
        value = draw(odd)
        if what == "header" and isinstance(message.get("headers"), dict):
            message["headers"][draw(st.sampled_from(HEADERS))] = value
        elif what == "field":
            message[draw(st.sampled_from(FIELDS))] = value
        elif what == "entry" and isinstance(message.get("value"), dict):
            entry = {draw(st.sampled_from(["status", "payload", "headers"])): value}
            message["value"][draw(st.sampled_from(LABELS))] = draw(st.sampled_from([value, entry]))
        elif what == "topic":
            message["topic"] = draw(st.sampled_from(WRONG_TOPICS))
        elif what == "missing":
            message.pop(draw(st.sampled_from(FIELDS)), None)
    return message


record_headers: SearchStrategy[dict[str, bytes]] = st.dictionaries(
    st.sampled_from([REPLY_TO, SPRING_REPLY_TOPIC, SPRING_REPLY_PARTITION, SPRING_CORRELATION_ID]),
    st.sampled_from([b"replies", b"mine", b"no", b"\xff", b"x" * 2_000, b"\x00", bytes(4)]),
    max_size=2,
)
"""The record headers that are read beside the correlation-id, with right and wrong values."""


def written(message: Message) -> bytes:
    """Write a message."""
    return json.dumps(message).encode()
