"""Keys of issuers: fetched beside the event loop, renewed, kept while their issuer is away."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.gateway.access import keys
from ackstream.gateway.access.keys import KeySet, RemoteKeys, fetch_keys, read_key_set
from ackstream.settings.access import Issuer
from tests.harness.certificates import Authority
from tests.harness.issuers import issuing, jwk, jwks, rsa_key
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from pathlib import Path

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
    monkeypatch.setattr(keys, "DISTANCE_SECONDS", 0.0)
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
    monkeypatch.setattr(keys, "DISTANCE_SECONDS", 0.0)
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
    monkeypatch.setattr(keys, "RENEW_SECONDS", 0.01)
    source = Source()
    with closing(RemoteKeys(ISSUER, source)) as found:
        wait(found)
        source.kids = {"two"}
        eventually(lambda: found.current.find("one") is None, "the key to be forgotten")


def test_while_the_issuer_is_away_its_last_keys_stay_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys, "DISTANCE_SECONDS", 0.0)
    source = Source()
    with caplog.at_level(logging.INFO), closing(RemoteKeys(ISSUER, source)) as found:
        wait(found)
        source.kids = None
        for _ in range(3):
            wait(found)
        assert found.current.find("one") == "key one"
        source.kids = {"one"}
        wait(found)
    told = [record.message for record in caplog.records if record.name == keys.__name__]
    assert told == [
        "The keys of the issuer https://login.example cannot be fetched: it is away; those fetched last are used.",
        "The keys of the issuer https://login.example can be fetched again.",
    ]


def test_a_slow_issuer_holds_up_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "DISTANCE_SECONDS", 0.0)
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
        ("{}", "no JSON Web Key Set"),
        ('{"keys": {}}', "it has no key"),
        ('{"keys": ["x"]}', "no JSON Web Key Set"),
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
