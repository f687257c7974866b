"""Publishing to MQTT, with QoS 1."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import MQTT_ERR_NO_CONN, MQTT_ERR_SUCCESS

from ackstream.client.closing import Closing
from ackstream.connectivity.mqtt_client import connect, mqtt_client
from ackstream.connectivity.publishing import Published

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.connections import MqttConnection
    from ackstream.connectivity.messages import Outgoing

    Done = Callable[[Published | Exception], None]

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

    def publish(self, message: Outgoing, done: Done) -> None:
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
