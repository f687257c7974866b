"""One login before any client's, so that a refusal is one sentence: which certificate, password or protocol is wrong.

The libraries retry for seconds, log each attempt, and then report that no broker answers. A broker that is away is none
of this module's business: it is left to them. So is a login that is refused later, while a program runs: it is logged
and tried again (``sockets``).
"""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from kafka.errors import for_code
from kafka.net.sasl import get_sasl_mechanism

from ackstream.errors import AccessRefusedError
from ackstream.kafka import refusals
from ackstream.kafka.security import python_security

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.settings.kafka import KafkaSecurity

TIMEOUT_SECONDS = 5.0
ALERT_SECONDS = 1.0
_API_VERSIONS, _SASL_HANDSHAKE, _SASL_AUTHENTICATE = (18, 0), (17, 1), (36, 1)
"""Requests of Kafka's protocol, and the versions of them that every broker since 1.0 has."""

_MAX_BYTES = 1_000_000

_accepted: set[tuple[str, KafkaSecurity]] = set()
"""The logins that need not be repeated by this process."""


def check_login(bootstrap: str, security: KafkaSecurity) -> None:
    """Log in, unless this process did before.

    :raises AccessRefusedError: the broker refuses, or is not to be trusted; with the remedy
    :raises UnreachableError: the authorisation server does not answer
    """
    if (bootstrap, security) in _accepted:
        return
    options = python_security(security)
    if security.mechanism == "OAUTHBEARER":
        # a refusal of the authorisation server is a sentence of its own
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
        raise AccessRefusedError(refusals.of_tls(name, security, error)) from error
    with closing(connection):
        try:
            _ask(connection, *_API_VERSIONS, b"")
            if security.logs_in:
                _log_in(name, address[0], connection, security, options)
        except (OSError, EOFError, struct.error) as error:
            # with TLS 1.3 a client's certificate is refused only now
            refusal = _alert(address, context) if context is not None and _cut(error) else error
            if isinstance(refusal, ssl.SSLError) and not _cut(refusal):
                raise AccessRefusedError(refusals.of_tls(name, security, refusal)) from error
            # a broker that starts or stops; the library tries again
            return False
    return True


def _cut(error: Exception) -> bool:
    """Return whether a connection ended without a reason."""
    return isinstance(error, (ssl.SSLEOFError, ConnectionError, EOFError))


def _alert(address: tuple[str, int], context: ssl.SSLContext) -> Exception | None:
    """Return why a broker ends a connection: it says so only to a client that waits before it sends anything."""
    try:
        with (
            closing(socket.create_connection(address, ALERT_SECONDS)) as raw,
            closing(context.wrap_socket(raw, server_hostname=address[0])) as connection,
        ):
            connection.recv(1)
    except OSError as error:
        return error
    return None


def _log_in(name: str, host: str, connection: socket.socket, security: KafkaSecurity, options: dict[str, Any]) -> None:
    wanted = str(security.mechanism)
    code, offered = _mechanisms(_ask(connection, *_SASL_HANDSHAKE, _text(wanted)))
    if wanted not in offered:
        ways = f"it offers {', '.join(offered)}" if offered else f"it says {for_code(code).__name__}"
        raise AccessRefusedError(
            f"Kafka at {name} does not take a login by {wanted}: {ways}. Correct kafka.security.mechanism or protocol."
        )
    mechanism = get_sasl_mechanism(wanted)(host=host, **options)
    while not mechanism.is_done():
        data = mechanism.auth_bytes()
        answer = _ask(connection, *_SASL_AUTHENTICATE, struct.pack(">i", len(data)) + data)
        (code,) = struct.unpack(">h", answer[:2])
        reason, rest = _take(answer[2:], ">h")
        if code:
            said = reason.decode("utf-8", "replace") or for_code(code).__name__
            raise AccessRefusedError(refusals.of_login(name, security, said))
        mechanism.receive(_take(rest, ">i")[0])


def guess_protocol(bootstrap: str) -> str | None:
    """Return what may be wrong if no Kafka answers without TLS, although something listens there."""
    anything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
    for host, port in addresses(bootstrap):
        tls = f"{host}:{port} speaks TLS: set kafka.security.protocol to SSL or SASL_SSL"
        try:
            with closing(socket.create_connection((host, port), TIMEOUT_SECONDS)) as raw, anything.wrap_socket(raw):
                return tls
        except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError):
            # as a load balancer does whose broker is away, and a broker that wants a login
            return (
                f"what listens at {host}:{port} ends each connection: start the broker behind it, or correct "
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


def addresses(bootstrap: str) -> Iterator[tuple[str, int]]:
    """Give host and port of each broker that ``kafka.bootstrap`` names."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if port.isdecimal():
            yield host.strip("[]"), int(port)


# -- Kafka's protocol --------------------------------------------------------------------------------------------------


def _ask(connection: socket.socket, api: int, version: int, body: bytes) -> bytes:
    """Send a request; return the body of its answer."""
    request = struct.pack(">hhi", api, version, 0) + _text("ackstream") + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _read(connection, 4))
    if not 4 <= size <= _MAX_BYTES:  # noqa: PLR2004 - the number of the request
        raise EOFError
    return _read(connection, size)[4:]


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _take(data: bytes, size: str) -> tuple[bytes, bytes]:
    """Divide data after a text or bytes whose length comes first; a length of -1 is that of none."""
    start = struct.calcsize(size)
    end = start + max(0, struct.unpack(size, data[:start])[0])
    return data[start:end], data[end:]


def _mechanisms(answer: bytes) -> tuple[int, list[str]]:
    code, count = struct.unpack(">hi", answer[:6])
    found, rest = [], answer[6:]
    for _ in range(count):
        name, rest = _take(rest, ">h")
        found.append(name.decode())
    return code, found
