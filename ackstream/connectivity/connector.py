"""All connections of the settings: each is opened, and opened again where it fails."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kafka.errors import KafkaError

from ackstream.client.labels import Labels
from ackstream.connectivity.deliveries import backoff
from ackstream.connectivity.intake import Intake
from ackstream.connectivity.kafka import KafkaPublisher, KafkaSource
from ackstream.connectivity.mqtt import MqttPublisher, MqttSource
from ackstream.connectivity.outbound import Outlets
from ackstream.connectivity.system import System
from ackstream.errors import AckstreamError
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.errors import DittoError
from ackstream.settings import Kafka
from ackstream.settings.connections import KafkaConnection, KafkaSourceSettings, MqttConnection

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from ackstream.settings import Settings

log = logging.getLogger(__name__)

TURN_SECONDS = 0.1


class Connector(Closing):
    """Runs connections. One that cannot be opened is tried again, after 100 ms to a minute; the others go on."""

    def __init__(self, settings: Settings, connections: Sequence[KafkaConnection | MqttConnection]) -> None:
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
        """Open what is closed and due; tell whether everything is open."""
        now = time.monotonic()
        for link in self._links:
            link.turn(now)
        return all(link.is_open for link in self._links)

    def run(self, until: threading.Event) -> None:
        """Keep everything open until the event is set."""
        while not until.is_set():
            self.turn()
            until.wait(TURN_SECONDS)

    def close(self) -> None:
        """Close all connections; what is on its way comes again with the next start."""
        self._stack.close()


class _Link:
    """One connection, open or not."""

    def __init__(self, connection: KafkaConnection | MqttConnection, kafka: Kafka, system: System) -> None:
        self._connection = connection
        self._wanted = frozenset(connection.labels.to_declare)
        self._kafka = kafka
        self._system = system
        self._stack: ExitStack | None = None
        self._labels: Labels | None = None
        self._attempts = 0
        self._open_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._stack is not None

    def turn(self, now: float) -> None:
        if self._labels is not None and self._labels.held != self._wanted:
            log.error("The connection %s lost its labels.", self._connection.id)
            self.close()
        if self._stack is not None or now < self._open_at:
            return
        try:
            self._open()
        except (AckstreamError, DittoError, KafkaError, OSError) as error:
            self._attempts += 1
            wait = backoff(self._attempts)
            self._open_at = time.monotonic() + wait
            log.warning(
                "The connection %s cannot be opened now: %s It is tried again in %g s.",
                self._connection.id,
                error,
                wait,
            )
        else:
            self._attempts = 0
            log.info("The connection %s is open.", self._connection.id)

    def close(self) -> None:
        if self._stack is not None:
            self._stack.close()
            self._stack = self._labels = None

    def _open(self) -> None:
        connection = self._connection
        with ExitStack() as stack:
            labels = Labels(stack, self._kafka, self._wanted, connection.id)
            publisher = stack.enter_context(
                MqttPublisher(connection)
                if isinstance(connection, MqttConnection)
                else KafkaPublisher(foreign(connection, self._kafka), debug=connection.debug)
            )
            if connection.targets or self._wanted:
                outlets = stack.enter_context(Outlets(connection, self._kafka, publisher, self._system.extra))
                outlets.start()
            for source in self._sources(publisher):
                stack.enter_context(source)
                source.start()
            self._stack, self._labels = stack.pop_all(), labels

    def _sources(self, publisher: KafkaPublisher | MqttPublisher) -> Iterator[KafkaSource | MqttSource]:
        connection = self._connection
        for index, source in enumerate(connection.sources):
            intake = Intake(connection.id, source, self._system, publisher)
            if isinstance(connection, MqttConnection):
                yield MqttSource(connection, index, source, intake)
            elif isinstance(source, KafkaSourceSettings):
                yield KafkaSource(connection.id, source, foreign(connection, self._kafka), intake)


def foreign(connection: KafkaConnection, own: Kafka) -> Kafka:
    """Return the cluster of a connection: the one it names, else the system's own; its topics have no prefix."""
    if connection.bootstrap is None:
        return Kafka(bootstrap=own.bootstrap, options=own.options | connection.options)
    return Kafka(bootstrap=connection.bootstrap, options=connection.options)
