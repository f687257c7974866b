"""MQTT 3.1.1 and 5 as a transport.

A message is acknowledged once it is settled, in the order of arrival: by PUBACK, or with QoS 2 by PUBREC. Source of the
rules: Eclipse Ditto, ``MqttConsumerActor`` (ditto.md 7); MQTT 3.1.1, 4.6 and MQTT 5, 4.6 (order of PUBACK and PUBREC).
"""

import re
import threading
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, Full, Queue
from typing import Any

import msgspec
from paho.mqtt.client import MQTT_ERR_NO_CONN, MQTT_ERR_SUCCESS, MQTTMessage, topic_matches_sub
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from ackstream.connectivity.transports import mqtt_client, transport
from ackstream.connectivity.transports.brokers import RejectedError, unreachable
from ackstream.connectivity.transports.mqtt_client import MqttClient
from ackstream.connectivity.transports.transport import Confirm, OutgoingMessage, Receiver
from ackstream.errors import UnreachableError
from ackstream.kafka.clients import CLOSE_SECONDS
from ackstream.protocol.ditto.acknowledgements import INTERNAL_ERROR, OK
from ackstream.protocol.ditto.connection_rules import Settlement
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID
from ackstream.protocol.errors import BAD_REQUEST, UNAVAILABLE
from ackstream.settings import Kafka
from ackstream.settings.connections import MqttConnection, Source

POLL_SECONDS = 0.05
TOPIC, QOS, RETAIN, REPLY_TO = "mqtt.topic", "mqtt.qos", "mqtt.retain", "reply-to"
_SHARED = re.compile(r"^\$share/[^/]*/")
"""The prefix of the filter of a shared subscription."""


@dataclass(eq=False)
class _Unacknowledged:
    """A message with QoS 1 or 2, the session in which it arrived, and how it was settled."""

    message: MQTTMessage
    session: int
    settlement: Settlement | None = None


class MqttSource(transport.MessageSource):
    """Consumes topics; from QoS 1 on the broker keeps messages while it is away, and redelivers unacknowledged ones."""

    def __init__(self, connection: MqttConnection, index: int, source: Source, _own: Kafka, intake: Receiver) -> None:
        super().__init__(f"{connection.id}-{index}", intake)
        self._connection, self._source = connection, source
        self._filters = [_SHARED.sub("", address) for address in source.addresses]
        self._client = MqttClient(connection, str(index), persistent=source.qos > 0, in_flight=source.max_in_flight)
        self._client.on_session = self._connected
        self._client.on_subscribe = self._subscribed
        self._client.on_message = self._incoming
        self._joined = threading.Event()
        self._refusal: UnreachableError | None = None
        # a full queue blocks the client thread, which in turn holds back the broker
        self._queue: Queue[tuple[int, MQTTMessage]] = Queue(maxsize=1)
        self._session = 0
        self._unacknowledged: deque[_Unacknowledged] = deque()

    def start(self) -> None:
        """Connect and subscribe; once this returns, every message that arrives is consumed."""
        self._thread.start()
        self._client.join()
        if not self._joined.wait(transport.CONNECT_SECONDS):
            raise unreachable(self._connection, "it did not accept the subscription")
        if self._refusal is not None:
            raise self._refusal

    @property
    def connected(self) -> bool:
        """Whether the client is connected."""
        return self._client.is_connected()

    def _disconnect(self) -> None:
        self._client.leave()

    # called in the client thread

    def _connected(self, session_present: bool) -> None:  # noqa: FBT001 - a callback
        self._session += 1
        if not session_present:
            self._client.forget()
        self._client.subscribe_all(self._source.addresses, self._source.qos)

    def _subscribed(self, _client: Any, _data: Any, _identity: int, codes: Any, _properties: Any) -> None:
        if any(code.is_failure for code in codes):
            self._refusal = unreachable(self._connection, f"it refuses subscriptions: {', '.join(map(str, codes))}")
        self._joined.set()

    def _incoming(self, _client: Any, _data: Any, message: MQTTMessage) -> None:
        # a message may come before SUBACK, and fill the client
        self._joined.set()
        while not self._closing.is_set():
            with suppress(Full):
                self._queue.put((self._session, message), timeout=POLL_SECONDS)
                return

    # called in the source thread

    @property
    def _room(self) -> int:
        """How many more messages may be read: those that wait for earlier ones to be acknowledged count, too."""
        return min(self._intake.room, self._source.max_in_flight - len(self._unacknowledged))

    def _turn(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._joined.is_set() and not self._client.alive:
            raise unreachable(self._connection, "it refuses the connection")
        if self._room > 0:
            with suppress(Empty):
                self._take(*self._queue.get(timeout=POLL_SECONDS))
            self._intake.turn()
        else:
            self._intake.turn(POLL_SECONDS)

    def _take(self, session: int, message: MQTTMessage) -> None:
        if session != self._session:
            # redelivered on the new connection
            return
        taken = _Unacknowledged(message, session)
        if message.qos > 0:
            self._unacknowledged.append(taken)
        read = external_message(message)
        if not any(topic_matches_sub(subscribed, message.topic) for subscribed in self._filters):
            # from a session with other addresses, or of another source with other rights
            problem = "its topic is not an address of the source: unsubscribe it at the broker"
            read = msgspec.structs.replace(read, unreadable=problem)
        able = message.qos > 0 and self._connection.reconnect_for_redelivery
        self._intake.take(read, partial(self._settle, taken), delivered=int(message.dup), able=able)

    def _settle(self, taken: _Unacknowledged, settlement: Settlement) -> None:
        """Acknowledge messages in order of arrival, except those that the broker redelivers on a new connection."""
        taken.settlement = settlement
        waiting = self._unacknowledged
        while waiting and (waiting[0].settlement is not None or waiting[0].session != self._session):
            first = waiting.popleft()
            if first.session == self._session:
                self._client.receipt(first.message, accepted=first.settlement != "reject-without-redelivery")


_REFUSALS = frozenset({"Not authorized", "Topic name invalid", "Payload format invalid"})
"""Names of the reasons in PUBACK and PUBREC (MQTT 5) for which a retry fails as well."""


class MqttPublisher(transport.TargetPublisher):
    """Publishes with QoS 1 unless a header has another one; while the broker is unavailable, messages are kept."""

    def __init__(self, connection: MqttConnection, _own: Kafka) -> None:
        self._five = connection.type == "mqtt-5"
        self._changed = threading.Condition()
        # by packet id: callbacks that wait for a confirmation, and confirmations before ``publish`` had returned
        self._waiting: dict[int, Confirm] = {}
        self._early: dict[int, transport.Published] = {}
        # a broker disconnects the earlier of two clients of one name: connectors of one connection share its targets
        self._client = MqttClient(connection, f"publisher-{uuid.uuid4().hex[:8]}", persistent=False)
        self._client.on_confirmed = self._confirmed
        self._client.join()

    @property
    def alive(self) -> bool:
        """Whether it is connected, or connects again: not if the broker refuses it."""
        return self._client.alive

    @property
    def connected(self) -> bool:
        """Whether it is connected."""
        return self._client.is_connected()

    def publish(self, message: OutgoingMessage, done: Confirm) -> None:
        """Send a message; see :class:`.TargetPublisher`."""
        headers = message.headers
        try:
            quality = int(headers.get(QOS, "1"))
            # without the lock: paho holds one of its own here and while it calls back
            sent = self._client.publish(
                headers.get(TOPIC) or message.address,
                message.payload,
                qos=quality,
                retain=headers.get(RETAIN) == "true",
                properties=publish_properties(headers) if self._five else None,
            )
        except Exception as error:  # noqa: BLE001 - not a topic name, one with wildcards, or no QoS
            done(transport.not_published(error, BAD_REQUEST))
            return
        # without a connection the client keeps those of QoS 1 and 2
        accepted = (MQTT_ERR_SUCCESS, MQTT_ERR_NO_CONN) if quality else (MQTT_ERR_SUCCESS,)
        if sent.rc not in accepted:
            done(transport.not_published(ConnectionError(f"the client does not send it ({sent.rc.name})"), UNAVAILABLE))
            return
        with self._changed:
            result = self._early.pop(sent.mid, None)
            if result is None:
                self._waiting[sent.mid] = done
        if result is not None:
            done(result)

    def close(self) -> None:
        """Wait for confirmations for at most 5 s, if there is a connection, then disconnect."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, CLOSE_SECONDS if self._client.is_connected() else 0.0)
        self._client.leave()

    def _confirmed(self, identity: int, reason: Any) -> None:
        result = transport.Published(OK)
        if reason is mqtt_client.BEHIND:
            result = transport.BEHIND
        elif reason.is_failure:
            refused = reason.getName() in _REFUSALS
            result = transport.not_published(RejectedError(str(reason)), BAD_REQUEST if refused else INTERNAL_ERROR)
        with self._changed:
            done = self._waiting.pop(identity, None)
            if done is None:
                self._early[identity] = result
            self._changed.notify_all()
        if done is not None:
            done(result)


_PROPERTIES = {CORRELATION_ID: "CorrelationData", REPLY_TO: "ResponseTopic", CONTENT_TYPE: "ContentType"}
"""The properties of a message of MQTT 5 that become headers."""


def external_message(message: MQTTMessage) -> transport.ExternalMessage:
    """Convert a message, with headers ``mqtt.topic``, ``mqtt.qos``, ``mqtt.retain`` and its properties of MQTT 5."""
    headers = {TOPIC: message.topic, QOS: str(message.qos), RETAIN: str(message.retain).lower()}
    properties = message.properties
    if properties is not None:
        named = {header: getattr(properties, attribute, "") for header, attribute in _PROPERTIES.items()}
        own = {name.lower(): value for name, value in getattr(properties, "UserProperty", ())}
        headers = own | {name: transport.property_text(value) for name, value in named.items() if value} | headers
    return transport.ExternalMessage(str(uuid.uuid4()), headers, bytes(message.payload), address=message.topic)


def publish_properties(headers: dict[str, str]) -> Properties:
    """Return the properties of a message to publish with MQTT 5; raise if a value has more than 65,535 bytes."""
    others = {name: value for name, value in headers.items() if name not in (TOPIC, QOS, RETAIN)}
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # of paho
    for header, attribute in _PROPERTIES.items():
        if text := others.pop(header, ""):
            setattr(properties, attribute, text.encode() if header == CORRELATION_ID else text)
    if others:
        properties.UserProperty = list(others.items())
    # an error later would end the thread of the client, which keeps the message and packs it again
    properties.pack()  # type: ignore[no-untyped-call]  # of paho
    return properties


TRANSPORT = transport.Transport(MqttPublisher, MqttSource)
