"""Tokens: which are accepted, and whose they are."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import jwt
import pytest

from ackstream.errors import SettingsError
from ackstream.gateway.access import tokens
from ackstream.gateway.access.tokens import LEEWAY_SECONDS, KeySet, RemoteKeys, Tokens, fetch_keys, read_key_set
from ackstream.protocol.errors import DittoError
from ackstream.settings import Gateway
from ackstream.settings.gateway import Issuer
from tests.gateway.parts import Web, response
from tests.harness.certificates import Authority
from tests.harness.issuers import AUDIENCE, IssuerServer, ec_key, issuing, jwk, jwks, pem, rsa_key, signed
from tests.harness.waiting import PATIENCE_SECONDS, eventually

THING = "/things/org.acme:lamp"
SECRET = "a secret of at least thirty-two bytes"
ACCESS = [{"subjects": ["jwt:robot"], "grant": ["READ"]}, {"roles": ["jwt:writer"], "grant": ["READ", "WRITE"]}]


def issuer(directory: Path, key: str = "", **more: Any) -> dict[str, Any]:
    path = directory / "key"
    path.write_text(key or pem(rsa_key("one")), "utf-8")
    return {"issuer": "me", "audience": [AUDIENCE], "key_file": str(path), **more}


def read(issuers: list[dict[str, Any]], token: str) -> Any:
    """Return the subjects of a token, or the status of the error."""
    with closing(Tokens(Gateway(issuers=issuers).issuers)) as tokens:
        try:
            return asyncio.run(tokens.read(token))[0]
        except DittoError as error:
            return error.status


def test_a_token_opens_what_the_rules_say(tmp_path: Path) -> None:
    client = Web(response(200, {}), issuers=[issuer(tmp_path)], access=ACCESS)

    def ask(token: str, method: str = "GET") -> int:
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        return client(method, THING, headers=headers, content="{}").status_code

    assert ask(signed(rsa_key("one"))) == 200
    assert ask(signed(rsa_key("one")), "PUT") == 403
    assert ask(signed(rsa_key("two"))) == 401
    assert client("GET", THING).headers["www-authenticate"] == 'Bearer realm="ackstream"'
    refused = client("GET", THING, headers={"authorization": f"Bearer {signed(rsa_key('two'))}"})
    assert "invalid_token" in refused.headers["www-authenticate"]


@pytest.mark.parametrize(
    "claims",
    [
        # a token without an end
        {"exp": None},
        {"exp": 1},
        # one of another service, signed by the same key
        {"aud": "other"},
        {"aud": None},
        {"iss": "you"},
        {"iss": None},
        {"iss": ["me"]},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"nbf": 4_000_000_000},
    ],
    ids=str,
)
def test_a_token_that_is_not_for_here_or_never_ends_is_refused(tmp_path: Path, claims: dict[str, Any]) -> None:
    found = [issuer(tmp_path)]
    assert read(found, signed(rsa_key("one"))) == ("jwt:robot",)
    payload = {"sub": "robot", "exp": int(time.time()) + 600, "iss": "me", "aud": AUDIENCE, **claims}
    # PyJWT itself writes no such claims
    parts = [{"alg": "RS256"}, {name: value for name, value in payload.items() if value is not None}]
    text = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    algorithm = jwt.algorithms.get_default_algorithms()["RS256"]
    signature = base64.urlsafe_b64encode(algorithm.sign(text, rsa_key("one"))).rstrip(b"=")
    assert read(found, f"{text.decode()}.{signature.decode()}") == 401


def test_clocks_may_differ_a_little(tmp_path: Path) -> None:
    now = int(time.time())
    for seconds, wanted in ((LEEWAY_SECONDS - 5, ("jwt:robot",)), (LEEWAY_SECONDS + 5, 401)):
        assert read([issuer(tmp_path)], signed(rsa_key("one"), exp=now - seconds)) == wanted
        assert read([issuer(tmp_path)], signed(rsa_key("one"), nbf=now + seconds)) == wanted


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "e30.e30.", "W10.W10.AA", f"{'a' * 5_000}.e30.AA"])
def test_what_is_no_token_is_refused(tmp_path: Path, token: str) -> None:
    assert read([issuer(tmp_path)], token) == 401


def test_a_public_key_is_no_shared_secret_and_no_signature_is_none(tmp_path: Path) -> None:
    found = [issuer(tmp_path)]
    assert read(found, signed(SECRET, "HS256")) == 401
    claims = {"sub": "robot", "exp": 4_000_000_000, "iss": "me", "aud": AUDIENCE}
    assert read(found, jwt.encode(claims, None, "none")) == 401


def test_a_shared_secret_signs_tokens_too(tmp_path: Path) -> None:
    found = [issuer(tmp_path, f"{SECRET}\n", algorithms=["HS256"])]
    assert read(found, signed(SECRET, "HS256")) == ("jwt:robot",)
    assert read(found, signed(f"{SECRET}!", "HS256")) == 401


@pytest.mark.parametrize(
    ("key", "algorithms", "reason"),
    [
        ("x", ["HS256"], "needs 32 bytes and has 1"),
        (" \n", ["HS256"], "not a key for HS256"),
        ("s" * 32, ["HS256", "HS512"], "HS512 needs 64 bytes and has 32"),
        (SECRET, ["RS256"], "not for RS256"),
        ("pem", ["HS256"], "not for HS256"),
        ("pem", ["RS256", "HS256"], "not for HS256"),
        ("pem", ["ES256"], "not a key for ES256"),
        ("short", ["RS256"], "needs 2048 bits and has 1024"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", ["RS256"], "not a key for RS256"),
    ],
)
def test_a_key_with_which_tokens_could_be_forged_stops_the_start(
    tmp_path: Path, key: str, algorithms: list[str], reason: str
) -> None:
    known = {"pem": pem(rsa_key("one")), "short": pem(rsa_key("short", 1024))}
    with pytest.raises(SettingsError, match=f"gateway.issuers has the key_file .*{reason}"):
        Tokens(Gateway(issuers=[issuer(tmp_path, known.get(key, key), algorithms=algorithms)]).issuers)


def test_an_algorithm_that_the_settings_do_not_name_is_refused(tmp_path: Path) -> None:
    token = signed(rsa_key("one"), "PS256")
    assert read([issuer(tmp_path)], token) == 401
    assert read([issuer(tmp_path, algorithms=["RS256", "PS256"])], token) == ("jwt:robot",)


def test_the_key_of_a_set_is_found_by_its_id(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    encryption = jwk(rsa_key("three"), "three", use="enc")
    path.write_text(jwks(jwk(rsa_key("one"), "one"), jwk(ec_key("two"), "two"), encryption), "utf-8")
    found = [{"issuer": "me", "audience": [AUDIENCE], "jwks_file": str(path), "algorithms": ["RS256", "ES256"]}]
    assert read(found, signed(rsa_key("one"), kid="one")) == ("jwt:robot",)
    assert read(found, signed(ec_key("two"), "ES256", kid="two")) == ("jwt:robot",)
    for name, kid in (("one", "two"), ("one", "four"), ("one", None), ("three", "three")):
        assert read(found, signed(rsa_key(name), kid=kid)) == 401


def test_roles_come_from_the_claims_of_the_settings_and_no_subject_is_a_role(tmp_path: Path) -> None:
    claims = {
        "realm_access": {"roles": ["operator", "", 7]},
        "scope": "read write",
        "https://acme.example/groups": ["role:jwt:admin"],
        "groups": {"admin": True},
    }
    names = ["/realm_access/roles", "scope", "https://acme.example/groups", "groups", "missing", "/scope/x"]
    token = signed(rsa_key("one"), **claims, sub="role:jwt:admin")
    subject, *roles = read([issuer(tmp_path, roles=names)], token)
    assert subject == "jwt:role:jwt:admin"
    assert roles == [f"role:jwt:{name}" for name in ("operator", "read", "write", "role:jwt:admin")]
    assert read([issuer(tmp_path)], token) == ("jwt:role:jwt:admin",)


def test_a_role_is_granted_what_the_rules_say_by_its_token(tmp_path: Path) -> None:
    client = Web(response(204), issuers=[issuer(tmp_path, roles=["roles"])], access=ACCESS)
    for roles, status in ((["writer"], 204), (["reader"], 404), ("writer", 204)):
        token = signed(rsa_key("one"), sub="other", roles=roles)
        assert client("DELETE", THING, headers={"authorization": f"Bearer {token}"}).status_code == status


def test_of_several_issuers_each_vouches_for_its_own_subjects_alone(tmp_path: Path) -> None:
    with issuing("theirs") as other:
        ours = issuer(tmp_path)
        both = [ours, other.settings(prefix="partner")]
        assert read(both, signed(rsa_key("one"))) == ("jwt:robot",)
        assert read(both, other.token("theirs")) == ("partner:robot",)
        # the partner signs a token of ours
        assert read(both, other.token("theirs", iss="me")) == 401


def test_the_subject_may_be_another_claim(tmp_path: Path) -> None:
    found = [issuer(tmp_path, subject="client_id")]
    assert read(found, signed(rsa_key("one"), client_id="pump-7")) == ("jwt:pump-7",)
    assert read(found, signed(rsa_key("one"))) == 401


# -- keys of issuers ---------------------------------------------------------------------------------------------------


def fetched(server: IssuerServer, *tokens: str, **more: Any) -> list[Any]:
    with closing(Tokens(Gateway(issuers=[server.settings(**more)]).issuers)) as found:

        async def one(token: str) -> Any:
            try:
                return (await found.read(token))[0]
            except DittoError as error:
                return error.status

        async def go() -> list[Any]:
            return [await one(token) for token in tokens]

        return asyncio.run(go())


def test_keys_are_found_by_the_discovery_document_or_by_their_url() -> None:
    with issuing("one") as server:
        assert fetched(server, server.token("one"), server.token("two")) == [("jwt:robot",), 401]
        assert fetched(server, server.token("one"), jwks_url=f"{server.url}/keys") == [("jwt:robot",)]


def test_the_discovery_document_of_another_issuer_gives_no_keys() -> None:
    with issuing("one") as server:
        server.named = "https://other.example"
        assert fetched(server, server.token("one")) == [503]


def test_a_secret_that_an_issuer_publishes_signs_nothing() -> None:
    with issuing("one") as server:
        secret = base64.urlsafe_b64encode(SECRET.encode()).rstrip(b"=").decode()
        server.extra = [{"kty": "oct", "k": secret, "kid": "shared"}]
        forged = signed(SECRET, "HS256", kid="shared", iss=server.url)
        assert fetched(server, forged, server.token("one")) == [401, ("jwt:robot",)]


def test_without_keys_it_is_not_the_client_that_is_wrong() -> None:
    with issuing("one") as server:
        server.away = True
        assert fetched(server, server.token("one")) == [503]


ISSUER = Issuer(issuer="https://login.example", audience=("us",))


class Source:
    """What an issuer publishes, fetch by fetch; a fetch waits until the test lets it."""

    def __init__(self) -> None:
        self.kids: set[str] | None = {"one"}
        self.count = 0
        self.free = threading.Event()
        self.free.set()

    def __call__(self, _issuer: Issuer) -> KeySet:
        self.count += 1
        assert self.free.wait(PATIENCE_SECONDS)
        if self.kids is None:
            raise ValueError("it is away")
        return KeySet((kid, f"key {kid}") for kid in self.kids)


def wait(found: RemoteKeys) -> None:
    future = found.renew()
    if future is not None:
        future.result(PATIENCE_SECONDS)


def test_a_new_key_is_fetched_for_the_first_token_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "DISTANCE_SECONDS", 0.0)
    source = Source()
    with closing(RemoteKeys(ISSUER, source)) as found:
        wait(found)
        source.kids = {"two"}
        assert found.current.find("two") is None
        wait(found)
        # the old one is withdrawn with it
        assert (found.current.find("two"), found.current.find("one")) == ("key two", None)


def test_made_up_keys_do_not_make_the_gateway_ask_its_issuer_again_and_again() -> None:
    source = Source()
    with closing(RemoteKeys(ISSUER, source)) as found:
        wait(found)
        assert [found.renew() for _ in range(1_000)] == [None] * 1_000
        assert source.count == 1


def test_all_who_need_a_key_wait_for_one_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "DISTANCE_SECONDS", 0.0)
    source = Source()
    with closing(RemoteKeys(ISSUER, source)) as found:
        wait(found)
        count = source.count
        source.free.clear()
        futures = {found.renew() for _ in range(100)}
        (future,) = futures
        assert future is not None
        source.free.set()
        future.result(PATIENCE_SECONDS)
        assert source.count == count + 1


def test_a_withdrawn_key_is_forgotten_though_no_token_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "RENEW_SECONDS", 0.01)
    source = Source()
    with closing(RemoteKeys(ISSUER, source)) as found:
        wait(found)
        source.kids = {"two"}
        eventually(lambda: found.current.find("one") is None, "the key to be forgotten")


def test_while_the_issuer_is_away_its_last_keys_stay_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tokens, "DISTANCE_SECONDS", 0.0)
    source = Source()
    with caplog.at_level(logging.INFO), closing(RemoteKeys(ISSUER, source)) as found:
        wait(found)
        source.kids = None
        for _ in range(3):
            wait(found)
        assert found.current.find("one") == "key one"
        source.kids = {"one"}
        wait(found)
    told = [record.message for record in caplog.records if record.name == tokens.__name__]
    assert told == [
        "The keys of the issuer https://login.example cannot be fetched: it is away; those fetched last are used.",
        "The keys of the issuer https://login.example can be fetched again.",
    ]


def test_a_slow_issuer_holds_up_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "DISTANCE_SECONDS", 0.0)
    source = Source()

    async def go() -> int:
        with closing(RemoteKeys(ISSUER, source)) as found:
            wait(found)
            source.free.clear()
            waiting = asyncio.wrap_future(found.renew())
            turns = 0
            while turns < 1_000:
                await asyncio.sleep(0)
                turns += 1
            assert not waiting.done()
            # a client that goes away leaves the fetch to the others
            waiting.cancel()
            source.free.set()
            return turns

    assert asyncio.run(go()) == 1_000


def test_those_who_wait_go_on_when_the_gateway_stops() -> None:
    source = Source()
    source.free.clear()
    found = RemoteKeys(ISSUER, source)
    future = found.renew()
    source.free.set()
    found.close()
    assert future is not None
    assert future.result(PATIENCE_SECONDS) is None
    assert found.renew() is None


# -- fetching ----------------------------------------------------------------------------------------------------------


def of(url: str, **more: Any) -> Issuer:
    return Issuer(issuer=url, audience=("us",), **more)


def test_keys_come_from_an_issuer_whose_certificate_is_of_the_named_authority_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue_pair("issuer")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with issuing("one", context=context) as server:
        assert len(fetch_keys(of(server.url, ca=authority.ca))) == 1
        with pytest.raises(ValueError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch_keys(of(server.url))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("[]", "it has no issuer and jwks_uri"),
        ("not JSON", "Expecting value"),
        ('{"issuer": "URL", "jwks_uri": "http://login.example/keys"}', "does not begin with https://"),
        ('{"issuer": "URL", "jwks_uri": "file:///etc/passwd"}', "does not begin with https://"),
        ('{"issuer": "URL/", "jwks_uri": "URL/keys"}', "the document of the issuer"),
        ("x" * 1_000_001, "longer than 1000000 bytes"),
    ],
)
def test_a_discovery_document_that_cannot_be_trusted_is_refused(answer: str, reason: str) -> None:
    with issuing("one") as server:
        server.answer = lambda _: answer.replace("URL", server.url)  # type: ignore[method-assign]
        with pytest.raises(ValueError, match=reason):
            fetch_keys(of(server.url))


def test_an_issuer_that_does_not_answer_is_said_with_its_url() -> None:
    with issuing() as server:
        url = server.url
    with pytest.raises(ValueError, match=f"{url}/.well-known/openid-configuration: there is no response"):
        fetch_keys(of(url))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "not a valid JSON Web Key Set"),
        ('{"keys": {}}', "it has no key"),
        ('{"keys": ["x"]}', "not a valid JSON Web Key Set"),
        (jwks(), "it has no key"),
        (jwks({"kty": "other"}), "of an unknown kind"),
        (jwks(jwk(rsa_key("short", 1024), "a")), "needs 2048 bits"),
        (jwks({"kty": "oct", "k": "AAAA"}), "needs 32 bytes and has 3"),
        (jwks(jwk(rsa_key("one"), "a", use="enc")), "it has no key"),
    ],
)
def test_a_key_set_without_a_key_that_can_be_used_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_key_set(text, published=False)
