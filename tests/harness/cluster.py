"""Kafka of one or several nodes, each behind a proxy: a broker can be killed, stopped, or cut off from its clients.

Brokers and controllers reach each other without the proxies.
"""

from __future__ import annotations

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ackstream.kafka.clients import connect_admin
from ackstream.settings import Kafka, Local, Settings
from tests.demo.broker import Broker
from tests.harness import programs
from tests.harness.ports import free_ports
from tests.harness.processes import Program

START_TIMEOUT = "180s"
"""Beside programs that take all of the machine."""

IN_SYNC = 2


class Ports(NamedTuple):
    """Where a node listens; ``proxy`` is what clients are told."""

    client: int
    internal: int
    controller: int
    proxy: int


class Node(Broker):
    """A node of a cluster: the product's local broker with the properties of several."""

    def __init__(self, number: int, directory: Path, ports: list[Ports]) -> None:
        own = ports[number - 1]
        data = directory / f"broker-{number}"
        local = Local(data=data, port=own.client, controller_port=own.controller, start_timeout=START_TIMEOUT)
        super().__init__(Settings(local=local))
        self.number = number
        self._all, self._ports = ports, own

    def _own_properties(self) -> str:
        own, nodes = self._ports, len(self._all)
        voters = ",".join(f"{number}@localhost:{ports.controller}" for number, ports in enumerate(self._all, 1))
        properties = {
            "node.id": self.number,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": f"PLAINTEXT://localhost:{own.client},INTERNAL://localhost:{own.internal},"
            f"CONTROLLER://localhost:{own.controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{own.proxy},INTERNAL://localhost:{own.internal}",
            "inter.broker.listener.name": "INTERNAL",
            "controller.quorum.voters": voters,
            "offsets.topic.replication.factor": nodes,
            "transaction.state.log.replication.factor": nodes,
            "transaction.state.log.min.isr": min(IN_SYNC, nodes),
            "min.insync.replicas": min(IN_SYNC, nodes),
            "default.replication.factor": nodes,
        }
        # of two lines with one key Java takes the last
        return super()._own_properties() + "".join(f"{key}={value}\n" for key, value in properties.items())

    def signal(self, number: int) -> None:
        pid = self.pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if number == signal.SIGKILL:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


class Cluster:
    """The nodes and their proxies. Nodes are numbered from 1."""

    def __init__(self, directory: Path, nodes: int, stack: ExitStack) -> None:
        """Start all, with the environment of this process; ``stack`` kills them."""
        found = free_ports(4 * nodes)
        self.ports = [Ports(*found[4 * index : 4 * index + 4]) for index in range(nodes)]
        self.bootstrap = ",".join(f"127.0.0.1:{ports.proxy}" for ports in self.ports)
        self.nodes = [Node(number, directory, self.ports) for number in range(1, nodes + 1)]
        self.proxies = []
        stack.callback(self.close)
        for number, ports in enumerate(self.ports, 1):
            arguments = ["-c", programs.PROXY, str(ports.proxy), str(ports.client)]
            self.proxies.append(Program(f"proxy-{number}", arguments, Settings(), directory))
        with ThreadPoolExecutor(nodes) as pool:
            # none has started before most have
            for started in [pool.submit(node.start) for node in self.nodes]:
                started.result()

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.kill()
        for node in self.nodes:
            node.signal(signal.SIGKILL)

    def settings(self, prefix: str) -> Kafka:
        """Return what the clients have to know."""
        return Kafka(bootstrap=self.bootstrap, topic_prefix=prefix, replication=len(self.nodes))

    def leader(self, kafka: Kafka, partition: str) -> int:
        """Return the node that leads a partition, such as ``signals-0``.

        :raises KafkaError: it has no leader, or is not known
        """
        name, _, number = partition.rpartition("-")
        with connect_admin(kafka) as admin:
            (topic,) = admin.describe_topics([kafka.topic(name)])
        return next(each["leader_id"] for each in topic["partitions"] if each["partition_index"] == int(number))
