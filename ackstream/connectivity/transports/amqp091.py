"""AMQP 0.9.1 (RabbitMQ, Qpid Broker-J) as a transport, on pika: consumer acknowledgements and publisher confirms.

A message is settled by ``basic.ack``, or rejected by ``basic.nack`` with or without requeue. Source of the rules:
Eclipse Ditto, ``RabbitMQConsumerActor``, ``RabbitMQPublisherActor`` (ditto.md 7).
"""

from __future__ import annotations

import logging
import time
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pika import BasicProperties, BlockingConnection
from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker
from pika.spec import Basic

from ackstream.connectivity.transport import (
    CONNECT_SECONDS,
    TURN_SECONDS,
    Published,
    Transport,
    not_published,
)
from ackstream.connectivity.transports.amqp091_link import (
    ERRORS,
    REFUSALS,
    UNFIT,
    abort,
    answering_within,
    basic_properties,
    external_message,
    parameters,
    unreachable,
)
from ackstream.connectivity.transports.brokers import ConfirmingPublisher, Confirms, PushedSource
from ackstream.errors import StartError
from ackstream.protocol.ditto.acknowledgements import OK
from ackstream.protocol.errors import BAD_REQUEST, UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.connectivity.transport import Confirm, Receiver
    from ackstream.connectivity.transports.brokers import Unconfirmed
    from ackstream.protocol.ditto.connections import Settlement
    from ackstream.settings import Kafka
    from ackstream.settings.connections import Amqp091Connection, AmqpSourceSettings

log = logging.getLogger(__name__)

RETURN_SECONDS = 0.1
"""How long after a negative confirm the broker may return the message."""

LEAVE_SECONDS = 1.0
"""How long the broker may take to agree to the end of a connection."""

_MAX_PREFETCH = 65_535


class Amqp091Source(PushedSource):
    """Consumes the queues of a source, each with its share of the messages in flight."""

    def __init__(
        self, connection: Amqp091Connection, index: int, source: AmqpSourceSettings, _own: Kafka, intake: Receiver
    ) -> None:
        """Prepare the source; see :class:`.Transport`."""
        super().__init__(f"{connection.id}-{index}", intake, source.qos)
        self._settings = connection
        self._source = source
        self._connection: Any = None
        self._channel: Any = None
        self._cancelled = False

    def start(self) -> None:
        """Connect and consume."""
        source = self._source
        try:
            self._connection = BlockingConnection(parameters(self._settings))
            with answering_within(CONNECT_SECONDS, self._connection):
                self._channel = self._connection.channel()
                share = max(1, source.max_in_flight // len(source.addresses))
                self._channel.basic_qos(prefetch_count=min(share, _MAX_PREFETCH))
                self._channel.add_on_cancel_callback(self._cancel)
                for queue in source.addresses:
                    # with qos 0, too: without acknowledgements the broker sends all it has at once
                    self._channel.basic_consume(queue, self._received)
        except ChannelClosedByBroker as error:
            raise StartError(
                f"The connection {self._settings.id} cannot consume {' and '.join(source.addresses)} "
                f"({error.reply_text}): create the queue, or correct connections.sources.addresses."
            ) from error
        except ERRORS as error:
            raise unreachable(self._settings, error) from error
        self._thread.start()

    def _disconnect(self) -> None:
        if self._connection is None or not self._connection.is_open:
            return
        with suppress(*ERRORS), answering_within(LEAVE_SECONDS, self._connection):
            # the broker delivers again what was not settled
            self._connection.close()

    def _pump(self, seconds: float) -> None:
        try:
            self._connection.process_data_events(time_limit=seconds)
        except ERRORS as error:
            raise unreachable(self._settings, error) from error
        if self._cancelled or not self._channel.is_open:
            raise unreachable(self._settings, ConnectionError("the broker ended the consumption of a queue"))

    def _taking(self, delivery: int) -> None:
        if self._source.qos == 0:
            self._send(self._channel.basic_ack, delivery)

    def _settle(self, delivery: int, settlement: Settlement) -> None:
        if self._source.qos == 0:
            return
        if settlement == "settle":
            self._send(self._channel.basic_ack, delivery)
        else:
            self._send(self._channel.basic_nack, delivery, requeue=settlement == "reject-with-redelivery")

    def _send(self, method: Callable[..., None], delivery: int, **options: bool) -> None:
        try:
            method(delivery, **options)
        except ERRORS as error:
            raise unreachable(self._settings, error) from error

    def _received(self, _channel: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
        self._arrived.append((method.delivery_tag, external_message(method, properties, body), method.redelivered))

    def _cancel(self, _frame: Any) -> None:
        self._cancelled = True


class UnroutableError(Exception):
    """No queue takes the message."""


class Amqp091Publisher(ConfirmingPublisher):
    """Publishes persistent messages with confirms."""

    def __init__(self, connection: Amqp091Connection, _own: Kafka) -> None:
        """Connect; see :class:`.Transport`."""
        super().__init__(connection.id)
        self._id = connection.id
        self._confirms = Confirms()
        # delivery tags begin with 1 on each channel; a message id must not repeat
        self._returned: set[int] = set()
        self._refused: set[int] = set()
        self._tag = self._channels = 0
        self._prefix = uuid.uuid4().hex
        # the channel that takes messages
        self._channel: Any = None
        self._loop = IOLoop()
        self._loop.activate_poller()
        self._connection = SelectConnection(
            parameters(connection),
            on_open_callback=self._connected,
            on_open_error_callback=self._ended,
            on_close_callback=self._ended,
            custom_ioloop=self._loop,
        )
        # pika gives up first
        until = time.monotonic() + CONNECT_SECONDS + LEAVE_SECONDS
        while not self._channels and self._reason is None and time.monotonic() < until:
            self._turn()
        if not self._channels:
            reason = self._reason or TimeoutError("It did not answer in time.")
            self._disconnect()
            raise unreachable(connection, reason) from reason
        self._thread.start()

    @property
    def _busy(self) -> bool:
        return not self._confirms.idle

    def _wake(self) -> None:
        self._loop.add_callback_threadsafe(self._flush)

    def _turn(self) -> None:
        timer = self._loop.call_later(TURN_SECONDS, _wait_no_longer)
        self._loop.poll()
        self._loop.process_timeouts()
        self._loop.remove_timeout(timer)

    def _take_open(self) -> list[Confirm]:
        return [unconfirmed.done for unconfirmed in self._confirms.give_up()]

    def _disconnect(self) -> None:
        with suppress(Exception):
            if self._connection.is_open:
                self._connection.close()
            # a broker without memory or disk space reads nothing from clients that publish
            until = time.monotonic() + LEAVE_SECONDS
            while self._connection.is_closing and time.monotonic() < until:
                self._turn()
        with suppress(Exception):
            abort(self._connection)
            # its socket is closed in the next turn
            self._loop.process_timeouts()
        self._loop.close()

    # called in the thread of the connection

    def _connected(self, connection: Any) -> None:
        # Qpid confirms, too, but does not advertise it
        capabilities = {"publisher_confirms": True, "basic.nack": True}
        connection.server_capabilities = (connection.server_capabilities or {}) | capabilities
        connection.add_on_connection_blocked_callback(self._blocked)
        self._open_channel()

    def _blocked(self, _connection: Any, frame: Any) -> None:
        # messages wait, as with a broker of MQTT that is away; to connect again would change nothing
        log.warning("The broker of %s stores nothing for the moment: %s", self._id, frame.method.reason)

    def _open_channel(self) -> None:
        if self._connection.is_open:
            self._connection.channel(on_open_callback=self._channel_open)

    def _channel_open(self, channel: Any) -> None:
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(self._return)
        channel.confirm_delivery(partial(self._confirm, channel), partial(self._ready, channel))

    def _ready(self, channel: Any, _frame: Any) -> None:
        self._channel = channel
        self._channels += 1
        self._tag = 0
        self._returned.clear()
        self._refused.clear()
        self._flush()

    def _flush(self) -> None:
        while self._accepted:
            self._confirms.add(*self._accepted.popleft())
        while self._channel is not None and (unconfirmed := self._confirms.take()) is not None:
            self._send(unconfirmed)

    def _send(self, unconfirmed: Unconfirmed) -> None:
        message = unconfirmed.message
        tag = self._tag + 1
        try:
            properties = basic_properties(message.headers, f"{self._prefix}-{self._channels}-{tag}")
            key = message.address.partition("/")[2]
            self._channel.basic_publish(unconfirmed.exchange, key, message.payload, properties, mandatory=True)
        except Exception as error:  # noqa: BLE001 - a header or an address that AMQP cannot carry
            away = isinstance(error, AMQPError) and not isinstance(error, UNFIT)
            unconfirmed.done(not_published(error, UNAVAILABLE if away else BAD_REQUEST))
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
                self._loop.call_later(RETURN_SECONDS, partial(self._finish, channel, tag, stored=False))
            elif tag not in self._refused:
                # one for many is about those alone that nothing was said of before
                self._finish(channel, tag, stored=True)

    def _finish(self, channel: Any, tag: int, *, stored: bool) -> None:
        unconfirmed = self._confirms.confirm(tag, stored=stored) if channel is self._channel else None
        if unconfirmed is None:
            return
        self._refused.discard(tag)
        if tag in self._returned:
            self._returned.discard(tag)
            error = UnroutableError(f"No queue takes messages to {unconfirmed.message.address}.")
            unconfirmed.done(not_published(error, BAD_REQUEST))
        elif stored:
            unconfirmed.done(Published(OK))
        else:
            unconfirmed.done(not_published(ConnectionError("The broker did not store it."), UNAVAILABLE))
        self._flush()

    def _channel_closed(self, channel: Any, reason: BaseException) -> None:
        was_ready = channel is self._channel
        self._channel = None
        if was_ready and isinstance(reason, ChannelClosedByBroker) and reason.reply_code in REFUSALS:
            refused = self._confirms.channel_closed()
            if refused is not None:
                refused.done(not_published(reason, BAD_REQUEST))
            # once this one is forgotten
            self._loop.add_callback_threadsafe(self._open_channel)
            return
        self._ended(self._connection, reason)

    def _ended(self, _connection: Any, reason: BaseException) -> None:
        """Note why nothing can be published any more: the first reason."""
        self._reason = self._reason or reason


def _wait_no_longer() -> None:
    """End the wait for data of the broker."""


TRANSPORT = Transport(Amqp091Publisher, Amqp091Source)
