"""Both doors give the same: what is read as JSON texts, and what is taken apart and written again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ackstream.protocol.ditto.acknowledgements import read_ack
from ackstream.protocol.ditto.aggregates import AckText, write_text
from ackstream.protocol.ditto.aggregates import read_single as read
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.errors import DittoError
from tests.harness.envelopes import HEADERS, odd

if TYPE_CHECKING:
    from ackstream.protocol.ditto.topics import TopicPath

IDS = ["c-1", "timeout", "requested-acks", 'quo"te\\', "ümlaut", "\x00", "correlation-id", "1"]
TOPIC = "org.acme/lamp/things/twin/acks/a-ack"

headers = st.dictionaries(
    st.sampled_from([*HEADERS, "content-type", "traceparent", "tag"]),
    st.one_of(st.sampled_from([*IDS, "application/json", 2, True, {"correlation-id": "c-1"}]), odd),
    max_size=4,
)
written = st.sampled_from(
    [{"separators": (",", ":")}, {}, {"separators": (",", ":"), "ensure_ascii": False}, {"indent": 1}]
)
spoilers = st.tuples(
    st.integers(0, 500),
    st.sampled_from(
        [b"", b"\xff", b"\x00", b'"', b"{", b"}", b"\\", b"[", b"1e999", b"\\ud800", b"\\u0000", b",", b" "]
    ),
)


@st.composite
def acks(draw: st.DrawFn) -> tuple[bytes, str]:
    """Return a message much like an acknowledgement, and the correlation-id of its record."""
    own, more = draw(st.sampled_from(IDS)), draw(headers)
    named = {"correlation-id": own} if draw(st.integers(0, 9)) else {}
    message: dict[str, Any] = {
        "topic": draw(st.sampled_from([TOPIC] * 5 + [TOPIC[:-6], TOPIC.replace("a-ack", "twin-persisted"), "ü/x/y"])),
        "headers": {**named, **more} if draw(st.booleans()) else {**more, **named},
        "path": "/",
        "status": draw(st.sampled_from([200, 200, 200, 404, 408, 99, 600, 200.0, True, None, "200"])),
    }
    if draw(st.booleans()):
        message["value"] = draw(odd)
    if draw(st.integers(0, 9)) == 0:
        message[draw(st.sampled_from(["extra", "revision", "timestamp", "metadata", "fields", "x"]))] = draw(odd)
    try:
        data = json.dumps(message, **draw(written)).encode()
    except UnicodeEncodeError:
        data = json.dumps(message).encode()
    if draw(st.integers(0, 3)) == 0:
        at, what = draw(spoilers)
        data = data[:at] + what + data[at + draw(st.integers(0, 1)) :]
    return data, own if draw(st.integers(0, 9)) else draw(st.sampled_from(IDS))


def read_single(data: bytes, correlation_id: str) -> tuple[TopicPath, AckText] | None:
    found = read(data, correlation_id)
    if found is None:
        return None
    thing_id, *ack = found
    topic = decode(data).topic
    assert topic.thing_id == thing_id
    return topic, AckText(*ack)


def general(data: bytes) -> tuple[TopicPath, AckText]:
    envelope = decode(data)
    return envelope.topic, write_text(read_ack(envelope))


def message(headers: str, **fields: Any) -> bytes:
    rest = "".join(f',"{name}":{json.dumps(value)}' for name, value in fields.items())
    return f'{{"topic":"{TOPIC}","headers":{headers},"path":"/","status":200{rest}}}'.encode()


@settings(max_examples=1_000)
@example((message('{"correlation-id":"c-1","correlation-id":"other"}'), "c-1"))
@example((message('{"x":"\\"correlation-id\\":\\"c-1\\"","correlation-id":"c-1"}'), "c-1"))
@example((message('{"ditto-metadata":{"correlation-id":"c-1"}}'), "c-1"))
@example((message('{"correlation-id":"c-1","x":"\\u0000"}'), "c-1"))
@example((message('{"correlation-id":"c-1","x":1e999}'), "c-1"))
@example((message('{"correlation-id":"c-1","x":[18446744073709551616]}'), "c-1"))
@given(acks())
def test_both_doors_give_the_same(given_: tuple[bytes, str]) -> None:
    data, correlation_id = given_
    found = read_single(data, correlation_id)
    if found is not None:
        # read twice: the second time its headers are known
        assert found == general(data) == read_single(data, correlation_id)


def test_an_acknowledgement_of_a_subscriber_goes_through_the_fast_door() -> None:
    for text in (
        '{"correlation-id":"c-1"}',
        '{"version": 2, "correlation-id": "c-1", "Tag": "x", "ditto-weak-ack": true}',
    ):
        data = message(text, value={"correlation-id": "c-1"})
        found = read_single(data, "c-1")
        assert found == general(data)
        other = read_single(data.replace(b"c-1", b"other"), "other")
        assert other == general(data.replace(b"c-1", b"other"))


@pytest.mark.parametrize(
    "data",
    [
        message('{"correlation-id":"c-1"}', revision=1),
        message('{"correlation-id":"c-1","timeout":"soon"}'),
        message('{"correlation-id":"c-1"}').replace(b"a-ack", b"live-response"),
        message('{"correlation-id":"c-1","x":"' + "y" * 1_100 + '"}'),
        message('{"correlation-id":"c-1"}', value="deep").replace(b'"deep"', b"[" * 300 + b"]" * 300),
        b"",
    ],
)
def test_what_is_unusual_or_wrong_is_left_to_the_other(data: bytes) -> None:
    assert read_single(data, "c-1") is None


def test_headers_of_a_shape_that_was_seen_are_not_read_again() -> None:
    data = message('{"correlation-id":"%s","tag":"seen"}')
    first = read_single(data.replace(b"%s", b"one"), "one")
    assert first is not None
    for number in range(3):
        found = read_single(data.replace(b"%s", str(number).encode()), str(number))
        assert found is not None
        assert bytes(found[1].headers) == bytes(first[1].headers).replace(b"one", str(number).encode())


def test_an_error_of_the_other_door_says_what_is_wrong() -> None:
    with pytest.raises(DittoError, match="not a valid"):
        general(message('{"correlation-id":"c-1","channel":"both"}'))
