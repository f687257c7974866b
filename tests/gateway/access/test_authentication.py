"""Who may do what over HTTP."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import pytest

from ackstream.errors import SettingsError
from ackstream.gateway.access.authentication import Authenticator, access_of
from ackstream.gateway.access.passwords import hash_password
from ackstream.protocol.ditto.envelopes import decoded
from ackstream.settings import Gateway
from tests.gateway.parts import Web, aggregate, response

LAMP = "org.acme:lamp"
THING = f"/things/{LAMP}"
USERS = {name: hash_password(f"{name}'s", b"the salt") for name in ("admin", "ada", "bob")}
ACCESS = [
    {"subjects": ["user:admin"], "grant": ["READ", "WRITE"]},
    {"subjects": ["user:ada"], "things": ["org.acme:*"], "path": "/attributes", "grant": ["READ", "WRITE"]},
    {"subjects": ["user:ada"], "things": ["org.acme:door"], "grant": ["READ"]},
    {"subjects": ["jwt:robot"], "grant": ["READ"]},
]
WHOLE = {"thingId": LAMP, "attributes": {"a": 1}, "features": {"f": {}}}
SHOWN = response(200, WHOLE)


def web(answer: Any = SHOWN, **gateway: Any) -> Web:
    return Web(answer, **{"users": USERS, "access": ACCESS, **gateway})


def as_(name: str) -> dict[str, Any]:
    return {"auth": (name, f"{name}'s")}


def test_the_right_password_opens_and_the_second_time_without_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    client = web()
    assert client("GET", THING, **as_("admin")).status_code == 200
    monkeypatch.setattr("ackstream.gateway.access.passwords.matches", lambda *_: pytest.fail("hashed again"))
    assert client("GET", THING, **as_("admin")).status_code == 200


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"auth": ("admin", "wrong")},
        {"auth": ("nobody", "admin's")},
        {"headers": {"authorization": "Basic !!"}},
        {"headers": {"authorization": f"Basic {base64.b64encode(bytes([255])).decode()}"}},
        {"headers": {"authorization": f"Basic {base64.b64encode(b'admin').decode()}"}},
        {"headers": {"authorization": "Bearer x"}},
        {"headers": {"authorization": "Digest x"}},
    ],
)
def test_anybody_else_is_asked_who_they_are(options: dict[str, Any]) -> None:
    client = web()
    for path in (THING, "/nothing"):
        answer = client("GET", path, **options)
        assert (answer.status_code, answer.json()["error"]) == (401, "gateway:authentication.failed")
        assert answer.headers["www-authenticate"].startswith("Basic")
    assert client.exchange.sent == []


def test_who_sent_a_command_stands_in_it() -> None:
    client = web(response(204))
    assert client("PUT", f"{THING}/attributes/a", json=1, **as_("ada")).status_code == 204
    assert client.sent.headers["ditto-originator"] == "user:ada"


@pytest.mark.parametrize(
    ("name", "method", "path", "options", "status"),
    [
        ("ada", "PUT", f"{THING}/attributes/a", {"json": 1}, 200),
        ("ada", "DELETE", f"{THING}/attributes", {}, 200),
        ("ada", "PUT", THING, {"json": {}}, 403),
        ("ada", "PUT", f"{THING}/features/f", {"json": {}}, 403),
        ("ada", "PUT", "/things/org.other:lamp/attributes/a", {"json": 1}, 404),
        ("bob", "PUT", f"{THING}/attributes/a", {"json": 1}, 404),
        ("bob", "GET", THING, {}, 404),
        ("ada", "GET", "/things/org.other:lamp", {}, 404),
        ("ada", "POST", f"{THING}/inbox/messages/ask", {}, 403),
        ("admin", "POST", f"{THING}/inbox/messages/ask", {}, 200),
        ("ada", "POST", "/things?namespace=org.acme", {"json": {}}, 403),
        ("admin", "POST", "/things", {"json": {}}, 200),
        ("ada", "GET", f"{THING}/attributes?condition=eq(features/f,1)", {}, 404),
        ("ada", "PUT", f"{THING}/attributes/a?condition=eq(features/f,1)", {"json": 1}, 403),
    ],
)
def test_the_rules_say_what_may_be_done(
    name: str, method: str, path: str, options: dict[str, Any], status: int
) -> None:
    client = web()
    answer = client(method, path, **options, **as_(name))
    assert answer.status_code == status
    assert len(client.exchange.sent) == (status == 200)


def test_a_merge_needs_what_each_of_its_places_needs() -> None:
    headers = {"content-type": "application/merge-patch+json"}
    for patch, status in (
        ({"attributes": {"a": None, "b": {}}}, 204),
        ({"attributes": {"a": 1}, "features": {"f": None}}, 403),
        ({}, 403),
    ):
        client = web(response(204))
        assert client("PATCH", THING, content=json.dumps(patch), headers=headers, **as_("ada")).status_code == status


def test_of_a_thing_only_what_may_be_read_is_shown() -> None:
    assert web()("GET", THING, **as_("ada")).json() == {"attributes": {"a": 1}}
    assert web()("GET", THING, **as_("admin")).json() == WHOLE
    hidden = web(response(200, {"f": {}}))("GET", f"{THING}/features", **as_("ada"))
    assert (hidden.status_code, hidden.json()["error"]) == (404, "things:thing.notfound")


def test_of_several_things_only_the_visible_ones_are_asked_for_and_shown() -> None:
    client = web(response(200, [WHOLE, {"thingId": "org.acme:door", "definition": "a:b:1"}]))
    answer = client("GET", "/things?ids=org.other:x,org.acme:lamp,org.acme:door&fields=attributes", **as_("ada"))
    assert decoded(client.sent.value) == {"thingIds": [LAMP, "org.acme:door"]}
    assert client.sent.fields == "attributes,thingId"
    assert answer.json() == [{"attributes": {"a": 1}}, {"thingId": "org.acme:door", "definition": "a:b:1"}]


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("admin", {}),
        ("ada", {"only": ["org.acme:door"]}),
        ("bob", {"only": []}),
    ],
)
def test_a_search_finds_things_that_may_be_read_entirely(name: str, only: dict[str, list[str]]) -> None:
    for path in ("/search/things", "/search/things/count"):
        client = web(response(200, 0))
        assert client("GET", path, params={"filter": "eq(attributes/a,1)"}, **as_(name)).status_code == 200
        assert decoded(client.sent.value) == {"filter": "eq(attributes/a,1)", **only}
    client = web(response(200, {"items": []}))
    assert client("GET", "/things?option=cursor(x)", **as_(name)).status_code == 200
    assert decoded(client.sent.value) == {"options": ["cursor(x)"], **only}


def test_the_answers_to_a_change_are_not_cut() -> None:
    client = web(aggregate(("twin-persisted", 204, None), ("my-ack", 200, {"x": 1})))
    answer = client(
        "PUT", f"{THING}/attributes/a", json=1, headers={"requested-acks": "twin-persisted,my-ack"}, **as_("ada")
    )
    assert answer.json()["my-ack"]["payload"] == {"x": 1}


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_without_users_and_tokens_the_gateway_is_open_on_loopback_and_says_so(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        authenticator = Authenticator(Gateway(host=host))
    assert not authenticator.required
    assert "Authentication is off" in caplog.text


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"host": "0.0.0.0"}, "gateway.host"),
        ({"host": "gateway.example"}, "gateway.host"),
        ({"users": {"ada": "plain"}}, "gateway.users"),
        ({"users": {"a:b": USERS["ada"]}}, "gateway.users"),
        ({"issuers": [{"issuer": "me", "audience": ["us"], "key_file": "/nowhere"}]}, "gateway.issuers .*/nowhere"),
        ({"users": USERS}, "gateway.access"),
    ],
)
def test_settings_that_would_not_protect_stop_the_start(settings: dict[str, Any], names: str) -> None:
    gateway = Gateway(**settings)
    with pytest.raises(SettingsError, match=names):
        access_of(gateway, Authenticator(gateway))


def test_of_a_password_that_stands_where_its_hash_belongs_nothing_is_shown() -> None:
    for wrong in ("hunter2", "scrypt$16384$8$1$hunter2$hunter2"):
        with pytest.raises(SettingsError) as caught:
            Authenticator(Gateway(users={"ada": wrong}))
        assert "hunter2" not in str(caught.value)


def test_a_role_of_a_user_is_granted_what_the_rules_say_and_shown_to_it() -> None:
    users = {"ada": {"password": USERS["ada"], "roles": ["operator"]}, "bob": USERS["bob"]}
    rules = [{"roles": ["user:operator"], "grant": ["READ", "WRITE"]}]
    client = web(users=users, access=rules)
    assert client("PUT", f"{THING}/attributes/a", json=1, **as_("ada")).status_code == 200
    assert client("PUT", f"{THING}/attributes/a", json=1, **as_("bob")).status_code == 404
    shown = client("GET", "/whoami", **as_("ada")).json()
    assert shown == {"defaultSubject": "user:ada", "subjects": ["user:ada"], "roles": ["user:operator"]}


# -- what the sender may do --------------------------------------------------------------------------------------------


def test_a_client_can_ask_what_it_may_do() -> None:
    asked = {
        name: {"resource": resource, "entityId": LAMP, "hasPermissions": permissions}
        for name, resource, permissions in (
            ("whole", "thing:/", ["READ"]),
            ("part", "thing:/attributes/a", ["READ", "WRITE"]),
            ("message", "message:/inbox/messages/ask", ["WRITE"]),
        )
    }
    found = {name: web()("POST", "/checkPermissions", json=asked, **as_(name)).json() for name in ("ada", "admin")}
    assert found["ada"] == {"whole": False, "part": True, "message": False}
    assert set(found["admin"].values()) == {True}


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ([], 400),
        ({"a": {"resource": "thing:/", "entityId": LAMP}}, 400),
        ({"a": {"resource": "thing:/", "entityId": LAMP, "hasPermissions": ["EXECUTE"]}}, 400),
        ({"a": {"resource": "other:/", "entityId": LAMP, "hasPermissions": ["READ"]}}, 400),
        ({"a": {"resource": "policy:/", "entityId": LAMP, "hasPermissions": ["READ"]}}, 501),
        ({str(n): {"resource": "thing:/", "entityId": LAMP, "hasPermissions": ["READ"]} for n in range(501)}, 400),
    ],
)
def test_a_question_about_permissions_that_is_none_is_refused(asked: Any, status: int) -> None:
    assert web()("POST", "/checkPermissions", json=asked, **as_("ada")).status_code == status
