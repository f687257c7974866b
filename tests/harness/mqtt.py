"""Real MQTT brokers, and a program that publishes to them and keeps what it receives."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from ackstream.local import jars
from tests.harness.ports import free_ports
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

IN_FLIGHT = 2
"""How many messages the brokers send to a client that has acknowledged none of them."""

CONFIGURATION = Path(__file__).with_name("artemis.xml")


@contextmanager
def artemis(directory: Path) -> Iterator[int]:
    """Run ActiveMQ Artemis, whose jars come from Maven Central; the value is its port."""
    (port,) = free_ports(1)
    configuration = directory / "artemis.xml"
    text = CONFIGURATION.read_text("utf-8").replace("PORT", str(port)).replace("IN_FLIGHT", str(IN_FLIGHT))
    configuration.write_text(text, "utf-8")
    class_path = os.pathsep.join(map(str, jars.resolve("mqtt")))
    with (directory / "artemis.log").open("wb") as log:
        # Artemis has no main class without its command line; PySpark's bridge to Java takes that part
        bridge = launch_gateway(
            classpath=class_path,
            javaopts=["-Xmx256m", "-XX:TieredStopAtLevel=1"],
            die_on_exit=True,
            redirect_stdout=log,
            redirect_stderr=log,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=bridge))
        server = gateway.jvm.org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ()
        try:
            server.setConfigResourcePath(configuration.as_uri()).start()
            eventually(lambda: _answers(port), "Artemis to answer")
            yield port
        finally:
            server.stop()
            gateway.shutdown()


@contextmanager
def mosquitto(directory: Path) -> Iterator[int]:
    """Run Debian's mosquitto; the value is its port."""
    (port,) = free_ports(1)
    conf = directory / "mosquitto.conf"
    conf.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages {IN_FLIGHT}\n", "utf-8")
    with (directory / "mosquitto.log").open("wb") as log:
        process = subprocess.Popen([_mosquitto(), "-c", str(conf)], stdout=log, stderr=log)
    try:
        eventually(lambda: _answers(port), "mosquitto to answer")
        yield port
    finally:
        process.terminate()
        process.wait()


def _mosquitto() -> str | None:
    return shutil.which("mosquitto", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")


BROKERS = [artemis, *([mosquitto] if _mosquitto() else [])]
"""Artemis everywhere, and mosquitto where it is installed."""


def _answers(port: int) -> bool:
    client = Client(CallbackAPIVersion.VERSION2)
    try:
        client.connect("127.0.0.1", port)
    except OSError:
        return False
    client.disconnect()
    return True


class Device:
    """A program that publishes with QoS 1, and keeps what comes to the topics it subscribed to."""

    def __init__(self, port: int, *topics: str) -> None:
        self.received: list[Any] = []
        subscribed: list[Any] = []
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv311)
        self._client.on_message = lambda _client, _data, message: self.received.append(message)
        self._client.on_subscribe = lambda *_arguments: subscribed.append(True)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        for topic in topics:
            self._client.subscribe(topic, 1)
        eventually(lambda: len(subscribed) == len(topics), "the subscriptions")

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, topic: str, payload: bytes | str, qos: int = 1) -> None:
        """Publish, and wait until the broker has it."""
        sent = self._client.publish(topic, payload, qos)
        sent.wait_for_publish(30)
        assert sent.is_published(), time.monotonic()
