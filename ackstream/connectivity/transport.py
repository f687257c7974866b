"""The contract of a transport, and what transports share: messages to and from other systems, and their deliveries.

A new transport is one module with a :class:`Transport`, entered in ``connector.TRANSPORTS``. Headers of messages are
strings, their names in lower case.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.client.group import OffsetProgress, Partition, Work
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.envelopes import PROTOCOL_CONTENT_TYPE, Envelope, encode, json_text
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID
from ackstream.protocol.ditto.placeholders import Context, Template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.connectivity.intake import Intake
    from ackstream.protocol.ditto.connections import Settlement
    from ackstream.settings import Kafka

    Confirm = Callable[["Published | Exception"], None]


CONNECTION_ID = "ditto-connection-id"


class ExternalMessage(msgspec.Struct, frozen=True):
    """A received message; ``identity`` is unique and becomes its correlation-id if it has none."""

    identity: str
    headers: Mapping[str, str]
    payload: bytes


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message to publish; the transport defines the form of ``address``."""

    address: str
    headers: dict[str, str]
    payload: bytes


def text_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """Convert the headers of a signal to strings, for placeholders and transports."""
    return {
        name.lower(): value if isinstance(value, str) else json_text(value)
        for name, value in headers.items()
        if value is not None
    }


def resolved(mapping: Mapping[str, str], context: Context) -> dict[str, str]:
    """Resolve a header mapping, omitting headers whose placeholders do not resolve."""
    found = {name.lower(): Template.parse(text).resolve(context) for name, text in mapping.items()}
    return {name: value for name, value in found.items() if value is not None}


def outgoing(
    signal: Envelope,
    address: str,
    mapping: Mapping[str, str],
    connection_id: str,
    *,
    payload: bytes | None = None,
    content_type: str = PROTOCOL_CONTENT_TYPE,
    further: Mapping[str, str] | None = None,
) -> OutgoingMessage | None:
    """Convert a signal to a message with content-type, correlation-id, connection id and the mapped headers.

    :param address: a template
    :param payload: replaces the protocol JSON
    :param further: additional headers for placeholders; those of the signal take precedence
    :return: ``None`` if the address does not resolve
    """
    headers = text_headers(signal.headers)
    context = Context({**(further or {}), **headers}, connection_id, signal.topic)
    where = Template.parse(address).resolve(context)
    if not where:
        return None
    own = {CONTENT_TYPE: content_type, CONNECTION_ID: connection_id}
    if CORRELATION_ID in headers:
        own[CORRELATION_ID] = headers[CORRELATION_ID]
    return OutgoingMessage(where, own | resolved(mapping, context), encode(signal) if payload is None else payload)


class Published(msgspec.Struct, frozen=True):
    """Confirmation of the transport that it has a message: status and payload of the acknowledgement to issue."""

    status: int
    payload: Raw | UnsetType = UNSET


class TargetPublisher(Protocol):
    """Publishes messages to another system; thread-safe and never blocking."""

    def publish(self, message: OutgoingMessage, done: Confirm) -> None:
        """Send a message; ``done`` is called once, in any thread, with the confirmation or the error."""

    def status_of(self, error: Exception) -> int:
        """Return the status of the acknowledgement for a message that was not published."""

    def close(self) -> None:
        """Flush accepted messages for a few seconds at most, then disconnect."""


MIN_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 60.0


def backoff(attempt: int) -> float:
    """Return the seconds to wait before attempt 1, 2, …: 0.1, 0.2, 0.4, … up to 60."""
    return min(MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2.0 ** min(attempt - 1, 16))


@dataclass(eq=False)
class Delivery(Generic[Partition]):
    """A message in flight; ``redelivered`` if it may have been delivered before."""

    partition: Partition
    work: Work
    run: int
    redelivered: bool


class Deliveries(Generic[Partition]):
    """Tracks the messages of partitions by offset.

    An unsettled message holds back the commit of all later ones of its partition. A message rejected with redelivery
    rewinds its partition once all messages before it are settled; messages settled after it are delivered again.
    """

    def __init__(self) -> None:
        self._progress: OffsetProgress[Partition] = OffsetProgress()
        self._seen: dict[Partition, int] = {}
        self._runs: dict[Partition, int] = {}
        self._rejected: dict[Partition, set[int]] = {}
        self._attempts: dict[Partition, tuple[int, int]] = {}

    def start(self, partition: Partition, offset: int, seen: int = 0) -> None:
        """Track a partition from an offset, unless it is tracked already.

        :param seen: messages below this offset may have been delivered to a previous owner
        """
        self._progress.start(partition, offset)
        self._seen.setdefault(partition, seen)

    def begin(self, partition: Partition, offset: int) -> Delivery[Partition] | None:
        """Begin the delivery of a message; ``None`` if it was begun before."""
        work = self._progress.begin(partition, offset)
        if work is None:
            return None
        work.remaining = 1
        seen = self._seen.get(partition, 0)
        self._seen[partition] = max(seen, offset + 1)
        return Delivery(partition, work, self._runs.get(partition, 0), redelivered=offset < seen)

    def settle(self, delivery: Delivery[Partition]) -> None:
        """Mark a message as settled."""
        delivery.work.remaining = 0

    def reject(self, delivery: Delivery[Partition]) -> None:
        """Schedule redelivery of a message, unless its partition has been rewound since."""
        if delivery.run == self._runs.get(delivery.partition, 0):
            self._rejected.setdefault(delivery.partition, set()).add(delivery.work.offset)

    def keep(self, partitions: Iterable[Partition]) -> None:
        """Forget all other partitions; they were assigned to another consumer."""
        kept = set(partitions)
        gone = self._progress.positions().keys() - kept
        self._progress.keep(kept)
        for partition in gone:
            self._forget(partition)
            self._seen.pop(partition, None)

    def positions(self) -> dict[Partition, int]:
        """Return the offset to commit per partition: the first unsettled one, else the next."""
        return self._progress.positions()

    def seen(self, partition: Partition) -> int:
        """Return the offset after the highest one delivered so far."""
        return self._seen.get(partition, 0)

    def again(self) -> dict[Partition, tuple[int, float]]:
        """Rewind partitions due for redelivery; return the offset and the delay in seconds for each."""
        found = {}
        positions = self._progress.positions()
        for partition, offset in positions.items():
            if offset not in self._rejected.get(partition, ()):
                continue
            failed, attempts = self._attempts.get(partition, (offset, 0))
            attempts = attempts + 1 if failed == offset else 1
            self._attempts[partition] = (offset, attempts)
            self._forget(partition)
            self._progress.keep(positions.keys() - {partition})
            self._progress.start(partition, offset)
            found[partition] = (offset, backoff(attempts))
        return found

    def _forget(self, partition: Partition) -> None:
        self._rejected.pop(partition, None)
        self._runs[partition] = self._runs.get(partition, 0) + 1


def redelivers(settlement: Settlement, qos: int, *, able: bool = True) -> bool:
    """Return whether a settlement makes a message be delivered again; never with ``qos`` 0 (ditto.md 7).

    :param able: the transport can have it redelivered
    """
    return qos > 0 and able and settlement == "reject-with-redelivery"


class MessageSource(Closing, Generic[Partition]):
    """Consumes messages in a thread of its own and hands them to an :class:`.Intake`, which settles them."""

    def __init__(self, name: str, intake: Intake) -> None:
        self._intake = intake
        self._deliveries: Deliveries[Partition] = Deliveries()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ackstream-{name}", daemon=True)

    @abstractmethod
    def start(self) -> None:
        """Connect; once this returns, every message that arrives is consumed.

        :raises AckstreamError: the other system is unreachable or refuses
        """

    def close(self) -> None:
        """Stop; unsettled messages are delivered again at the next start. Safe to call before ``start`` and twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._intake.forget()
        self._disconnect()

    @abstractmethod
    def _turn(self) -> None:
        """Take messages and settle others; called again and again in the thread."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Disconnect from the other system."""

    def _run(self) -> None:
        while not self._closing.is_set():
            self._turn()

    def _settle(self, delivery: Delivery[Partition], settlement: Settlement, *, qos: int, able: bool = True) -> None:
        if redelivers(settlement, qos, able=able):
            self._deliveries.reject(delivery)
        else:
            self._deliveries.settle(delivery)


class Transport(NamedTuple):
    """What opens the publisher and the sources of a connection; ``Kafka`` is ackstream's own.

    Both raise an ``AckstreamError`` if the other system is unreachable. A source begins with its ``start``; the number
    is its position in the connection.
    """

    publisher: Callable[[Any, Kafka], TargetPublisher]
    source: Callable[[Any, int, Any, Kafka, Intake], MessageSource[Any]]
