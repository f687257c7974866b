"""MQTT clients as connections need them, on paho: acknowledging is up to us, which aiomqtt does not offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from ackstream.client.errors import UnreachableError

if TYPE_CHECKING:
    from ackstream.connections import MqttConnection

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
