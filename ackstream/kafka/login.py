"""Logins and rights: one check before a client connects, so that a refusal is one sentence with its remedy.

The libraries retry for seconds, log each attempt, and then report that no broker answers. This check names a wrong
certificate, password or protocol, and a missing ACL. An unavailable broker, and a later refusal, are left to the
libraries (``library``).
"""

import getpass
import os
import socket
import ssl
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

from kafka import errors
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from ackstream.errors import AccessRefusedError
from ackstream.kafka.security import python_security
from ackstream.settings import Kafka
from ackstream.settings.kafka import KafkaSecurity

TIMEOUT_SECONDS = 5.0
ALERT_SECONDS = 1.0
_MAX_BYTES, _PART_BYTES = 1_000_000, 65_536

_accepted: set[tuple[str, KafkaSecurity]] = set()
"""The logins that this process does not repeat."""


def check_login(bootstrap: str, security: KafkaSecurity) -> None:
    """Log in, unless this process did before. Raises AccessRefusedError with the remedy, or UnreachableError."""
    if (bootstrap, security) in _accepted:
        return
    options = python_security(security)
    if security.mechanism == "OAUTHBEARER":
        # a refusal by the authorisation server has its own sentence
        options["sasl_oauth_token_provider"].token()
    for address in addresses(bootstrap):
        with suppress(OSError), closing(socket.create_connection(address, TIMEOUT_SECONDS)) as raw:
            if _accepts(address, raw, security, options):
                _accepted.add((bootstrap, security))
            return


def _accepts(address: tuple[str, int], raw: socket.socket, security: KafkaSecurity, options: dict[str, Any]) -> bool:
    """Return whether a broker accepts the login; ``False`` if it does not answer."""
    name, context = f"{address[0]}:{address[1]}", options.get("ssl_context")
    try:
        connection = raw if context is None else context.wrap_socket(raw, server_hostname=address[0])
    except ssl.SSLError as error:
        raise AccessRefusedError(of_tls(name, security, error)) from error
    with closing(connection):
        try:
            exchange = KafkaProtocol(client_id="ackstream", receive_message_max_bytes=_MAX_BYTES)
            _ask(connection, exchange, ApiVersionsRequest(version=0))
            if security.logs_in:
                _log_in(name, connection, exchange, security, options)
        except (OSError, EOFError) as error:
            # with TLS 1.3 a client's certificate is refused only now
            refusal = _alert(address, context) if context is not None and _cut(error) else error
            if isinstance(refusal, ssl.SSLError) and not _cut(refusal):
                raise AccessRefusedError(of_tls(name, security, refusal)) from error
            # a broker that starts or stops; the library tries again
            return False
    return True


def _cut(error: Exception) -> bool:
    """Return whether a connection ended without a reason."""
    return isinstance(error, (ssl.SSLEOFError, ConnectionError, EOFError))


def _alert(address: tuple[str, int], context: ssl.SSLContext) -> Exception | None:
    """Return the broker's reason for ending a connection: only a client that waits before its first request gets it."""
    try:
        with (
            closing(socket.create_connection(address, ALERT_SECONDS)) as raw,
            closing(context.wrap_socket(raw, server_hostname=address[0])) as connection,
        ):
            connection.recv(1)
    except OSError as error:
        return error
    return None


def _log_in(name: str, connection: Any, exchange: KafkaProtocol, security: KafkaSecurity, options: Any) -> None:
    wanted = str(security.mechanism)
    answer = _ask(connection, exchange, SaslHandshakeRequest(mechanism=wanted, version=1))
    if wanted not in (offered := answer.mechanisms or []):
        error = errors.for_code(answer.error_code).__name__
        ways = f"it offers {', '.join(offered)}" if offered else f"its answer is {error}"
        raise AccessRefusedError(
            f"Kafka at {name} does not take a login by {wanted}: {ways}. Correct kafka.security.mechanism or protocol."
        )
    mechanism = get_sasl_mechanism(wanted)(host=name.rpartition(":")[0], **options)
    while not mechanism.is_done():
        request = SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes(), version=0)
        answer = _ask(connection, exchange, request)
        if answer.error_code:
            reason = answer.error_message or errors.for_code(answer.error_code).__name__
            raise AccessRefusedError(of_login(name, security, reason))
        mechanism.receive(answer.auth_bytes)


def _ask(connection: Any, exchange: KafkaProtocol, request: Any) -> Any:
    """Send a request; return its answer, or raise an EOFError if the connection ends or the answer is not Kafka's."""
    exchange.send_request(request)
    connection.sendall(exchange.send_bytes())
    while data := connection.recv(_PART_BYTES):
        try:
            answers = exchange.receive_bytes(data)
        except (errors.KafkaError, ValueError, struct.error) as error:
            raise EOFError from error
        if answers:
            return answers[0][1]
    raise EOFError


def guess_protocol(bootstrap: str) -> str | None:
    """Return the probable cause if no Kafka answers without TLS, but a service listens there."""
    anything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
    for host, port in addresses(bootstrap):
        tls = f"{host}:{port} expects TLS: set kafka.security.protocol to SSL or SASL_SSL"
        try:
            with closing(socket.create_connection((host, port), TIMEOUT_SECONDS)) as raw, anything.wrap_socket(raw):
                return tls
        except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError):
            # a load balancer whose broker is unavailable, or a broker that requires a login
            return (
                f"the service at {host}:{port} ends each connection: start the broker behind it, or correct "
                f"kafka.security.protocol if clients have to log in"
            )
        except ssl.SSLError as error:
            if "CERTIFICATE" in str(error.reason):
                return tls
            return (
                f"something else answers at {host}:{port}, or clients have to log in: correct kafka.security.protocol "
                f"or kafka.bootstrap"
            )
        except OSError:
            continue
    return None


def unresolved(bootstrap: str) -> str | None:
    """Return the first host name in ``kafka.bootstrap`` that has no address."""
    for host, port in addresses(bootstrap):
        try:
            socket.getaddrinfo(host, port)
        except OSError:
            return host
    return None


def addresses(bootstrap: str) -> Iterator[tuple[str, int]]:
    """Yield host and port of each broker in ``kafka.bootstrap``."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if port.isdecimal():
            yield host.strip("[]"), int(port)


def check_access(admin: Any, kafka: Kafka, wanted: Mapping[str, Iterable[str]], groups: Iterable[str] = ()) -> set[str]:
    """Return the topics that exist; raise an AccessRefusedError if an operation or a group is not allowed."""
    # ``wanted``: topics (real names) by operations, such as READ; ``groups``: to join or to commit to
    named = [(topic, operation) for operation, topics in wanted.items() for topic in topics]
    found = {topic["name"]: topic for topic in admin.describe_topics(sorted({topic for topic, _ in named}))}
    for topic, operation in named:
        described = found[topic]
        allowed = described["authorized_operations"]
        denied = described["error_code"] == errors.TopicAuthorizationFailedError.errno
        # some brokers do not report the allowed operations
        if denied or (described["error_code"] == 0 and allowed is not None and operation not in allowed):
            raise not_allowed(kafka, f"to {operation.lower().replace('_', ' ')} the topic {topic}")
    for group in groups:
        # the coordinator may be moving
        with suppress(errors.RetriableError):
            try:
                admin.describe_groups([group])
            except errors.GroupAuthorizationFailedError:
                raise not_allowed(kafka, f"to use the consumer group {group}") from None
    return {name for name, topic in found.items() if topic["error_code"] == 0}


def not_allowed(kafka: Kafka, what: str) -> AccessRefusedError:
    """Return the error for a denied operation, ``what``, such as ``to read the topic signals``."""
    return AccessRefusedError(
        f"Kafka at {kafka.bootstrap} does not allow {kafka.security.principal} {what}: an ACL is missing. `ackstream "
        f"acls` prints those that each party needs, and `ackstream acls --apply` sets them."
    )


_EXPIRED = 10
_OTHER_NAME = (62, 64)
_UNTRUSTED = (2, 18, 19, 20, 21)
"""OpenSSL's codes for errors in the certificate of the other side."""

_OF_CLIENT = ("certificate", "unknown ca", "decrypt error")
"""Alerts of a broker about a client's certificate; the last one if its authority has only the name of another."""


def of_login(bootstrap: str, security: KafkaSecurity, reason: str) -> str:
    """Return the sentence for a login that a broker refuses with a reason."""
    said = reason.rstrip(".")
    if security.by_password:
        return (
            f"Kafka at {bootstrap} refuses the login of {security.username} by {security.mechanism} ({said}): correct "
            f"kafka.security.username and password, or create the user there."
        )
    if security.mechanism == "OAUTHBEARER":
        return (
            f"Kafka at {bootstrap} refuses the token that {security.oauth.token_url} gives to "
            f"{security.oauth.client_id} ({said}): correct kafka.security.oauth.scope, or the "
            f"broker's requirements on a token (issuer, audience, keys)."
        )
    return f"Kafka at {bootstrap} refuses the login by {security.mechanism} ({said}): correct sasl.* in kafka.options."


def of_tls(name: str, security: KafkaSecurity, error: ssl.SSLError) -> str:
    """Return the sentence for a failed TLS connection to a broker, HOST:PORT."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_broker_certificate(name, security, error.verify_code, error.verify_message.rstrip("."))
    reason, own = (error.reason or str(error)).lower().replace("_", " "), security.tls.certificate
    if not any(words in reason for words in _OF_CLIENT):
        return (
            f"Kafka at {name} does not use TLS as {security.protocol} needs it ({reason}): correct "
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


def operator(kafka: Kafka) -> str:
    """Return the login of this process, or else its user, who may have a number only in a container."""
    try:
        return kafka.security.username or getpass.getuser()
    except (ImportError, KeyError, OSError):
        return str(os.getuid())
