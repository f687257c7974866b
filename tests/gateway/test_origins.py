"""What web pages of other sites may do, and at which names an open gateway answers."""

from __future__ import annotations

from typing import Any

import pytest

from ackstream.settings import Gateway
from tests.gateway.parts import URL, Web
from tests.gateway.test_authentication import ACCESS, USERS, as_

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
        ("http://[", 403),
        ("", 403),
    ],
)
def test_a_page_changes_things_from_its_own_origin_and_those_of_the_settings(origin: str | None, status: int) -> None:
    web = Web(cors_origins=[APP])
    answer = web("PUT", f"{THING}/attributes/a", json=1, **from_(origin))
    assert (answer.status_code, len(web.exchange.sent)) == (status, status == 204)
    if status == 403:
        assert answer.json()["error"] == "gateway:origin.notallowed"


def test_a_page_of_the_settings_may_read_responses_and_their_headers() -> None:
    web = Web(cors_origins=[APP])
    answer = web("GET", THING, **from_(APP))
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert {"etag", "link", "correlation-id", "retry-after"} <= set(
        answer.headers["access-control-expose-headers"].split(", ")
    )
    assert "access-control-allow-origin" not in web("GET", THING, **from_(EVIL)).headers


def test_a_browser_asks_before_it_sends_and_without_credentials() -> None:
    asked = {"access-control-request-method": "PUT", "access-control-request-headers": "requested-acks"}
    web = Web(cors_origins=[APP], users=USERS, access=ACCESS)
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
    web = Web(cors_origins=["https://things.example"])
    assert web("DELETE", THING, headers={"host": host}).status_code == status


def test_with_authentication_any_name_will_do() -> None:
    web = Web(users=USERS, access=ACCESS)
    assert web("DELETE", THING, headers={"host": "gateway.example"}, **as_("admin")).status_code == 204


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
        Gateway(cors_origins=(origin,))


def test_origins_of_the_settings_may_be_addresses() -> None:
    origins = ("http://[::1]:3000", "http://127.0.0.1:3000", "moz-extension://0a1b-2c")
    assert Gateway(cors_origins=origins).cors_origins == origins
