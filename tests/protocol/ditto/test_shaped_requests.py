"""Both doors give the same: requests of a shape that was seen, and requests that are read one by one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ackstream.protocol.ditto.aggregates import answered, read_shaped
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.ditto.headers import CORRELATION_ID, names_sender
from ackstream.protocol.ditto.requests import Request, read_request
from tests.harness.envelopes import HEADERS, LABELS, PATHS, THING, TOPICS, odd

Message = dict[str, Any]
NAMES = [*HEADERS, "Traceparent", "tag", "Tag", "CONTENT-TYPE"]


@st.composite
def requests(draw: st.DrawFn) -> tuple[Message, str]:
    """Return a message much like a request, and the correlation-id of its record."""
    own = draw(st.sampled_from(["c-1", "c-2", ""]))
    headers: Message = {CORRELATION_ID: own} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        headers["requested-acks"] = draw(st.lists(st.sampled_from(LABELS[:5]), max_size=3))
    for name, choices in (("timeout", ["1s", "2s", "0s", 3]), ("response-required", [True, False, "true", 1, 1.0])):
        if draw(st.booleans()):
            headers[name] = draw(st.sampled_from(choices))
    texts = st.sampled_from(["", "a", "b", "live", "true", "ü", 1, True])
    more = draw(st.dictionaries(st.sampled_from(NAMES), st.one_of(texts, odd), max_size=3))
    headers = {**headers, **more} if draw(st.booleans()) else {**more, **headers}
    topic = draw(
        st.sampled_from([*TOPICS, f"{THING}/things/none/commands/modify", f"{THING}/things/twin/events/created"])
    )
    message = {"topic": topic, "headers": headers, "path": draw(st.sampled_from(PATHS))}
    return message, own


def general(message: Message, correlation_id: str) -> tuple[Request, bytes]:
    request = read_request(decode(json.dumps(message).encode()), default_timeout_ms=7_000, max_timeout_ms=9_000)
    return answered(request, correlation_id)


def shaped(message: Message, correlation_id: str) -> tuple[Request, bytes] | None:
    data = json.dumps(message).encode()
    found = read_shaped(data, correlation_id, 7_000, 9_000)
    if found is None:
        return None
    envelope = decode(data)
    assert found[2:] == (
        envelope.topic.channel,
        envelope.headers,
        envelope.value,
        names_sender(envelope.headers),
    )
    return found[:2]


def request(**headers: Any) -> Message:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"topic": f"{THING}/things/twin/commands/modify", "headers": named, "path": "/attributes/x"}


@settings(max_examples=1_500)
@example((request(version=True), "c-1"))
@example((request(version=1), "c-1"))
@example((request(traceparent="a", Traceparent="b"), "c-1"))
@example((request(response_required=1), "c-1"))
@example((request(response_required=True), "c-1"))
@given(requests())
def test_both_doors_give_the_same(given_: tuple[Message, str]) -> None:
    message, correlation_id = given_
    found = shaped(message, correlation_id)
    if found is not None:
        # read twice: the second time its shape is known
        assert found == general(message, correlation_id) == shaped(message, correlation_id)


def test_requests_of_one_shape_differ_in_ids_texts_things_and_paths() -> None:
    for number in ("1", "2"):
        message = request(correlation_id=number, traceparent=f"trace-{number}", requested_acks=["a-ack"], timeout="2s")
        message |= {"topic": f"org.acme/lamp-{number}/things/twin/commands/modify", "path": f"/attributes/{number}"}
        found = shaped(message, number)
        assert found == general(message, number)
        assert found is not None
        assert (found[0].thing_id, json.loads(found[1])["traceparent"]) == (
            f"org.acme:lamp-{number}",
            f"trace-{number}",
        )


@pytest.mark.parametrize(
    "message",
    [
        request(correlation_id="other"),
        request(tag=5),
        request(Timeout="2s"),
        request(timeout="soon"),
        request(declared_acks=[{"a": 1}]),
        request(declared_acks=[1]),
        request() | {"status": 200},
        request() | {"topic": f"{THING}/things/twin/events/modified"},
    ],
)
def test_what_is_unusual_or_wrong_is_left_to_the_other(message: Message) -> None:
    assert shaped(message, "c-1") is None
