"""Run the connections of the settings, reopening each one that fails."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING

from kafka.errors import KafkaError

from ackstream.client.labels import Labels
from ackstream.connectivity.away import AloneAway
from ackstream.connectivity.intake import Intake
from ackstream.connectivity.kafka_publisher import check_addresses
from ackstream.connectivity.outbound_worker import OutboundWorker
from ackstream.connectivity.system import System
from ackstream.connectivity.transport import MAX_BACKOFF_SECONDS, backoff, not_published
from ackstream.errors import AckstreamError, SettingsError
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.access import OPEN, Access
from ackstream.protocol.errors import UNAVAILABLE, DittoError
from ackstream.settings.access_file import FileWatch, WatchedFile, with_access_file
from ackstream.settings.connections import KafkaConnection
from ackstream.settings.security import is_loopback
from ackstream.telemetry.catalogue import CONNECTION_FAILURES, CONNECTION_OPEN
from ackstream.telemetry.figures import FIGURES
from ackstream.telemetry.health import HEALTH

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from ackstream.connectivity.transport import Confirm, MessageSource, OutgoingMessage, TargetPublisher, Transport
    from ackstream.settings import Kafka, Settings
    from ackstream.settings.connections import Connection

log = logging.getLogger(__name__)

MODULES = {
    "kafka": "kafka",
    "mqtt": "mqtt",
    "mqtt-5": "mqtt",
    "amqp-10": "amqp10",
    "amqp-091": "amqp091",
    "http-push": "http_push",
}
"""The module of a transport, by the ``type`` of its connections."""


def transport(kind: str) -> Transport:
    """Return the transport of a type of connections.

    :raises MissingExtraError: it needs an extra that is not installed
    """
    found: Transport = import_module(f"ackstream.connectivity.{MODULES[kind]}").TRANSPORT
    return found


def access_of(settings: Settings, connections: Sequence[Connection]) -> Access:
    """Return what the subjects of connections may do: the access rules, without any and without subjects everything.

    :raises SettingsError: there are rules, but a source or target has no subjects, or the other way round; or there are
        neither, and other hosts could command all things
    """
    rules = with_access_file(settings.gateway).access
    subjects = [
        (each.id, kind, part.subjects)
        for each in connections
        for kind, parts in (("source", list(each.sources)), ("target", list(each.targets)))
        for part in parts
    ]
    if not rules:
        if any(named for _, _, named in subjects):
            raise SettingsError(
                "The setting gateway.access is empty, so the subjects of the connections may do nothing: grant them"
                " access with [[gateway.access]] (subjects, things, path, grant)."
            )
        _check_open(settings, connections)
        return OPEN
    for name, kind, named in subjects:
        if not named:
            raise SettingsError(
                f"A {kind} of the connection {name} has no subjects, so the rules of gateway.access let it do nothing:"
                f' write connections.{kind}s.subjects, such as ["connection:{name}"], and grant it access with'
                f" [[gateway.access]]."
            )
    return Access(each.rule for each in rules)


def _watched_file(settings: Settings, access: Access) -> Iterator[WatchedFile]:
    """Return the file that the rules come from, if they do; they may change while connections are open."""
    if settings.gateway.access_file is not None:

        def reload() -> None:
            access.replace(each.rule for each in with_access_file(settings.gateway).access)

        yield WatchedFile(settings.gateway.access_file, reload)


def _check_open(settings: Settings, connections: Sequence[Connection]) -> None:
    for each in connections:
        distant = [host for host in each.hosts(settings.kafka.bootstrap) if not is_loopback(host)]
        if distant and each.sources:
            raise SettingsError(
                f"The connection {each.id} reads messages from {distant[0]}, and the setting gateway.access is empty:"
                f" everyone who can send one there could command all things. Write connections.sources.subjects, such"
                f' as ["connection:{each.id}"], and grant it what its messages may do with [[gateway.access]].'
            )
    log.warning(
        "The setting gateway.access is empty: messages of the connections %s may do anything with any thing, and their"
        " targets receive all that they ask for. Give sources and targets subjects, and these access.",
        ", ".join(each.id for each in connections),
    )


TURN_SECONDS = 0.1
CONNECTOR, TURNING_SECONDS = "The connector", 300.0
"""A turn opens connections, one after the other, and waits for other systems."""
OPEN_SECONDS = 30.0
"""A connection that has been closed for so long is no short interruption."""

_EXPECTED = (AckstreamError, DittoError, KafkaError, OSError)
"""Errors whose text says all there is to say."""


class Connector(Closing):
    """Runs connections; one that cannot be opened is retried after 0.1 to 60 s while the others continue."""

    def __init__(self, settings: Settings, connections: Sequence[Connection]) -> None:
        """Connect to the system's Kafka.

        :raises UnreachableError: no broker, or a topic is missing
        :raises MissingExtraError: a transport needs an extra that is not installed
        :raises SettingsError: as :func:`access_of` and :func:`check_addresses` do
        """
        for each in connections:
            transport(each.type)
            if isinstance(each, KafkaConnection):
                check_addresses(each, settings.kafka)
        access = access_of(settings, connections)
        with ExitStack() as stack:
            stack.enter_context(FileWatch(_watched_file(settings, access)))
            system = stack.enter_context(System(settings.kafka))
            self._links = [_Link(each, settings.kafka, system, access) for each in connections]
            for link in self._links:
                stack.callback(link.close)
            self._stack = stack.pop_all()

    def turn(self) -> bool:
        """Open connections that are closed and due; return whether all are open."""
        now = time.monotonic()
        opened = [link.turn(now) for link in self._links]
        for link, is_open in zip(self._links, opened, strict=True):
            FIGURES.set(CONNECTION_OPEN, link.id, value=is_open)
            if is_open:
                HEALTH.beat(_sign(link.id), now)
        return all(opened)

    def run(self, until: threading.Event) -> None:
        """Keep all connections open until the event is set."""
        with ExitStack() as expected:
            expected.enter_context(HEALTH.expecting(CONNECTOR, TURNING_SECONDS, vital=True))
            for link in self._links:
                expected.enter_context(HEALTH.expecting(_sign(link.id), OPEN_SECONDS))
            while not until.is_set():
                self.turn()
                HEALTH.beat(CONNECTOR, time.monotonic())
                until.wait(TURN_SECONDS)

    def close(self) -> None:
        """Close all connections; messages in flight are delivered again at the next start."""
        self._stack.close()


def _sign(connection: str) -> str:
    return f"The connection {connection}"


class _Link:
    """One connection, open or not."""

    def __init__(self, connection: Connection, kafka: Kafka, system: System, access: Access) -> None:
        self._connection = connection
        self.id = connection.id
        self._access = access
        self._wanted = frozenset(connection.labels.to_declare)
        self._publishes = bool(connection.targets or self._wanted)
        self._kafka = kafka
        self._system = system
        self._stack: ExitStack | None = None
        self._labels: Labels | None = None
        self._publisher: TargetPublisher | None = None
        self._worker: OutboundWorker | None = None
        self._away = AloneAway()
        self._sources: list[MessageSource] = []
        self._attempts = 0
        self._opened_at: float | None = None
        self._open_at = 0.0

    def turn(self, now: float) -> bool:
        """Open the connection, or its targets, if they are closed and due; return whether both are open."""
        try:
            self._turn(now)
        except Exception as error:
            if not isinstance(error, _EXPECTED):
                log.exception("The connection %s failed.", self._connection.id)
            # whatever a client library raises, the other connections continue
            self.close()
            self._retry(now, str(error))
        return self._stack is not None and (self._worker is not None or not self._publishes)

    def publish(self, message: OutgoingMessage, done: Confirm) -> None:
        """Publish a reply of a source with the publisher that is open now."""
        publisher = self._publisher
        if publisher is None:
            done(not_published(ConnectionError("The connection was closed."), UNAVAILABLE))
        else:
            publisher.publish(message, done)

    def close(self) -> None:
        stack, self._stack, self._sources, self._labels = self._stack, None, [], None
        if stack is None:
            return
        try:
            stack.close()
        except Exception:
            # the others continue
            log.exception("The connection %s was not closed in order.", self._connection.id)

    def _turn(self, now: float) -> None:
        if self._labels is not None:
            self._labels.keep(now)
        if self._stack is not None and (fault := self._fault()) is not None:
            self.close()
            self._retry(now, fault)
        elif self._worker is not None and not self._worker.alive:
            # the sources read on: what they have in flight would be delivered, and executed, again
            self._close_worker()
            self._retry(now, "It no longer publishes to its targets.")
        if now < self._open_at:
            return
        if self._stack is None:
            self._open()
            self._opened_at = now
            log.info("The connection %s is open.", self._connection.id)
        elif self._worker is None and self._publishes:
            self._open_targets()
            self._opened_at = now
            log.info("The connection %s publishes to its targets again.", self._connection.id)

    def _fault(self) -> str | None:
        """Return why the whole connection must be opened again, or ``None``."""
        if self._publisher is not None and not self._publisher.alive:
            return "It can no longer publish to the other system."
        if not all(source.alive for source in self._sources):
            return "It no longer reads its sources."
        return None

    def _retry(self, now: float, reason: str) -> None:
        if self._opened_at is not None and now - self._opened_at >= MAX_BACKOFF_SECONDS:
            self._attempts = 0
        self._opened_at = None
        self._attempts += 1
        FIGURES.count(CONNECTION_FAILURES, self.id)
        wait = backoff(self._attempts)
        self._open_at = now + wait
        log.warning("The connection %s is not open: %s Retrying in %g s.", self._connection.id, reason, wait)

    def _open(self) -> None:
        connection, kind = self._connection, transport(self._connection.type)
        with ExitStack() as stack:
            # the connection opens without its labels, too: then its acknowledgements are rejected
            labels = Labels(stack, self._kafka, self._wanted, connection.id, required=False)
            stack.callback(self._close_publisher)
            self._publisher = kind.publisher(connection, self._kafka)
            stack.callback(self._close_worker)
            if self._publishes:
                self._worker = self._new_worker(self._publisher, labels)
            sources, intakes = [], []
            for index, settings in enumerate(connection.sources):
                intake = Intake(connection.id, settings, self._system, self.publish, labels, self._access)
                # if another one cannot be opened, what this one takes would be executed again by each attempt
                intake.paused = True
                intakes.append(intake)
                source = stack.enter_context(kind.source(connection, index, settings, self._kafka, intake))
                source.start()
                sources.append(source)
            for intake in intakes:
                intake.paused = False
            self._stack, self._labels, self._sources = stack.pop_all(), labels, sources

    def _open_targets(self) -> None:
        """Publish with a new publisher: the last one may still hold messages that are published again now."""
        last, labels = self._publisher, self._labels
        if last is None or labels is None:
            return
        publisher = transport(self._connection.type).publisher(self._connection, self._kafka)
        self._publisher = publisher
        last.close()
        self._worker = self._new_worker(publisher, labels)

    def _new_worker(self, publisher: TargetPublisher, labels: Labels) -> OutboundWorker:
        return OutboundWorker(self._connection, self._kafka, publisher, self._system, labels, self._away, self._access)

    def _close_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _close_publisher(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
