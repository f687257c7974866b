"""The contract of a transport: what connections exchange with other systems, and who carries it.

A new transport is one module with a :class:`Transport`, entered in ``connector.TRANSPORTS``. Headers of messages are
strings, their names in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.protocol.ditto.envelopes import PROTOCOL_CONTENT_TYPE, Envelope, encode, json_text
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID
from ackstream.protocol.ditto.placeholders import Context, Template

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.connectivity.intake import Intake
    from ackstream.settings import Kafka


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

    def publish(self, message: OutgoingMessage, done: Callable[[Published | Exception], None]) -> None:
        """Send a message; ``done`` is called once, in any thread, with the confirmation or the error."""

    def status_of(self, error: Exception) -> int:
        """Return the status of the acknowledgement for a message that was not published."""

    def close(self) -> None:
        """Flush accepted messages for a few seconds at most, then disconnect."""


class MessageSource(Protocol):
    """Consumes messages in a thread of its own and hands them to an :class:`.Intake`, which settles them."""

    def start(self) -> None:
        """Connect; once this returns, every message that arrives is consumed.

        :raises AckstreamError: the other system is unreachable or refuses
        """

    def close(self) -> None:
        """Stop; unsettled messages are delivered again at the next start. Safe to call before ``start`` and twice."""


class Transport(Protocol):
    """Opens the sources and the publisher of a connection."""

    def publisher(self, connection: Any, own: Kafka, /) -> TargetPublisher:
        """Connect a publisher for the targets and reply targets of a connection.

        :param own: the Kafka of ackstream itself
        :raises AckstreamError: the other system is unreachable
        """

    def source(self, connection: Any, index: int, source: Any, own: Kafka, intake: Intake, /) -> MessageSource:
        """Prepare a source without starting it.

        :param index: position of the source in the connection
        :raises AckstreamError: the other system is unreachable
        """
