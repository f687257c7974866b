"""MQTT 3.1.1 as a transport, on paho, which unlike aiomqtt offers manual acknowledgement.

A message is acknowledged once it is settled, in the order of arrival. Source of the rules: Eclipse Ditto,
``MqttConsumerActor`` (ditto.md 7); MQTT 3.1.1, 4.6 (order of PUBACK).
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import MQTT_ERR_NO_CONN, MQTT_ERR_SUCCESS, Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from ackstream.connectivity.transport import ExternalMessage, MessageSource, Published, backoff, redelivers
from ackstream.errors import UnreachableError
from ackstream.kafka.clients import Closing

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

    from ackstream.connectivity.intake import Intake
    from ackstream.connectivity.transport import Confirm, OutgoingMessage
    from ackstream.protocol.ditto.connections import Settlement
    from ackstream.settings import Kafka
    from ackstream.settings.connections import MqttConnection, Source


log = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 120
"""Longer than reading may pause while messages are in flight."""


def mqtt_client(connection: MqttConnection, name: str, *, persistent: bool) -> Client:
    """Create a client without connecting it.

    :param name: distinguishes the clients of a connection
    :param persistent: the broker keeps messages while the client is offline
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
    """Connect; from now on the client reconnects by itself.

    :raises UnreachableError: no broker responds at the address
    """
    try:
        client.connect(connection.host, connection.port, KEEPALIVE_SECONDS)
    except OSError as error:
        raise unreachable(connection, error) from error
    client.loop_start()


def unreachable(connection: MqttConnection, reason: Any) -> UnreachableError:
    """Report that the broker does not respond as expected."""
    return UnreachableError(
        f"The connection {connection.id} cannot use the MQTT broker at {connection.host}:{connection.port} ({reason}): "
        f"start the broker, or correct connections.host, port, username or password."
    )


POLL_SECONDS = 0.05


@dataclass(eq=False)
class _Unacknowledged:
    """A message with QoS 1, the session in which it arrived, and how it was settled."""

    message: MQTTMessage
    session: int
    settlement: Settlement | None = None


class MqttSource(MessageSource):
    """Consumes the topics of a source.

    With QoS 1 the broker keeps messages while the connection is down and redelivers unacknowledged ones on the next
    connection.
    """

    def __init__(self, connection: MqttConnection, index: int, source: Source, _own: Kafka, intake: Intake) -> None:
        """Prepare the client; ``index`` is part of its id."""
        super().__init__(f"{connection.id}-{index}", intake)
        self._id = connection.id
        self._connection = connection
        self._source = source
        self._client = mqtt_client(connection, str(index), persistent=source.qos > 0)
        self._client.on_connect = self._connected
        self._client.on_subscribe = self._subscribed
        self._client.on_message = self._incoming
        self._joined = threading.Event()
        self._leaving = threading.Event()
        # a full queue blocks the client thread, which in turn holds back the broker
        self._queue: Queue[tuple[int, MQTTMessage]] = Queue(maxsize=1)
        self._session = 0
        self._unacknowledged: deque[_Unacknowledged] = deque()
        self._reconnects = 0
        self._reconnect_at: float | None = None

    def start(self) -> None:
        """Connect and subscribe; once this returns, every message that arrives is consumed."""
        self._thread.start()
        connect(self._client, self._connection)
        if not self._joined.wait(CONNECT_SECONDS):
            raise unreachable(self._connection, "it did not accept the subscription")

    def _disconnect(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    # called in the client thread

    def _connected(self, client: Any, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        if code.is_failure:
            log.warning("The MQTT broker refuses the connection %s: %s", self._id, code)
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

    # called in the source thread

    def _turn(self) -> None:
        if self._intake.room:
            self._read()
            self._intake.turn()
        else:
            self._intake.turn(POLL_SECONDS)
        rejected = self._acknowledge()
        self._reconnect(time.monotonic(), rejected=rejected)

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
            # redelivered on the new connection
            return
        taken = _Unacknowledged(message, session)
        if message.qos > 0:
            self._unacknowledged.append(taken)
        self._intake.take(external_message(message), partial(self._done, taken), redelivered=message.dup)

    def _done(self, taken: _Unacknowledged, settlement: Settlement) -> None:
        taken.settlement = settlement

    def _acknowledge(self) -> bool:
        """Acknowledge messages in order of arrival; return whether the next one was rejected, to be redelivered."""
        waiting, able = self._unacknowledged, self._connection.reconnect_for_redelivery
        while waiting and waiting[0].session != self._session:
            # redelivered on the new connection
            waiting.popleft()
        while waiting and (settlement := waiting[0].settlement) is not None:
            message = waiting[0].message
            if redelivers(settlement, message.qos, able=able):
                return True
            waiting.popleft()
            self._client.ack(message.mid, message.qos)
            self._reconnects = 0
        return False

    def _reconnect(self, now: float, *, rejected: bool) -> None:
        """Reconnect to have rejected messages redelivered."""
        if rejected:
            # consecutive reconnects without a settled message in between
            self._reconnects += 1
            wait = backoff(self._reconnects)
            log.warning("A message of the connection %s was rejected; reconnecting in %g s.", self._id, wait)
            # received messages are dropped: they will be redelivered
            self._leaving.set()
            self._disconnect()
            self._unacknowledged.clear()
            with suppress(Empty):
                self._queue.get_nowait()
            self._reconnect_at = now + wait
        if self._reconnect_at is not None and now >= self._reconnect_at:
            self._reconnect_at = None
            self._leaving.clear()
            try:
                connect(self._client, self._connection)
            except Exception as error:  # noqa: BLE001 - retried
                log.warning("%s", error)
                self._reconnect_at = now + 1.0


def external_message(message: MQTTMessage) -> ExternalMessage:
    """Convert a message, with headers ``mqtt.topic``, ``mqtt.qos`` and ``mqtt.retain``."""
    headers = {
        "mqtt.topic": message.topic,
        "mqtt.qos": str(message.qos),
        "mqtt.retain": str(message.retain).lower(),
    }
    return ExternalMessage(str(uuid.uuid4()), headers, bytes(message.payload))


OK, INTERNAL_ERROR = 200, 500


class MqttPublisher(Closing):
    """Publishes with QoS 1; while the broker is unavailable, messages are kept and sent later."""

    def __init__(self, connection: MqttConnection, _own: Kafka) -> None:
        """Connect; see :class:`.Transport`."""
        self._lock = threading.Lock()
        self._waiting: dict[int, Confirm] = {}
        # a broker disconnects the earlier of two clients of one name: connectors of one connection share its targets
        self._client = mqtt_client(connection, f"publisher-{uuid.uuid4().hex[:8]}", persistent=False)
        self._client.on_publish = self._acknowledged
        connect(self._client, connection)

    def publish(self, message: OutgoingMessage, done: Confirm) -> None:
        """Send a message; see :class:`.TargetPublisher`."""
        try:
            # register the callback before the broker can respond
            with self._lock:
                sent = self._client.publish(message.address, message.payload, qos=1)
                if sent.rc in (MQTT_ERR_SUCCESS, MQTT_ERR_NO_CONN):
                    self._waiting[sent.mid] = done
                    return
            done(ConnectionError(f"the send queue of the client is full ({sent.rc.name})"))
        except ValueError as error:
            # not a topic name, or one with wildcards
            done(error)

    def status_of(self, error: Exception) -> int:  # noqa: ARG002 - part of the contract
        """Return 500: no error here is caused by the requester."""
        return INTERNAL_ERROR

    def is_away(self, error: Exception) -> bool:  # noqa: ARG002 - part of the contract
        """Return ``False``: while the broker is away, messages are kept."""
        return False

    def close(self) -> None:
        """Disconnect; unconfirmed messages are dropped."""
        self._client.disconnect()
        self._client.loop_stop()

    def _acknowledged(self, _client: Any, _data: Any, identity: int, _code: Any, _properties: Any) -> None:
        with self._lock:
            done = self._waiting.pop(identity, None)
        if done is not None:
            done(Published(OK))
