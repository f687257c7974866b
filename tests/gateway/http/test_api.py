"""Requests and answers, each alone: the routes, the headers, the bodies, the errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ackstream.observe.outcomes import RequestOutcome
from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.protocol.ditto.envelopes import Envelope, decoded, raw
from ackstream.protocol.errors import ack_request_timeout, command_timeout, thing_not_found
from ackstream.protocol.json import BYTE_ORDER_MARK
from tests.gateway.access.test_authentication import ACCESS, USERS, as_
from tests.gateway.parts import Web, aggregate, failure, response
from tests.prose import each, prose

LAMP = "org.acme:lamp"
THING = f"/things/{LAMP}"
PATCH = {"content-type": "application/merge-patch+json"}
PROTOCOL = {"content-type": "application/vnd.eclipse.ditto+json"}


def outcome(status: int, completed_by: str, *entries: tuple[str, int], error: Any = None) -> Any:
    acks = [Acknowledgement(label, code) for label, code in entries]
    found = RequestOutcome(status, completed_by, acks, **({} if error is None else {"error": raw(error)}))
    return lambda _command: found


# -- what is sent ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "options", "topic", "pointer", "value"),
    [
        ("PUT", THING, {"json": {"attributes": {"a": 1}}}, "twin/commands/modify", "/", {"attributes": {"a": 1}}),
        ("PUT", f"{THING}/attributes/a/b", {"json": 5}, "twin/commands/modify", "/attributes/a/b", 5),
        ("PUT", f"{THING}/policyId", {"json": "a:b"}, "twin/commands/modify", "/policyId", "a:b"),
        ("PUT", f"{THING}/features", {"content": "{}", "headers": PROTOCOL}, "twin/commands/modify", "/features", {}),
        ("PUT", f"{THING}/attributes/a?dry-run=false", {"json": 5}, "twin/commands/modify", "/attributes/a", 5),
        (
            "PUT",
            f"{THING}/attributes/a",
            {"content": BYTE_ORDER_MARK + b"5", "headers": {"content-type": "application/json"}},
            "twin/commands/modify",
            "/attributes/a",
            5,
        ),
        ("DELETE", f"{THING}/features/f", {}, "twin/commands/delete", "/features/f", None),
        ("GET", f"{THING}/features/f/properties", {}, "twin/commands/retrieve", "/features/f/properties", None),
        (
            "PATCH",
            f"{THING}/attributes",
            {"content": b'{"a":null}', "headers": PATCH},
            "twin/commands/merge",
            "/attributes",
            {"a": None},
        ),
        ("PUT", f"{THING}/definition?channel=live", {"json": "a:b:1"}, "live/commands/modify", "/definition", "a:b:1"),
        ("GET", THING, {"headers": {"channel": "live"}}, "live/commands/retrieve", "/", None),
        ("GET", f"{THING}?channel=LIVE", {}, "twin/commands/retrieve", "/", None),
        (
            "POST",
            f"{THING}/inbox/messages/ask/me",
            {"content": BYTE_ORDER_MARK + b"[1]", "headers": {"content-type": "application/json"}},
            "live/messages/ask/me",
            "/inbox/messages/ask/me",
            [1],
        ),
        ("POST", f"{THING}/inbox/claim", {}, "live/messages/claim", "/inbox/messages/claim", None),
        (
            "POST",
            f"{THING}/features/f/outbox/messages/told",
            {"content": "hello", "headers": {"content-type": "text/plain"}},
            "live/messages/told",
            "/features/f/outbox/messages/told",
            "hello",
        ),
        (
            "POST",
            f"{THING}/inbox/messages/ask",
            {"content": b"\x00\xff", "headers": {"content-type": "application/octet-stream"}},
            "live/messages/ask",
            "/inbox/messages/ask",
            "AP8=",
        ),
    ],
)
def test_a_request_becomes_a_protocol_message(
    method: str, path: str, options: dict[str, Any], topic: str, pointer: str, value: Any
) -> None:
    web = Web()
    assert web(method, path, **options).status_code == 204
    sent = web.sent
    assert str(sent.topic) == f"org.acme/lamp/things/{topic}"
    assert (sent.path, decoded(sent.value)) == (
        pointer,
        value if path != THING or value is None else {"thingId": LAMP, **value},
    )


def test_several_things_are_one_query() -> None:
    web = Web(response(200, [{"thingId": "a:b"}]))
    answer = web("GET", "/things?ids=a:b,c:d&ids=a:b&fields=thingId,attributes(x,y)")
    assert answer.json() == [{"thingId": "a:b"}]
    assert str(web.sent.topic) == "_/_/things/twin/commands/retrieve"
    assert (web.sent.path, decoded(web.sent.value)) == ("/", {"thingIds": ["a:b", "c:d"]})
    assert web.sent.fields == "thingId,attributes(x,y)"


SEARCH = {
    "filter": 'and(eq(attributes/a,"x"),gt(attributes/b,1))',
    "namespaces": ["org.acme", "org.other"],
    "options": ["sort(+thingId,-attributes/a)", "size(5)"],
    "fields": "thingId",
}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_search_is_a_query(method: str) -> None:
    web = Web(response(200, {"items": []}))
    query = {
        "filter": ['eq(attributes/a,"x")', "gt(attributes/b,1)"],
        "option": "sort(+thingId,-attributes/a),size(5)",
        "fields": "thingId",
        "namespaces": "org.acme,org.other",
    }
    found = web(method, "/search/things", **({"params": query} if method == "GET" else {"data": query}))
    assert found.json() == {"items": []}
    assert (web.sent.path, decoded(web.sent.value)) == ("/search/things", SEARCH)


def test_all_things_are_a_list_with_a_link_to_its_next_page() -> None:
    web = Web(response(200, {"items": [{"thingId": "a:b"}], "cursor": "C1"}))
    answer = web("GET", "/things?fields=thingId&namespaces=a&option=size(1)")
    assert answer.json() == [{"thingId": "a:b"}]
    assert (web.sent.path, decoded(web.sent.value)) == (
        "/search/things",
        {"namespaces": ["a"], "options": ["size(1)"], "fields": "thingId"},
    )
    canonical, following = answer.headers.get_list("link")
    assert canonical == '</api/2/things?fields=thingId&namespaces=a&option=size(1)>; rel="canonical"'
    assert following.endswith('>; rel="next"')
    web("GET", following[len("</api/2") : following.index(">")])
    assert decoded(web.exchange.sent[-1].value) == {"options": ["size(1)", "cursor(C1)"], "fields": "thingId"}


def test_the_last_page_of_all_things_has_no_next() -> None:
    answer = Web(response(200, {"items": []}))("GET", "/things")
    assert (answer.json(), answer.headers.get_list("link")) == ([], ['</api/2/things>; rel="canonical"'])


@pytest.mark.parametrize("path", [THING, "/search/things", "/whoami"])
def test_head_is_get_without_its_body(path: str) -> None:
    whole, head = (Web(response(200, {"items": []}, etag='"rev:1"'))(method, path) for method in ("GET", "HEAD"))
    assert (head.status_code, head.content) == (200, b"")
    without_id = [{k: v for k, v in found.headers.items() if k != "correlation-id"} for found in (whole, head)]
    assert without_id[0] == without_id[1]


def test_options_are_the_methods_of_a_resource_for_those_who_may_ask() -> None:
    web = Web(users=USERS, access=ACCESS)
    assert web("OPTIONS", THING, **as_("ada")).headers["allow"] == "GET, PUT, PATCH, DELETE, HEAD, OPTIONS"
    assert web("OPTIONS", f"{THING}/inbox/claim", **as_("ada")).headers["allow"] == "POST, OPTIONS"
    assert web("OPTIONS", "/nothing", **as_("ada")).status_code == 404
    for path in (THING, "/nothing"):
        assert web("OPTIONS", path).status_code == 401
    assert [row.event for row in web.rows] == ["sign-in", "sign-in"]


def test_the_sender_is_known_by_the_subjects_of_its_credentials() -> None:
    anonymous = {"defaultSubject": "anonymous", "subjects": ["anonymous"], "roles": []}
    assert Web()("GET", "/whoami").json() == anonymous
    web = Web(users=USERS, access=ACCESS)
    found = web("GET", "/whoami", headers={"correlation-id": "c-1"}, **as_("ada"))
    assert found.json() == {"defaultSubject": "user:ada", "subjects": ["user:ada"], "roles": []}
    assert (found.headers["correlation-id"], web.exchange.sent) == ("c-1", [])


def test_a_count_is_a_number() -> None:
    web = Web(response(200, 42))
    assert web("GET", "/search/things/count?filter=exists(attributes/a)").text == "42"
    assert (web.sent.path, decoded(web.sent.value)) == ("/search/things/count", {"filter": "exists(attributes/a)"})


def test_post_creates_a_thing_whose_id_follows_from_the_correlation_id() -> None:
    made = []
    for namespace in ("", "?namespace=org.acme"):
        web = Web(response(201, {"thingId": "x"}))
        answer = web("POST", f"/things{namespace}", json={"attributes": {}}, headers={"correlation-id": "same"})
        assert str(web.sent.topic).endswith("/things/twin/commands/create")
        made.append(web.sent.topic.thing_id)
        assert decoded(web.sent.value) == {"thingId": made[-1], "attributes": {}}
        assert answer.headers["location"] == f"/api/2/things/{made[-1]}"
    namespaces, names = zip(*(thing_id.split(":") for thing_id in made), strict=True)
    assert namespaces == ("org.ackstream", "org.acme")
    assert names[0] == names[1]


def test_known_headers_and_those_of_ones_own_are_passed_on_and_no_others() -> None:
    web = Web()
    headers = {
        "If-Match": '"rev:1"',
        "X-My-Own": "1",
        "Condition": "eq(attributes/a,1)",
        "Correlation-ID": "c-1",
        "Authorization": "Basic eDp5",
        "Cookie": "a=b",
        "Ditto-Originator": "me",
        "Etag": '"x"',
        "version": "1",
        "reply-to": "elsewhere",
        "requested-acks": "my-ack, other-ack",
    }
    assert web("PUT", f"{THING}/attributes/a", json=1, headers=headers).status_code == 204
    assert web.sent.headers == {
        "if-match": '"rev:1"',
        "x-my-own": "1",
        "condition": "eq(attributes/a,1)",
        "correlation-id": web.sent.headers["correlation-id"],
        "requested-acks": ["my-ack", "other-ack"],
        "version": 2,
        "timeout": "60s",
    }


PROXIED = {
    "x-auth-request-access-token": "secret",
    "x-amzn-oidc-data": "secret",
    "x-acme-shift": "night",
    "X-Acme": "1",
}
BEHIND = {"addresses": ["10.0.0.7"]}


@pytest.mark.parametrize(
    ("headers", "proxy", "passed"),
    [
        ({}, {}, []),
        ({}, BEHIND, []),
        ({}, {**BEHIND, "passed_headers": ["x-acme-*"]}, ["x-acme-shift"]),
        ({"X-Forwarded-For": "1.2.3.4"}, {}, []),
        ({"X-Real-IP": "1.2.3.4"}, {}, []),
        ({"Via": "1.1 proxy"}, {"passed_headers": ["x-acme", "x-forwarded-*"]}, ["x-acme"]),
    ],
)
def test_of_what_a_proxy_adds_only_named_headers_reach_devices(
    headers: dict[str, str], proxy: dict[str, Any], passed: list[str]
) -> None:
    web = Web(proxy=proxy)
    assert web("PUT", f"{THING}/attributes/a", json=1, headers={**PROXIED, **headers}).status_code == 204
    assert sorted(name for name in web.sent.headers if name.startswith("x-")) == passed


@pytest.mark.parametrize("name", ["*", "authorization", "cookie", "X-Acme", "x acme"])
def test_a_header_that_could_be_a_credential_of_the_gateway_cannot_be_passed_on(name: str) -> None:
    with pytest.raises(ValueError, match="passed_headers"):
        Web(proxy={**BEHIND, "passed_headers": [name]})


def test_query_parameters_stand_for_headers() -> None:
    web = Web()
    query = {
        "requested-acks": '["my-ack"]',
        "timeout": "5s",
        "response-required": "true",
        "condition": "x",
    }
    assert web("PUT", f"{THING}/attributes/a", json=1, params=query, headers={"timeout": "5s"}).status_code == 204
    expected = {"requested-acks": ["my-ack"], "timeout": "5s", "response-required": True, "condition": "x"}
    assert {name: web.sent.headers.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{THING}?timeout=1s&timeout=2s", 400),
        (f"{THING}?channel=twin&channel=twin", 400),
        (f"{THING}?fields=thingId&fields=attributes", 204),
        ("/search/things?filter=exists(attributes)&filter=exists(features)&option=size(5)&option=size(6)", 204),
    ],
)
def test_a_parameter_that_comes_twice_is_refused_unless_it_is_a_list(path: str, status: int) -> None:
    answer = Web()("GET", path)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"] == "gateway:parameter.invalid"


def test_the_namespace_of_a_new_thing_comes_once() -> None:
    assert Web()("POST", "/things?namespace=org.a&namespace=org.b", json={}).status_code == 400


@each("header_validation", "query-and-header-")
def test_prose_header_and_parameter(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    answer = Web()("PUT", f"{THING}/attributes/a", json=1, params=given_["query"], headers=given_["headers"])
    if "error" in expect:
        assert (answer.status_code, answer.json()) == (expect["error"]["status"], expect["error"])
    else:
        assert answer.status_code == 204


@each("header_validation", "duplicate-header-fields")
def test_prose_a_header_that_comes_twice(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    answer = Web()("PUT", f"{THING}/attributes/a", json=1, headers=[tuple(pair) for pair in given_["headers"]])
    assert answer.status_code == expect["httpStatus"]
    assert answer.json()["error"] == "gateway:duplicate.header.field"


def test_a_correlation_id_has_a_random_part_on_the_wire_that_its_client_never_sees() -> None:
    web = Web(aggregate(("a-ack", 200, 1), ("b-ack", 200, 2)))
    answers = [
        web("PUT", f"{THING}/attributes/a", json=1, headers={"correlation-id": "mine", "requested-acks": "a-ack,b-ack"})
        for _ in range(2)
    ]
    sent = [command.headers["correlation-id"] for command in web.exchange.sent]
    assert len(set(sent)) == 2
    assert [shown_id(identity) for identity in sent] == ["mine", "mine"]
    for answer in answers:
        assert answer.headers["correlation-id"] == "mine"
        assert {entry["headers"]["correlation-id"] for entry in answer.json().values()} == {"mine"}
        assert not any(identity in answer.text for identity in sent)


def test_a_post_that_is_repeated_concerns_the_same_thing() -> None:
    web = Web(response(201, {"thingId": "x"}))
    for _ in range(2):
        web("POST", "/things", json={}, headers={"correlation-id": "mine"})
    first, second = web.exchange.sent
    assert first.topic == second.topic
    assert first.headers["correlation-id"] != second.headers["correlation-id"]


@pytest.mark.parametrize("name", ["option", "namespaces"])
def test_things_by_their_ids_are_not_searched(name: str) -> None:
    answer = Web(response(200, []))("GET", f"/things?ids=a:b&{name}=x")
    assert (answer.status_code, answer.json()["error"]) == (400, "gateway:parameter.invalid")


def test_a_request_without_a_correlation_id_gets_one() -> None:
    web = Web()
    answer = web("GET", THING)
    assert answer.headers["correlation-id"] == shown_id(web.sent.headers["correlation-id"]) != ""


# -- how long, and for what --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout", "written"),
    [(None, "60"), ("5s", "5"), ("5", "5"), ("1500ms", "1500ms"), ("500ms", "500ms"), ("1m", "60")],
)
def test_the_timeout_of_a_message_is_written_in_whole_seconds(timeout: str | None, written: str) -> None:
    web = Web()
    web("POST", f"{THING}/inbox/messages/ask", params={} if timeout is None else {"timeout": timeout})
    assert web.sent.headers["timeout"] == written


@each("header_validation", "http-bound-", "http-message-bound-", "http-claim-bound-")
def test_prose_bound_of_a_request(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    timeout = given_["timeout"] if "timeout" in given_ else f"{given_['timeoutMillis']}ms"
    api = given_["api"]
    path = f"{THING}/inbox/claim" if "claim" in api else f"{THING}/inbox/messages/ask"
    method, path = ("POST", path) if "message" in api else ("GET", THING)
    zero = timeout in ("0ms", "0s")
    if zero and method == "GET":
        # the bound holds; a query with nothing to wait for is another error
        return
    answer = Web(response(200, 1))(method, path, params={"timeout": timeout})
    if "error" in expect:
        assert (answer.status_code, answer.json()) == (400, expect["error"])
    else:
        assert answer.status_code == (202 if zero else 200)


@each("header_defaults", "timeout-claim-10m-HTTP")
def test_prose_a_claim_waits_no_longer_than_other_requests(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    web = Web()
    assert web("POST", f"{THING}/inbox/claim", params=given_["headers"]).status_code == 204
    assert web.sent.headers["timeout"] == str(expect["effectiveTimeoutMillis"] // 1000)


@each("header_defaults", "timeout-default-HTTP-message")
def test_prose_the_default_timeout_of_a_message(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    web = Web()
    web("POST", f"{THING}/inbox/messages/ask", headers=given_["headers"])
    assert web.sent.headers["timeout"] == expect["timeoutHeaderWritten"]


def _ask(given: dict[str, Any], status: int, *, of_message: int = 200) -> tuple[Any, Web]:
    """Make the request of a case; downstream answers with this status.

    Without acknowledgements nothing downstream is waited for: the only errors are those of access, which the gateway
    itself decides.
    """
    headers = {
        name: json.dumps(value) if isinstance(value, (list, bool)) else value
        for name, value in given["headers"].items()
    }
    signal = given.get("signal", "twin")
    no_response = given["headers"].get("response-required") is False or (
        "response-required" not in given["headers"] and str(given["headers"].get("timeout", "")).startswith("0")
    )
    what: Any = None
    denied: dict[str, Any] = {}
    if no_response and status >= 400 and not given["headers"].get("requested-acks"):
        denied = {"users": USERS, "access": ACCESS}
    elif no_response:
        what = outcome(status, "error" if status >= 400 else "response", error={"status": status})
    elif status >= 400:
        what = failure(thing_not_found(LAMP))
    else:
        what = response(of_message if signal == "message" else status)
    web = Web(what, **denied)
    options: dict[str, Any] = as_("bob") if denied else {}
    if signal == "message":
        return web("POST", f"{THING}/inbox/messages/ask", headers=headers, **options), web
    channel = {"channel": "live"} if signal == "live" else {}
    return web("PUT", f"{THING}/attributes/a", json=1, headers=headers | channel, **options), web


@each("header_defaults", "interaction-HTTP-")
def test_prose_interaction_over_http(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    answer, _ = _ask(given_, 404 if given_["downstream"].startswith("404") else 204)
    assert answer.status_code == expect["httpStatus"]


@each("header_defaults", "http-", but=("http-ensure", "http-fireAndForget-noReply"))
def test_prose_answer_over_http(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    answer, _ = _ask(given_, 404 if "404" in given_["downstream"] else 204, of_message=226)
    assert answer.status_code == expect["httpStatus"]


@each("header_defaults", "http-fireAndForget-noReplyWithin3s")
def test_prose_silence_is_accepted(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    web = Web(lambda _command: None)
    answer = web("PUT", f"{THING}/attributes/a", json=1, headers=given_["headers"])
    assert answer.status_code == expect["httpStatus"]
    # at once: nothing but the broker is waited for
    assert (len(web.exchange.sent), web.exchange.waits) == (1, [])


@each("header_defaults", "doc-HTTP-")
def test_prose_the_table_over_http(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    headers = {
        "response-required": str(given_["response-required"]).lower(),
        "requested-acks": "foo-ack" if given_["requested-acks"] == "non-empty" else "[]",
        "timeout": "0s" if given_["timeout"] == "zero" else "10s",
    }
    if not given_["response-required"]:
        what: Any = outcome(200, "acknowledgements", ("foo-ack", 200))
    else:
        what = aggregate(("foo-ack", 200, {"a": 1})) if given_["requested-acks"] == "non-empty" else response(200, 5)
    web = Web(what)
    answer = web("PUT", f"{THING}/attributes/a", json=1, headers=headers)
    bodies = {"response": 5, "aggregated response and acks": {"a": 1}}
    if expect["clientError"]:
        assert (answer.status_code, answer.json()["invalidHeaderKey"]) == (400, "timeout")
        assert web.exchange.sent == []
    elif expect["outcome"] in bodies:
        assert (answer.status_code, answer.json()) == (200, bodies[expect["outcome"]])
    else:
        assert (answer.status_code, answer.content) == (202, b"")
        # without acknowledgements not at all, else as long as the timeout and a while
        assert web.exchange.waits == ([] if expect["outcome"] == "202 immediately" else [20.0])


def test_no_outcome_within_the_timeout_is_503_with_retry_after() -> None:
    headers = {"response-required": "false", "requested-acks": "foo-ack", "timeout": "1s"}
    answer = Web(lambda _command: None)("PUT", f"{THING}/attributes/a", json=1, headers=headers)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@each("header_validation", "rule-http-")
def test_prose_a_query_without_a_response(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    answer = Web()("GET", THING, headers=given_["headers"])
    assert (answer.status_code, answer.json()) == (expect["httpStatus"], expect["error"])


# -- answers -----------------------------------------------------------------------------------------------------------


def test_a_created_thing_has_its_location_and_its_tag() -> None:
    answer = Web(response(201, {"thingId": LAMP}, etag='"rev:1"', entity_revision=1))("PUT", THING, json={})
    assert (answer.status_code, answer.json()) == (201, {"thingId": LAMP})
    assert answer.headers["location"] == f"/api/2{THING}"
    assert answer.headers["etag"] == '"rev:1"'
    assert answer.headers["content-type"] == "application/json"


def test_who_answers_does_not_decide_where_the_sender_goes_next() -> None:
    evil = "https://evil.example/"

    def acknowledged(command: Envelope) -> Any:
        envelope, completed_by = aggregate(("my-ack", 302, 1))(command)
        envelope.headers["location"] = evil
        return envelope, completed_by

    for answer, path in ((response(302, 1, location=evil), f"{THING}/inbox/messages/ask"), (acknowledged, THING)):
        found = Web(answer)("POST" if "inbox" in path else "PUT", path, json={})
        assert found.status_code == 302
        assert "location" not in found.headers


def test_not_modified_and_no_content_have_no_body() -> None:
    for status in (204, 304):
        answer = Web(response(status, {"a": 1}))("GET", THING)
        assert (answer.status_code, answer.content) == (status, b"")


def test_an_error_is_dittos_json() -> None:
    answer = Web(failure(thing_not_found(LAMP)))("GET", THING)
    assert (answer.status_code, answer.json()) == (404, thing_not_found(LAMP).to_dict())


def test_a_deadline_that_passes_is_408() -> None:
    answer = Web(failure(command_timeout(60_000)))("GET", THING)
    assert (answer.status_code, answer.json()["error"]) == (408, "command.timeout")


@pytest.mark.parametrize(("value", "status"), [({"outcome": "green"}, 200), ("late", 424)])
def test_the_sample_bodies_of_the_documentation(value: Any, status: int) -> None:
    thing = {"thingId": LAMP, "policyId": LAMP}
    mine = (
        ("my-custom-ack", 200, value)
        if status == 200
        else ("my-custom-ack", 408, ack_request_timeout(42_000).to_dict())
    )
    headers = {"requested-acks": "twin-persisted,my-custom-ack", "timeout": "42s", "correlation-id": "db87"}
    answer = Web(aggregate(("twin-persisted", 201, thing), mine))("PUT", THING, json={}, headers=headers)
    common = {"correlation-id": "db87", "response-required": False}
    persisted = {**common, "location": f"/api/2{THING}"}
    assert answer.status_code == status
    assert answer.json() == {
        "twin-persisted": {"status": 201, "payload": thing, "headers": persisted},
        "my-custom-ack": {"status": mine[1], "payload": mine[2], "headers": common},
    }


@each("aggregation", "actor-http-location")
def test_prose_location_of_an_entry(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    web = Web(aggregate(("twin-persisted", 201, "bar"), ("custom-ack", 403, None)))
    query = {"requested-acks": json.dumps(given_["requested"])}
    answer = web("PUT", f"{THING}/attributes/foo", json="bar", params=query)
    wanted = expect["body"]["twin-persisted"]["headers"]["location"].replace("<thingId>", LAMP)
    assert answer.status_code == expect["httpStatus"]
    assert answer.json()["twin-persisted"]["headers"]["location"] == wanted


@each("aggregation", "actor-http-rr-false-")
def test_prose_outcome_without_a_response(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    entries = [(ack["label"], ack["status"]) for ack in given_["received"]]
    failed = any(status >= 300 for _, status in entries)
    web = Web(outcome(424 if failed else 200, "acknowledgements", *entries))
    headers = {"response-required": "false", "requested-acks": json.dumps(given_["requested"])}
    answer = web("PUT", f"{THING}/attributes/a", json=1, headers=headers)
    assert answer.status_code == expect["httpStatus"]
    assert (answer.json() if answer.content else None) == expect["body"]


@each("aggregation", "actor-http-live-502")
def test_prose_a_502_of_a_device_is_not_the_gateways(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    assert "502" in given_["received"][0]
    web = Web(response(502, "x", content_type="application/json"))
    assert web("POST", f"{THING}/inbox/messages/ask").status_code == expect["httpStatus"]
    assert web("GET", f"{THING}?channel=live").status_code == 502


def test_one_acknowledgement_is_its_payload_and_its_status() -> None:
    web = Web(aggregate(("my-ack", 202, {"done": True})))
    answer = web("PUT", f"{THING}/attributes/a", json=1, headers={"requested-acks": "my-ack"})
    assert (answer.status_code, answer.json()) == (202, {"done": True})


@pytest.mark.parametrize(
    ("value", "content_type", "body", "shown"),
    [
        ({"a": 1}, "application/json", b'{"a":1}', "application/json"),
        ({"a": 1}, "application/vnd.eclipse.ditto+json", b'{"a":1}', "application/json"),
        ("grüß", "text/plain", "grüß".encode(), "text/plain; charset=utf-8"),
        ("AP8=", "application/octet-stream", b"\x00\xff", "application/octet-stream"),
        ("no base64!", "image/png", b"no base64!", "image/png"),
        ({"a": 1}, "text/plain", b'{"a":1}', "application/json"),
        ("x", "image/png\r\nset-cookie: a=b", b'"x"', "application/json"),
    ],
)
def test_the_answer_of_a_device_has_its_own_content_type(
    value: Any, content_type: str, body: bytes, shown: str
) -> None:
    answer = Web(response(200, value, content_type=content_type))("POST", f"{THING}/inbox/messages/ask", json=1)
    assert (answer.content, answer.headers["content-type"]) == (body, shown)


@pytest.mark.parametrize(
    ("charset", "body", "value"),
    [
        ("iso-8859-1", b"\xfc", "ü"),
        ("UTF-16", "ü".encode("utf-16"), "ü"),
        # codecs of Python that are no character sets: some take minutes for a text
        *((charset, b"A", None) for charset in ("punycode", "idna", "unicode_escape", "undefined", "rot13", "zlib")),
    ],
)
def test_a_message_is_text_of_a_character_set(charset: str, body: bytes, value: str | None) -> None:
    web = Web(response(204))
    kind = {"content-type": f"text/plain; charset={charset}"}
    answer = web("POST", f"{THING}/inbox/messages/x", content=body, headers=kind)
    if value is None:
        assert (answer.status_code, answer.json()["error"]) == (400, "json.invalid")
    else:
        assert answer.status_code == 204


def test_headers_that_a_party_chose_cannot_break_the_response() -> None:
    answer = Web(response(204, etag='"x"\r\nset-cookie: a=b', secret="s", ditto_weak_ack=True))("DELETE", THING)
    assert answer.headers["etag"] == '"x"%0D%0Aset-cookie: a=b'
    assert {"secret", "set-cookie"}.isdisjoint(answer.headers)
    assert answer.headers["ditto-weak-ack"] == "true"


@pytest.mark.parametrize(
    ("completed_by", "entries", "status", "error"),
    [
        ("timeout", [("twin-persisted", 408)], 408, "command.timeout"),
        ("error", [("twin-persisted", 408)], 404, "things:thing.notfound"),
        ("invalid", [], 400, "header.invalid"),
    ],
)
def test_an_error_is_told_although_no_response_is_wanted(
    completed_by: str, entries: Any, status: int, error: str
) -> None:
    what = outcome(status, completed_by, *entries, error={"status": status, "error": error})
    headers = {"response-required": "false", "requested-acks": "twin-persisted"}
    answer = Web(what)("PUT", f"{THING}/attributes/a", json=1, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "error"),
    [
        ("PUT", THING, {"content": b"{nope"}, 400, "json.invalid"),
        ("PUT", THING, {"content": b""}, 400, "json.invalid"),
        ("PUT", THING, {"content": b"[" * 100_000}, 400, "json.invalid"),
        ("PUT", THING, {"content": b'"\xff"'}, 400, "json.invalid"),
        ("PUT", THING, {"json": [1]}, 400, "json.format.invalid"),
        ("PUT", THING, {"json": {"thingId": "org.acme:door"}}, 400, "things:id.notsettable"),
        ("POST", "/things", {"json": {"thingId": LAMP}}, 400, "things:id.notsettable"),
        ("PUT", THING, {"content": "{}", "headers": {"content-type": "text/xml"}}, 415, "mediatype.unsupported"),
        ("PATCH", THING, {"json": {}}, 415, "mediatype.unsupported"),
        ("PUT", THING, {"content": b"x" * 1001}, 413, "gateway:payload.toolarge"),
        ("PUT", "/things/lamp", {"json": {}}, 400, "things:id.invalid"),
        ("PUT", "/things/org.acme:l%2Famp", {"json": {}}, 400, "things:id.invalid"),
        ("GET", "/things?ids=", {}, 400, "gateway:parameter.invalid"),
        ("PUT", f"{THING}/attributes/a?requested_acks=my-ack", {"json": 1}, 400, "gateway:parameter.invalid"),
        ("GET", "/things?filter=exists(attributes/a)", {}, 400, "gateway:parameter.invalid"),
        ("POST", "/search/things?filter=exists(attributes/a)", {"data": {}}, 400, "gateway:parameter.invalid"),
        ("POST", "/search/things", {"data": {"timeout": "5s"}}, 400, "gateway:parameter.invalid"),
        ("POST", "/search/things/count", {"data": {"option": "size(5)"}}, 400, "gateway:parameter.invalid"),
        ("POST", "/search/things", {"json": {}}, 415, "mediatype.unsupported"),
        ("GET", f"{THING}/inbox/messages/ask", {}, 406, "gateway:notacceptable"),
        ("PUT", f"{THING}?dry-run=true", {"json": {}}, 501, "command.notavailable"),
        ("GET", f"{THING}?at-historical-revision=1", {}, 501, "command.notavailable"),
        ("GET", f"{THING}?at-historical-timestamp=x", {}, 501, "command.notavailable"),
        ("PUT", THING, {"json": {}, "headers": {"put-metadata": "[]"}}, 501, "command.notavailable"),
        ("GET", THING, {"headers": {"get-metadata": "attributes"}}, 501, "command.notavailable"),
        ("DELETE", THING, {"headers": {"delete-metadata": "attributes"}}, 501, "command.notavailable"),
        (
            "PATCH",
            THING,
            {"content": "{}", "headers": PATCH | {"merge-thing-patch-conditions": "{}"}},
            501,
            "command.notavailable",
        ),
        ("GET", f"{THING}?fields=thingId,_policy", {}, 501, "command.notavailable"),
        ("GET", "/search/things?fields=_metadata", {}, 501, "command.notavailable"),
        ("GET", f"{THING}?fields=a(b", {}, 400, "json.fieldselector.invalid"),
        ("PUT", THING, {"json": {"_policy": {}}}, 501, "command.notavailable"),
        ("POST", "/things", {"json": {"_copyPolicyFrom": "a:b"}}, 501, "command.notavailable"),
        ("PUT", f"{THING}?declared-acks=my-ack", {"json": {}}, 400, "header.invalid"),
        ("GET", "/search/things/count?channel=live", {}, 400, "header.invalid"),
        ("GET", "/things?ids=a:b&condition=eq(attributes/a,1)", {}, 400, "header.invalid"),
        ("POST", "/things?condition=eq(attributes/a,1)", {"json": {}}, 400, "header.invalid"),
        ("DELETE", THING, {"headers": {"if-equal": "skip"}}, 400, "header.invalid"),
        ("PUT", THING, {"json": {}, "headers": {"if-equal": "perhaps"}}, 400, "header.invalid"),
        ("GET", "/search/things", {"headers": {"if-none-match": '"rev:1"'}}, 400, "header.invalid"),
        (
            "PUT",
            f"{THING}/attributes?live-channel-condition=exists(attributes/a)",
            {"json": {}},
            405,
            "things:live.channelcondition.notallowed",
        ),
        ("GET", f"{THING}?channel=live&live-channel-condition=exists(attributes/a)", {}, 400, "header.invalid"),
        ("GET", f"{THING}?live-channel-timeout-strategy=use-twin", {}, 400, "header.invalid"),
        (
            "PUT",
            THING,
            {"json": {"topic": "a/b/things/twin/commands/modify", "path": "/"}, "headers": PROTOCOL},
            400,
            "json.format.invalid",
        ),
        ("POST", "/things?channel=live", {"json": {}}, 405, "things:thing.notcreatable"),
        ("GET", "/things?ids=lamp", {}, 400, "things:id.invalid"),
        ("GET", "/nothing", {}, 404, "gateway:resource.notfound"),
        ("GET", "//nothing", {}, 404, "gateway:resource.notfound"),
        ("PUT", "/search/things", {}, 405, "gateway:method.notallowed"),
        ("GET", f"{THING}?correlation-id={'x' * 1_025}", {}, 400, "header.invalid"),
        ("GET", THING, {"headers": {"correlation-id": "x" * 1_025}}, 400, "header.invalid"),
        ("GET", f"{THING}?timeout=soon", {}, 400, "timeout.invalid"),
        ("GET", f"{THING}?requested-acks=x", {}, 400, "header.invalid"),
        ("GET", f"{THING}?response-required=perhaps", {}, 400, "header.invalid"),
        ("GET", f"{THING}?timeout=0", {}, 400, "header.invalid"),
        ("GET", f"{THING}?timeout=61s", {}, 400, "gateway:timeout.invalid"),
    ],
)
def test_what_cannot_be_done_is_refused_in_dittos_form(
    method: str, path: str, options: dict[str, Any], status: int, error: str
) -> None:
    web = Web(max_body_bytes=200_000 if options.get("content", b"")[:1] == b"[" else 1000)
    answer = web(method, path, **options)
    assert (answer.status_code, answer.json()["status"], answer.json()["error"]) == (status, status, error)
    assert web.exchange.sent == []


def test_an_error_names_the_correlation_id_of_its_request() -> None:
    answer = Web()("PUT", THING, content=b"{", headers={"correlation-id": "c-1"})
    assert answer.headers["correlation-id"] == "c-1"


def test_the_cases_that_say_what_http_forwards_are_all_tests_here() -> None:
    assert {identity for identity in prose("header_defaults") if identity.startswith("http-")} >= {
        "http-handlesMessageCommand",
        "http-fireAndForget-noReplyWithin3s",
    }
