"""Run the connections of the settings, reopening each one that fails."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kafka.errors import KafkaError

from ackstream.client.labels import Labels
from ackstream.connectivity.intake import Intake
from ackstream.connectivity.kafka import KafkaPublisher, KafkaSource
from ackstream.connectivity.mqtt import MqttPublisher, MqttSource
from ackstream.connectivity.outbound import OutboundWorker
from ackstream.connectivity.system import System
from ackstream.connectivity.transport import Transport, backoff
from ackstream.errors import AckstreamError
from ackstream.kafka.clients import Closing
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from ackstream.connectivity.transport import MessageSource
    from ackstream.settings import Kafka, Settings
    from ackstream.settings.connections import Connection

log = logging.getLogger(__name__)

TRANSPORTS = {"kafka": Transport(KafkaPublisher, KafkaSource), "mqtt": Transport(MqttPublisher, MqttSource)}
"""By the ``type`` of a connection."""

TURN_SECONDS = 0.1


class Connector(Closing):
    """Runs connections; one that cannot be opened is retried after 0.1 to 60 s while the others continue."""

    def __init__(self, settings: Settings, connections: Sequence[Connection]) -> None:
        """Connect to the system's Kafka.

        :raises UnreachableError: no broker, or a topic is missing
        """
        with ExitStack() as stack:
            system = stack.enter_context(System(settings.kafka))
            self._links = [_Link(each, settings.kafka, system) for each in connections]
            for link in self._links:
                stack.callback(link.close)
            self._stack = stack.pop_all()

    def turn(self) -> bool:
        """Open connections that are closed and due; return whether all are open."""
        now = time.monotonic()
        opened = [link.turn(now) for link in self._links]
        return all(opened)

    def run(self, until: threading.Event) -> None:
        """Keep all connections open until the event is set."""
        while not until.is_set():
            self.turn()
            until.wait(TURN_SECONDS)

    def close(self) -> None:
        """Close all connections; messages in flight are delivered again at the next start."""
        self._stack.close()


class _Link:
    """One connection, open or not."""

    def __init__(self, connection: Connection, kafka: Kafka, system: System) -> None:
        self._connection = connection
        self._wanted = frozenset(connection.labels.to_declare)
        self._kafka = kafka
        self._system = system
        self._stack: ExitStack | None = None
        self._labels: Labels | None = None
        self._worker: OutboundWorker | None = None
        self._sources: list[MessageSource] = []
        self._attempts = 0
        self._open_at = 0.0

    def turn(self, now: float) -> bool:
        """Open the connection if it is closed and due; return whether it is open."""
        if self._labels is not None and self._labels.held != self._wanted:
            log.error("The connection %s lost its labels.", self._connection.id)
            self.close()
        if self._worker is not None and not self._worker.alive:
            log.error("The connection %s no longer publishes to its targets.", self._connection.id)
            self.close()
        if not all(source.alive for source in self._sources):
            log.error("The connection %s no longer reads its sources.", self._connection.id)
            self.close()
        if self._stack is None and now >= self._open_at:
            try:
                self._open()
            except (AckstreamError, DittoError, KafkaError, OSError) as error:
                self._attempts += 1
                wait = backoff(self._attempts)
                self._open_at = time.monotonic() + wait
                text = "The connection %s cannot be opened: %s Retrying in %g s."
                log.warning(text, self._connection.id, error, wait)
            else:
                self._attempts = 0
                log.info("The connection %s is open.", self._connection.id)
        return self._stack is not None

    def close(self) -> None:
        stack, self._sources = self._stack, []
        self._stack = self._labels = self._worker = None
        if stack is None:
            return
        try:
            stack.close()
        except Exception:
            # the others continue
            log.exception("The connection %s was not closed in order.", self._connection.id)

    def _open(self) -> None:
        connection, transport = self._connection, TRANSPORTS[self._connection.type]
        with ExitStack() as stack:
            labels = Labels(stack, self._kafka, self._wanted, connection.id)
            publisher = transport.publisher(connection, self._kafka)
            stack.callback(publisher.close)
            worker = None
            if connection.targets or self._wanted:
                worker = stack.enter_context(OutboundWorker(connection, self._kafka, publisher, self._system.extra))
            sources = []
            for index, settings in enumerate(connection.sources):
                intake = Intake(connection.id, settings, self._system, publisher)
                source = stack.enter_context(transport.source(connection, index, settings, self._kafka, intake))
                source.start()
                sources.append(source)
            self._stack, self._labels, self._worker = stack.pop_all(), labels, worker
            self._sources = sources
