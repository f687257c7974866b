from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.jobs.query.filters import MAX_LENGTH
from ackstream.jobs.query.records import MAX_NAME, OrderKey, QueryRequest, UnreadableError, read


def _read(command: str = "sow", **headers: str) -> QueryRequest:
    said = {"command": command, "cid": "c1", "topic": "orders"} | headers
    return read(b"p1", [(name, text.encode()) for name, text in said.items()], "1-5", 100)


def test_a_query_with_everything() -> None:
    request = _read(
        filter="/x > 1", order_by="/a/b DESC, /c", top_n="5", sow_keys="", ack="completed, stats,none", options=""
    )
    assert request.reason is None
    assert (request.client, request.origin, request.time, request.topic) == ("p1", "1-5", 100, "orders")
    assert request.command.asked == {"completed", "stats"}
    assert (request.command.filter, request.command.top_n) == ("/x > 1", 5)
    assert request.order_by == (OrderKey(("a", "b"), descending=True), OrderKey(("c",), descending=False))


def test_a_subscription_is_named_as_its_command_where_it_has_no_name() -> None:
    assert _read("subscribe").sub_id == "c1"
    assert _read("subscribe", sub_id="mine", options="replace").options == {"replace": 0}


def test_of_a_repeated_header_the_last_counts() -> None:
    headers = [("command", b"flush"), ("cid", b"a"), ("cid", b"b"), ("topic", None)]
    assert read(b"p1", headers, "0-0", 0).command.cid == "b"


@pytest.mark.parametrize(
    ("command", "options", "intervals"),
    [
        ("logon", "", {}),
        ("logon", "ack_conflation=250ms", {"ack_conflation": 250}),
        ("logon", "heartbeat=30s, ack_conflation=2s", {"ack_conflation": 2000, "heartbeat": 30_000}),
        ("heartbeat", "start,5", {"heartbeat": 5000}),
        ("heartbeat", "start, 100ms", {"heartbeat": 100}),
        ("heartbeat", "stop", {"heartbeat": 0}),
        ("heartbeat", "beat", {}),
    ],
)
def test_intervals(command: str, options: str, intervals: dict[str, int]) -> None:
    request = _read(command, options=options)
    assert request.reason is None
    assert request.options == intervals


@pytest.mark.parametrize(
    ("command", "headers", "reason"),
    [
        ("dance", {}, "no such command"),
        ("publish", {}, "not supported"),
        ("delta_publish", {}, "not supported"),
        ("delta_subscribe", {}, "not supported"),
        ("sow_and_delta_subscribe", {}, "not supported"),
        ("sow", {"topic": ""}, "no topic"),
        ("subscribe", {"cid": ""}, "invalid subId"),
        ("unsubscribe", {"cid": ""}, "invalid subId"),
        ("sow", {"filter": "/x =="}, "bad filter"),
        ("sow", {"filter": "'" + "x" * MAX_LENGTH + "'"}, "bad filter"),
        ("sow", {"top_n": "-1"}, "invalid options"),
        ("sow", {"top_n": "many"}, "invalid options"),
        ("sow", {"order_by": "price; DROP"}, "invalid order by"),
        ("sow", {"order_by": ",".join(["/a"] * 21)}, "invalid order by"),
        ("sow", {"options": "replace"}, "invalid options"),
        ("sow", {"bookmark": "EPOCH"}, "not supported"),
        ("sow", {"ack": "persisted"}, "not supported"),
        ("sow_and_subscribe", {"bookmark": "EPOCH"}, "not supported"),
        ("subscribe", {"options": "replace=1"}, "invalid options"),
        ("sow_delete", {}, "no filter or keys"),
        ("sow_delete", {"filter": "/x", "sow_keys": "a"}, "more than one of filter and keys"),
        ("sow_delete", {"filter": "/x", "seq": "seven"}, "invalid options"),
        ("logon", {"options": "ack_conflation"}, "invalid options"),
        ("logon", {"options": "ack_conflation=0ms"}, "invalid options"),
        ("logon", {"ack": "completed"}, "not supported"),
        ("heartbeat", {"options": "start"}, "invalid options"),
        ("heartbeat", {"options": "start,soon"}, "invalid options"),
    ],
)
def test_a_refused_command_has_a_reason(command: str, headers: dict[str, str], reason: str) -> None:
    request = _read(command, **headers)
    assert request.reason == reason
    assert (request.client, request.command.name) == ("p1", command)


def test_a_refused_filter_is_explained_in_a_sentence() -> None:
    assert _read(filter="'${env:HOME}' BEGINS WITH '/'").detail == (
        "The filter has ${ from character 2 on: filters have no variables."
    )
    assert _read(topic="").detail is None


def test_a_record_without_a_command_is_refused_with_processed() -> None:
    request = read(b"p1", [], "0-0", 0)
    assert (request.reason, request.command.asked) == ("no such command", {"processed"})


@pytest.mark.parametrize("key", [None, b""])
def test_a_record_without_a_client_cannot_be_answered(key: bytes | None) -> None:
    with pytest.raises(UnreadableError, match="no client name"):
        read(key, [("command", b"sow")], "0-0", 0)


@pytest.mark.parametrize("name", ["cid", "sub_id", "topic", "command"])
def test_names_that_would_come_back_with_every_record_are_not_endless(name: str) -> None:
    with pytest.raises(UnreadableError, match="too long"):
        read(b"p1", [("command", b"sow"), (name, b"x" * (MAX_NAME + 1))], "0-0", 0)


NAMES = st.sampled_from(["command", "cid", "topic", "filter", "bookmark", "options", "top_n", "order_by", "seq", "ack"])
VALUES = st.none() | st.binary(max_size=12) | st.sampled_from([b"sow", b"subscribe", b"heartbeat", b"start,1", b"/x"])


@given(headers=st.lists(st.tuples(NAMES, VALUES)), key=st.binary(min_size=1, max_size=5))
def test_any_record_is_a_command_or_has_a_reason(headers: list[tuple[str, bytes | None]], key: bytes) -> None:
    request = read(key, headers, "0-0", 0)
    assert request.client
    assert request.reason is None or request.reason
