"""An authorisation server on loopback: tokens for clients, and the key with which a broker checks them."""

from __future__ import annotations

import json
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

AUDIENCE = "kafka"
LIFETIME_SECONDS = 300


class TokenServer:
    """Gives tokens for the subjects that ``clients`` names, with their secrets; a client's id is the subject.

    :ivar issued: the tokens so far, by clients
    :ivar scopes: what was asked for
    :ivar fails: a status to answer with instead, to every request
    """

    def __init__(self, clients: dict[str, str]) -> None:
        self.clients, self.issued, self.scopes = clients, list[str](), list[str]()
        self.lifetime = LIFETIME_SECONDS
        self.fails = 0
        self.port = 0
        self._key = rsa.generate_private_key(65537, 2048)

    @property
    def token_url(self) -> str:
        """Where tokens are, by TLS if the server has a certificate."""
        return f"{self.scheme}://localhost:{self.port}/token"

    scheme = "http"

    def keys(self) -> bytes:
        """Return the key set."""
        key = json.loads(RSAAlgorithm.to_jwk(self._key.public_key())) | {"kid": "1", "use": "sig", "alg": "RS256"}
        return json.dumps({"keys": [key]}).encode()

    def answer(self, login: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """Return status and JSON for a request of a token."""
        if self.fails:
            return self.fails, {"error": "server_error"}
        client, _, secret = b64decode(login.removeprefix("Basic ")).decode().partition(":")
        client, secret = unquote_plus(client), unquote_plus(secret)
        if form.get("grant_type") != ["client_credentials"] or self.clients.get(client) != secret:
            return 401, {"error": "invalid_client", "error_description": "Unknown client or wrong secret"}
        self.issued.append(client)
        self.scopes += form.get("scope", [])
        now = int(time.time())
        claims = {"sub": client, "aud": AUDIENCE, "iat": now, "exp": now + self.lifetime, "scope": "kafka"}
        token = jwt.encode(claims, self._key, "RS256", headers={"kid": "1"})
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime}

    @contextmanager
    def running(self, certificate: Path | None = None) -> Iterator[str]:
        """Serve for the time of the block; give the URL of the key set, which is served without TLS.

        :param certificate: with its key; without it tokens are served without TLS too
        """
        servers = [ThreadingHTTPServer(("localhost", 0), _handler(self)) for _ in range(2)]
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            servers[0].socket = context.wrap_socket(servers[0].socket, server_side=True)
            self.scheme = "https"
        self.port = servers[0].server_port
        threads = [threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True) for server in servers]
        for thread in threads:
            thread.start()
        try:
            yield f"http://localhost:{servers[1].server_port}/keys"
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()


def _handler(tokens: TokenServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0"))).decode()
            status, answer = tokens.answer(self.headers.get("authorization", ""), parse_qs(body))
            self._send(status, json.dumps(answer).encode())

        def do_GET(self) -> None:
            self._send(200, tokens.keys())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Stay silent."""

    return Handler
