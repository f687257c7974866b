"""JSON Web Tokens of several issuers: signature, expiry, issuer and audience, and whose they are.

Source of the rules: RFC 7519, RFC 8725 (best current practices), OpenID Connect Core 1.0, 3.1.3.7.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import jwt

from ackstream.gateway.access.keys import FETCH_SECONDS, FileKeys, RemoteKeys
from ackstream.gateway.errors import authentication_failed, unavailable
from ackstream.protocol.json import find, keys_of
from ackstream.settings.access import ROLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.settings.access import Issuer

LEEWAY_SECONDS = 10
"""How far the clocks of an issuer and this machine may differ."""

_NEVER = 2**53
_CHALLENGE = ('Bearer error="invalid_token"',)


class Tokens:
    """Checks bearer tokens."""

    def __init__(self, issuers: Iterable[Issuer]) -> None:
        """Read the keys in files, and begin fetching the others.

        :raises SettingsError: keys cannot be read, or are too weak
        """
        self._issuers: dict[str, tuple[Issuer, FileKeys | RemoteKeys]] = {}
        try:
            for issuer in issuers:
                self._issuers[issuer.issuer] = issuer, RemoteKeys(issuer) if issuer.remote else FileKeys(issuer)
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> Iterator[FileKeys]:
        """The keys that are in files."""
        return (keys for _, keys in self._issuers.values() if isinstance(keys, FileKeys))

    def close(self) -> None:
        """Fetch no more keys."""
        for _, keys in self._issuers.values():
            keys.close()

    async def read(self, token: str) -> tuple[tuple[str, ...], float]:
        """Return the subjects and roles of a token, and when it expires (epoch seconds).

        A key that is not known is looked for once at the issuer.

        :raises DittoError: 401 ``gateway:authentication.failed``; 503, there are no keys of its issuer yet
        """
        try:
            # what is not verified yet decides only by which keys it will be
            claimed = jwt.decode_complete(token, options={"verify_signature": False})
            found = self._issuers.get(claimed["payload"].get("iss"))
            if found is None:
                raise jwt.InvalidIssuerError("its issuer is none of gateway.issuers")
            issuer, keys = found
            identity = claimed["header"].get("kid")
            key = keys.current.find(identity)
            if key is None and (fetched := keys.renew()) is not None:
                await asyncio.wait([asyncio.wrap_future(fetched)], timeout=FETCH_SECONDS)
                key = keys.current.find(identity)
            if not len(keys.current):
                raise unavailable("The keys of the token's issuer cannot be fetched at the moment.", "Try again.")
            if key is None:
                raise jwt.InvalidTokenError("its key is none of its issuer's")
            return _verified(token, key, issuer)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise authentication_failed(f"The token is not accepted: {error}.", _CHALLENGE) from None


def _verified(token: str, key: Any, issuer: Issuer) -> tuple[tuple[str, ...], float]:
    claims = jwt.decode(
        token,
        key,
        algorithms=list(issuer.algorithms),
        issuer=issuer.issuer,
        audience=issuer.audience,
        leeway=LEEWAY_SECONDS,
        # a token without an end could never be withdrawn
        options={"require": ["exp", "iss", "aud", issuer.subject]},
    )
    subject = claims[issuer.subject]
    if not isinstance(subject, str) or not subject:
        raise jwt.InvalidTokenError(f"its claim {issuer.subject} is no text, or empty")
    roles = dict.fromkeys(f"{ROLE}{issuer.prefix}:{role}" for claim in issuer.roles for role in _roles(claims, claim))
    # PyJWT takes digits in a text, too
    expires = float(min(int(claims["exp"]), _NEVER))
    return (f"{issuer.prefix}:{subject}", *roles), expires


def _roles(claims: dict[str, Any], claim: str) -> Iterator[str]:
    """Yield the roles of a claim: a list, or words as in ``scope`` (RFC 8693, 4.2)."""
    value = find(claims, keys_of(claim)) if claim.startswith("/") else claims.get(claim)
    listed = value.split() if isinstance(value, str) else value if isinstance(value, list) else ()
    return (role for role in listed if isinstance(role, str) and role)
