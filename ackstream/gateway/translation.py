"""Translate HTTP requests into protocol messages.

Source of the rules: Eclipse Ditto, ``RootRouteHeadersStepBuilder``, ``ThingsRoute``, ``MessagesRoute``,
``ThingSearchRoute``, ``ContentTypeValidationDirective``.
"""

from __future__ import annotations

import base64
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.gateway.errors import (
    divergent_header,
    duplicate_header,
    live_creation,
    media_type_unsupported,
    parameter_invalid,
    thing_id_differs,
    thing_id_generated,
)
from ackstream.protocol.correlation_ids import UniqueIds
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, Envelope, raw
from ackstream.protocol.ditto.errors import json_format_invalid, json_invalid
from ackstream.protocol.ditto.headers import (
    CHANNEL,
    CONTENT_TYPE,
    CORRELATION_ID,
    DEFINITIONS,
    TIMEOUT,
    external_in,
    read_headers,
)
from ackstream.protocol.ditto.things import check_id
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.json import UNREADABLE

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams
    from starlette.requests import HTTPConnection

    from ackstream.gateway.operations import Match
    from ackstream.settings import Settings

HEADER_PARAMETERS = (
    "channel", CORRELATION_ID, "requested-acks", "declared-acks", "response-required", TIMEOUT,
    "live-channel-timeout-strategy", "allow-policy-lockout", "condition", "live-channel-condition",
    "at-historical-revision", "at-historical-timestamp", "dry-run",
)  # fmt: skip
"""Query parameters that stand for headers."""

MERGE_PATCH = "application/merge-patch+json"
_JSON_TYPES = (JSON_CONTENT_TYPE, "application/octet-stream", "text/plain", "")
"""Media types that Ditto treats as JSON, because clients send them by default."""

_OF_HTTP = frozenset({"accept", "reply-to", CONTENT_TYPE, "location", "www-authenticate", "version"})
"""Protocol headers that mean something else in HTTP, or that only the gateway sets."""

ORIGINATOR = "ditto-originator"
GRACE_SECONDS = 10.0
"""How long after its deadline an outcome may arrive."""

_PROXIES = ("x-forwarded-", "x-real-ip")
_SCHEMA_VERSION = 2


def read_request_headers(connection: HTTPConnection) -> dict[str, Any]:
    """Return the protocol headers of a request: known ones, those starting with ``x-``, and header parameters.

    :raises DittoError: 400; a header is repeated or contradicts a parameter, or a value has the wrong type
    """
    given: dict[str, str] = {}
    for name, value in connection.headers.items():
        if name not in _OF_HTTP and (name in DEFINITIONS or (name.startswith("x-") and not name.startswith(_PROXIES))):
            if name in given:
                raise duplicate_header(name)
            given[name] = value
    taken = external_in(given)
    query = connection.query_params
    parameters = external_in({name: query[name] for name in HEADER_PARAMETERS if name in query})
    for name, value in parameters.items():
        if taken.setdefault(name, value) != value:
            raise divergent_header(name)
    return read_headers(taken)


def wire_ids(settings: Settings) -> UniqueIds:
    """Return a source of correlation-ids that correlate does not take for repeated ones."""
    remembered = settings.gateway.max_timeout + settings.correlate.recent_memory
    return UniqueIds(remembered / 1000 + GRACE_SECONDS)


def command(match: Match, headers: dict[str, Any], query: QueryParams, content_type: str, body: bytes) -> Envelope:
    """Convert a request to a command or message.

    :param headers: as :func:`read_request_headers` returns them, with the correlation-id
    :param query: with a namespace, if a thing is to be created
    :param content_type: as sent by the client, or empty
    :raises DittoError: 400 for an invalid request, 415 for an unsupported media type
    """
    kind = match.operation.kind
    given = {**headers, "version": _SCHEMA_VERSION}
    if kind in ("many", "search", "count"):
        return _query(match, given, query)
    if kind == "message":
        return _message(match, given, content_type, body)
    channel = "live" if headers.get(CHANNEL) == "live" else "twin"
    value: Raw | UnsetType = UNSET
    if match.operation.body is not None:
        value = _json_body(match, given, content_type, body)
    if kind == "create":
        if channel == "live":
            raise live_creation()
        # derived from the correlation-id, so that a retry creates no second thing
        thing_id = f"{query['namespace']}:{blake2b(headers[CORRELATION_ID].encode(), digest_size=16).hexdigest()}"
        value = _thing(value, thing_id, post=True)
    else:
        thing_id = match.values["thingId"]
        if match.path == "/" and kind == "modify":
            value = _thing(value, thing_id, post=False)
    topic = _topic(thing_id, channel, "commands", action=kind)
    return Envelope(topic, given, match.path, value, fields=_fields(query) if kind == "retrieve" else None)


def _topic(
    thing_id: str, channel: str, criterion: str, *, action: str | None = None, subject: str | None = None
) -> TopicPath:
    check_id(thing_id)
    namespace, _, name = thing_id.partition(":")
    return TopicPath(namespace, name, "things", channel, criterion, action, subject)


def _query(match: Match, headers: dict[str, Any], query: QueryParams) -> Envelope:
    topic = TopicPath("_", "_", "things", "twin", "commands", "retrieve")
    kind = match.operation.kind
    # only the twin can answer for several things
    headers.pop(CHANNEL, None)
    if kind == "many":
        ids = _pieces(query, "ids")
        if not ids:
            raise parameter_invalid("ids", "is missing: list thing ids, separated by commas")
        for thing_id in ids:
            check_id(thing_id)
        return Envelope(topic, headers, "/", raw({"thingIds": list(dict.fromkeys(ids))}), fields=_fields(query))
    wanted: dict[str, Any] = {}
    if filters := query.getlist("filter"):
        wanted["filter"] = filters[0] if len(filters) == 1 else f"and({','.join(filters)})"
    if namespaces := _pieces(query, "namespaces"):
        wanted["namespaces"] = namespaces
    if kind == "search":
        if options := [option for text in query.getlist("option") for option in _options(text)]:
            wanted["options"] = options
        if fields := _fields(query):
            wanted["fields"] = fields
    return Envelope(topic, headers, match.operation.template, raw(wanted))


def _pieces(query: QueryParams, name: str) -> list[str]:
    """Return the comma-separated items of all values of a parameter."""
    return [piece for value in query.getlist(name) for piece in value.split(",") if piece]


def _fields(query: QueryParams) -> str | None:
    return ",".join(_pieces(query, "fields")) or None


def _options(text: str) -> list[str]:
    return [part if part.endswith(")") else f"{part})" for part in text.split("),") if part]


def _message(match: Match, headers: dict[str, Any], content_type: str, body: bytes) -> Envelope:
    subject = match.values.get("subject", "claim")
    topic = _topic(match.values["thingId"], "live", "messages", subject=subject)
    headers[CHANNEL] = "live"
    value: Raw | UnsetType = UNSET
    if body:
        headers[CONTENT_TYPE] = content_type or "application/octet-stream"
        value = payload(media_type(content_type), content_type, body)
    return Envelope(topic, headers, match.path, value)


def payload(kind: str, content_type: str, body: bytes) -> Raw:
    """Convert a message payload to JSON: JSON as is, text as a string, anything else in base64.

    :raises DittoError: 400 ``json.invalid``
    """
    if is_json(kind):
        _parse(body)
        return Raw(body)
    if kind.startswith("text/"):
        charset = content_type.partition("charset=")[2].partition(";")[0].strip('" ') or "utf-8"
        try:
            return raw(body.decode(charset))
        except (LookupError, UnicodeDecodeError) as error:
            raise json_invalid(f"The body is not text of the charset '{charset}'.") from error
    return raw(base64.b64encode(body).decode())


def media_type(content_type: str) -> str:
    """Return a content type without parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Return whether a media type is JSON."""
    return kind == JSON_CONTENT_TYPE or kind.endswith("+json")


def _json_body(match: Match, headers: dict[str, Any], content_type: str, body: bytes) -> Raw:
    kind = media_type(content_type)
    if match.operation.body == "merge-patch":
        if kind != MERGE_PATCH:
            raise media_type_unsupported(content_type, MERGE_PATCH)
        headers[CONTENT_TYPE] = MERGE_PATCH
    elif kind not in _JSON_TYPES:
        raise media_type_unsupported(content_type, JSON_CONTENT_TYPE)
    _parse(body)
    return Raw(body)


def _parse(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except UNREADABLE as error:
        raise json_invalid(f"Failed to parse JSON string: {str(error) or 'nested too deeply'}!") from error


def _thing(value: Raw | UnsetType, thing_id: str, *, post: bool) -> Raw:
    """Return the JSON of a thing with its id."""
    thing = msgspec.json.decode(value)  # type: ignore[arg-type]  # these operations have a body
    if not isinstance(thing, dict):
        raise json_format_invalid("A thing is a JSON object.")
    given = thing.get("thingId")
    if given is not None and post:
        raise thing_id_generated()
    if given not in (None, thing_id):
        raise thing_id_differs()
    return raw({"thingId": thing_id, **thing} if given is None else thing)
