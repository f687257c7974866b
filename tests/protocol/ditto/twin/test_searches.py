"""The search protocol: commands of a client, and the events of its subscription."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.protocol.ditto.envelopes import decode, encode
from ackstream.protocol.ditto.twin import searches
from ackstream.protocol.errors import DittoError

TOPIC = "_/_/things/twin/search"
HEADERS = {"correlation-id": "c-1"}


def read(action: str, value: Any = None, topic: str = TOPIC, **fields: Any) -> Any:
    message = {"topic": f"{topic}/{action}", "path": "/", "headers": {}, **fields}
    return searches.read_search(decode(json.dumps(message | ({} if value is None else {"value": value})).encode()))


def shown(envelope: Any) -> dict[str, Any]:
    return msgspec.json.decode(encode(envelope))


# -- commands ----------------------------------------------------------------------------------------------------------


def test_a_client_subscribes_requests_pages_and_cancels():
    value = {"filter": "eq(attributes/x,1)", "options": "size(10),sort(+thingId)", "namespaces": ["org.acme"]}
    wanted = searches.Subscribe(value["filter"], value["options"], value["namespaces"], "attributes,thingId")
    assert read("subscribe", value, fields="attributes,thingId") == wanted
    assert read("subscribe") == searches.Subscribe()
    assert read("request", {"subscriptionId": "0", "demand": 3}) == searches.RequestPages("0", 3)
    assert read("request", {"subscriptionId": "0"}) == searches.RequestPages("0", 0)
    assert read("cancel", {"subscriptionId": "0"}) == searches.Cancel("0")


@pytest.mark.parametrize(
    ("action", "value"),
    [
        ("subscribe", {"filter": 1}),
        ("subscribe", []),
        ("subscribe", {"namespaces": "org.acme"}),
        ("request", None),
        ("request", {"demand": 1}),
        ("request", {"subscriptionId": "0", "demand": "many"}),
        ("cancel", {"subscriptionId": 0}),
    ],
)
def test_a_command_of_the_wrong_form_is_refused(action: str, value: Any):
    with pytest.raises(DittoError) as caught:
        read(action, value)
    assert (caught.value.status, caught.value.error) == (400, "json.invalid")


@pytest.mark.parametrize(
    ("topic", "action"),
    [
        (TOPIC, "next"),
        (TOPIC, "created"),
        ("_/_/things/live/search", "subscribe"),
        ("org.acme/lamp/things/twin/search", "subscribe"),
    ],
)
def test_any_other_message_is_refused(topic: str, action: str):
    with pytest.raises(DittoError) as caught:
        read(action, {"subscriptionId": "0"}, topic)
    assert caught.value.error == "protocoladapter:unknown.topicpath"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", []),
        ("size(10)", ["size(10)"]),
        ("sort(+thingId,-attributes/x),size(10)", ["sort(+thingId,-attributes/x)", "size(10)"]),
        (" size(10) , sort(+thingId)", ["size(10)", "sort(+thingId)"]),
    ],
)
def test_options_sort_things_and_limit_pages(text: str, options: list[str]):
    assert searches.read_options(text) == options


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cursor(abc)", "The option cursor(abc) is not supported at this endpoint."),
        ("size(1),limit(0,5)", "The option limit(0,5) is not supported at this endpoint."),
        ("sort(+a),sort(-b)", "Too many sort options."),
        ("size", "Invalid options: size"),
        ("size(10", "Invalid options: size(10"),
        ("size(10)sort(+a)", "Invalid options: size(10)sort(+a)"),
        ("size(0)", "Invalid option: 'size(0)'. A page has at least one thing."),
    ],
)
def test_options_that_address_a_page_or_cannot_be_read_are_refused(text: str, words: str):
    with pytest.raises(DittoError) as caught:
        searches.read_options(text)
    assert (caught.value.error, caught.value.message) == ("thing-search:search.option.invalid", words)


# -- a subscription ----------------------------------------------------------------------------------------------------


def page(*items: int, cursor: str | None = None) -> searches.Page:
    return searches.Page([msgspec.Raw(str(item).encode()) for item in items], cursor)


def test_pages_are_queried_by_the_cursor_of_the_one_before():
    search = searches.Search("0", searches.Subscribe("eq(a,1)", "size(2)", ["org.acme"], "thingId"), HEADERS)
    query = search.query()
    assert (str(query.topic), query.path) == ("_/_/things/twin/commands/retrieve", "/search/things")
    value = {"filter": "eq(a,1)", "namespaces": ["org.acme"], "options": ["size(2)"], "fields": "thingId"}
    assert msgspec.json.decode(query.value) == value
    search.receive(page(1, 2, cursor="x7"))
    assert msgspec.json.decode(search.query().value) == value | {"options": ["size(2)", "cursor(x7)"]}


def test_what_the_client_left_out_is_not_in_the_query():
    assert msgspec.json.decode(searches.Search("0", searches.Subscribe(namespaces=[]), HEADERS).query().value) == {}


def test_events_repeat_the_headers_of_the_latest_command_and_the_last_page_is_followed_by_complete():
    search = searches.Search("7", searches.Subscribe(), HEADERS)
    assert shown(search.event("created")) == {
        "topic": f"{TOPIC}/created",
        "headers": {"correlation-id": "c-1", "content-type": "application/json"},
        "path": "/",
        "value": {"subscriptionId": "7"},
    }
    search.request(2, {"correlation-id": "c-2"})
    (first,) = search.receive(page(1, 2, cursor="x"))
    assert (str(first.topic), first.headers["correlation-id"]) == (f"{TOPIC}/next", "c-2")
    assert msgspec.json.decode(first.value) == {"subscriptionId": "7", "items": [1, 2]}
    second, end = search.receive(page(3))
    assert msgspec.json.decode(second.value)["items"] == [3]
    assert shown(end)["topic"] == f"{TOPIC}/complete"
    assert search.demand == 0


def test_a_search_that_finds_nothing_is_complete_without_a_page():
    (end,) = searches.Search("0", searches.Subscribe(), HEADERS).receive(page())
    assert str(end.topic) == f"{TOPIC}/complete"


@pytest.mark.parametrize("pages", [0, -1])
def test_the_demand_is_positive(pages: int):
    with pytest.raises(DittoError) as caught:
        searches.Search("0", searches.Subscribe(), HEADERS).request(pages, HEADERS)
    assert (caught.value.status, caught.value.error) == (400, "thing-search:subscription.protocol.error")


def test_a_failure_carries_its_error():
    value = {"status": 404, "error": "thing-search:subscription.not.found"}
    found = shown(searches.failed("9", HEADERS, searches.subscription_not_found("9")))
    assert (found["topic"], found["value"]["subscriptionId"]) == (f"{TOPIC}/failed", "9")
    assert found["value"]["error"].items() >= value.items()
    assert "status" not in found
    assert shown(searches.failed("9", HEADERS, msgspec.Raw(b'{"status":408}')))["value"]["error"] == {"status": 408}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.lists(st.integers(1, 5), max_size=20))
def test_never_more_pages_than_requested_and_one_end_after_the_last(sizes: list[int], requests: list[int]):
    search = searches.Search("0", searches.Subscribe(), HEADERS)
    pages = [page(*range(size), cursor=str(number)) for number, size in enumerate(sizes[:-1])] + [
        page(*range(sizes[-1]))
    ]
    requested = received = 0
    actions: list[str | None] = []
    for pages_wanted in requests:
        search.request(pages_wanted, HEADERS)
        requested += pages_wanted
        while search.demand and pages:
            events = search.receive(pages.pop(0))
            received += 1
            actions += [event.topic.stream_action for event in events]
        assert received <= requested
    assert actions.count("next") == sum(1 for size in sizes[:received] if size)
    assert actions.count("complete") == (not pages)
    assert "complete" not in actions[:-1]
