"""Ditto Protocol commands and messages, their addresses and queries (Eclipse Ditto, things protocol specification)."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw

from ackstream.client.core.arguments import check_type, encoded, names
from ackstream.client.requests.replies import Reply
from ackstream.errors import BadParameterError
from ackstream.protocol import record_headers as wire
from ackstream.protocol.ditto.correlation_ids import MAX_BYTES, is_too_long
from ackstream.protocol.ditto.envelopes import Envelope, encode, json_text, raw
from ackstream.protocol.ditto.headers import REQUESTED_ACKS, RESPONSE_REQUIRED, TIMEOUT, names_sender
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.access import signature
from ackstream.protocol.durations import Duration
from ackstream.protocol.errors import NOT_FOUND, DittoError, shown
from ackstream.settings.security import Secret

Channel = Literal["twin", "live"]
Action = Literal["create", "retrieve", "modify", "merge", "delete"]
MERGE_PATCH = "application/merge-patch+json"
_OF_REQUEST = {
    *(wire.CORRELATION_ID, REQUESTED_ACKS, TIMEOUT, RESPONSE_REQUIRED, wire.CE_REQUESTED_ACKS, wire.CE_TIMEOUT),
    *(wire.REPLY_TO, wire.SPRING_REPLY_TOPIC, wire.SPRING_REPLY_PARTITION),
}
"""Record headers that decide how a request is answered."""
RECORD = Envelope(TopicPath.of(None, "twin", "messages"), {})
"""In place of the command of a record, which is about no thing: aggregates and errors of no thing answer it."""


class Command:
    """Makes envelopes. A ``value`` is any JSON value, or JSON text as ``msgspec.Raw``; a ``path`` is a JSON pointer."""

    @staticmethod
    def of(
        topic: str | TopicPath, path: str = "/", value: Any = UNSET, headers: Mapping[str, Any] | None = None
    ) -> Envelope:
        """Return any command or message; raise ``DittoError`` for an unknown topic path."""
        parsed = TopicPath.parse(topic) if isinstance(topic, str) else topic
        return Envelope(parsed, dict(headers or {}), path, json_value(value))

    @staticmethod
    def on_thing(
        action: Action, thing_id: str, path: str = "/", value: Any = UNSET, *, channel: Channel = "twin"
    ) -> Envelope:
        """Return a command on a thing, or its part at ``path``; raise ``ValueError`` for an id without a namespace."""
        namespace, name = split_id(thing_id)
        headers = {"content-type": MERGE_PATCH} if action == "merge" else {}
        return Envelope(
            TopicPath(namespace, name, "things", channel, "commands", action), headers, path, json_value(value)
        )

    @staticmethod
    def create_thing(thing_id: str, thing: Mapping[str, Any] | None = None, *, channel: Channel = "twin") -> Envelope:
        """Return the command that creates a thing, with attributes and features as in ``thing``."""
        return Command.on_thing("create", thing_id, "/", {**(thing or {}), "thingId": thing_id}, channel=channel)

    @staticmethod
    def retrieve(thing_id: str, path: str = "/", *, channel: Channel = "twin") -> Envelope:
        """Return a query for a thing, or for the part of it at ``path``."""
        return Command.on_thing("retrieve", thing_id, path, channel=channel)

    @staticmethod
    def modify_attribute(thing_id: str, path: str, value: Any, *, channel: Channel = "twin") -> Envelope:
        """Return the command that sets an attribute; ``path`` is relative to the attributes: ``location/floor``."""
        return Command.on_thing("modify", thing_id, f"/attributes/{path.lstrip('/')}", value, channel=channel)

    @staticmethod
    def modify_property(
        thing_id: str, feature_id: str, path: str, value: Any, *, channel: Channel = "twin"
    ) -> Envelope:
        """Return the command that sets a property of a feature; ``path`` is relative to its properties."""
        pointer = f"/features/{feature_id}/properties/{path.lstrip('/')}"
        return Command.on_thing("modify", thing_id, pointer, value, channel=channel)

    @staticmethod
    def merge(thing_id: str, path: str, patch: Any, *, channel: Channel = "twin") -> Envelope:
        """Return a JSON merge patch (RFC 7396) of a thing, or of the part of it at ``path``."""
        return Command.on_thing("merge", thing_id, path, patch, channel=channel)

    @staticmethod
    def delete(thing_id: str, path: str = "/", *, channel: Channel = "twin") -> Envelope:
        """Return the command that deletes a thing, or the part of it at ``path``."""
        return Command.on_thing("delete", thing_id, path, channel=channel)

    @staticmethod
    def message(
        thing_id: str,
        subject: str,
        payload: Any = UNSET,
        *,
        feature_id: str | None = None,
        box: Literal["inbox", "outbox"] = "inbox",
    ) -> Envelope:
        """Return a live message to (``inbox``) or from (``outbox``) a thing or one of its features."""
        namespace, name = split_id(thing_id)
        feature = "" if feature_id is None else f"/features/{feature_id}"
        headers = {} if payload is UNSET else {"content-type": "application/json"}
        topic = TopicPath(namespace, name, "things", "live", "messages", None, subject)
        return Envelope(topic, headers, f"{feature}/{box}/messages/{subject}", json_value(payload))


def retrieval(thing_id: str, fields: str) -> Envelope:
    """Return the query for some fields of a thing."""
    command = Command.retrieve(thing_id)
    command.fields = fields
    return command


def split_id(thing_id: str) -> tuple[str, str]:
    """Return the namespace and the name of a thing; raise a ``ValueError`` if one is missing."""
    namespace, _, name = thing_id.partition(":")
    if not namespace or not name:
        raise ValueError(f"A thing id is namespace:name, such as org.acme:lamp; this one is {thing_id!r}.")
    return namespace, name


def json_value(value: Any) -> Any:
    """Return a value as an envelope holds it: JSON text, or ``UNSET``."""
    return value if value is UNSET or isinstance(value, Raw) else raw(value)


def duration_text(length: float | str) -> str:
    """Return seconds, or a duration as text, as the text of a header; ``DittoError``: the seconds are negative."""
    return length if isinstance(length, str) else str(Duration.of_milliseconds(round(length * 1000)))


def address(
    command: Envelope,
    *,
    timeout: float | str | None = None,
    acks: Iterable[str] | None = None,
    response_required: bool | None = None,
    correlation_id: str | None = None,
) -> tuple[Envelope, str]:
    """Return a copy of the command with its headers set (``None``: unchanged), and its correlation-id.

    The correlation-id defaults to that of the command's headers, else to a new one; ``ValueError``: it is too long for
    the service. ``DittoError``: a negative number of seconds. ``BadParameterError``: ``acks`` is one text.
    """
    headers = dict(command.headers)
    # a program may have written the name in any case
    given = [headers.pop(name) for name in command.headers if name.lower() == wire.CORRELATION_ID]
    identity = str(correlation_id or next(filter(None, given), None) or uuid.uuid4())
    if is_too_long(identity):
        raise ValueError(f"The correlation-id {shown(identity)!r} has more than {MAX_BYTES:,} bytes in JSON.")
    headers[wire.CORRELATION_ID] = identity
    if timeout is not None:
        headers[TIMEOUT] = duration_text(timeout)
    if acks is not None:
        headers[REQUESTED_ACKS] = list(names("acks", acks))
    if response_required is not None:
        headers[RESPONSE_REQUIRED] = response_required
    return msgspec.structs.replace(command, headers=headers), identity


def address_record(
    headers: Mapping[str, str | bytes], *, timeout: float | str | None, acks: Iterable[str], correlation_id: str | None
) -> tuple[Envelope, list[tuple[str, bytes]]]:
    """Return the request of a record with further headers, in place of a command, and its record headers.

    Errors are those of :func:`address`, and ``BadParameterError``: the name or the type of a header is wrong.
    """
    asked, _ = address(RECORD, timeout=timeout, acks=acks, correlation_id=correlation_id)
    texts = asked.headers | {REQUESTED_ACKS: json_text(asked.headers[REQUESTED_ACKS])}
    for name, value in headers.items():
        check_type("headers", name, str)
        check_type(f"headers[{name!r:.80}]", value, bytes if isinstance(value, bytes) else str)
        if name in _OF_REQUEST:
            raise BadParameterError(f"headers has {name}, which is the service's own: rename it, or use the argument.")
    own = {name: encoded("headers", value) if isinstance(value, str) else value for name, value in headers.items()}
    found = [*own.items(), *((name, text.encode()) for name, text in texts.items())]
    asked.headers |= headers
    return asked, found


def signed(command: Envelope, key: Secret | None) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return the value and the headers of a command's record, signed if it names its sender and there is a key."""
    identity, value = command.headers[wire.CORRELATION_ID], encode(command)
    headers = [(wire.CORRELATION_ID, identity.encode())]
    if key is not None and names_sender(command.headers):
        headers.append((wire.ORIGINATOR_SIGNATURE, signature(key.reveal(), identity, value)))
    return value, headers


def fields_in(reply: Reply, thing_id: str) -> dict[str, Any]:
    """Return the fields in a query's reply; an unknown thing has none (Ditto's ``SignalEnrichmentFailedException``)."""
    if reply.ok and isinstance(reply.value, dict):
        return reply.value
    if reply.status == NOT_FOUND:
        return {}
    raise DittoError(
        reply.status,
        "connectivity:signal.enrichment.failed",
        "Signal enrichment failed.",
        f"The extra fields of the thing {thing_id} could not be retrieved.",
    )
