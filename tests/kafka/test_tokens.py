"""Tokens of a real authorisation server on loopback: kept, renewed in time, and refusals in one sentence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ackstream.errors import AccessRefusedError, UnreachableError
from ackstream.kafka.security import TokenProvider
from ackstream.settings.security import OAuth, Secret
from tests.harness.certificates import Authority
from tests.harness.ports import free_ports
from tests.harness.tokens import LIFETIME_SECONDS, TokenServer

# both have to be encoded on their way (RFC 6749 2.3.1)
CLIENT, SECRET = "me:too", "s3cret+%&"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[TokenServer]:
    server = TokenServer({CLIENT: SECRET})
    with server.running():
        yield server


def _provider(server: TokenServer, clock: Clock | None = None, secret: str = SECRET) -> TokenProvider:
    oauth = OAuth(token_url=server.token_url, client_id=CLIENT, client_secret=Secret(secret), scope="kafka")
    return TokenProvider(oauth, clock or Clock())


def test_a_token_is_kept_until_four_fifths_of_its_life_are_over(server: TokenServer) -> None:
    clock = Clock()
    provider = _provider(server, clock)
    first = provider.token()
    clock.now = 0.79 * LIFETIME_SECONDS
    assert provider.token() == first
    assert server.issued == [CLIENT]
    clock.now = 0.81 * LIFETIME_SECONDS
    provider.token()
    assert server.issued == [CLIENT, CLIENT]
    assert server.scopes == ["kafka", "kafka"]


def test_a_server_that_is_away_does_no_harm_before_the_token_has_expired(server: TokenServer) -> None:
    clock = Clock()
    provider = _provider(server, clock)
    first, server.fails = provider.token(), 503
    clock.now = 0.9 * LIFETIME_SECONDS
    assert provider.token() == first
    clock.now = LIFETIME_SECONDS + 1
    with pytest.raises(UnreachableError, match=r"answers without a token \(503 server_error\)"):
        provider.token()
    server.fails = 0
    assert provider.token()


def test_a_wrong_secret_is_a_sentence_without_it(server: TokenServer) -> None:
    with pytest.raises(AccessRefusedError) as refusal:
        _provider(server, secret="wrong-47110815").token()
    sentence = str(refusal.value)
    assert f"The authorisation server at {server.token_url} refuses the client {CLIENT} (401 invalid_client" in sentence
    assert "correct client_id, client_secret and scope in kafka.security.oauth" in sentence
    assert "47110815" not in sentence


def test_a_server_that_does_not_answer_is_named() -> None:
    (port,) = free_ports(1)
    oauth = OAuth(token_url=f"http://localhost:{port}/token", client_id="me", client_secret=Secret("x"))
    with pytest.raises(UnreachableError, match=rf"^The authorisation server at http://localhost:{port}/token gives no"):
        TokenProvider(oauth).token()


def test_a_redirect_takes_the_secret_nowhere_else(server: TokenServer) -> None:
    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(302)
            self.send_header("Location", server.token_url)
            self.end_headers()

    with ThreadingHTTPServer(("localhost", 0), Elsewhere) as redirecting:
        threading.Thread(target=redirecting.serve_forever, daemon=True).start()
        url = f"http://localhost:{redirecting.server_port}/token"
        with pytest.raises(UnreachableError, match=r"answers without a token \(302\)"):
            TokenProvider(OAuth(token_url=url, client_id=CLIENT, client_secret=Secret(SECRET))).token()
        redirecting.shutdown()
    assert server.issued == []


def test_only_a_server_of_the_named_authority_gets_the_secret(tmp_path: Path) -> None:
    authority, other = Authority(_made(tmp_path / "own")), Authority(_made(tmp_path / "other"))
    server = TokenServer({CLIENT: SECRET})
    with server.running(authority.issue("login")):
        asked = {"token_url": server.token_url, "client_id": CLIENT, "client_secret": Secret(SECRET)}
        assert TokenProvider(OAuth(ca=authority.ca, **asked)).token()
        with pytest.raises(UnreachableError, match=r"CERTIFICATE_VERIFY_FAILED.* or ca if its certificate is not"):
            TokenProvider(OAuth(ca=other.ca, **asked)).token()
    assert server.issued == [CLIENT]


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
