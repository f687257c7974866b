"""Who may do what over HTTP."""

from __future__ import annotations

import base64
import json
import logging
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ackstream.errors import SettingsError
from ackstream.gateway.authentication import Authenticator, access_of, hash_password, matches
from ackstream.settings import Gateway
from tests.gateway.parts import Web, aggregate, decoded, response

if TYPE_CHECKING:
    from pathlib import Path

LAMP = "org.acme:lamp"
THING = f"/things/{LAMP}"
SECRET = "a secret of at least thirty-two bytes"
USERS = {name: hash_password(f"{name}'s", b"salt") for name in ("admin", "ada", "bob")}
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


@pytest.fixture(scope="module")
def keys() -> Any:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(keys: Any) -> bytes:
    return keys.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def token(key: Any, algorithm: str = "RS256", headers: Any = None, **claims: Any) -> dict[str, Any]:
    given = {"sub": "robot", "exp": 4_000_000_000, "iss": "me", "aud": "ackstream", **claims}
    kept = {name: value for name, value in given.items() if value is not None}
    return {"headers": {"authorization": f"Bearer {jwt.encode(kept, key, algorithm, headers=headers)}"}}


def test_the_right_password_opens_and_the_second_time_without_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    client = web()
    assert client("GET", THING, **as_("admin")).status_code == 200
    monkeypatch.setattr("ackstream.gateway.authentication.matches", lambda *_: pytest.fail("hashed again"))
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


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_token_of_a_known_key_opens(keys: Any, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(pem(keys))
    client = web(jwt_key_file=str(path), jwt_issuer="me", jwt_audience="ackstream")
    assert client("GET", THING, **token(keys)).status_code == 200
    assert client("GET", THING, **token(keys, aud=["other", "ackstream"])).status_code == 200
    # beside passwords
    assert client("GET", THING, **as_("admin")).status_code == 200


@pytest.mark.parametrize(
    "claims", [{"exp": 1}, {"iss": "you"}, {"iss": None}, {"aud": "other"}, {"aud": None}, {"sub": None}]
)
def test_a_token_that_is_not_for_us_does_not(keys: Any, tmp_path: Path, claims: dict[str, Any]) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(pem(keys))
    client = web(jwt_key_file=str(path), jwt_issuer="me", jwt_audience="ackstream")
    answer = client("GET", THING, **token(keys, **claims))
    assert (answer.status_code, answer.json()["error"]) == (401, "gateway:authentication.failed")
    assert "invalid_token" in answer.headers["www-authenticate"]


def test_a_public_key_is_no_shared_secret(keys: Any, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(pem(keys))
    client = web(jwt_key_file=str(path))
    forged = token(SECRET, "HS256")
    assert client("GET", THING, **forged).status_code == 401


def test_a_shared_secret_signs_tokens_too(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n", "utf-8")
    client = web(users={}, jwt_key_file=str(path), jwt_algorithms=["HS256"])
    assert client("GET", THING, **token(SECRET, "HS256", aud=None)).status_code == 200
    assert client("GET", THING, **token(SECRET + "!", "HS256", aud=None)).status_code == 401
    assert client("GET", THING).headers["www-authenticate"].startswith("Bearer")


def test_the_key_of_a_set_is_found_by_its_id(keys: Any, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(keys.public_key()))
    path.write_text(json.dumps({"keys": [{**key, "kid": "one", "use": "sig"}]}), "utf-8")
    client = web(users={}, jwt_jwks_file=str(path))
    assert client("GET", THING, **token(keys, headers={"kid": "one"}, aud=None)).status_code == 200
    assert client("GET", THING, **token(keys, headers={"kid": "two"}, aud=None)).status_code == 401


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
        ({"users": {"ada": "scrypt$1$2$3$x"}}, "gateway.users"),
        ({"users": {"a:b": USERS["ada"]}}, "gateway.users"),
        ({"jwt_key_file": "/nowhere"}, "gateway.jwt_key_file"),
        ({"jwt_jwks_file": __file__}, "gateway.jwt_jwks_file"),
        ({"jwt_key_file": __file__, "jwt_algorithms": ["none"]}, "gateway.jwt_algorithms"),
        ({"jwt_key_file": __file__, "jwt_algorithms": []}, "gateway.jwt_algorithms"),
        ({"users": USERS}, "gateway.access"),
    ],
)
def test_settings_that_would_not_protect_stop_the_start(settings: dict[str, Any], names: str) -> None:
    gateway = Gateway(**settings)
    with pytest.raises(SettingsError, match=names):
        access_of(gateway, Authenticator(gateway))


def test_a_password_matches_its_own_hash_alone() -> None:
    hashed = hash_password("grüß")
    assert matches("grüß", hashed)
    assert not matches("gruss", hashed)
    assert hashed != hash_password("grüß")
