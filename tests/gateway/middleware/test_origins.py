"""What web pages of other sites may do, at which names a gateway answers, and what browsers do with responses."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from ackstream.settings import Gateway
from tests.gateway.access.test_authentication import ACCESS, USERS, as_
from tests.gateway.parts import URL, Web, response

THING = "/things/org.acme:lamp"
APP, EVIL = "https://app.example", "https://evil.example"


def from_(origin: str | None, **headers: str) -> dict[str, Any]:
    return {"headers": headers if origin is None else {"origin": origin, **headers}}


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 204),
        (URL, 204),
        (APP, 204),
        (EVIL, 403),
        ("null", 403),
        ("http://localhost:9999", 403),
        ("https://localhost:8080", 204),
        ("ftp://localhost:8080", 403),
        ("http://evil@localhost:8080", 403),
        ("http://[", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_page_is_served_at_its_own_origin_and_those_of_the_settings(
    method: str, origin: str | None, status: int
) -> None:
    web = Web(allowed_origins=[APP])
    answer = web(method, f"{THING}/attributes/a", json=1, **from_(origin))
    assert (answer.status_code, len(web.exchange.sent)) == (status, status == 204)
    if status == 403:
        assert answer.json()["error"] == "gateway:origin.notallowed"


def test_with_tls_a_page_that_came_without_is_another_site() -> None:
    secured = "https://localhost:8443"
    web = Web()
    assert web("PUT", f"{THING}/attributes/a", json=1, base=secured, **from_(secured)).status_code == 204
    plain = from_("http://localhost:8443")
    assert web("PUT", f"{THING}/attributes/a", json=1, base=secured, **plain).status_code == 403


@pytest.mark.parametrize(
    ("origin", "host"),
    [("https://things.example", "things.example:443"), ("http://things.example:80", "Things.Example")],
)
def test_the_port_that_is_understood_may_be_named(origin: str, host: str) -> None:
    web = Web(allowed_hosts=["things.example"])
    assert web("DELETE", THING, **from_(origin, host=host)).status_code == 204


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", "", "multipart/form-data"])
def test_what_a_page_may_send_without_asking_is_no_json(content_type: str) -> None:
    headers = {"content-type": content_type} if content_type else {}
    for origin in (URL, APP):
        web = Web(allowed_origins=[APP])
        options = from_(origin, **headers)
        assert web("POST", "/things", content=b"{}", **options).json()["error"] == "mediatype.unsupported"
        assert web.exchange.sent == []
    # other clients send such types by default
    allowed = content_type != "multipart/form-data"
    status = Web()("PUT", f"{THING}/attributes/a", content=b"1", **from_(None, **headers)).status_code
    assert (status == 204) is allowed


def test_a_page_of_the_settings_may_read_responses_and_their_headers() -> None:
    web = Web(allowed_origins=[APP])
    answer = web("GET", THING, **from_(APP))
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert {"etag", "link", "correlation-id", "retry-after"} <= set(
        answer.headers["access-control-expose-headers"].split(", ")
    )
    assert "access-control-allow-origin" not in web("GET", THING, **from_(EVIL)).headers


def test_a_browser_asks_before_it_sends_and_without_credentials() -> None:
    asked = {"access-control-request-method": "PUT", "access-control-request-headers": "requested-acks"}
    web = Web(allowed_origins=[APP], users=USERS, access=ACCESS)
    answer = web("OPTIONS", THING, **from_(APP, **asked))
    assert (answer.status_code, answer.headers["access-control-allow-headers"]) == (200, "requested-acks")
    assert "PATCH" in answer.headers["access-control-allow-methods"]
    assert web("OPTIONS", THING, **from_(EVIL, **asked)).status_code == 400


def test_without_the_setting_no_page_of_another_origin_is_let_in() -> None:
    web = Web()
    assert web("PUT", f"{THING}/attributes/a", json=1, **from_(APP)).status_code == 403
    answer = web("OPTIONS", THING, **from_(APP, **{"access-control-request-method": "PUT"}))
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 204),
        ("127.0.0.1:8080", 204),
        ("[::1]:8080", 204),
        ("things.example", 204),
        ("evil.example", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_an_open_gateway_answers_at_its_own_names_alone(host: str, status: int) -> None:
    web = Web(allowed_origins=["https://things.example"])
    assert web("DELETE", THING, headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 204),
        (socket.gethostname(), 204),
        ("192.0.2.7:8080", 204),
        ("[2001:db8::7]", 204),
        ("", 204),
        ("things.example", 204),
        ("a.plant.example:8080", 204),
        ("plant.example", 403),
        ("evil.example", 403),
        ("[", 403),
    ],
)
def test_with_authentication_a_gateway_has_the_names_and_addresses_of_its_machine_and_of_the_settings(
    host: str, status: int
) -> None:
    web = Web(users=USERS, access=ACCESS, allowed_hosts=["things.example", "*.plant.example"])
    answer = web("DELETE", THING, headers={"host": host}, **as_("admin"))
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"] == "gateway:host.notallowed"
        assert "gateway.allowed_hosts" in answer.json()["description"]


def test_the_host_of_a_request_does_not_decide_where_a_created_thing_is() -> None:
    web = Web(response(201, {}), allowed_hosts=["things.example"])
    answer = web("PUT", THING, json={}, headers={"host": "things.example"})
    assert answer.headers["location"] == f"/api/2{THING}"


def test_responses_of_all_kinds_tell_browsers_to_run_nothing() -> None:
    web = Web(response(200, {}))
    for path in (THING, "/nothing", "/things?ids=", "//nothing"):
        headers = web("GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    # the gateway's own pages have a script
    assert "sandbox" not in web("GET", "//doc").headers["content-security-policy"]


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "app.example",
        "https://app.example/",
        "https://*.example",
        "https://a b",
        "http://[",
        "http://[x]",
        "http://a:b",
    ],
)
def test_other_texts_than_origins_stop_the_start(origin: str) -> None:
    with pytest.raises(ValueError, match="is not the origin of a page"):
        Gateway(allowed_origins=(origin,))


def test_origins_of_the_settings_may_be_addresses() -> None:
    origins = ("http://[::1]:3000", "http://127.0.0.1:3000", "moz-extension://0a1b-2c")
    assert Gateway(allowed_origins=origins).allowed_origins == origins


@pytest.mark.parametrize("host", ["*", "https://things.example", "things.example:80", "a b", "A.example", "", "a.*"])
def test_other_texts_than_names_of_hosts_stop_the_start(host: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a host"):
        Gateway(allowed_hosts=(host,))
