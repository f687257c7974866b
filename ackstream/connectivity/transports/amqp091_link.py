"""A connection to an AMQP 0.9.1 broker on pika, and its messages."""

from __future__ import annotations

import logging
import struct
import uuid
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pika import BasicProperties, ConnectionParameters, PlainCredentials, SSLOptions, data
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError, ProtocolSyntaxError, ShortStringTooLong
from pika.spec import PERSISTENT_DELIVERY_MODE

from ackstream.connectivity.transport import CONNECT_SECONDS, ExternalMessage, property_text
from ackstream.errors import UnreachableError
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.settings.connections import Amqp091Connection

# it logs each error several times before it raises it
logging.getLogger("pika").setLevel(logging.CRITICAL + 1)

IDLE_SECONDS = 30
"""A connection on which nothing arrives for this long is dead; both sides send heartbeats."""

ERRORS = (AMQPError, AMQPConnectorException, OSError)
"""What pika raises if the broker does not respond as expected."""

UNFIT = (ShortStringTooLong, ProtocolSyntaxError)
"""What pika raises for a message that AMQP cannot carry: a routing key or a correlation-id of more than 255 bytes."""

REFUSALS = frozenset({311, 403, 404, 406})
"""Reply codes with which a broker closes a channel because of a message: too large, no permission, no such exchange,
a precondition."""

MESSAGE_ID, USER_ID = "message-id", "user-id"
_PROPERTIES = (CONTENT_TYPE, CORRELATION_ID, "reply-to")


def parameters(connection: Amqp091Connection) -> ConnectionParameters:
    """Return what pika connects with; without a username it is pika's default, ``guest``."""
    options: dict[str, Any] = {}
    if connection.username is not None:
        options["credentials"] = PlainCredentials(connection.username, connection.secret)
    if connection.tls is not None:
        options["ssl_options"] = SSLOptions(connection.tls.client_context(), connection.host)
    return ConnectionParameters(
        connection.host,
        connection.port,
        connection.virtual_host,
        socket_timeout=CONNECT_SECONDS,
        stack_timeout=CONNECT_SECONDS,
        heartbeat=IDLE_SECONDS,
        # Qpid would otherwise close the connection for a message that no queue takes
        client_properties={"connection_name": connection.id, "qpid.close_when_no_route": False},
        **options,
    )


def unreachable(connection: Amqp091Connection, reason: BaseException) -> UnreachableError:
    """Report that the broker does not respond as expected."""
    return UnreachableError(
        f"The connection {connection.id} cannot use the AMQP broker at {connection.host}:{connection.port} "
        f"({reason!r}): start the broker, or correct connections.host, port, tls, "
        f"virtual_host, username or password."
    )


def abort(connection: Any) -> None:
    """End a connection without the answer of the broker, for which pika waits without limit; in its thread."""
    if not connection.is_closed:
        connection._terminate_stream(TimeoutError("It did not answer in time."))  # noqa: SLF001


@contextmanager
def answering_within(seconds: float, connection: Any) -> Iterator[None]:
    """Abort a blocking connection whose broker does not answer in time; pika's own timers do not run meanwhile."""
    inner = connection._impl  # noqa: SLF001
    timer = inner.ioloop.call_later(seconds, partial(abort, inner))
    try:
        yield
    finally:
        inner.ioloop.remove_timeout(timer)


def external_message(method: Any, properties: BasicProperties, body: bytes) -> ExternalMessage:
    """Convert a message: its headers, properties, ``amqp.exchange`` and ``amqp.routing-key``.

    ``user-id`` is the property alone: brokers check that it is the user of the sender.
    """
    headers = {
        property_text(name).lower(): property_text(value)
        for name, value in (properties.headers or {}).items()
        if value is not None
    }
    headers.pop(USER_ID, None)
    named = {name: getattr(properties, name.replace("-", "_")) for name in (*_PROPERTIES, MESSAGE_ID, USER_ID)}
    headers |= {name: property_text(value) for name, value in named.items() if value}
    where = {"amqp.exchange": method.exchange, "amqp.routing-key": method.routing_key}
    headers |= {name: property_text(value) for name, value in where.items()}
    return ExternalMessage(str(uuid.uuid4()), headers, body, address=property_text(method.routing_key))


def basic_properties(headers: dict[str, str], message_id: str) -> BasicProperties:
    """Return the properties of a persistent message; headers that are no property stay headers."""
    named = {name.replace("-", "_"): headers[name] for name in _PROPERTIES if name in headers}
    others = {name: value for name, value in headers.items() if name not in _PROPERTIES}
    return BasicProperties(headers=others, message_id=message_id, delivery_mode=PERSISTENT_DELIVERY_MODE, **named)


_NUMBERS = {b"f": struct.Struct(">f"), b"d": struct.Struct(">d"), b"T": struct.Struct(">Q")}
_NESTED = frozenset({b"A", b"F"})
_LENGTH = struct.Struct(">I")
_pika_value = data.decode_value


def decode_value(encoded: bytes, offset: int) -> tuple[Any, int]:
    """Decode the value of a header and return where it ends, whatever the sender wrote.

    pika makes integers of fractions and dates of timestamps, and raises on those that are none: NaN, infinity, a
    timestamp in milliseconds, tables within tables without end. That would end the connection, and the broker would
    deliver the message again. Here timestamps are numbers, and of a table or list that cannot be read there are its
    bytes.
    """
    kind, start = encoded[offset : offset + 1], offset + 1
    if kind in _NUMBERS:
        form = _NUMBERS[kind]
        return form.unpack_from(encoded, start)[0], start + form.size
    try:
        found: tuple[Any, int] = _pika_value(encoded, offset)
    except Exception:
        if kind not in _NESTED:
            raise
        end = start + _LENGTH.size + _LENGTH.unpack_from(encoded, start)[0]
        return encoded[start + _LENGTH.size : end], end
    return found


# pika has no other place to say how headers are decoded
data.decode_value = decode_value
