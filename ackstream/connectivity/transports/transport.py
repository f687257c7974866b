"""The contract of a transport: messages to and from other systems, their publishers and sources.

A new transport is one module beside this one with a ``TRANSPORT``, its entry in :data:`MODULES`, and the settings of
its connections in ``settings/connections.py``. Headers of messages are strings, their names in lower case.
"""

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import msgspec
from kafka import errors
from msgspec import UNSET, Raw, UnsetType

from ackstream.errors import AckstreamError
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.acknowledgements import INTERNAL_ERROR, failure
from ackstream.protocol.ditto.connection_rules import Settlement
from ackstream.protocol.ditto.envelopes import PROTOCOL_CONTENT_TYPE, Envelope, encode, json_text, raw
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID
from ackstream.protocol.ditto.placeholders import Context, Template
from ackstream.protocol.errors import BAD_REQUEST, UNAVAILABLE, DittoError, shown
from ackstream.settings import Kafka

Confirm = Callable[["Published"], None]

log = logging.getLogger(__name__)

CONNECTION_ID = "ditto-connection-id"

MAX_BYTES = 64 * 1024 * 1024
"""Maximum bytes of messages that have arrived, are in flight, or wait to be published; beyond it none is read."""
CONNECT_SECONDS = 10.0
"""Maximum time for another system to accept a connection."""


class ExternalMessage(msgspec.Struct, frozen=True):
    """A received message; ``identity`` is unique and becomes its correlation-id if it has none."""

    identity: str
    headers: Mapping[str, str]
    payload: bytes
    # the reason if it cannot be read: then ``payload`` has the bytes that arrived
    unreadable: str = ""
    # its destination at the broker
    address: str = ""


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message to publish; the transport defines the form of ``address``."""

    address: str
    headers: dict[str, str]
    payload: bytes


def text_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """Convert the headers of a signal to strings, for placeholders and transports."""
    given = ((name.lower(), value) for name, value in headers.items() if value is not None)
    return {name: value if isinstance(value, str) else json_text(value) for name, value in given}


def property_text(value: Any) -> str:
    """Convert a property of a broker's message, which has a type there, to the text of a header."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, bool):
        return json_text(value)
    # a subclass of a number, such as those of proton, would write its name, too
    return str(next((kind(value) for kind in (int, float) if isinstance(value, kind)), value))


def resolved(mapping: Mapping[str, str], context: Context) -> dict[str, str]:
    """Resolve a header mapping, without headers whose placeholders do not resolve."""
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
    quote: Callable[[str], str] | None = None,
) -> OutgoingMessage | None:
    """Convert a signal to a message with the mapped headers; ``None`` if the template of the address does not resolve.

    ``further`` has headers for placeholders, after those of the signal; ``quote`` is applied to their texts there.
    """
    headers = text_headers(signal.headers)
    context = Context({**(further or {}), **headers}, connection_id, signal.topic)
    where = Template.parse(address).resolve(context, quote)
    if not where:
        return None
    own = {CONTENT_TYPE: content_type, CONNECTION_ID: connection_id}
    if CORRELATION_ID in headers:
        own[CORRELATION_ID] = headers[CORRELATION_ID]
    return OutgoingMessage(where, own | resolved(mapping, context), encode(signal) if payload is None else payload)


class Published(msgspec.Struct, frozen=True):
    """The result of publishing a message: status, payload and further headers of the acknowledgement to issue."""

    status: int
    payload: Raw | UnsetType = UNSET
    headers: Mapping[str, str] = {}
    # the other system accepts nothing now: a signal whose requester is not informed is published again
    away: bool = False
    # it is unavailable, unless the message is at fault
    doubtful: bool = False
    # it was not sent, since one before it to its address was not accepted
    unsent: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether the other system has the message."""
        return 200 <= self.status <= 299  # noqa: PLR2004 - success

    @property
    def reason(self) -> str:
        """The text for logs: the status, and the text of the other system or the client."""
        text = bytes(self.payload).decode("utf-8", "replace") if isinstance(self.payload, Raw) else ""
        return shown(f"{self.status} {text}".rstrip())


BEHIND = Published(UNAVAILABLE, raw("One before it was not accepted."), away=True, unsent=True)


def not_published(error: BaseException, status: int = INTERNAL_ERROR, *, away: bool | None = None) -> Published:
    """Return the result of a message that failed in the client; ``away`` unless the message is at fault (400)."""
    # a message that is retried in vain is noticed, a dropped one is lost
    return Published(status, raw(failure(error)), away=status != BAD_REQUEST if away is None else away)


class TargetPublisher(Closing):
    """Publishes to another system from any thread without blocking; unconfirmed messages at its end are sent again."""

    @property
    def alive(self) -> bool:
        """Whether it can publish, now or later; if not, the connection is opened again."""
        return True

    @property
    def connected(self) -> bool:
        """Whether it can publish now, according to its client."""
        return True

    @abstractmethod
    def publish(self, message: OutgoingMessage, done: Confirm) -> None:
        """Send a message, in order for an address; ``done`` is called once, in any thread, with the result."""

    @staticmethod
    def quoted(text: str) -> str:
        """Return the text of a placeholder as it is written into an address."""
        return text

    def halt(self) -> None:
        """Send no further messages, if possible: an earlier one will be published again, and they after it."""

    @abstractmethod
    def close(self) -> None:
        """Flush accepted messages for a few seconds at most, then disconnect."""


TURN_SECONDS, END_SECONDS = 0.1, 10.0
OPEN_SECONDS = 30.0
"""A connection or route that has been closed for longer counts as failed."""
EXPECTED = (AckstreamError, DittoError, errors.KafkaError, OSError)
"""Errors whose text is complete without a stack trace."""


class Runner(Closing):
    """Keeps connections or routes open, each in a thread of its own: a silent system holds up no other one."""

    def __init__(self, keep: Mapping[str, Callable[[threading.Event], None]]) -> None:
        """Start a thread for each name; its function runs until the event is set."""
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=each, args=(self._stop,), name=f"ackstream-keep-{name}", daemon=True)
            for name, each in keep.items()
        ]
        for thread in self._threads:
            thread.start()

    def run(self) -> None:
        """Wait until another thread closes it."""
        self._stop.wait()

    def close(self) -> None:
        """Close all of them at once; a thread that still waits for another system after 10 s ends with the process."""
        self._stop.set()
        until = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                log.warning("%s has not ended within %g s.", thread.name, END_SECONDS)


def redelivers(settlement: Settlement, qos: int, *, able: bool = True) -> bool:
    """Return whether a settlement redelivers: never with ``qos`` 0 (ditto.md 7), or if the transport is not able to."""
    return qos > 0 and able and settlement == "reject-with-redelivery"


class Receiver(Protocol):
    """Accepts the messages of a source and settles each one; only the thread of the source uses it."""

    @property
    def room(self) -> int:
        """How many more messages it accepts now."""

    def take(
        self, message: ExternalMessage, done: Callable[[Settlement], None], *, delivered: int = 0, able: bool = True
    ) -> None:
        """Accept a message that may have been ``delivered`` before, as often as known; try it again if ``able``.

        ``done`` is called once, in the source's thread, to settle it.
        """

    def turn(self, timeout: float = 0.0) -> None:
        """Settle answered messages, waiting up to ``timeout`` seconds for the first answer; called regularly."""

    def forget(self) -> None:
        """Settle no message any more: all will be delivered again."""


class MessageSource(Closing):
    """Consumes messages in a thread of its own and hands them to a :class:`.Receiver`, which settles them."""

    def __init__(self, name: str, intake: Receiver) -> None:
        self._intake, self._closing = intake, threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ackstream-{name}", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether messages are consumed, from ``start`` to ``close``."""
        return self._thread.is_alive()

    @property
    def connected(self) -> bool:
        """Whether messages can arrive now, according to its client."""
        return True

    @abstractmethod
    def start(self) -> None:
        """Connect, or raise ``AckstreamError``; once this returns, every message that arrives is consumed."""

    def close(self) -> None:
        """Stop; unsettled messages are delivered again at the next start. May be called before ``start``, and twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._intake.forget()
        self._disconnect()

    @abstractmethod
    def _turn(self) -> None:
        """Take and settle messages; called repeatedly in the thread; raise ``AckstreamError`` to be reopened."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Disconnect from the other system, if connected."""

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._turn()
        except AckstreamError as error:
            log.warning("%s", error)
        except Exception:
            # the connection is opened again, and unsettled messages are delivered again
            log.exception("The thread %s died.", self._thread.name)


class Transport(NamedTuple):
    """Opens publisher and sources of a connection, or raises ``AckstreamError``; ``Kafka`` is ackstream's own."""

    publisher: Callable[[Any, Kafka], TargetPublisher]
    source: Callable[[Any, int, Any, Kafka, Receiver], MessageSource]


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
    """Return the transport of a type of connections; raise ``MissingExtraError`` if its extra is not installed."""
    found: Transport = import_module(f"ackstream.connectivity.transports.{MODULES[kind]}").TRANSPORT
    return found
