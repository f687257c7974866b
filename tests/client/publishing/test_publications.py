from __future__ import annotations

from typing import Any

import pytest

from ackstream.client import Publisher
from ackstream.client.core.storage import WITHDRAWN, KeptMessage
from ackstream.client.errors import MessageTooLargeError
from ackstream.client.publishing.publications import FailedMessage, NewMessage, Publications, message_of
from ackstream.errors import BadParameterError
from ackstream.kafka.clients import MAX_RECORD_BYTES
from ackstream.protocol.record_headers import FOR_QUEUE, PUBLISHER
from ackstream.settings import Kafka


def make(**arguments: Any) -> KeptMessage:
    return message_of(NewMessage(**{"value": b"v"} | arguments))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"value": "text"}, "value is 'text': give bytes, not str"),
        ({"value": None}, "value is None: give bytes"),
        ({"key": "order-7"}, "key is 'order-7': give bytes, not str"),
        ({"topic": b"orders"}, "topic is b'orders': give str, not bytes"),
        ({"headers": [["a", b"b"]]}, "each header is a tuple of a str and bytes"),
        ({"headers": [("a", "b")]}, "each header is a tuple of a str and bytes"),
        ({"headers": [("a", b"b", b"c")]}, "each header is a tuple"),
        ({"headers": [("a", None)]}, "each header is a tuple"),
        ({"ttl_ms": 1.5}, "ttl_ms is 1.5: give whole milliseconds"),
        ({"ttl_ms": -1}, "ttl_ms is -1"),
        ({"acks": ["received", "parsed"]}, "acks is 'parsed': choose among received, processed"),
        ({"acks": "received"}, "acks is 'received', which is one text"),
        ({"cid": 7}, "cid is 7: give str, not int"),
        ({"ack_immediately": 1}, "ack_immediately is 1: give bool, not int"),
        ({"headers": [("\udcff", b"")]}, "headers has '\\\\udcff': a surrogate alone is not a character"),
        ({"topic": "\udcff"}, "topic has '\\\\udcff'"),
        ({"cid": "\udcff"}, "cid has '\\\\udcff'"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(BadParameterError, match=text.replace("(", r"\(")):
        make(**arguments)


@pytest.mark.parametrize("name", sorted(PUBLISHER | {FOR_QUEUE}))
def test_names_of_the_service_are_refused(name: str) -> None:
    with pytest.raises(BadParameterError, match=f"headers has {name}, which is the service's own"):
        make(headers=[(name, b"x")])


@pytest.mark.parametrize("part", ["value", "key", "headers"])
def test_a_message_is_weighed_with_everything_it_has(part: str) -> None:
    large: Any = b"x" * MAX_RECORD_BYTES
    with pytest.raises(MessageTooLargeError):
        make(**{part: [("h", large)] if part == "headers" else large})


@pytest.mark.parametrize("name", ["", "x" * 256, None, b"p1"])
def test_a_name_that_no_report_could_contain_is_refused(name: Any) -> None:
    with pytest.raises(BadParameterError, match=r"name has .* give 1 to 255|name is .* give str"):
        Publisher(Kafka(), name=name)


RECORDS = Publications("p1", "s", acknowledged=True)


def test_the_headers_of_the_service_win_over_those_of_an_old_store() -> None:
    message = KeptMessage(b"v", [("client", b"other"), ("seq", b"9"), ("ack", b"none"), ("colour", b"red")], b"k")
    headers = dict(RECORDS.message(4, message))
    own = {"client": b"p1", "publisher-session": b"s", "seq": b"4", "ack": b"persisted", "key": b"k"}
    assert headers == own | {"colour": b"red"}


@pytest.mark.parametrize(
    ("acknowledged", "arguments", "ack", "cid"),
    [
        (True, {}, b"persisted", None),
        (False, {}, b"none", None),
        (True, {"acks": ["received", "processed", "received"]}, b"received,processed,persisted", b"4"),
        (True, {"acks": ["persisted", "completed"], "cid": "c"}, b"persisted,completed", b"c"),
        (False, {"acks": ["stats"], "cid": "c"}, b"stats,none", b"c"),
        (True, {"cid": "c"}, b"persisted", b"c"),
    ],
)
def test_a_message_asks_for_acks_of_its_own_besides_those_of_the_stage(
    acknowledged: bool,  # noqa: FBT001
    arguments: dict[str, Any],
    ack: bytes,
    cid: bytes | None,
) -> None:
    sent = Publications("p1", "s", acknowledged=acknowledged).message(4, make(**arguments))
    headers = dict(sent)
    assert (headers["ack"], headers.get("cid"), len(headers)) == (ack, cid, len(sent))


@pytest.mark.parametrize(("immediately", "value"), [(True, b"true"), (False, None)])
def test_a_message_may_ask_for_its_ack_at_once(immediately: bool, value: bytes | None) -> None:  # noqa: FBT001
    assert dict(RECORDS.message(1, make(ack_immediately=immediately))).get("ack-immediately") == value


def test_topic_and_time_to_live_are_headers() -> None:
    headers = dict(RECORDS.message(1, make(topic="orders", ttl_ms=500)))
    assert (headers["topic"], headers["ttl"]) == (b"orders", b"500")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"topic": "orders/ü", "key": b"k", "headers": [("colour", b"red"), ("colour", b"blue")], "ttl_ms": 5_000},
        {"ttl_ms": 0, "acks": ["received"], "cid": "c-1", "ack_immediately": True},
    ],
)
def test_a_failed_message_can_be_published_again(arguments: dict[str, Any]) -> None:
    first = message_of(NewMessage(b"1", **arguments))
    failed = FailedMessage.of(7, "queue shutdown", first, "context")
    names = ("value", "topic", "key", "headers", "ttl_ms")
    again = message_of(NewMessage(**{name: getattr(failed, name) for name in names}))
    of_one_call = ("ack", "cid", "ack-immediately")
    assert (again.value, again.key) == (first.value, first.key)
    assert again.headers == [header for header in first.headers if header[0] not in of_one_call]
    assert (failed.seq, failed.reason, failed.context) == (7, "queue shutdown", "context")


@pytest.mark.parametrize("kept", [None, WITHDRAWN])
def test_a_failed_message_that_is_not_kept_has_no_value(kept: KeptMessage | None) -> None:
    assert FailedMessage.of(7, "bad topic", kept, None) == FailedMessage(
        7, "bad topic", None, None, None, [], None, None
    )


def test_a_number_without_a_message_is_withdrawn_and_answered() -> None:
    assert dict(RECORDS.message(4, WITHDRAWN)) == {
        "client": b"p1",
        "publisher-session": b"s",
        "command": b"withdraw",
        "first": b"4",
        "seq": b"4",
        "ack": b"persisted",
    }
    assert dict(RECORDS.withdrawal(4, 9))["ack"] == b"none"


@pytest.mark.parametrize(("first", "conflation"), [(None, None), (7, 250)])
def test_a_logon_names_what_is_known(first: int | None, conflation: int | None) -> None:
    headers = dict(RECORDS.logon("s", first, 50, conflation))
    assert headers["publish-window"] == b"50"
    assert headers.get("first") == (None if first is None else b"7")
    assert headers.get("ack-conflation") == (None if conflation is None else b"250ms")
