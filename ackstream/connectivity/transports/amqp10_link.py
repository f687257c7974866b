"""A connection to an AMQP 1.0 broker on Qpid Proton, in one thread, and its messages."""

import logging
import ssl
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from proton import Array, Described, Endpoint, Message, ProtonException, SSLDomain, SSLException, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container, LinkOption

from ackstream.connectivity.transports.brokers import BrokerLink
from ackstream.connectivity.transports.transport import ExternalMessage, OutgoingMessage, property_text
from ackstream.errors import StartError
from ackstream.kafka.clients import CLOSE_SECONDS
from ackstream.protocol.ditto.envelopes import json_text
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID
from ackstream.settings.connections import Amqp10Connection
from ackstream.settings.security import Tls

# it logs each error before it reports it
logging.getLogger("proton").setLevel(logging.CRITICAL + 1)

IDLE_SECONDS = 30.0
"""A connection on which nothing arrives for this long is dead; both sides send empty frames."""

_PROPERTIES = {
    "to": "address", "subject": "subject", "reply-to": "reply_to", CORRELATION_ID: "correlation_id",
    CONTENT_TYPE: "content_type", "message-id": "id",
    "group-id": "group_id", "reply-to-group-id": "reply_to_group_id",
}  # fmt: skip
"""The properties of a message that become headers: by header, the attribute."""


class Node(LinkOption):  # type: ignore[misc]  # proton is not typed
    """Requests a queue (or a topic), as JMS clients do; a broker that creates nodes on demand would guess."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def apply(self, link: Any) -> None:
        """Add the capability to a link before it is attached."""
        (link.target if link.is_sender else link.source).capabilities.put_object(symbol(self._kind))


class Link(BrokerLink, MessagingHandler):  # type: ignore[misc]  # proton is not typed
    """A connection to an AMQP 1.0 broker; ``handlers`` are called for proton's events of their names."""

    def __init__(self, connection: Amqp10Connection, **handlers: Callable[[Any], None]) -> None:
        BrokerLink.__init__(self, connection)
        MessagingHandler.__init__(self, prefetch=0, auto_accept=False, peer_close_is_error=True)
        self.__dict__.update(handlers)
        self.container = Container(self)
        self.container.container_id = f"{connection.id}-{uuid.uuid4().hex[:8]}"
        self.container.start()
        options: dict[str, Any] = {}
        if connection.username is not None:
            # a broker that offers PLAIN without TLS was configured to
            options |= {"user": connection.username, "password": connection.secret, "allow_insecure_mechs": True}
        if connection.virtual_host is not None:
            options["virtual_host"] = connection.virtual_host
        if connection.tls is not None:
            options["ssl_domain"] = _domain(connection.tls)
        scheme = "amqps" if connection.encrypted else "amqp"
        url = f"{scheme}://{connection.host}:{connection.port}"
        self.connection = self.container.connect(url, reconnect=False, heartbeat=IDLE_SECONDS, **options)
        self.wait(lambda: self.connection.state & Endpoint.REMOTE_ACTIVE)

    def _exchange(self, seconds: float) -> None:
        self.container.timeout = seconds
        try:
            if not self.container.process():
                self.on_disconnected(None)
        except (ProtonException, OSError) as error:
            self.reason = repr(error)

    def close(self) -> None:
        """Disconnect; the broker delivers unsettled messages again."""
        self.connection.close()
        limit = time.monotonic() + CLOSE_SECONDS
        self.container.timeout = 0.1
        # after any error: the socket is closed, and credit returned, only if both sides close
        with suppress(ProtonException, OSError):
            while time.monotonic() < limit and self.container.process():
                pass

    def on_connection_error(self, event: Any) -> None:
        """Note the broker's reason for closing the connection."""
        self.reason = condition_text(event.connection.remote_condition)

    def on_transport_error(self, event: Any) -> None:
        """Note the reason for the failure of the connection."""
        self.reason = condition_text(event.transport.condition)

    def on_disconnected(self, _event: Any) -> None:
        """Note that the connection is lost."""
        self.reason = self.reason or "it closed the connection"

    def on_link_error(self, event: Any) -> None:
        """Note the broker's reason for ending the link to an address."""
        self.reason = f"{event.link.source.address}: {condition_text(event.link.remote_condition)}"


def _domain(tls: Tls) -> SSLDomain:
    paths = ssl.get_default_verify_paths()
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    try:
        domain.set_trusted_ca_db(str(tls.ca or paths.cafile or paths.capath or ""))
        verified = SSLDomain.VERIFY_PEER_NAME if tls.verify_hostname else SSLDomain.VERIFY_PEER
        domain.set_peer_authentication(verified)
        if tls.certificate is not None:
            password = None if tls.key_password is None else tls.key_password.reveal()
            domain.set_credentials(str(tls.certificate), str(tls.key or tls.certificate), password)
    except SSLException as error:
        raise StartError(
            f"The certificates of trusted authorities, or the own one, cannot be read ({error}): install those of the "
            f"operating system (ca-certificates), name a file of them in SSL_CERT_FILE, or correct connections.tls."
        ) from error
    return domain


def condition_text(found: Any) -> str:
    """Return the name and the description of an error of the peer."""
    return "no reason given" if found is None else f"{found.name}: {found.description}"


def received_message(encoded: bytes, address: str) -> tuple[ExternalMessage, int]:
    """Decode and convert a message; return how often it was delivered before, too."""
    message = Message()
    try:
        if encoded and not encoded.startswith(b"\x00"):
            # proton would return an empty message
            raise ProtonException("It does not begin with a section of an AMQP message.")  # noqa: TRY301 - as proton
        message.decode(encoded)
        return external_message(message, address), message.delivery_count
    except Exception as error:  # noqa: BLE001 - proton and Python raise many kinds for bytes of a peer
        # an error here would end the connection, and the broker would deliver the message again
        return ExternalMessage(str(uuid.uuid4()), {"amqp.address": address}, encoded, repr(error)), 0


def external_message(message: Message, address: str) -> ExternalMessage:
    """Convert a message: its application properties, its properties, and ``amqp.address``."""
    named = {name.lower(): value for name, value in (message.properties or {}).items()}
    named |= {header: getattr(message, attribute) for header, attribute in _PROPERTIES.items()}
    # only the property: brokers check that it is the user of the sender
    named["user-id"] = message.user_id or None
    # proton reads a missing content type as the symbol None
    headers = {name: property_text(value) for name, value in named.items() if value not in (None, "", symbol("None"))}
    body = message.body
    payload = body.encode() if isinstance(body, str) else bytes(body) if isinstance(body, bytes | memoryview) else b""
    if not payload and body not in (None, "", b""):
        payload = json_text(_plain(body)).encode()
    return ExternalMessage(str(uuid.uuid4()), headers | {"amqp.address": address}, payload, address=address)


def _plain(value: Any) -> Any:
    """Convert a body of AMQP's types to JSON's: most of proton's numbers and texts are of subclasses."""
    if isinstance(value, Described):
        return _plain(value.value)
    if isinstance(value, dict):
        return {property_text(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Array | list):
        return [_plain(each) for each in (value.elements if isinstance(value, Array) else value)]
    if isinstance(value, bytes | memoryview):
        return bytes(value)
    if value is None or isinstance(value, bool):
        return value
    kind = int if isinstance(value, int) else float if isinstance(value, float) else str
    return kind(value)


def proton_message(message: OutgoingMessage) -> Message:
    """Return a durable message: headers of properties are those, all others application properties."""
    headers = message.headers
    named = {attribute: headers[header] for header, attribute in _PROPERTIES.items() if header in headers}
    others = {name: value for name, value in headers.items() if name not in _PROPERTIES}
    try:
        # a text, as JMS clients send it
        body: str | bytes = message.payload.decode()
    except UnicodeDecodeError:
        body = message.payload
    return Message(body=body, durable=True, inferred=isinstance(body, bytes), properties=others, **named)
