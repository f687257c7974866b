"""A real MQTT broker (Debian's mosquitto), and what other programs send to it and get from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from paho.mqtt.client import Client, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from tests.client.counterpart import until
from tests.harness.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IN_FLIGHT = 2
"""So many messages the broker sends to a client that has acknowledged none of them."""


@contextmanager
def mosquitto(directory: Path) -> Iterator[int]:
    """Run a broker; the value is its port."""
    program = shutil.which("mosquitto", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if program is None:
        pytest.skip("there is no mosquitto: install Debian's package of that name")
    (port,) = free_ports(1)
    conf = directory / "mosquitto.conf"
    conf.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages {IN_FLIGHT}\n", "utf-8")
    with (directory / "mosquitto.log").open("wb") as log:
        process = subprocess.Popen([program, "-c", str(conf)], stdout=log, stderr=log)
    try:
        until(lambda: _answers(port), "mosquitto answers")
        yield port
    finally:
        process.terminate()
        process.wait()


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
        until(lambda: len(subscribed) == len(topics), "the subscriptions")

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, topic: str, payload: bytes | str, qos: int = 1) -> None:
        """Publish, and wait until the broker has it."""
        sent = self._client.publish(topic, payload, qos)
        sent.wait_for_publish(30)
        assert sent.is_published(), time.monotonic()
