"""MQTT clients as connections need them, on paho: acknowledging is up to us, which aiomqtt does not offer."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import count
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import MQTT_ERR_NO_CONN, MQTT_ERR_SUCCESS, Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from ackstream.client.errors import UnreachableError
from ackstream.connectivity.deliveries import Deliveries, Delivery, backoff
from ackstream.connectivity.transport import ExternalMessage, MqttSettlement, Published, mqtt
from ackstream.kafka.clients import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

    from paho.mqtt.client import MQTTMessage

    from ackstream.connectivity.intake import Intake
    from ackstream.connectivity.transport import OutgoingMessage
    from ackstream.protocol.ditto.settlement import Settlement
    from ackstream.settings.connections import MqttConnection, Source

    Done = Callable[[Published | Exception], None]


CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 120
"""Longer than messages can be waited for while nothing is read."""


def mqtt_client(connection: MqttConnection, name: str, *, persistent: bool) -> Client:
    """Return a client that is not connected yet.

    :param name: tells the clients of a connection apart
    :param persistent: the broker keeps what comes while the client is away
    """
    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id=f"{connection.id}-{name}",
        clean_session=not persistent,
        protocol=MQTTv311,
        manual_ack=True,
    )
    client.connect_timeout = CONNECT_SECONDS
    if connection.username is not None:
        password = connection.password
        client.username_pw_set(connection.username, None if password is None else password.get_secret_value())
    if connection.tls:
        client.tls_set()
    return client


def connect(client: Client, connection: MqttConnection) -> None:
    """Connect; lost connections come back by themselves from now on.

    :raises UnreachableError: nothing answers there
    """
    try:
        client.connect(connection.host, connection.port, KEEPALIVE_SECONDS)
    except OSError as error:
        raise unreachable(connection, error) from error
    client.loop_start()


def unreachable(connection: MqttConnection, reason: Any) -> UnreachableError:
    """Say that the broker does not answer as it should."""
    return UnreachableError(
        f"No MQTT broker answers the connection {connection.id} at {connection.host}:{connection.port} ({reason}): "
        f"start it, or correct connections.host, port, username or password."
    )


# -- Consuming from MQTT: a message is acknowledged when it is settled, in the order in which messages came.
# Source of the rules: Eclipse Ditto, ``MqttConsumerActor`` (ditto.md 7); MQTT 3.1.1, 4.6 (order of PUBACK).


log = logging.getLogger(__name__)

POLL_SECONDS = 0.05


class MqttSource(Closing):
    """Reads the topics of a source with a thread of its own.

    The broker keeps what comes while the connection is away (QoS 1). What was not acknowledged comes again with the
    next connection.
    """

    def __init__(self, connection: MqttConnection, index: int, source: Source, intake: Intake) -> None:
        """Read later.

        :param index: which source of the connection; part of the client id
        """
        self._id = connection.id
        self._connection = connection
        self._source = source
        self._intake = intake
        self._client = mqtt_client(connection, str(index), persistent=source.qos > 0)
        self._client.on_connect = self._connected
        self._client.on_subscribe = self._subscribed
        self._client.on_message = self._incoming
        self._joined = threading.Event()
        self._closing = threading.Event()
        self._leaving = threading.Event()
        # of one place at most: the client's thread waits, and so does the broker, while there is no room
        self._queue: Queue[tuple[int, MQTTMessage]] = Queue(maxsize=1)
        self._session = self._taken_session = 0
        self._numbers = count()
        self._deliveries: Deliveries[int] = Deliveries()
        self._unacknowledged: deque[tuple[int, MQTTMessage]] = deque()
        self._reconnects = 0
        self._reconnect_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"ackstream-{connection.id}-{index}", daemon=True)

    def start(self) -> None:
        """Connect and begin; when this returns, what comes from now on is read.

        :raises UnreachableError: the broker does not answer, or refuses
        """
        self._thread.start()
        connect(self._client, self._connection)
        if not self._joined.wait(CONNECT_SECONDS):
            raise unreachable(self._connection, "it did not accept the subscription")

    def close(self) -> None:
        """Stop; what is not acknowledged comes again with the next start."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._intake.forget()
        self._client.disconnect()
        self._client.loop_stop()

    # called in the client's thread

    def _connected(self, client: Any, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        if code.is_failure:
            log.warning("The MQTT broker of the connection %s refuses it: %s", self._id, code)
            return
        self._session += 1
        client.subscribe([(address, self._source.qos) for address in self._source.addresses])

    def _subscribed(self, _client: Any, _data: Any, _identity: int, codes: Any, _properties: Any) -> None:
        if any(code.is_failure for code in codes):
            log.warning("The MQTT broker refuses subscriptions of the connection %s: %s", self._id, codes)
        else:
            self._joined.set()

    def _incoming(self, _client: Any, _data: Any, message: MQTTMessage) -> None:
        while not (self._closing.is_set() or self._leaving.is_set()):
            try:
                self._queue.put((self._session, message), timeout=POLL_SECONDS)
            except Full:
                continue
            return

    # called in our own thread

    def _run(self) -> None:
        while not self._closing.is_set():
            if self._intake.room:
                self._read()
                self._intake.turn()
            else:
                self._intake.turn(POLL_SECONDS)
            self._acknowledge()
            self._read_again(time.monotonic())

    def _read(self) -> None:
        timeout = POLL_SECONDS
        try:
            while self._intake.room:
                session, message = self._queue.get(timeout=timeout)
                self._take(session, message)
                timeout = 0.001
        except Empty:
            pass

    def _take(self, session: int, message: MQTTMessage) -> None:
        if session != self._session:
            # it comes again with the new connection
            return
        if session != self._taken_session:
            self._taken_session = session
            self._unacknowledged.clear()
            self._deliveries.keep([session])
        number = next(self._numbers)
        self._deliveries.start(session, number)
        delivery = self._deliveries.begin(session, number)
        if delivery is None:
            return
        if message.qos == 0:
            self._deliveries.settle(delivery)
        else:
            self._unacknowledged.append((number, message))
        self._intake.take(external(message), partial(self._done, delivery, message.qos), redelivered=message.dup)

    def _done(self, delivery: Delivery[int], qos: int, settlement: Settlement) -> None:
        reconnect = qos > 0 and self._connection.reconnect_for_redelivery
        if mqtt(settlement, reconnect_for_redelivery=reconnect) is MqttSettlement.RECONNECT:
            self._deliveries.reject(delivery)
        else:
            self._deliveries.settle(delivery)

    def _acknowledge(self) -> None:
        position = self._deliveries.positions().get(self._session)
        if position is None:
            # a new connection, on which nothing has come yet
            self._unacknowledged.clear()
            return
        while self._unacknowledged and self._unacknowledged[0][0] < position:
            _, message = self._unacknowledged.popleft()
            self._client.ack(message.mid, message.qos)
            self._reconnects = 0

    def _read_again(self, now: float) -> None:
        """Have rejected messages sent again, which takes a new connection."""
        if self._deliveries.again():
            # as often as nothing was settled in between
            self._reconnects += 1
            wait = backoff(self._reconnects)
            log.warning("A message of the connection %s was rejected; it connects anew in %g s.", self._id, wait)
            self._leave()
            self._reconnect_at = now + wait
        if self._reconnect_at is not None and now >= self._reconnect_at:
            self._reconnect_at = None
            self._leaving.clear()
            try:
                connect(self._client, self._connection)
            except Exception as error:  # noqa: BLE001 - tried again
                log.warning("%s", error)
                self._reconnect_at = now + 1.0

    def _leave(self) -> None:
        """Disconnect, and forget what is at hand: it comes again."""
        self._leaving.set()
        self._client.disconnect()
        self._client.loop_stop()
        with suppress(Empty):
            self._queue.get_nowait()


def external(message: MQTTMessage) -> ExternalMessage:
    """Return an MQTT message as a message; ``mqtt.topic``, ``mqtt.qos`` and ``mqtt.retain`` are its headers."""
    headers = {
        "mqtt.topic": message.topic,
        "mqtt.qos": str(message.qos),
        "mqtt.retain": str(message.retain).lower(),
    }
    return ExternalMessage(str(uuid.uuid4()), headers, bytes(message.payload))


# -- Publishing to MQTT, with QoS 1.


OK, INTERNAL_ERROR = 200, 500


class MqttPublisher(Closing):
    """Sends with one client; while the broker is away, messages are kept and sent when it is back."""

    def __init__(self, connection: MqttConnection) -> None:
        """Connect.

        :raises UnreachableError: nothing answers there
        """
        self._lock = threading.Lock()
        self._waiting: dict[int, Done] = {}
        self._client = mqtt_client(connection, "publisher", persistent=False)
        self._client.on_publish = self._acknowledged
        connect(self._client, connection)

    def publish(self, message: OutgoingMessage, done: Done) -> None:
        """Send a message; see ``Publisher``."""
        try:
            # the broker's answer must not come before it is known whose it is
            with self._lock:
                sent = self._client.publish(message.address, message.payload, qos=1)
                if sent.rc in (MQTT_ERR_SUCCESS, MQTT_ERR_NO_CONN):
                    self._waiting[sent.mid] = done
                    return
            done(ConnectionError(f"the client has too much to send ({sent.rc.name})"))
        except ValueError as error:
            # no topic, or one with wildcards
            done(error)

    def status_of(self, error: Exception) -> int:  # noqa: ARG002 - as all publishers
        """Return 500: whatever it is, it is not the requester's fault."""
        return INTERNAL_ERROR

    def close(self) -> None:
        """Disconnect; messages without an answer are given up."""
        self._client.disconnect()
        self._client.loop_stop()

    def _acknowledged(self, _client: Any, _data: Any, identity: int, _code: Any, _properties: Any) -> None:
        with self._lock:
            done = self._waiting.pop(identity, None)
        if done is not None:
            done(Published(OK))
