"""An issuer of tokens on the loopback address: its discovery document, its keys, and tokens signed with them."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

AUDIENCE = "ackstream"
JWKS, DISCOVERY = "/keys", "/.well-known/openid-configuration"


@cache
def rsa_key(name: str, bits: int = 2048) -> Any:
    """Make a key, once in a process: it takes a while."""
    assert name
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def ec_key(name: str) -> Any:
    assert name
    return ec.generate_private_key(ec.SECP256R1())


def pem(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def jwk(key: Any, kid: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the public key as it is published."""
    algorithm = jwt.algorithms.ECAlgorithm if hasattr(key, "curve") else jwt.algorithms.RSAAlgorithm
    found = json.loads(algorithm.to_jwk(key.public_key()))
    return {**found, **({} if kid is None else {"kid": kid}), **more}


def jwks(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": keys})


def signed(key: Any, algorithm: str = "RS256", kid: str | None = None, **claims: Any) -> str:
    """Sign a token; a claim of ``None`` is left out."""
    given = {"sub": "robot", "exp": int(time.time()) + 600, "iss": "me", "aud": AUDIENCE, **claims}
    kept = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(kept, key, algorithm, headers=None if kid is None else {"kid": kid})


class IssuerServer:
    """What an issuer answers; each part may be changed at any time.

    :ivar keys: the published ones, by their ids
    :ivar away: it answers 503
    :ivar named: the issuer in the discovery document
    :ivar asked: the paths of the requests
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                body = outer.answer(self.path).encode()
                self.send_response(503 if outer.away else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Write nothing to the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        self.keys: dict[str, Any] = {}
        self.away, self.named, self.asked = False, self.url, []
        self.extra: list[dict[str, Any]] = []

    def answer(self, path: str) -> str:
        if path == JWKS:
            return jwks(*(jwk(key, kid) for kid, key in self.keys.items()), *self.extra)
        return json.dumps({"issuer": self.named, "jwks_uri": self.url + JWKS})

    def token(self, kid: str, **claims: Any) -> str:
        return signed(rsa_key(kid), kid=kid, **{"iss": self.url, **claims})

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"issuer": self.url, "audience": [AUDIENCE], **more}

    def run(self) -> None:
        self._server.serve_forever(0.05)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def issuing(*kids: str, context: ssl.SSLContext | None = None) -> Iterator[IssuerServer]:
    """Run an issuer with some keys."""
    server = IssuerServer(context)
    server.keys = {kid: rsa_key(kid) for kid in kids}
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()
