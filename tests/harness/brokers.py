"""Real brokers of other systems: ActiveMQ Artemis and Apache Qpid Broker-J from Maven, mosquitto where installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from ackstream.local import jars
from ackstream.local.machine import answers
from tests.harness.certificates import STORE_PASSWORD, Authority
from tests.harness.ports import free_ports
from tests.harness.waiting import eventually

IN_FLIGHT = 2
"""How many messages a broker sends at ``few`` to an MQTT client that has acknowledged none of them."""

_HERE = Path(__file__).parent


def _unknown(_queue: str) -> int:
    raise NotImplementedError


@dataclass(frozen=True)
class RunningBroker:
    """Where a broker listens, 0 where it does not speak the protocol, and what it knows of its queues.

    ``tls``: the ports of :data:`LISTENERS`, of a broker that was given an authority.
    ``depth``: how many messages a queue has that are not settled, in flight or not.
    """

    mqtt: int = 0
    few: int = 0
    amqp: int = 0
    tls: Mapping[str, int] = field(default_factory=dict)
    depth: Callable[[str], int] = _unknown


LISTENERS: dict[str, dict[str, Any]] = {
    "mutual": {},
    "expired": {"expired": True},
    "foreign": {"host": "other.example"},
}
"""Listeners for TLS and how their certificates are issued; the first demands one of its clients."""


def _stores(authority: Authority) -> dict[str, tuple[int, Path, Path]]:
    """Return the port and the stores of each listener."""
    ports = zip(LISTENERS, free_ports(len(LISTENERS)), strict=True)
    return {name: (port, *authority.stores(f"broker-{name}", **LISTENERS[name])) for name, port in ports}


def _acceptor(name: str, port: int, own: Path, trusted: Path) -> str:
    options = {
        "protocols": "MQTT,AMQP",
        "sslEnabled": "true",
        "keyStorePath": str(own),
        "keyStorePassword": STORE_PASSWORD,
        "keyStoreType": "PKCS12",
        "trustStorePath": str(trusted),
        "trustStorePassword": STORE_PASSWORD,
        "trustStoreType": "PKCS12",
        "needClientAuth": str(name == "mutual").lower(),
    }
    query = ";".join(f"{key}={value}" for key, value in options.items())
    return f'<acceptor name="{name}">tcp://127.0.0.1:{port}?{query}</acceptor>'


@contextmanager
def artemis(directory: Path, authority: Authority | None = None) -> Iterator[RunningBroker]:
    """Run ActiveMQ Artemis: AMQP 1.0 and MQTT, with an authority over TLS, too."""
    mqtt, few, amqp = free_ports(3)
    stores = {} if authority is None else _stores(authority)
    text = (_HERE / "artemis.xml").read_text("utf-8")
    values = {"MQTT_PORT": mqtt, "FEW_PORT": few, "AMQP_PORT": amqp, "IN_FLIGHT": IN_FLIGHT}
    values["ACCEPTORS"] = "\n".join(_acceptor(name, *found) for name, found in stores.items())
    for name, value in values.items():
        text = text.replace(name, str(value))
    configuration = directory / "artemis.xml"
    configuration.write_text(text, "utf-8")
    with _jvm("artemis", directory) as jvm:
        # it has no main class without its command line
        server = jvm.org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ()

        def depth(queue: str) -> int:
            found = server.getActiveMQServer().locateQueue(queue)
            return 0 if found is None else int(found.getMessageCount())

        try:
            server.setConfigResourcePath(configuration.as_uri()).start()
            eventually(lambda: all(map(answers, (mqtt, few, amqp))), "Artemis to answer")
            yield RunningBroker(mqtt, few, amqp, {name: found[0] for name, found in stores.items()}, depth)
        finally:
            server.stop()


def _qpid_json(stores: dict[str, tuple[int, Path, Path]]) -> str:
    """Return the configuration, with a port, a key store and a trust store for each listener."""
    found = json.loads((_HERE / "qpid.json").read_text("utf-8"))
    (plain,) = found["ports"]
    found |= {"keystores": [], "truststores": []}
    for name, (port, own, trusted) in stores.items():
        common = {"password": STORE_PASSWORD}
        key = {"name": f"own-{name}", "type": "FileKeyStore", "storeUrl": str(own), "keyStoreType": "PKCS12"}
        trust = {"name": f"trusted-{name}", "type": "FileTrustStore", "storeUrl": str(trusted)}
        found["keystores"].append(key | common)
        found["truststores"].append(trust | common | {"trustStoreType": "PKCS12"})
        secured = {"keyStore": key["name"], "trustStores": [trust["name"]], "needClientAuth": name == "mutual"}
        found["ports"].append(plain | secured | {"name": name, "port": str(port), "transports": ["SSL"]})
    return json.dumps(found)


@contextmanager
def qpid(directory: Path, authority: Authority | None = None) -> Iterator[RunningBroker]:
    """Run Apache Qpid Broker-J: AMQP 0.9.1, user and password ``guest``; with an authority over TLS, too."""
    (amqp,) = free_ports(1)
    stores = {} if authority is None else _stores(authority)
    configuration = directory / "qpid.json"
    configuration.write_text(_qpid_json(stores), "utf-8")
    with _jvm("qpid", directory) as jvm:
        context = jvm.java.util.HashMap()
        for name, value in {"qpid.amqp_port": str(amqp), "qpid.work_dir": str(directory)}.items():
            context.put(name, value)
        attributes = jvm.java.util.HashMap()
        attributes.put("type", "Memory")
        attributes.put("initialConfigurationLocation", configuration.as_uri())
        attributes.put("context", context)
        launcher = jvm.org.apache.qpid.server.SystemLauncher()

        def depth(queue: str) -> int:
            # it offers no way but a listener in Java
            field = launcher.getClass().getDeclaredField("_systemConfig")
            field.setAccessible(True)
            host = field.get(launcher).getContainer().findVirtualHostByName("default")
            kind = jvm.java.lang.Class.forName("org.apache.qpid.server.model.Queue")
            found = host.getChildByName(kind, queue)
            return 0 if found is None else int(found.getQueueDepthMessages())

        try:
            launcher.startup(attributes)
            eventually(lambda: answers(amqp), "Qpid to answer")
            yield RunningBroker(amqp=amqp, tls={name: found[0] for name, found in stores.items()}, depth=depth)
        finally:
            launcher.shutdown()


@contextmanager
def mosquitto(directory: Path) -> Iterator[RunningBroker]:
    """Run Debian's mosquitto: MQTT."""
    broker = RunningBroker(*free_ports(2))
    conf = directory / "mosquitto.conf"
    conf.write_text(
        f"per_listener_settings false\nallow_anonymous true\nmax_inflight_messages {IN_FLIGHT}\n"
        f"listener {broker.mqtt} 127.0.0.1\nlistener {broker.few} 127.0.0.1\n",
        "utf-8",
    )
    with (directory / "mosquitto.log").open("wb") as log:
        process = subprocess.Popen([_mosquitto(), "-c", str(conf)], stdout=log, stderr=log)
    try:
        eventually(lambda: answers(broker.mqtt) and answers(broker.few), "mosquitto to answer")
        yield broker
    finally:
        process.terminate()
        process.wait()


def _mosquitto() -> str | None:
    return shutil.which("mosquitto", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")


MQTT_BROKERS = [artemis, *([mosquitto] if _mosquitto() else [])]
"""Artemis everywhere, and mosquitto where it is installed."""


@contextmanager
def _jvm(name: str, directory: Path) -> Iterator[Any]:
    """Run Java with the jars of a configuration of ``ivy.xml``, and PySpark's bridge into it."""
    found = jars.resolve(name, module=_HERE / "ivy.xml")
    with (directory / f"{name}.log").open("w") as log:
        bridge, process = launch_gateway(
            classpath=os.pathsep.join(map(str, found)),
            javaopts=["-Xmx256m", "-XX:TieredStopAtLevel=1"],
            die_on_exit=True,
            redirect_stdout=log,
            redirect_stderr=log,
            return_proc=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=bridge))
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()
            # it would go on until this process ends
            process.kill()
            process.wait()
