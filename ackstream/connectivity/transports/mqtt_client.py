"""The MQTT client, on paho: acknowledgements on request, with a reason, and properties as headers.

paho offers manual acknowledgement, which aiomqtt does not; but it sends PUBREC by itself, after which a broker may
forget a message, and it cannot send a reason.
"""

import logging
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any, Final

from paho.mqtt import properties as paho_properties
from paho.mqtt.client import PUBACK, PUBLISH, PUBREC, Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MessageState, MQTTErrorCode
from paho.mqtt.exception import MalformedPacket
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ackstream.connectivity.transports.brokers import DELIVERY_SECONDS, REMEMBERED, unreachable
from ackstream.connectivity.transports.transport import CONNECT_SECONDS
from ackstream.kafka.clients import CLOSE_SECONDS, MAX_RECORD_BYTES
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.settings.connections import MqttConnection

log = logging.getLogger(__name__)

KEEPALIVE_SECONDS = 120
"""More than the longest pause of reading while messages are in flight."""
REJECTED: Final = 0x83
"""MQTT 5, implementation specific error: the receiver does not accept the message, now or later."""

_NEVER, _MAX_RECEIVE = 0xFFFFFFFF, 65_535
MAX_PACKET_BYTES = MAX_RECORD_BYTES + 1024 * 1024
"""The largest packet that the broker may send (MQTT 5): that of a message that Kafka takes, and its headers."""
_PACKET_ID = _LENGTH = 2
"""The bytes of a packet's id, with which PUBREC begins."""
_FAILURE = 0x80
"""The lowest reason of MQTT 5 that is an error."""
MAX_UNCONFIRMED = 20
"""Limit of published messages without a confirmation, unless the broker accepts fewer."""
MAX_REPEATED = 3
"""Connections in a row that may be lost with the same message alone in flight before it is reported."""

_NOT_CONFIRMED, BEHIND = (ReasonCode(PacketTypes.PUBACK, "Unspecified error") for _ in range(2))


def _read_text(buffer: bytes, most: int) -> tuple[str, int]:
    """Read a text of MQTT 5, and the bytes that it takes; paho ends the connection for U+FEFF (MQTT-1.5.4-3)."""
    length = int.from_bytes(buffer[:_LENGTH], "big")
    if most < _LENGTH or length > most - _LENGTH:
        raise MalformedPacket("A text is longer than its packet.")
    return bytes(buffer[_LENGTH : _LENGTH + length]).decode("utf-8", "replace"), _LENGTH + length


paho_properties.readUTF = _read_text


class Suspects:
    """Decides which messages are in flight together to a broker that may end the connection for one of them.

    The broker names none. Those in flight when a connection is lost may have arrived; they are sent again, each alone.
    One with which :data:`MAX_REPEATED` connections are lost then is refused. Later ones to its topic are alone from the
    start, and refused with the first connection that is lost, until the broker accepts one.
    """

    def __init__(self) -> None:
        self._in_doubt: set[int] = set()
        self._refusing: Latest[str, None] = Latest(REMEMBERED)
        # connections lost in a row with the same message alone
        self._losses = 0
        # the last result of together() and its inputs, cached because it is read once for each message
        self._together, self._found_for, self._changes = 0, (0, 0, 0), 0

    def together(self, messages: Collection[MQTTMessage], most: int) -> int:
        """Return how many of the messages, oldest first, may be in flight together: at least one."""
        if not (self._in_doubt or self._refusing):
            return most
        if self._found_for != (found_for := (len(messages), most, self._changes)):
            suspects = (each.mid in self._in_doubt or each.topic in self._refusing for each in islice(messages, most))
            self._together = max(1, next((number for number, alone in enumerate(suspects) if alone), most))
            self._found_for = found_for
        return self._together

    def lost(self, in_flight: list[MQTTMessage]) -> str | None:
        """Note a lost connection; return the topic of the message in flight if that is refused."""
        self._changes += 1
        self._in_doubt.update(each.mid for each in in_flight)
        if len(in_flight) == 1:
            topic, self._losses = in_flight[0].topic, self._losses + 1
            if self._losses >= MAX_REPEATED or topic in self._refusing:
                self._losses, self._refusing[topic] = 0, None
                return topic
        return None

    def answered(self, message: MQTTMessage) -> None:
        """Note that the broker did not end the connection for a message: it accepts, refuses or ignores it."""
        self._losses = 0
        self.ended(message.mid)
        self._refusing.pop(message.topic, None)

    def ended(self, identity: int) -> None:
        """Forget a message, whose id another one will have."""
        self._changes += 1
        self._in_doubt.discard(identity)


class MqttClient(Client):
    """A paho client that hands over a message when it arrives, also one of QoS 2, and acknowledges it on request.

    One of QoS 2 that has been acknowledged is not handed over again (MQTT 4.3.3, B). A broker may end a connection
    for one message that it publishes: see :class:`Suspects`.

    :ivar on_session: called when the broker accepted one, with whether it still had the session
    :ivar on_confirmed: called once for each message that it publishes, with the id and a reason: when the broker has
        confirmed or refused one of QoS 1 or 2, and when one of QoS 0 was written, or lost
    """

    def __init__(self, connection: MqttConnection, name: str, *, persistent: bool, in_flight: int = 20) -> None:
        """Create a client; the broker keeps its session if ``persistent``; ``in_flight`` applies to MQTT 5 only."""
        self._five = connection.type == "mqtt-5"
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=f"{connection.id}-{name}",
            clean_session=None if self._five else not persistent,
            protocol=MQTTv5 if self._five else MQTTv311,
            manual_ack=True,
        )
        self.connect_timeout = CONNECT_SECONDS
        self.on_session: Callable[[bool], None] = lambda _present: None
        self.on_confirmed: Callable[[int, ReasonCode], None] = lambda _identity, _reason: None
        self.on_connect = self._answered
        self._settings = connection
        # the answer of the broker to the last connection
        self._answer: ReasonCode | None = None
        self._has_answered = threading.Event()
        self.on_publish = lambda _client, _data, identity, reason, _properties: self.on_confirmed(identity, reason)
        self.on_disconnect = self._lost
        self._unconfirmed = MAX_UNCONFIRMED
        # how many messages were in flight, the oldest ones, when the last connection was lost
        self._suspects, self._in_flight = Suspects(), 0
        # the id of the oldest message in flight, and the time since which it is the oldest
        self._oldest = 0, 0.0
        # whether the broker has accepted the present connection; changed only under the lock of published messages
        self._accepts = False
        # packet ids of QoS 2 that were acknowledged, and for which PUBREL has not come
        self._unreleased: set[int] = set()
        self._session: dict[str, Any] = {}
        if self._five:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # of paho
            properties.SessionExpiryInterval = _NEVER if persistent else 0
            properties.ReceiveMaximum = min(in_flight, _MAX_RECEIVE)
            properties.MaximumPacketSize = MAX_PACKET_BYTES
            self._session = {"clean_start": not persistent, "properties": properties}
        if connection.username is not None:
            self.username_pw_set(connection.username, connection.secret)
        if connection.tls is not None:
            self.tls_set_context(connection.tls.client_context())

    @property
    def alive(self) -> bool:
        """Whether it is connected or reconnecting: not if the broker refuses it."""
        return self._thread is not None and (self._answer is None or not self._answer.is_failure)

    def join(self) -> None:
        """Connect, or raise :class:`UnreachableError`; from now on the client reconnects by itself."""
        self._has_answered.clear()
        try:
            self.connect(self._settings.host, self._settings.port, KEEPALIVE_SECONDS, **self._session)
        except OSError as error:
            raise unreachable(self._settings, str(error)) from error
        self.loop_start()
        answered = self._has_answered.wait(CONNECT_SECONDS)
        if not (answered and self.alive):
            self.leave()
            raise unreachable(self._settings, str(self._answer) if answered else "it does not answer")

    def subscribe_all(self, filters: Iterable[str], qos: int) -> None:
        """Subscribe; a repeated subscription delivers retained messages again only with MQTT 3.1.1 (3.8.4)."""
        if self._five:
            new_alone = SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
            self.subscribe([(each, SubscribeOptions(qos=qos, retainHandling=new_alone)) for each in filters])
        else:
            self.subscribe([(each, qos) for each in filters])

    def leave(self) -> None:
        """Disconnect; wait at most 5 s for a broker that does not read."""
        self.disconnect()
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_SECONDS)
            self._sock_close()
            self.loop_stop()

    def receipt(self, message: MQTTMessage, *, accepted: bool) -> None:
        """Acknowledge a message: PUBACK with QoS 1, PUBREC with QoS 2; in MQTT 5 a rejection has its reason."""
        command = PUBACK if message.qos == 1 else PUBREC
        rejects = self._five and not accepted
        if command == PUBREC and not rejects:
            self._unreleased.add(message.mid)
        if not self.is_connected():
            # the broker accepts no packet before CONNECT, and sends it again; an accepted one is not handed over
            return
        if rejects:
            packet = struct.pack("!BBHB", command, 3, message.mid, REJECTED)
            self._packet_queue(command, packet, message.mid, message.qos)
        else:
            self._send_command_with_mid(command, message.mid, False)  # noqa: FBT003 - of paho

    def forget(self) -> None:
        """Forget the packet ids of a session that the broker no longer has."""
        self._unreleased.clear()

    def reconnect(self) -> MQTTErrorCode:
        """Connect again, and report the messages of QoS 0 that were not written: paho drops them silently."""
        with self._out_message_mutex:
            # until the broker accepts it: paho would send new messages at once, before those that have waited
            self._accepts, self._oldest = False, (0, 0.0)
            self._in_flight = self._inflight_messages or self._in_flight
            queued = [each for each in list(self._out_packet) if each["command"] & 0xF0 == PUBLISH and each["qos"] == 0]
        try:
            return super().reconnect()
        except OSError as error:
            if self._thread is not None:
                # it reconnects by itself, and paho keeps the reason
                found = self._settings
                log.warning("The connection %s cannot reach %s:%s: %s", found.id, found.host, found.port, error)
            raise
        finally:
            for packet in queued:
                self.on_confirmed(packet["mid"], _NOT_CONFIRMED)

    def _send_publish(self, *given: Any, **named: Any) -> MQTTErrorCode:
        with self._out_message_mutex:
            return super()._send_publish(*given, **named) if self._accepts else MQTTErrorCode.MQTT_ERR_NO_CONN

    def _handle_connack(self) -> MQTTErrorCode:
        # messages that have waited go before new ones
        with self._out_message_mutex:
            return super()._handle_connack()

    def _send_pubrec(self, _mid: int) -> MQTTErrorCode:
        """Send nothing when a message of QoS 2 arrives."""
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_publish(self) -> MQTTErrorCode:
        result = super()._handle_publish()
        with self._in_message_mutex:
            # of QoS 2, which paho would keep until PUBREL
            arrived, self._in_messages = list(self._in_messages.values()), OrderedDict()
        for message in arrived:
            if message.mid in self._unreleased and message.dup:
                # PUBREC was lost with the connection
                self.receipt(message, accepted=True)
            else:
                # a broker that returned to an older state of the session gives the id to another message
                self._unreleased.discard(message.mid)
                self._handle_on_message(message)
        return result

    def _handle_pubrel(self) -> MQTTErrorCode:
        """Complete a message of QoS 2, also one of an earlier process."""
        identity = int.from_bytes(self._in_packet["packet"][:2], "big")
        self._unreleased.discard(identity)
        return self._send_pubcomp(identity)

    def _handle_pubrec(self) -> MQTTErrorCode:
        """End the flow of a message that the broker refuses; paho would continue it, and report success."""
        packet = self._in_packet["packet"]
        if not self._five or len(packet) <= _PACKET_ID or packet[_PACKET_ID] < _FAILURE:
            return super()._handle_pubrec()
        identity = int.from_bytes(packet[:_PACKET_ID], "big")
        with self._out_message_mutex:
            if identity not in self._out_messages:
                return MQTTErrorCode.MQTT_ERR_SUCCESS
            reason = ReasonCode(PacketTypes.PUBREC, identifier=packet[_PACKET_ID])
            return self._do_on_publish(identity, reason, Properties(PacketTypes.PUBREC))  # type: ignore[no-untyped-call]

    def _do_on_publish(self, mid: int, reason_code: ReasonCode, properties: Properties) -> MQTTErrorCode:
        self._suspects.answered(self._out_messages[mid])
        return super()._do_on_publish(mid, reason_code, properties)

    def loop_misc(self) -> MQTTErrorCode:
        """Report the oldest message if the broker leaves it unconfirmed: others may wait for it."""
        result = super().loop_misc()
        with self._out_message_mutex:
            if self._oldest[0] != (oldest := next(iter(self._out_messages), 0) if self._accepts else 0):
                self._oldest = oldest, time.monotonic()
            elif oldest and time.monotonic() > self._oldest[1] + DELIVERY_SECONDS:
                self._do_on_publish(oldest, _NOT_CONFIRMED, Properties(PacketTypes.PUBACK))  # type: ignore[no-untyped-call]
        return result

    @property
    def _max_inflight_messages(self) -> int:
        """Maximum number of messages in flight; paho reads it under the lock, with a new message among the others."""
        return self._suspects.together(self._out_messages.values(), self._unconfirmed)

    @_max_inflight_messages.setter
    def _max_inflight_messages(self, _limit: int) -> None:
        """Ignore the limit of paho."""

    def _answered(self, _client: Any, _data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        self._answer = reason
        if not reason.is_failure:
            self._accepts = True
            log.info("The connection %s is connected to its MQTT broker.", self._settings.id)
            self._unconfirmed = min(MAX_UNCONFIRMED, getattr(properties, "ReceiveMaximum", MAX_UNCONFIRMED))
            self._resume()
            self.on_session(flags.session_present)
        self._has_answered.set()

    def _lost(self, _client: Any, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            log.warning("The connection %s lost its MQTT broker, and reconnects: %s.", self._settings.id, reason)

    def _resume(self) -> None:
        """Have paho send no more messages again than may be in flight; report those to a topic that is refused."""
        messages = self._out_messages
        topic = self._suspects.lost(list(islice(messages.values(), self._in_flight)))
        self._in_flight = 0
        for number, each in enumerate([each for each, message in messages.items() if message.topic == topic]):
            del messages[each]
            self._suspects.ended(each)
            self.on_confirmed(each, BEHIND if number else _NOT_CONFIRMED)
        for message in islice(messages.values(), self._max_inflight_messages, None):
            message.state = MessageState.MQTT_MS_QUEUED
