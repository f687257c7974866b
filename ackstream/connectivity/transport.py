"""The contract of a transport, and what transports share: messages to and from other systems, and their source.

A new transport is one module with a :class:`Transport`, entered in ``connector.TRANSPORTS``. Headers of messages are
strings, their names in lower case.
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.envelopes import PROTOCOL_CONTENT_TYPE, Envelope, encode, json_text
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID
from ackstream.protocol.ditto.placeholders import Context, Template

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.connectivity.intake import Intake
    from ackstream.protocol.ditto.connections import Settlement
    from ackstream.settings import Kafka

    Confirm = Callable[["Published | Exception"], None]


log = logging.getLogger(__name__)

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

    def is_away(self, error: Exception) -> bool:
        """Return whether the message was not published because the other system accepts none for the moment."""

    def close(self) -> None:
        """Flush accepted messages for a few seconds at most, then disconnect."""


MIN_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 60.0


def backoff(attempt: int) -> float:
    """Return the seconds to wait before attempt 1, 2, …: 0.1, 0.2, 0.4, … up to 60."""
    return min(MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2.0 ** min(attempt - 1, 16))


def redelivers(settlement: Settlement, qos: int, *, able: bool = True) -> bool:
    """Return whether a settlement makes a message be delivered again; never with ``qos`` 0 (ditto.md 7).

    :param able: the transport can have it redelivered
    """
    return qos > 0 and able and settlement == "reject-with-redelivery"


class MessageSource(Closing):
    """Consumes messages in a thread of its own and hands them to an :class:`.Intake`, which settles them."""

    def __init__(self, name: str, intake: Intake) -> None:
        self._intake = intake
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ackstream-{name}", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether messages are consumed, from ``start`` to ``close``."""
        return self._thread.is_alive()

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
        try:
            while not self._closing.is_set():
                self._turn()
        except Exception:
            # the connection is opened again, and unsettled messages are delivered again
            log.exception("The thread %s died.", self._thread.name)


class Transport(NamedTuple):
    """What opens the publisher and the sources of a connection; ``Kafka`` is ackstream's own.

    Both raise an ``AckstreamError`` if the other system is unreachable. A source begins with its ``start``; the number
    is its position in the connection.
    """

    publisher: Callable[[Any, Kafka], TargetPublisher]
    source: Callable[[Any, int, Any, Kafka, Intake], MessageSource]
