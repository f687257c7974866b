"""Authenticate clients: Basic with password hashes, Bearer with JSON Web Tokens, or none on the loopback address.

Password hashes have the form ``scrypt$N$R$P$SALT$HASH``, salt and hash in base64.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
from base64 import b64decode, b64encode
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jwt

from ackstream.errors import SettingsError
from ackstream.gateway.errors import authentication_failed
from ackstream.protocol.ditto.access import OPEN, Access, Rule
from ackstream.settings.security import is_loopback

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from ackstream.settings import Gateway


log = logging.getLogger(__name__)

ANONYMOUS = ("anonymous",)
REMEMBERED = 1_024
"""Number of verified credentials remembered by a keyed hash, since hashing a password takes 50 ms."""


class Identity(NamedTuple):
    """The subjects of a client, and until when they are (epoch seconds; ``None``: without limit)."""

    subjects: tuple[str, ...]
    expires: float | None = None


class Authenticator:
    """Maps a connection to its subjects: ``user:NAME``, ``jwt:SUB``, or ``anonymous`` without authentication."""

    def __init__(self, settings: Gateway) -> None:
        """Read the keys.

        :raises SettingsError: a key or hash is invalid, or authentication is off on an address other hosts can reach
        """
        self._users = dict(settings.users)
        self._tokens = _Tokens(settings) if settings.jwt_key_file or settings.jwt_jwks_file else None
        schemes = {'Basic realm="ackstream", charset="UTF-8"': self._users, 'Bearer realm="ackstream"': self._tokens}
        self._schemes = [scheme for scheme, accepted in schemes.items() if accepted]
        self.required = bool(self._schemes)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._pepper = os.urandom(32)
        # unknown names are checked against this hash, so that they take as long as known ones
        self._nobody = hash_password("", b"nobody")
        for name, hashed in self._users.items():
            _check_hash(name, hashed)
        if not self.required:
            _check_loopback(settings.host)

    async def identify(self, connection: HTTPConnection) -> tuple[str, ...]:
        """Return the subjects of an HTTP request.

        :raises DittoError: 401 ``gateway:authentication.failed``
        """
        return (await self.admit(connection)).subjects

    async def admit(self, connection: HTTPConnection) -> Identity:
        """Return the subjects of an HTTP request or a WebSocket, and how long its credentials are valid.

        :raises DittoError: 401 ``gateway:authentication.failed``
        """
        if not self.required:
            return Identity(ANONYMOUS)
        scheme, _, credentials = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic" and self._users:
            return Identity((f"user:{await self._user(credentials.strip())}",))
        if scheme.lower() == "bearer":
            return self.renew(credentials.strip())
        raise authentication_failed("The request has no credentials of an accepted scheme.", self._schemes)

    def renew(self, token: str) -> Identity:
        """Return the subjects of a token, and how long it is valid.

        :raises DittoError: 401 ``gateway:authentication.failed``
        """
        if not self.required:
            return Identity(ANONYMOUS)
        if self._tokens is None:
            raise authentication_failed("The request has no credentials of an accepted scheme.", self._schemes)
        return self._tokens.identity(token)

    async def _user(self, credentials: str) -> str:
        try:
            name, colon, password = b64decode(credentials, validate=True).decode().partition(":")
        except ValueError:
            name = colon = password = ""
        key = hashlib.blake2b(f"{name}:{password}".encode(), key=self._pepper).digest()
        if colon and key in self._known:
            self._known.move_to_end(key)
            return name
        hashed = self._users.get(name)
        right = await asyncio.to_thread(matches, password, hashed or self._nobody)
        if hashed is None or not right:
            raise authentication_failed("The user name or the password is wrong.", self._schemes)
        self._known[key] = None
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return name


_NEVER = 2**53
_ALGORITHMS = set(jwt.algorithms.get_default_algorithms()) - {"none"}


class _Tokens:
    """Checks bearer tokens: signature, expiry, issuer, audience."""

    def __init__(self, settings: Gateway) -> None:
        self._algorithms = list(settings.jwt_algorithms)
        self._issuer = settings.jwt_issuer or None
        self._audience = settings.jwt_audience or None
        if not self._algorithms or not {*self._algorithms} <= _ALGORITHMS:
            raise SettingsError(
                f"The setting gateway.jwt_algorithms is {self._algorithms!r}: use algorithms such as RS256 or HS256."
            )
        if settings.jwt_key_file:
            self._keys: str | jwt.PyJWKSet = _read_key("jwt_key_file", settings.jwt_key_file).strip()
        else:
            text = _read_key("jwt_jwks_file", settings.jwt_jwks_file)
            try:
                self._keys = jwt.PyJWKSet.from_dict(json.loads(text))
            except (ValueError, KeyError, AttributeError, jwt.PyJWTError) as error:
                raise SettingsError(
                    f"The setting gateway.jwt_jwks_file is {settings.jwt_jwks_file!r}, which is not a JSON Web Key Set "
                    f"({error}): store the key set of the issuer in it."
                ) from None

    def identity(self, token: str) -> Identity:
        try:
            # an expected issuer or audience is required by its value
            claims = jwt.decode(
                token,
                self._signing_key(token),
                algorithms=self._algorithms,
                issuer=self._issuer,
                audience=self._audience,
                options={"require": ["sub"], "verify_aud": self._audience is not None},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise authentication_failed(
                f"The token is not accepted: {error}.", ('Bearer error="invalid_token"',)
            ) from None
        # PyJWT takes digits in a text, too
        expires = float(min(int(claims["exp"]), _NEVER)) if "exp" in claims else None
        return Identity((f"jwt:{claims['sub']}",), expires)

    def _signing_key(self, token: str) -> str | jwt.PyJWK:
        if isinstance(self._keys, str):
            return self._keys
        wanted, keys = jwt.get_unverified_header(token).get("kid"), self._keys.keys
        for key in keys:
            if key.key_id == wanted or (wanted is None and len(keys) == 1):
                return key
        raise jwt.InvalidTokenError("its key id is not in the key set")


def access_of(settings: Gateway, authenticator: Authenticator) -> Access:
    """Return the access rules; without authentication everything is open.

    :raises SettingsError: authentication is on, but there are no rules
    """
    if not authenticator.required:
        return OPEN
    if not settings.access:
        raise SettingsError(
            "The setting gateway.access is empty, so no authenticated user may do anything: grant access with "
            "[[gateway.access]] (subjects, things, path, grant)."
        )
    return Access(Rule(rule.subjects, rule.things, rule.path, rule.grant, rule.labels) for rule in settings.access)


def _check_loopback(host: str) -> None:
    if not is_loopback(host):
        raise SettingsError(
            f"The setting gateway.host is {host!r}, which other hosts can reach, while authentication is off: "
            f"set gateway.users or gateway.jwt_key_file, or listen on 127.0.0.1."
        )
    log.warning("Authentication is off: every user of this machine may read and write all things.")


def _check_hash(name: str, hashed: str) -> None:
    try:
        matches("", hashed)
    except ValueError as error:
        raise SettingsError(
            f"The setting gateway.users has {hashed!r} for {name!r}, which is not a password hash ({error}): use the "
            f"output of `ackstream password`."
        ) from None
    if ":" in name:
        raise SettingsError(f"The setting gateway.users has the name {name!r}: a user name must not contain a colon.")


def _read_key(key: str, name: str) -> str:
    try:
        return Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The setting gateway.{key} is {name!r}, which cannot be read ({error}).") from None


N, R, P = 2**14, 8, 1
"""scrypt cost parameters: about 50 ms and 16 MB per password."""

LENGTH = 32
_MEMORY = 64 * 1024 * 1024
_FIELDS = 6


def hash_password(password: str, salt: bytes | None = None) -> str:
    """Hash a password for the settings, with a random salt unless one is given."""
    salt = os.urandom(16) if salt is None else salt
    return f"scrypt${N}${R}${P}${b64encode(salt).decode()}${b64encode(_hash(password, salt, N, R, P)).decode()}"


def matches(password: str, hashed: str) -> bool:
    """Return whether the password matches the hash.

    :raises ValueError: ``hashed`` is not a password hash
    """
    kind, *numbers, salt, expected = hashed.split("$")
    if kind != "scrypt" or len(numbers) + 3 != _FIELDS:
        raise ValueError("expected scrypt$N$R$P$SALT$HASH")
    n, r, p = map(int, numbers)
    return hmac.compare_digest(_hash(password, b64decode(salt, validate=True), n, r, p), b64decode(expected))


def _hash(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY, dklen=LENGTH)
