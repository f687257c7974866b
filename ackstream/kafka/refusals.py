"""What it means that a broker refuses a login, a certificate or an access, or is not to be trusted: the sentences."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from ackstream.errors import AccessRefusedError

if TYPE_CHECKING:
    from ackstream.settings import Kafka
    from ackstream.settings.kafka import KafkaSecurity

_EXPIRED = 10
_OTHER_NAME = (62, 64)
_UNTRUSTED = (2, 18, 19, 20, 21)
"""OpenSSL's codes for what is wrong with the certificate of the other side."""

_OF_CLIENT = ("certificate", "unknown ca", "decrypt error")
"""What a broker says of a client's certificate; the last one if its authority only has the name of another."""


def not_allowed(kafka: Kafka, what: str) -> AccessRefusedError:
    """Return the error for what a broker's ACLs do not allow.

    :param what: such as ``to read the topic signals``
    """
    return AccessRefusedError(
        f"Kafka at {kafka.bootstrap} does not allow {kafka.security.principal} {what}: an ACL is missing. `ackstream "
        f"acls` prints those that each party needs, and `ackstream acls --apply` sets them."
    )


def of_login(bootstrap: str, security: KafkaSecurity, reason: str) -> str:
    """Return the sentence for a login that a broker refuses.

    :param reason: what it says
    """
    said = reason.rstrip(".")
    if security.by_password:
        return (
            f"Kafka at {bootstrap} refuses the login of {security.username} by {security.mechanism} ({said}): correct "
            f"kafka.security.username and password, or create the user there."
        )
    if security.mechanism == "OAUTHBEARER":
        return (
            f"Kafka at {bootstrap} refuses the token that {security.oauth.token_url} gives to "
            f"{security.oauth.client_id} ({said}): correct kafka.security.oauth.scope, or what the broker expects of a "
            f"token (issuer, audience, keys)."
        )
    return f"Kafka at {bootstrap} refuses the login by {security.mechanism} ({said}): correct sasl.* in kafka.options."


def of_tls(name: str, security: KafkaSecurity, error: ssl.SSLError) -> str:
    """Return the sentence for a TLS connection that failed.

    :param name: of the broker: host and port
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_broker_certificate(name, security, error.verify_code, error.verify_message.rstrip("."))
    reason, own = (error.reason or str(error)).lower().replace("_", " "), security.tls.certificate
    if not any(words in reason for words in _OF_CLIENT):
        return (
            f"Kafka at {name} does not speak TLS as {security.protocol} needs it ({reason}): correct "
            f"kafka.security.protocol, unless it is about to start or to stop."
        )
    if own is None:
        return (
            f"Kafka at {name} wants a certificate of its clients ({reason}): name one as "
            f"kafka.security.tls.certificate, and its key."
        )
    return (
        f"Kafka at {name} refuses the certificate {own} ({reason}): renew it, or have it issued by an authority that "
        f"the broker trusts."
    )


def _of_broker_certificate(name: str, security: KafkaSecurity, code: int, message: str) -> str:
    if code == _EXPIRED:
        return f"The certificate of Kafka at {name} has expired: renew it at the broker."
    if code in _OTHER_NAME:
        return (
            f"The certificate of Kafka at {name} is for another name ({message}): correct kafka.bootstrap, or have one "
            f"issued for that name."
        )
    if code in _UNTRUSTED:
        return (
            f"The certificate of Kafka at {name} is of no authority in {security.tls.ca or 'the system'}: name the "
            f"file with its authority as kafka.security.tls.ca."
        )
    return f"The certificate of Kafka at {name} is not valid ({message}): renew it at the broker."
