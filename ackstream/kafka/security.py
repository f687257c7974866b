"""``[kafka.security]`` as options of the two libraries, and the tokens of an authorisation server (OAUTHBEARER).

Spark's clients fetch their own tokens in the JVM. Here a token is fetched once for all clients of a process, and
renewed after four fifths of its life; until it expires, an unavailable server does no harm.
"""

import logging
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib import request
from urllib.error import HTTPError
from urllib.parse import quote_plus, urlencode

import msgspec
from kafka.net.sasl.oauth import AbstractTokenProvider

from ackstream.errors import AccessRefusedError, AckstreamError, UnreachableError
from ackstream.settings.kafka import KafkaSecurity
from ackstream.settings.security import OAuth, revealed

log = logging.getLogger(__name__)

_JAAS = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": f"{_JAAS}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_JAAS}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_JAAS}.scram.ScramLoginModule",
}
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
"""The escapes in a quoted text of JAAS, which ends at the end of a line."""


def python_security(security: KafkaSecurity) -> dict[str, Any]:
    """Return the options of kafka-python; raise a ValueError if a certificate or key changed since the settings."""
    found: dict[str, Any] = {"security_protocol": security.protocol}
    if security.encrypted:
        found["ssl_context"] = security.tls.client_context()
    if security.logs_in:
        found["sasl_mechanism"] = security.mechanism
    if security.by_password:
        found |= {"sasl_plain_username": security.username, "sasl_plain_password": revealed(security.password)}
    if security.mechanism == "OAUTHBEARER":
        found["sasl_oauth_token_provider"] = tokens_of(security.oauth)
    return found


def java_security(security: KafkaSecurity) -> dict[str, str]:
    """Return the options of the JVM's clients; certificates and keys are text, as other machines lack the files."""
    found: dict[str, str] = {"security.protocol": security.protocol}
    if security.encrypted:
        tls = security.tls
        found |= _java_trust(tls.authorities)
        if tls.certificate is not None:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": tls.chain}
            found["ssl.keystore.key"] = tls.private_key()
        if not tls.verify_hostname:
            found["ssl.endpoint.identification.algorithm"] = ""
    if security.logs_in and security.mechanism is not None:
        found["sasl.mechanism"] = security.mechanism
    if security.by_password:
        login = {"username": security.username, "password": revealed(security.password)}
        found["sasl.jaas.config"] = _login(_MODULES[str(security.mechanism)], login)
    if security.mechanism == "OAUTHBEARER":
        found |= _java_oauth(security.oauth)
    return found


def _java_trust(authorities: str) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities} if authorities else {}


def _java_oauth(oauth: OAuth) -> dict[str, str]:
    login = {"clientId": oauth.client_id, "clientSecret": revealed(oauth.client_secret)}
    if oauth.scope:
        login["scope"] = oauth.scope
    # the connection to the authorisation server uses the options of the login, not those of the brokers
    login |= _java_trust(oauth.tls.authorities)
    return {
        "sasl.login.callback.handler.class": f"{_JAAS}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": oauth.token_url,
        # RFC 6749 2.3.1
        "sasl.oauthbearer.header.urlencode": "true",
        "sasl.jaas.config": _login(f"{_JAAS}.oauthbearer.OAuthBearerLoginModule", login),
    }


def _login(module: str, options: dict[str, str]) -> str:
    """Return an entry of JAAS, whose values may have any characters."""
    given = " ".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in options.items())
    return f"{module} required {given};"


TIMEOUT_SECONDS = 10.0
RENEW_AFTER = 0.8
"""The part of a token's life after which it is renewed."""

_REFUSED = (400, 401, 403)
_SHOWN = 200
_MAX_BYTES = 1_000_000


class _NoRedirects(request.HTTPRedirectHandler):
    """Treats a redirect as an answer without a token: the secret goes to no other server."""

    def redirect_request(self, *_: object) -> None:
        """Return no further request."""


class Answer(msgspec.Struct):
    """An answer of the server (RFC 6749 5.1), or its refusal (5.2)."""

    access_token: str = ""
    expires_in: float = 0
    error: str = ""
    error_description: str = ""


class Token(NamedTuple):
    """A token, and the times of its renewal and its expiry in seconds of the monotonic clock."""

    text: str
    renewal: float
    expiry: float


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is not typed
    """Provides a token that has not expired; for any thread."""

    def __init__(self, oauth: OAuth, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._oauth, self._clock = oauth, clock
        self._lock = threading.Lock()
        self._token: Token | None = None

    def token(self) -> str:
        """Return the text of the token; fetch one if it is missing or due for renewal."""
        # Raises AccessRefusedError: the server refuses the client; UnreachableError: it does not answer, or without a
        # token.
        with self._lock:
            now, known = self._clock(), self._token
            if known is not None and now < known.renewal:
                return known.text
            try:
                self._token = self._fetch(now)
            except AckstreamError as error:
                if known is None or now >= known.expiry:
                    raise
                log.warning("The token for Kafka is not renewed yet: %s", error)
                # not with each login of each client
                self._token = known._replace(renewal=min(now + TIMEOUT_SECONDS, known.expiry))
            return self._token.text

    def _fetch(self, now: float) -> Token:
        oauth = self._oauth
        form = {"grant_type": "client_credentials"} | ({"scope": oauth.scope} if oauth.scope else {})
        # RFC 6749 2.3.1: both are encoded as in a form
        pair = f"{quote_plus(oauth.client_id)}:{quote_plus(revealed(oauth.client_secret))}"
        login = b64encode(pair.encode()).decode()
        headers = {"Accept": "application/json", "Authorization": f"Basic {login}"}
        asked = request.Request(oauth.token_url, urlencode(form).encode(), headers)  # noqa: S310 - https, or loopback
        opener = request.build_opener(request.HTTPSHandler(context=oauth.tls.client_context()), _NoRedirects)
        try:
            with opener.open(asked, timeout=TIMEOUT_SECONDS) as found:
                return self._read(found.status, found.read(_MAX_BYTES), now)
        except HTTPError as error:
            with error:
                return self._read(error.code, error.read(_MAX_BYTES), now)
        except (HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            raise UnreachableError(
                f"The authorisation server at {oauth.token_url} gives no token ({reason or type(error).__name__}): "
                f"start it, or correct kafka.security.oauth.token_url, or ca if its certificate is not trusted."
            ) from error

    def _read(self, status: int, content: bytes, now: float) -> Token:
        oauth = self._oauth
        try:
            answer = msgspec.json.decode(content, type=Answer, strict=False)
        except (msgspec.DecodeError, UnicodeError):
            answer = Answer()
        said = " ".join(filter(None, (str(status), answer.error, answer.error_description)))[:_SHOWN]
        if status in _REFUSED:
            raise AccessRefusedError(
                f"The authorisation server at {oauth.token_url} refuses the client {oauth.client_id} ({said}): correct "
                f"client_id, client_secret and scope in kafka.security.oauth."
            )
        if status != HTTPStatus.OK or not answer.access_token:
            raise UnreachableError(
                f"The authorisation server at {oauth.token_url} answers without a token ({said}): correct "
                f"kafka.security.oauth.token_url, or look into its log."
            )
        return Token(answer.access_token, now + RENEW_AFTER * answer.expires_in, now + answer.expires_in)


tokens_of = lru_cache(maxsize=16)(TokenProvider)
"""Returns the one provider of a process for each client of a server."""
