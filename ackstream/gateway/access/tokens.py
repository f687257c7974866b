"""JSON Web Tokens of several issuers, and the keys they are signed with: from a file, or fetched from the issuer.

A fetch runs in a thread of its own. Keys are renewed every few minutes, so that a withdrawn key is no longer accepted,
and at once for a token of an unknown key, but at most every few seconds, regardless of the tokens that clients send.
While the issuer is unavailable, its last keys remain in use. Source of the rules: RFC 7519, RFC 8725 (best current
practices), OpenID Connect Core 1.0, 3.1.3.7.
"""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from ackstream.errors import SettingsError
from ackstream.gateway.errors import authentication_failed, unavailable
from ackstream.kafka.clients import Closing
from ackstream.protocol.json import find, keys_of
from ackstream.settings.gateway import ROLE, Issuer
from ackstream.settings.security import Tls, is_secure

log = logging.getLogger(__name__)

RENEW_SECONDS = 300.0
"""The time after which the keys of an issuer are fetched again; a withdrawn key is accepted no longer."""

DISTANCE_SECONDS = 10.0
"""The least time between two fetches."""

FETCH_SECONDS = 5.0
MAX_BYTES = 1_000_000
RSA_BITS = 2048
SHARED_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
"""The least length of a shared secret: that of its hash (RFC 7518, 3.2). Shorter ones can be found from one token."""

DISCOVERY = "/.well-known/openid-configuration"


class KeySet(dict[str | None, Any]):
    """Keys by id: keys of cryptography, bytes, or a ``PyJWK`` where the key itself names its algorithm."""

    def find(self, identity: str | None) -> Any:
        """Return a key by its id; without an id, the only key; ``None`` for an unknown one."""
        return next(iter(self.values())) if identity is None and len(self) == 1 else self.get(identity)


def read_key_set(text: str | bytes, *, published: bool) -> KeySet:
    """Read the signature keys of a JSON Web Key Set (RFC 7517); ValueError: none is fit, or a secret is published."""
    try:
        kept = [entry for entry in json.loads(text)["keys"] if entry.get("use", "sig") == "sig"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("it is not a valid JSON Web Key Set") from None
    keys, reasons = [], []
    for entry in kept:
        try:
            key = jwt.PyJWK.from_dict(entry)
            _check_strength(key.key, key.algorithm_name)
            if published and key.key_type == "oct":
                raise ValueError("a published key set must not contain shared secrets")  # noqa: TRY301
        except jwt.PyJWTError:
            # the text of the error contains the key
            reasons.append("a key is of an unknown kind, or incomplete")
        except ValueError as error:
            reasons.append(str(error))
        else:
            # a key that names no algorithm is for all of its kind
            keys.append((key.key_id, key if "alg" in entry else key.key))
    if not keys:
        raise ValueError("; ".join(dict.fromkeys(reasons)) or "it has no key to check signatures with")
    return KeySet(keys)


def read_key(text: str, algorithms: Iterable[str]) -> KeySet:
    """Read a public key in PEM, or a shared secret, for at least one algorithm; ``ValueError``: it is weak or unfit."""
    text = text.strip()
    known = jwt.algorithms.get_default_algorithms()
    for algorithm in algorithms:
        if algorithm.startswith("HS") == text.startswith("-----BEGIN"):
            raise ValueError(f"it is {'a key' if text.startswith('-') else 'no key'} in PEM, so not for {algorithm}")
        try:
            key = known[algorithm].prepare_key(text)
        except (jwt.PyJWTError, ValueError, TypeError):
            raise ValueError(f"it is not a key for {algorithm}") from None
        _check_strength(key, algorithm)
    return KeySet([(None, key)])


def _check_strength(key: Any, algorithm: str) -> None:
    if isinstance(key, bytes) and len(key) < SHARED_BYTES.get(algorithm, 0):
        raise ValueError(
            f"a secret for {algorithm} needs {SHARED_BYTES[algorithm]} bytes and has {len(key)}: make one with "
            f"`openssl rand -base64 48`"
        )
    if isinstance(key, RSAPublicKey) and key.key_size < RSA_BITS:
        raise ValueError(f"an RSA key needs {RSA_BITS} bits and has {key.key_size}")


class FileKeys:
    """Keys in a file; ``SettingsError`` has the reason why they cannot be read."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self.path: Path = issuer.jwks_file or issuer.key_file  # type: ignore[assignment]  # Issuer.remote is false
        self.reload()

    def reload(self) -> None:
        """Read the file, perhaps again; after a ``SettingsError`` the keys are unchanged."""
        name = "jwks_file" if self._issuer.jwks_file else "key_file"
        try:
            text = self.path.read_text("utf-8")
            own = read_key(text, self._issuer.algorithms) if name == "key_file" else read_key_set(text, published=False)
        except OSError as error:
            reason = f"which cannot be read ({error.strerror})"
        except ValueError as error:
            reason = f"which cannot be used: {error}"
        else:
            self.current = own
            return
        raise SettingsError(f"The setting gateway.issuers has the {name} {self.path}, {reason}.")


class RemoteKeys(Closing):
    """Keys that are fetched from the issuer; empty until the first fetch has succeeded."""

    def __init__(self, issuer: Issuer, fetch: Callable[[Issuer], KeySet] | None = None) -> None:
        """Begin fetching with ``fetch``, which raises ``ValueError`` with the reason if it has no keys."""
        self.current = KeySet(())
        self._issuer = issuer
        self._fetch = fetch or fetch_keys
        self._changed = threading.Condition()
        # the fetch that is wanted or running; clients that need its keys wait for it
        self._fetched: Future[None] | None = _begun()
        self._began = float("-inf")
        self._working, self._closed = True, False
        self._thread = threading.Thread(target=self._run, name="ackstream-keys", daemon=True)
        self._thread.start()

    def renew(self) -> Future[None] | None:
        """Fetch the keys; return the future of the fetch, ``None`` shortly after the last one."""
        with self._changed:
            if self._fetched is None and time.monotonic() - self._began >= DISTANCE_SECONDS and not self._closed:
                self._fetched = _begun()
                self._changed.notify()
            return self._fetched

    def close(self) -> None:
        """Stop fetching; waiting clients continue with the present keys."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        # a fetch ends by its time-out
        self._thread.join(FETCH_SECONDS)

    def _run(self) -> None:
        pause, name = 0.0, self._issuer.issuer
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._fetched is not None, pause)
                if self._closed:
                    self._end()
                    return
                self._fetched = self._fetched or _begun()
                self._began = time.monotonic()
            try:
                self.current = self._fetch(self._issuer)
                pause = RENEW_SECONDS
                if not self._working:
                    log.info("The keys of the issuer %s can be fetched again.", name)
                self._working = True
            except ValueError as error:
                pause = DISTANCE_SECONDS
                if self._working:
                    kept = "those fetched last are used" if len(self.current) else "its tokens are refused with 503"
                    log.warning("The keys of the issuer %s cannot be fetched: %s; %s.", name, error, kept)
                self._working = False
            with self._changed:
                self._end()

    def _end(self) -> None:
        fetched, self._fetched = self._fetched, None
        if fetched is not None:
            fetched.set_result(None)


def _begun() -> Future[None]:
    """Return a future that no client can cancel."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


def fetch_keys(issuer: Issuer) -> KeySet:
    """Fetch an issuer's keys, by its discovery document or the URL of the settings; ``ValueError`` has the reason."""
    with httpx.Client(verify=Tls(ca=issuer.ca).client_context(), timeout=FETCH_SECONDS) as client:
        url = issuer.jwks_url or _discover(client, issuer.issuer)
        try:
            return read_key_set(_get(client, url), published=True)
        except ValueError as error:
            raise ValueError(f"{url}: {error}") from None


def _discover(client: httpx.Client, issuer: str) -> str:
    """Return the URL of the keys, as the issuer's own document names it (OpenID Connect Discovery 1.0, 4)."""
    url = issuer.rstrip("/") + DISCOVERY
    try:
        document = json.loads(_get(client, url))
        named, keys = document["issuer"], str(document["jwks_uri"])
    except (ValueError, KeyError, TypeError) as error:
        reason = error if isinstance(error, ValueError) else "it has no issuer and jwks_uri"
        raise ValueError(f"{url}: {reason}") from None
    if named != issuer:
        # else tokens of the one would be accepted as the other's (4.3)
        raise ValueError(f"{url}: it is the document of the issuer {named!r}: write that into gateway.issuers")
    if not is_secure(keys):
        raise ValueError(f"{url}: its jwks_uri {keys!r} does not begin with https://")
    return keys


def _get(client: httpx.Client, url: str) -> bytes:
    deadline = time.monotonic() + FETCH_SECONDS
    try:
        with client.stream("GET", url, headers={"accept": "application/json"}) as response:
            if response.status_code != httpx.codes.OK:
                raise ValueError(f"the response has the status {response.status_code}")
            found = bytearray()
            for chunk in response.iter_bytes():
                found += chunk
                if len(found) > MAX_BYTES or time.monotonic() > deadline:
                    raise ValueError(f"the response is longer than {MAX_BYTES} bytes or {FETCH_SECONDS:g} s")
            return bytes(found)
    except httpx.HTTPError as error:
        raise ValueError(f"there is no response ({str(error) or type(error).__name__})") from None


LEEWAY_SECONDS = 10
"""How far the clocks of an issuer and this machine may differ."""

_NEVER = 2**53
_CHALLENGE = ('Bearer error="invalid_token"',)


class Tokens:
    """Checks bearer tokens."""

    def __init__(self, issuers: Iterable[Issuer]) -> None:
        """Read the keys in files, and begin fetching the others; raises as :class:`FileKeys` does."""
        self._issuers: dict[str, tuple[Issuer, FileKeys | RemoteKeys]] = {}
        # files first: an unfit one leaves no thread behind
        for issuer in sorted(issuers, key=lambda issuer: issuer.remote):
            self._issuers[issuer.issuer] = issuer, RemoteKeys(issuer) if issuer.remote else FileKeys(issuer)
        self.files = [keys for _, keys in self._issuers.values() if isinstance(keys, FileKeys)]

    def close(self) -> None:
        """Stop fetching keys."""
        for _, keys in self._issuers.values():
            if isinstance(keys, RemoteKeys):
                keys.close()

    async def read(self, token: str) -> tuple[tuple[str, ...], float]:
        """Return a token's subjects and roles, and its expiry (epoch seconds); raises 401, or 503 without keys yet."""
        try:
            # an unverified claim selects the keys, nothing else
            claimed = jwt.decode_complete(token, options={"verify_signature": False})
            found = self._issuers.get(claimed["payload"].get("iss"))
            if found is None:
                raise jwt.InvalidIssuerError("its issuer is not in gateway.issuers")
            issuer, keys = found
            identity = claimed["header"].get("kid")
            key = keys.current.find(identity)
            # an unknown key is requested once from the issuer
            if key is None and isinstance(keys, RemoteKeys) and (fetched := keys.renew()) is not None:
                await asyncio.wait([asyncio.wrap_future(fetched)], timeout=FETCH_SECONDS)
                key = keys.current.find(identity)
            if not len(keys.current):
                raise unavailable("The keys of the token's issuer cannot be fetched at the moment.", "Try again.")
            if key is None:
                raise jwt.InvalidTokenError("its key is not one of its issuer's")
            return _verified(token, key, issuer)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise authentication_failed(f"The token is not accepted: {error}.", _CHALLENGE) from None


def _verified(token: str, key: Any, issuer: Issuer) -> tuple[tuple[str, ...], float]:
    # a token without an end could never be withdrawn
    options: Any = {"require": ["exp", "iss", "aud", issuer.subject]}
    named: Any = {"issuer": issuer.issuer, "audience": issuer.audience, "algorithms": list(issuer.algorithms)}
    claims = jwt.decode(token, key, leeway=LEEWAY_SECONDS, options=options, **named)
    subject = claims[issuer.subject]
    if not isinstance(subject, str) or not subject:
        raise jwt.InvalidTokenError(f"its claim {issuer.subject} is not a text, or is empty")
    roles = dict.fromkeys(f"{ROLE}{issuer.prefix}:{role}" for claim in issuer.roles for role in _roles(claims, claim))
    # PyJWT takes digits in a text, too
    expires = float(min(int(claims["exp"]), _NEVER))
    return (f"{issuer.prefix}:{subject}", *roles), expires


def _roles(claims: dict[str, Any], claim: str) -> Iterator[str]:
    """Yield the roles of a claim: a list, or words as in ``scope`` (RFC 8693, 4.2)."""
    value = find(claims, keys_of(claim)) if claim.startswith("/") else claims.get(claim)
    listed = value.split() if isinstance(value, str) else value if isinstance(value, list) else ()
    return (role for role in listed if isinstance(role, str) and role)
