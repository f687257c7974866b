"""AMQP 0.9.1 (RabbitMQ, Qpid Broker-J) as a transport, on pika: consumer acknowledgements and publisher confirms.

A message is settled by ``basic.ack``, or rejected by ``basic.nack`` with or without requeue. Source of the rules:
Eclipse Ditto, ``RabbitMQConsumerActor``, ``RabbitMQPublisherActor`` (ditto.md 7).
"""

import logging
import re
import struct
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from pika import BasicProperties, ConnectionParameters, PlainCredentials, SSLOptions, data
from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker, ProtocolSyntaxError, ShortStringTooLong
from pika.spec import PERSISTENT_DELIVERY_MODE, Basic

from ackstream.connectivity.transports import brokers, transport
from ackstream.connectivity.transports.transport import Receiver
from ackstream.errors import StartError, UnreachableError
from ackstream.protocol.ditto.acknowledgements import OK
from ackstream.protocol.ditto.connection_rules import Settlement
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID
from ackstream.protocol.errors import BAD_REQUEST, UNAVAILABLE
from ackstream.settings import Kafka
from ackstream.settings.connections import Amqp091Connection, AmqpSourceSettings

log = logging.getLogger(__name__)
# it logs each error several times before it raises it
logging.getLogger("pika").setLevel(logging.CRITICAL + 1)

IDLE_SECONDS = 30
"""A connection on which nothing arrives for this long is dead; both sides send heartbeats."""
RETURN_SECONDS = 0.1
"""Maximum time between a negative confirm and the return of the message."""
LEAVE_SECONDS = 1.0
"""Maximum time for the broker to confirm the end of a connection."""
ANSWER_SECONDS = transport.CONNECT_SECONDS + LEAVE_SECONDS
"""Maximum time for the broker to open a connection: pika gives up first."""
REFUSALS = frozenset({311, 403, 404, 406})
"""Reply codes of a channel that is closed because of a message: its size, permission, exchange, or a precondition."""
_MAX_PREFETCH, _FRAME_BYTES = 65_535, 20
"""Limit of the protocol; bytes of the frame of a message's properties, besides these."""


def parameters(connection: Amqp091Connection) -> ConnectionParameters:
    """Return the parameters of a connection; without a username pika uses ``guest``."""
    found = ConnectionParameters(
        connection.host,
        connection.port,
        connection.virtual_host,
        socket_timeout=transport.CONNECT_SECONDS,
        stack_timeout=transport.CONNECT_SECONDS,
        heartbeat=IDLE_SECONDS,
        # Qpid would otherwise close the connection for a message that no queue takes
        client_properties={"connection_name": connection.id, "qpid.close_when_no_route": False},
    )
    if connection.username is not None:
        found.credentials = PlainCredentials(connection.username, connection.secret)
    if connection.tls is not None:
        found.ssl_options = SSLOptions(connection.tls.client_context(), connection.host)
    return found


class _Link(brokers.BrokerLink):
    def __init__(self, connection: Amqp091Connection, opened: Callable[[Any], None]) -> None:
        """Begin to connect; ``opened`` is called with the connection of pika."""
        super().__init__(connection)
        self.loop = IOLoop()
        self.loop.activate_poller()
        self.connection = SelectConnection(
            parameters(connection),
            on_open_callback=opened,
            on_open_error_callback=self.end,
            on_close_callback=self.end,
            custom_ioloop=self.loop,
        )

    def _exchange(self, seconds: float) -> None:
        # only to end the wait for data of the broker
        timer = self.loop.call_later(seconds, lambda: None)
        self.loop.poll()
        self.loop.process_timeouts()
        self.loop.remove_timeout(timer)

    def end(self, _ended: Any, reason: BaseException | str) -> None:
        """Note the reason for the end of the connection or of a needed channel: the first one counts."""
        self.reason = self.reason or reason

    def close(self) -> None:
        """Disconnect within 1 s; the broker delivers unsettled messages again."""
        with suppress(Exception):
            if self.connection.is_open:
                self.connection.close()
            # a broker without memory or disk space reads nothing from clients that publish
            limit = time.monotonic() + LEAVE_SECONDS
            while self.connection.is_closing and time.monotonic() < limit:
                self._exchange(transport.TURN_SECONDS)
        with suppress(Exception):
            if not self.connection.is_closed:
                # pika itself would wait for the answer of the broker without limit
                self.connection._terminate_stream(TimeoutError("It did not answer in time."))  # noqa: SLF001
            # its socket is closed in the next turn
            self.loop.process_timeouts()
        self.loop.close()


_BY_SENDER = re.compile(r"source:address|header:amqp\.routing-key")


class Amqp091Source(brokers.PushedSource):
    """Consumes the queues of a source, each with its share of the messages in flight."""

    def __init__(
        self, connection: Amqp091Connection, index: int, source: AmqpSourceSettings, own: Kafka, intake: Receiver
    ) -> None:
        super().__init__(connection, index, source, own, intake)
        if source.enforcement is not None and _BY_SENDER.search(source.enforcement.input):
            why = "the routing key, which a sender chooses: use topic permissions, or compare {{ header:user-id }}"
            log.warning("The enforcement of the connection %s compares %s.", connection.id, why)
        self._channel: Any = None
        # the answers of the broker for the queues that are consumed
        self._consumed: list[Any] = []

    def start(self) -> None:
        """Connect and consume."""
        self._link = _Link(self._settings, lambda opened: opened.channel(on_open_callback=self._consume))
        try:
            self._link.wait(lambda: len(self._consumed) == len(self._source.addresses), ANSWER_SECONDS)
        except UnreachableError as error:
            if isinstance(error.__cause__, ChannelClosedByBroker):
                raise StartError(
                    f"The connection {self._settings.id} cannot consume {' and '.join(self._source.addresses)} "
                    f"({error.__cause__.reply_text}): create the queue, or correct connections.sources.addresses."
                ) from error
            raise
        self._thread.start()

    def _taking(self, delivery: int) -> None:
        if self._source.qos == 0:
            self._answer(delivery, "settle")

    def _settle(self, delivery: int, settlement: Settlement) -> None:
        if self._source.qos > 0:
            self._answer(delivery, settlement)

    def _answer(self, delivery: int, settlement: Settlement) -> None:
        try:
            if settlement == "settle":
                self._channel.basic_ack(delivery)
            else:
                self._channel.basic_nack(delivery, requeue=settlement == "reject-with-redelivery")
        except AMQPError as error:
            raise brokers.unreachable(self._settings, error) from error

    def _consume(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._link.end)
        channel.add_on_cancel_callback(partial(self._link.end, reason="the broker ended the consumption of a queue"))
        channel.basic_qos(prefetch_count=min(self._share, _MAX_PREFETCH))
        for queue in self._source.addresses:
            # with qos 0, too: without acknowledgements the broker sends all its messages at once
            channel.basic_consume(queue, self._received, callback=self._consumed.append)

    def _received(self, _channel: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
        count = (properties.headers or {}).get("x-delivery-count")
        delivered = max(int(method.redelivered), count if isinstance(count, int) else 0)
        self._arrived.append((method.delivery_tag, external_message(method, properties, body), delivered))


class Amqp091Publisher(brokers.ConfirmingPublisher):
    """Publishes persistent messages with confirms."""

    def __init__(self, connection: Amqp091Connection, _own: Kafka) -> None:
        super().__init__(connection.id)
        self._id, self._confirms = connection.id, brokers.Confirms()
        # delivery tags begin with 1 on each channel; a message id must not repeat
        self._returned: set[int] = set()
        self._refused: set[int] = set()
        self._tag = self._channels = 0
        self._prefix = uuid.uuid4().hex
        # the channel that takes messages
        self._channel: Any = None
        self._link: _Link = _Link(connection, self._connected)
        self._link.wait(lambda: self._channels > 0, ANSWER_SECONDS)
        self._thread.start()

    def _unconfirmed(self) -> list[brokers.Confirms]:
        return [self._confirms]

    def _wake(self) -> None:
        self._link.loop.add_callback_threadsafe(self._flush)

    # called by pika

    def _connected(self, connection: Any) -> None:
        # Qpid confirms, too, but does not advertise it
        capabilities = {"publisher_confirms": True, "basic.nack": True}
        connection.server_capabilities = (connection.server_capabilities or {}) | capabilities
        connection.add_on_connection_blocked_callback(self._blocked)
        self._open_channel()

    def _blocked(self, _connection: Any, frame: Any) -> None:
        # messages wait, as for an unavailable MQTT broker; a new connection would not help
        log.warning("The broker of %s stores no messages at present: %s", self._id, frame.method.reason)

    def _open_channel(self) -> None:
        if self._link.connection.is_open:
            self._link.connection.channel(on_open_callback=self._channel_open)

    def _channel_open(self, channel: Any) -> None:
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(self._return)
        channel.confirm_delivery(partial(self._confirm, channel), partial(self._ready, channel))

    def _ready(self, channel: Any, _frame: Any) -> None:
        self._channel, self._tag = channel, 0
        self._channels += 1
        self._returned, self._refused = set(), set()
        self._flush()

    def _flush(self) -> None:
        while self._accepted:
            self._confirms.add(*self._accepted.popleft())
        while self._channel is not None and (unconfirmed := self._confirms.take()) is not None:
            self._send(unconfirmed)

    def _send(self, unconfirmed: brokers.Unconfirmed) -> None:
        message, tag = unconfirmed.message, self._tag + 1
        try:
            properties = basic_properties(message.headers, f"{self._prefix}-{self._channels}-{tag}")
            if sum(map(len, properties.encode())) > self._link.connection.params.frame_max - _FRAME_BYTES:
                # the broker would end the connection
                raise ValueError("The headers are larger than a frame of the broker.")  # noqa: TRY301 - as those of pika
            key = message.address.partition("/")[2]
            self._channel.basic_publish(unconfirmed.exchange, key, message.payload, properties, mandatory=True)
        except Exception as error:  # noqa: BLE001 - a header or an address that AMQP cannot carry
            # the latter two are of a routing key or a correlation-id of more than 255 bytes
            away = isinstance(error, AMQPError) and not isinstance(error, ShortStringTooLong | ProtocolSyntaxError)
            unconfirmed.done(transport.not_published(error, UNAVAILABLE if away else BAD_REQUEST))
        else:
            self._tag = tag
            self._confirms.sent(tag, unconfirmed)

    def _return(self, _channel: Any, _method: Any, properties: BasicProperties, _body: bytes) -> None:
        # RabbitMQ confirms after this, Qpid before
        self._returned.add(int(properties.message_id.rpartition("-")[2]))

    def _confirm(self, channel: Any, frame: Any) -> None:
        method = frame.method
        for tag in self._confirms.tags(method.delivery_tag, multiple=method.multiple):
            if isinstance(method, Basic.Nack):
                self._refused.add(tag)
                self._link.loop.call_later(RETURN_SECONDS, partial(self._finish, channel, tag, stored=False))
            elif tag not in self._refused:
                # a confirm for many excludes messages that were refused one by one before
                self._finish(channel, tag, stored=True)

    def _finish(self, channel: Any, tag: int, *, stored: bool) -> None:
        unconfirmed = self._confirms.confirm(tag, stored=stored) if channel is self._channel else None
        if unconfirmed is None:
            return
        lost = ConnectionError("The broker did not store it.")
        result = transport.Published(OK) if stored else transport.not_published(lost, UNAVAILABLE)
        if tag in self._returned:
            why = f"No queue takes messages to {unconfirmed.message.address}."
            result = transport.not_published(brokers.RejectedError(why), BAD_REQUEST)
        self._refused.discard(tag)
        self._returned.discard(tag)
        unconfirmed.done(result)
        self._flush()

    def _channel_closed(self, channel: Any, reason: BaseException) -> None:
        ready, self._channel = self._channel, None
        if channel is ready and isinstance(reason, ChannelClosedByBroker) and reason.reply_code in REFUSALS:
            if (refused := self._confirms.channel_closed()) is not None:
                refused.done(transport.not_published(reason, BAD_REQUEST))
            # once this one is forgotten
            self._link.loop.add_callback_threadsafe(self._open_channel)
        else:
            self._link.end(channel, reason)


_PROPERTIES = (CONTENT_TYPE, CORRELATION_ID, "reply-to")


def external_message(method: Any, properties: BasicProperties, body: bytes) -> transport.ExternalMessage:
    """Convert a message: its headers, properties, ``amqp.exchange`` and ``amqp.routing-key``."""
    found = {transport.property_text(name).lower(): value for name, value in (properties.headers or {}).items()}
    # only the property: brokers check that it is the user of the sender
    found["user-id"] = None
    named = {name: getattr(properties, name.replace("-", "_")) for name in (*_PROPERTIES, "message-id", "user-id")}
    found |= {name: value for name, value in named.items() if value}
    found |= {"amqp.exchange": method.exchange, "amqp.routing-key": method.routing_key}
    headers = {name: transport.property_text(value) for name, value in found.items() if value is not None}
    return transport.ExternalMessage(str(uuid.uuid4()), headers, body, address=headers["amqp.routing-key"])


def basic_properties(headers: dict[str, str], message_id: str) -> BasicProperties:
    """Return the properties of a persistent message; headers that are not properties stay headers."""
    named = {name.replace("-", "_"): headers[name] for name in _PROPERTIES if name in headers}
    others = {name: value for name, value in headers.items() if name not in _PROPERTIES}
    return BasicProperties(headers=others, message_id=message_id, delivery_mode=PERSISTENT_DELIVERY_MODE, **named)


_NUMBERS = {b"f": struct.Struct(">f"), b"d": struct.Struct(">d"), b"T": struct.Struct(">Q")}
_LENGTH = struct.Struct(">I")
_pika_value = data.decode_value


def decode_value(encoded: bytes, offset: int) -> tuple[Any, int]:
    """Decode the value of a header of any sender and return where it ends.

    pika would end the connection for NaN, a timestamp in milliseconds or endlessly nested tables. Here timestamps are
    numbers, and a table or list that cannot be read is its bytes.
    """
    kind, start = encoded[offset : offset + 1], offset + 1
    if (form := _NUMBERS.get(kind)) is not None:
        return form.unpack_from(encoded, start)[0], start + form.size
    try:
        found: tuple[Any, int] = _pika_value(encoded, offset)
    except Exception:
        # a list or a table
        if kind not in (b"A", b"F"):
            raise
        end = start + _LENGTH.size + _LENGTH.unpack_from(encoded, start)[0]
        return encoded[start + _LENGTH.size : end], end
    return found


# pika has no other place to configure the decoding of headers
data.decode_value = decode_value

TRANSPORT = transport.Transport(Amqp091Publisher, Amqp091Source)
