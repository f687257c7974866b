"""Translate HTTP requests into protocol messages.

Source of the rules: Eclipse Ditto, ``RootRouteHeadersStepBuilder``, ``ThingsRoute``, ``MessagesRoute``,
``ThingSearchRoute``, ``ContentTypeValidationDirective``.
"""

import base64
import uuid
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType
from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection

from ackstream.gateway import errors
from ackstream.gateway.http import operations
from ackstream.protocol.ditto import envelopes
from ackstream.protocol.ditto import headers as names
from ackstream.protocol.ditto.correlation_ids import unguessable
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.permissions import MAX_IDS
from ackstream.protocol.ditto.twin.things import check_fields_of_thing, check_id, check_policy_members
from ackstream.protocol.errors import json_format_invalid, json_invalid
from ackstream.protocol.json import BYTE_ORDER_MARK, UNREADABLE
from ackstream.protocol.rql.patterns import matches_any
from ackstream.settings.gateway import Proxy

_REFUSED = (names.DECLARED_ACKS, "at-historical-revision", "at-historical-timestamp", "dry-run")
_FOR_HEADERS = (*operations.HEADER_PARAMETERS, *_REFUSED)
"""Parameters of Ditto that stand for headers; the last ones are refused as those headers are."""

_LISTS = ("ids", "fields", "filter", "namespaces", "option", "extraFields")

_JSON_TYPES = (
    envelopes.JSON_CONTENT_TYPE,
    envelopes.PROTOCOL_CONTENT_TYPE,
    "application/octet-stream",
    "text/plain",
    "",
)
"""JSON, and media types that are treated as JSON because clients send them by default."""

_OF_HTTP = frozenset({"accept", "reply-to", names.CONTENT_TYPE, "location", "www-authenticate", "version"})
"""Protocol headers that mean something else in HTTP, or that only the gateway sets."""

GRACE_SECONDS = 10.0
"""How long after its deadline an outcome may arrive."""

_BY_PROXIES = (
    "forwarded", "via", "x-forwarded-", "x-original-", "x-real-ip", "x-envoy-", "x-auth-request-", "x-amzn-", "x-goog-",
    "x-ms-",
)  # fmt: skip
MAX_FORM_PARAMETERS = 1_000


def new_id() -> str:
    """Return a correlation-id for a command whose client has given none."""
    return str(uuid.UUID(bytes=unguessable(16), version=4))


def read_request_headers(connection: HTTPConnection, proxy: Proxy) -> dict[str, Any]:
    """Return the protocol headers of a request: known ones, those passed on, and parameters; raises 400."""
    # a proxy may add credentials to each request, and its setting may be forgotten
    headers = connection.headers.items()
    proxied = proxy.addresses or any(name.startswith(_BY_PROXIES) for name, _ in headers)
    passed = proxy.passed_headers if proxied else ("x-*",)
    given: dict[str, str] = {}
    for name, value in headers:
        if name not in _OF_HTTP and (name in names.DEFINITIONS or _passes(passed, name)):
            if name in given:
                raise errors.duplicate_header(name)
            given[name] = value
    taken = names.external_in(given)
    query = connection.query_params
    parameters = names.external_in({name: query[name] for name in _FOR_HEADERS if name in query})
    for name, value in parameters.items():
        if taken.setdefault(name, value) != value:
            raise errors.divergent_header(name)
    return names.read_headers(taken)


_passes = lru_cache(maxsize=1_024)(matches_any)
"""Nearly all requests have the same headers."""


def check_parameters(given: QueryParams, known: tuple[str, ...], *, headers: bool = True) -> None:
    """Reject unknown parameters, which would change the request if misspelt, and repeated ones that are not lists."""
    for name in given:
        if name not in _LISTS and len(given.getlist(name)) > 1:
            raise errors.parameter_invalid(name, "is given more than once")
        if name not in known and not (headers and name in _FOR_HEADERS):
            own = f"it has {', '.join(known)}" if known else "it has none"
            besides = ", besides headers" if headers else ""
            raise errors.parameter_invalid(name, f"is not a parameter of this resource: {own}{besides}")


def command(
    match: operations.Match, headers: dict[str, Any], query: QueryParams, content_type: str, body: bytes
) -> envelopes.Envelope:
    """Convert a request to a command or message; raises 400, or 415 for an unsupported media type."""
    kind = match.operation.kind
    given = {**headers, "version": 2}
    if kind in ("many", "list", "search", "count"):
        return _query(match, given, _form(kind, content_type, body) if match.operation.body == "form" else query)
    if kind == "message":
        return _message(match, given, content_type, body)
    channel = "live" if headers.get(names.CHANNEL) == "live" else "twin"
    value = UNSET if match.operation.body is None else _json_body(match, given, content_type, body)
    if kind == "create":
        if channel == "live":
            raise errors.live_creation()
        # derived from the correlation-id, so that a retry creates no second thing
        thing_id = f"{query['namespace']}:{blake2b(headers[names.CORRELATION_ID].encode(), digest_size=16).hexdigest()}"
        value = _thing(value, thing_id, post=True)
    else:
        thing_id = match.values["thingId"]
        if match.path == "/" and kind == "modify":
            value = _thing(value, thing_id, post=False)
    topic = _topic(thing_id, channel, "commands", action=kind)
    fields = fields_in(query, whole=match.path == "/") if kind == "retrieve" else None
    return envelopes.Envelope(topic, given, match.path, value, fields=fields)


def subscribed(match: operations.Match, correlation_id: str) -> envelopes.Envelope:
    """Describe a stream of server-sent events by a message that is received on it; raises 400 for an invalid id."""
    topic = ("live", "messages") if match.operation.events == "messages" else ("twin", "events")
    thing_id = match.values.get("thingId")
    found = TopicPath("_", "_", "things", *topic) if thing_id is None else _topic(thing_id, *topic)
    return envelopes.Envelope(found, {names.CORRELATION_ID: correlation_id}, match.path)


def _topic(thing_id: str, channel: str, criterion: str, **more: str) -> TopicPath:
    check_id(thing_id)
    namespace, _, name = thing_id.partition(":")
    return TopicPath(namespace, name, "things", channel, criterion, **more)


def _query(match: operations.Match, headers: dict[str, Any], query: QueryParams) -> envelopes.Envelope:
    topic = TopicPath("_", "_", "things", "twin", "commands", "retrieve")
    kind = match.operation.kind
    if kind == "many":
        wanted = envelopes.raw({"thingIds": thing_ids(query)})
        return envelopes.Envelope(topic, headers, "/", wanted, fields=fields_in(query))
    given = {
        "filter": filter_in(query),
        "namespaces": pieces(query, "namespaces") or None,
        "options": options_in(query) or None,
        "fields": fields_in(query),
    }
    wanted = envelopes.raw({name: value for name, value in given.items() if value is not None})
    return envelopes.Envelope(topic, headers, match.operation.template, wanted)


def _form(kind: str, content_type: str, body: bytes) -> QueryParams:
    if media_type(content_type) != operations.FORM:
        raise errors.media_type_unsupported(content_type, operations.FORM)
    if body.count(b"&") >= MAX_FORM_PARAMETERS:
        raise errors.form_too_large(MAX_FORM_PARAMETERS)
    form = QueryParams(body)
    known = operations.SEARCH_PARAMETERS if kind == "search" else operations.COUNT_PARAMETERS
    check_parameters(form, known, headers=False)
    return form


def pieces(query: QueryParams, name: str) -> list[str]:
    """Return the comma-separated items of all values of a parameter."""
    return [piece for value in query.getlist(name) for piece in value.split(",") if piece]


def filter_in(query: QueryParams) -> str | None:
    """Return the filter that all values of its parameter make."""
    filters = query.getlist("filter")
    return f"and({','.join(filters)})" if len(filters) > 1 else query.get("filter")


def thing_ids(query: QueryParams) -> list[str]:
    """Return the ids of the parameter ``ids``, each once; raises 400 for an invalid one, for none, or too many."""
    ids = list(dict.fromkeys(pieces(query, "ids")))
    if len(ids) > MAX_IDS:
        raise errors.parameter_invalid("ids", f"has more than {MAX_IDS} ids")
    if not ids:
        # a program that computed an empty list means no things, not all
        raise errors.parameter_invalid("ids", "is empty: list thing ids, separated by commas")
    for thing_id in ids:
        check_id(thing_id)
    return ids


def fields_in(query: QueryParams, name: str = "fields", *, whole: bool = True) -> str | None:
    """Return the field selector of a parameter, checked if it is for a ``whole`` thing."""
    fields = ",".join(pieces(query, name)) or None
    if fields is not None and whole:
        check_fields_of_thing(fields)
    return fields


def options_in(query: QueryParams) -> list[str]:
    """Return the options of a search, one by one."""
    parts = [part for text in query.getlist("option") for part in text.split("),") if part]
    return [part if part.endswith(")") else f"{part})" for part in parts]


def _message(match: operations.Match, headers: dict[str, Any], content_type: str, body: bytes) -> envelopes.Envelope:
    subject = match.values.get("subject", "claim")
    topic = _topic(match.values["thingId"], "live", "messages", subject=subject)
    headers[names.CHANNEL] = "live"
    value: Raw | UnsetType = UNSET
    if body:
        headers[names.CONTENT_TYPE] = content_type or "application/octet-stream"
        value = payload(media_type(content_type), content_type, body)
    return envelopes.Envelope(topic, headers, match.path, value)


def payload(kind: str, content_type: str, body: bytes) -> Raw:
    """Convert a payload to JSON: JSON as is (or 400), text as a string, anything else in base64."""
    if is_json(kind):
        return _parse(body)[1]
    if kind.startswith("text/"):
        charset = content_type.partition("charset=")[2].partition(";")[0].strip('" ') or "utf-8"
        try:
            return envelopes.raw(envelopes.decode_text(body, charset))
        except (LookupError, ValueError) as error:
            raise json_invalid(f"The body is not text of the charset '{charset}'.") from error
    return envelopes.raw(base64.b64encode(body).decode())


def media_type(content_type: str) -> str:
    """Return a content type without parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Return whether a media type is JSON."""
    return kind == envelopes.JSON_CONTENT_TYPE or kind.endswith("+json")


def _json_body(match: operations.Match, headers: dict[str, Any], content_type: str, body: bytes) -> Raw:
    kind = media_type(content_type)
    if match.operation.body == "merge-patch":
        if kind != operations.MERGE_PATCH:
            raise errors.media_type_unsupported(content_type, operations.MERGE_PATCH)
        headers[names.CONTENT_TYPE] = operations.MERGE_PATCH
    elif kind not in _JSON_TYPES:
        raise errors.media_type_unsupported(content_type, envelopes.JSON_CONTENT_TYPE)
    parsed, value = _parse(body)
    if kind == envelopes.PROTOCOL_CONTENT_TYPE and isinstance(parsed, dict) and "topic" in parsed:
        raise errors.protocol_message_refused()
    return value


def _parse(body: bytes) -> tuple[Any, Raw]:
    body = body.removeprefix(BYTE_ORDER_MARK)
    envelopes.check_parts(body)
    try:
        return msgspec.json.decode(body), Raw(body)
    except UNREADABLE as error:
        raise json_invalid(f"Failed to parse JSON string: {str(error) or 'nested too deeply'}!") from error


def _thing(value: Raw | UnsetType, thing_id: str, *, post: bool) -> Raw:
    thing = msgspec.json.decode(value)  # type: ignore[arg-type]  # these operations have a body
    if not isinstance(thing, dict):
        raise json_format_invalid("A thing is a JSON object.")
    check_policy_members(thing)
    given = thing.get("thingId")
    if given is not None and post:
        raise errors.thing_id_generated()
    if given not in (None, thing_id):
        raise errors.thing_id_differs()
    return envelopes.raw({"thingId": thing_id, **thing} if given is None else thing)
