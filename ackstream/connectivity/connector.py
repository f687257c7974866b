"""Run the connections of the settings, reopening each one that fails."""

import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from ackstream.client.core.labels import Labels
from ackstream.connectivity.intake import Intake
from ackstream.connectivity.outbound import OutboundWorker
from ackstream.connectivity.system import Lanes, System
from ackstream.connectivity.transports import transport
from ackstream.connectivity.transports.kafka import cluster, shares_brokers
from ackstream.errors import SettingsError
from ackstream.kafka.clients import MAX_BACKOFF_SECONDS, backoff
from ackstream.kafka.topics import system_topics
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.metrics import CONNECTION_FAILURES, CONNECTION_OPEN, FIGURES
from ackstream.protocol.ditto.twin.access import OPEN, Access
from ackstream.protocol.errors import UNAVAILABLE
from ackstream.settings import Kafka, Settings
from ackstream.settings.connections import Connection, KafkaConnection
from ackstream.settings.gateway import FileWatch, WatchedFile, with_access_file
from ackstream.settings.security import is_loopback

log = logging.getLogger(__name__)


def access_of(settings: Settings, connections: Sequence[Connection]) -> Access:
    """Return the access rules, if they fit the connections' subjects (SettingsError); without both all is permitted."""
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
                "The setting gateway.access is empty, so the subjects of the connections have no rights: grant them"
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
    """Return the file with the rules, if there is one; it may change while connections are open."""

    def reload() -> None:
        access.replace(each.rule for each in with_access_file(settings.gateway).access)

    if settings.gateway.access_file is not None:
        yield WatchedFile(settings.gateway.access_file, reload)


def _check_open(settings: Settings, connections: Sequence[Connection]) -> None:
    for each in connections:
        distant = [host for host in each.hosts(settings.kafka.bootstrap) if not is_loopback(host)]
        if distant and each.sources:
            raise SettingsError(
                f"The connection {each.id} reads messages from {distant[0]}, and the setting gateway.access is empty:"
                f" every client that can send one there could command all things. Write connections.sources.subjects,"
                f' such as ["connection:{each.id}"], and grant it the rights of its messages with [[gateway.access]].'
            )
    log.warning(
        "The setting gateway.access is empty: messages of the connections %s may do anything with any thing, and their"
        " targets receive all signals of their topics. Give sources and targets subjects, and grant these access.",
        ", ".join(each.id for each in connections),
    )


def check_addresses(connection: KafkaConnection, own: Kafka) -> None:
    """Refuse the address of a target, or reply target, that is a topic of this system."""
    system = system_topics(own) if shares_brokers(cluster(connection, own), own) else frozenset()
    for part in (*connection.targets, *(source.reply_target for source in connection.sources)):
        if part is not None and re.split("[/#]", part.address, maxsplit=1)[0] in system:
            raise SettingsError(
                f"The address {part.address} of the connection {connection.id} is a topic of the system, where records"
                f" count: name another topic in connections.targets.address or connections.sources.reply_target, or"
                f" another cluster in connections.bootstrap."
            )


TURNING_SECONDS = 300.0
"""Maximum duration of a turn, which may open the connection and wait for the other system."""
MAX_REPLIES, MAX_REPLY_BYTES = 1_000, 32 * 1024 * 1024
"""Limits of replies that wait for the other system: at one of them the sources of the connection pause."""


class Connector(transport.Runner):
    """Runs connections; one that cannot be opened is retried after 0.1 to 60 s while the others continue."""

    def __init__(self, settings: Settings, connections: Sequence[Connection]) -> None:
        """Begin to open the connections; raise as ``System``, ``transport``, ``access_of``, ``check_addresses`` do."""
        for each in connections:
            transport.transport(each.type)
            if isinstance(each, KafkaConnection):
                check_addresses(each, settings.kafka)
        access = access_of(settings, connections)
        with ExitStack() as stack:
            stack.enter_context(FileWatch(_watched_file(settings, access)))
            system = stack.enter_context(System(settings.kafka))
            self._links = [_Link(each, settings.kafka, system, access) for each in connections]
            super().__init__({link.id: link.keep for link in self._links})
            self._stack = stack.pop_all()

    @property
    def is_open(self) -> bool:
        """Whether all connections are open."""
        return all(link.is_open for link in self._links)

    def close(self) -> None:
        """Close all connections; messages in flight are delivered again at the next start."""
        super().close()
        self._stack.close()


class _Link:
    def __init__(self, connection: Connection, kafka: Kafka, system: System, access: Access) -> None:
        self._connection = connection
        self.id = connection.id
        self._access = access
        self._wanted = frozenset(connection.labels.to_declare)
        self._publishes = bool(connection.targets or self._wanted)
        self._kafka, self._system = kafka, system
        self._stack: ExitStack | None = None
        self._labels: Labels | None = None
        self._publisher: transport.TargetPublisher | None = None
        self._worker: OutboundWorker | None = None
        self._lanes = Lanes(connection.max_attempts)
        self._sources: list[transport.MessageSource] = []
        self._attempts = 0
        self._opened_at: float | None = None
        self._open_at = 0.0
        # by identity: the size of each reply that the publisher has accepted and not reported yet
        self._replies: dict[int, int] = {}
        self.is_open = False

    def keep(self, stop: threading.Event) -> None:
        sign = f"The connection {self.id}"
        thread = f"The thread of the connection {self.id}"
        FIGURES.set(CONNECTION_OPEN, self.id, value=False)
        with HEALTH.expecting(sign, transport.OPEN_SECONDS), HEALTH.expecting(thread, TURNING_SECONDS, vital=True):
            while not stop.is_set():
                self.turn()
                FIGURES.set(CONNECTION_OPEN, self.id, value=self.is_open)
                now = time.monotonic()
                HEALTH.beat(thread, now)
                if self.is_open:
                    HEALTH.beat(sign, now)
                stop.wait(transport.TURN_SECONDS)
            self.close()
            FIGURES.set(CONNECTION_OPEN, self.id, value=False)

    def turn(self) -> bool:
        """Open the connection, or its targets, if closed and due; return whether both are open, and connected."""
        try:
            self._turn(time.monotonic())
        except Exception as error:
            if not isinstance(error, transport.EXPECTED):
                log.exception("The connection %s failed.", self.id)
            # any error of a client library: the thread continues
            self.close()
            self._retry(str(error))
        is_open = self._stack is not None and (self._worker is not None or not self._publishes)
        parts = [part for part in (self._publisher, *self._sources) if part is not None]
        # a client that connects again by itself, as MQTT's does, is not opened again meanwhile
        self.is_open = is_open and all(part.connected for part in parts)
        return self.is_open

    def publish(self, message: transport.OutgoingMessage, done: transport.Confirm) -> None:
        """Publish a reply of a source with the publisher that is open now."""
        publisher, replies = self._publisher, self._replies
        if publisher is None:
            done(transport.not_published(ConnectionError("The connection was closed."), UNAVAILABLE))
            return

        def published(result: transport.Published) -> None:
            del replies[id(message)]
            done(result)

        replies[id(message)] = len(message.payload)
        publisher.publish(message, published)

    def close(self) -> None:
        stack, self._stack, self._sources, self._labels = self._stack, None, [], None
        if stack is None:
            return
        try:
            stack.close()
        except Exception:
            # the others continue
            log.exception("The connection %s was not closed cleanly.", self.id)

    def _turn(self, now: float) -> None:
        if self._labels is not None:
            self._labels.keep(now)
        if self._stack is not None and (fault := self._fault()) is not None:
            self.close()
            self._retry(fault)
        elif self._worker is not None and not self._worker.alive:
            # the sources continue: a restart would deliver, and execute, their messages in flight again
            fault = self._worker.fault
            self._close_worker()
            self._retry(fault)
        if now < self._open_at:
            return
        if self._stack is None:
            self._open()
            self._opened_at = time.monotonic()
            log.info("The connection %s is open.", self.id)
        elif self._labels is not None and self._worker is None and self._publishes:
            self._begin_to_publish(self._labels)
            self._opened_at = time.monotonic()
            log.info("The connection %s publishes to its targets again.", self.id)
        if self._worker is not None:
            self._worker.turn()

    def _fault(self) -> str | None:
        if self._publisher is not None and not self._publisher.alive:
            return "It can no longer publish to the other system."
        if not all(source.alive for source in self._sources):
            return "It no longer reads its sources."
        return None

    def _retry(self, reason: str) -> None:
        # the attempt may have taken seconds
        now = time.monotonic()
        if self._opened_at is not None and now - self._opened_at >= MAX_BACKOFF_SECONDS:
            self._attempts = 0
        self._opened_at = None
        self._attempts += 1
        FIGURES.count(CONNECTION_FAILURES, self.id)
        wait = backoff(self._attempts)
        self._open_at = now + wait
        log.warning("The connection %s is not open: %s Retrying in %g s.", self.id, reason, wait)

    def _open(self) -> None:
        connection, kind = self._connection, transport.transport(self._connection.type)
        with ExitStack() as stack:
            # the connection opens without its labels, too: then its acknowledgements are rejected
            labels = Labels(stack, self._kafka, self._wanted, connection.id, required=False)
            stack.callback(self._close_publisher)
            stack.callback(self._close_worker)
            self._begin_to_publish(labels)
            sources = []
            for index, settings in enumerate(connection.sources):
                intake = Intake(connection, settings, self._system, self.publish, labels, self._access, self._rests)
                source = stack.enter_context(kind.source(connection, index, settings, self._kafka, intake))
                source.start()
                sources.append(source)
            self._stack, self._labels, self._sources = stack.pop_all(), labels, sources

    def _begin_to_publish(self, labels: Labels) -> None:
        """Publish with a new publisher: the last one may still hold messages that are published again now."""
        connection, last = self._connection, self._publisher
        self._publisher = publisher = transport.transport(connection.type).publisher(connection, self._kafka)
        self._replies = {}
        if last is not None:
            last.close()
        if self._publishes:
            self._worker = OutboundWorker(
                connection, self._kafka, publisher, self._system, labels, self._lanes, self._access
            )

    def _rests(self) -> bool:
        """Return whether sources pause: too many replies wait, or the connection is not open."""
        # if a later source cannot be opened, each attempt would execute the messages of the earlier ones again
        sizes = list(self._replies.values())
        return self._stack is None or len(sizes) >= MAX_REPLIES or sum(sizes) >= MAX_REPLY_BYTES

    def _close_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _close_publisher(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
