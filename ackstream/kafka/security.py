"""``[kafka.security]`` in the words of the two libraries: kafka-python, and the client of the JVM that Spark has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.kafka.tokens import tokens_of

if TYPE_CHECKING:
    from ackstream.settings.kafka import KafkaSecurity
    from ackstream.settings.security import OAuth, Tls

_JAAS = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": f"{_JAAS}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_JAAS}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_JAAS}.scram.ScramLoginModule",
}
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
"""The escapes in a quoted text of JAAS, which ends at the end of a line."""


def python_security(security: KafkaSecurity) -> dict[str, Any]:
    """Return the security options of a client of kafka-python.

    :raises ValueError: a certificate or a key is no longer what it was when the settings were read
    """
    found: dict[str, Any] = {"security_protocol": security.protocol}
    if security.encrypted:
        found["ssl_context"] = security.tls.client_context()
    if security.logs_in:
        found["sasl_mechanism"] = security.mechanism
    if security.by_password and security.password is not None:
        found["sasl_plain_username"] = security.username
        found["sasl_plain_password"] = security.password.reveal()
    if security.mechanism == "OAUTHBEARER":
        found["sasl_oauth_token_provider"] = tokens_of(security.oauth)
    return found


def java_security(security: KafkaSecurity) -> dict[str, str]:
    """Return the security options of a client of the JVM.

    Certificates and keys are given as texts, not as files: executors on other machines have none.
    """
    found: dict[str, str] = {"security.protocol": security.protocol}
    if security.encrypted:
        found |= _java_tls(security.tls)
    if security.logs_in and security.mechanism is not None:
        found["sasl.mechanism"] = security.mechanism
    if security.by_password and security.password is not None:
        login = {"username": security.username, "password": security.password.reveal()}
        found["sasl.jaas.config"] = _login(_MODULES[str(security.mechanism)], login)
    if security.mechanism == "OAUTHBEARER":
        found |= _java_oauth(security.oauth)
    return found


def _java_tls(tls: Tls) -> dict[str, str]:
    found = _java_trust(tls.authorities)
    if tls.certificate is not None:
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": tls.chain,
            "ssl.keystore.key": tls.private_key(),
        }
    if not tls.verify_hostname:
        found["ssl.endpoint.identification.algorithm"] = ""
    return found


def _java_trust(authorities: str) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities} if authorities else {}


def _java_oauth(oauth: OAuth) -> dict[str, str]:
    secret = "" if oauth.client_secret is None else oauth.client_secret.reveal()
    login = {"clientId": oauth.client_id, "clientSecret": secret}
    if oauth.scope:
        login["scope"] = oauth.scope
    # the connection to the authorisation server has the options of the login, not those of the brokers
    login |= _java_trust(oauth.authorities)
    return {
        "sasl.login.callback.handler.class": f"{_JAAS}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": oauth.token_url,
        # as RFC 6749 2.3.1 says
        "sasl.oauthbearer.header.urlencode": "true",
        "sasl.jaas.config": _login(f"{_JAAS}.oauthbearer.OAuthBearerLoginModule", login),
    }


def _login(module: str, options: dict[str, str]) -> str:
    """Return an entry of JAAS: what is quoted may be any text."""
    given = " ".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in options.items())
    return f"{module} required {given};"
