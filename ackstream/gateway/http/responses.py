"""Turn replies, outcomes and errors into HTTP responses.

Source: Eclipse Ditto, ``AbstractHttpRequestActor``, ``Acknowledgements``, ``UriForLocationHeaderSupplier``.
"""

import base64
import logging
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET, Raw, UnsetType
from starlette.datastructures import URL, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ackstream.client import Reply
from ackstream.gateway.errors import internal_error, method_not_allowed, not_found, status_refused
from ackstream.gateway.http.operations import PREFIX
from ackstream.gateway.http.translation import is_json, media_type, options_in
from ackstream.observe.outcomes import RequestOutcome
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, is_success, read_issued
from ackstream.protocol.ditto.aggregates import http_body
from ackstream.protocol.ditto.envelopes import JSON_CONTENT_TYPE, Envelope, json_text, raw
from ackstream.protocol.ditto.headers import CONTENT_TYPE, CORRELATION_ID, DEFINITIONS, sendable
from ackstream.protocol.ditto.labels import RESPONSE_LABELS, TWIN_PERSISTED
from ackstream.protocol.errors import METHOD_NOT_ALLOWED, NOT_MODIFIED, DittoError, command_timeout
from ackstream.settings.gateway import ROLE

log = logging.getLogger(__name__)

OK, CREATED, ACCEPTED, NO_CONTENT, BAD_GATEWAY = 200, 201, 202, 204, 502
_LOCATION = "location"
_SHOWN = frozenset(name for name, definition in DEFINITIONS.items() if definition.written) - {
    CONTENT_TYPE,
    "requested-acks",
    "accept",
    "reply-to",
    # browsers follow it, or prompt for a password: only the gateway may send both
    _LOCATION,
    "www-authenticate",
}
EXPOSED = (*sorted(_SHOWN), _LOCATION, "link", "retry-after", "allow")
"""Headers that pages of other origins may read."""

_UNRESERVED = "/:@!$&'()*+,;=~"
_SHOWN_BY_BROWSERS = ("text/plain", "text/csv", "image/png", "image/jpeg", "image/gif", "image/webp")
"""Media types of payloads that a browser shows without running anything in them; it stores others."""

_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+")
_JSON = re.compile(r"application/(?!vnd\.eclipse\.ditto\+)[a-z0-9!#$&^_.+-]+")
_SINGLE = frozenset(RESPONSE_LABELS.values())


def of_error(error: DittoError, correlation_id: str | None = None) -> Response:
    """Convert an error."""
    headers = {name: sendable(value) for name, value in error.headers}
    if correlation_id is not None:
        headers[CORRELATION_ID] = sendable(correlation_id)
    return Response(msgspec.json.encode(error.to_dict()), error.status, headers, JSON_CONTENT_TYPE)


def of_reply(reply: Reply, command: Envelope, correlation_id: str) -> Response:
    """Convert the reply to a command; the correlation-id is that of the client."""
    envelope = reply.envelope
    headers = {**envelope.headers, CORRELATION_ID: correlation_id}
    path = "" if command.path == "/" else command.path
    # without a host: the header Host is chosen by the client
    location = PREFIX + quote(f"/things/{command.topic.thing_id}{path}", safe=_UNRESERVED)
    if envelope.topic.criterion == "acks":
        return _of_acks(read_issued(envelope, built_in=True), headers, location, reply.status)
    status = envelope.status or reply.status
    message = envelope.topic.criterion == "messages"
    if message and status == BAD_GATEWAY:
        # a 502 would blame this gateway
        status = OK
    content_type = str(envelope.headers.get(CONTENT_TYPE, JSON_CONTENT_TYPE)) if message else JSON_CONTENT_TYPE
    created = location if status == CREATED and not message else None
    return _answer(status, headers, envelope.value, content_type, created)


def of_outcome(outcome: RequestOutcome, timeout_ms: int, correlation_id: str) -> Response:
    """Convert the outcome of a request that requires no response: 202, or the error."""
    headers: dict[str, Any] = {CORRELATION_ID: correlation_id}
    if is_success(outcome.status):
        return accepted(correlation_id)
    if outcome.completed_by in ("error", "response", "invalid", "cancelled"):
        return _answer(outcome.status, headers, outcome.error, JSON_CONTENT_TYPE)
    labels = {entry.label for entry in outcome.entries}
    if outcome.completed_by == "timeout" and len(labels) == 1 and labels <= _SINGLE:
        return of_error(command_timeout(timeout_ms), correlation_id)
    # statuses only, since the client requested no response
    _, body = http_body(outcome.entries)
    return _answer(outcome.status, headers, body, JSON_CONTENT_TYPE)


def of_list(reply: Reply, url: URL, query: QueryParams, correlation_id: str) -> Response:
    """Convert a page of all things: only the things; the link to the next page is in a header (``ThingsRoute``)."""
    envelope = reply.envelope
    relative = f"{url.path}{'?' if url.query else ''}{url.query}"
    links = [f'<{relative}>; rel="canonical"']
    if cursor := reply.value.get("cursor"):
        sizes = [option for option in options_in(query) if option.startswith("size")]
        kept = [("fields", fields) for fields in query.getlist("fields")]
        following = urlencode([*kept, ("option", ",".join([*sizes, f"cursor({cursor})"]))])
        links.append(f'<{url.path}?{following}>; rel="next"')
    headers = {**envelope.headers, CORRELATION_ID: correlation_id}
    response = _answer(OK, headers, raw(reply.value["items"]), JSON_CONTENT_TYPE)
    for link in links:
        response.headers.append("link", link)
    return response


def named(subjects: tuple[str, ...]) -> dict[str, Any]:
    """Return the identity and the roles of a sender."""
    roles = [subject.removeprefix(ROLE) for subject in subjects if subject.startswith(ROLE)]
    own = [subject for subject in subjects if not subject.startswith(ROLE)]
    return {"defaultSubject": own[0], "subjects": own, "roles": roles}


def of_value(value: Any, correlation_id: str) -> Response:
    """Return a value of the gateway itself."""
    return _answer(OK, {CORRELATION_ID: correlation_id}, raw(value), JSON_CONTENT_TYPE)


def accepted(correlation_id: str) -> Response:
    """Return 202 for a request without response that is stored, or has all it requested."""
    return Response(None, ACCEPTED, {CORRELATION_ID: sendable(correlation_id)})


def _of_acks(entries: list[Acknowledgement], headers: dict[str, Any], location: str, status: int) -> Response:
    created = None
    for entry in entries:
        if entry.label == TWIN_PERSISTED and entry.status == CREATED:
            entry.headers[_LOCATION] = created = location
    _, body = http_body(entries)
    if len(entries) != 1:
        return _answer(status, headers, body, JSON_CONTENT_TYPE)
    (entry,) = entries
    content_type = str(entry.headers.get(CONTENT_TYPE, JSON_CONTENT_TYPE))
    return _answer(status, {**entry.headers, **headers}, body, content_type, created)


def _answer(
    status: int, headers: Mapping[str, Any], value: Raw | UnsetType, content_type: str, location: str | None = None
) -> Response:
    kept = ((name.lower(), value) for name, value in headers.items() if name.lower() in _SHOWN)
    shown = {name: sendable(value if isinstance(value, str) else json_text(value)) for name, value in kept}
    if status < OK:
        # 101 would end HTTP on this connection
        return of_error(status_refused(status), shown.get(CORRELATION_ID))
    if location is not None:
        shown[_LOCATION] = location
    if status in (NO_CONTENT, NOT_MODIFIED) or value is UNSET:
        return Response(None, status, shown)
    kind = media_type(content_type)
    if is_json(kind):
        return Response(bytes(value), status, shown, kind if _JSON.fullmatch(kind) else JSON_CONTENT_TYPE)
    decoded = msgspec.json.decode(value)
    if not isinstance(decoded, str) or _MEDIA_TYPE.fullmatch(kind) is None:
        return Response(bytes(value), status, shown, JSON_CONTENT_TYPE)
    if kind not in _SHOWN_BY_BROWSERS:
        shown["content-disposition"] = "attachment"
    if kind.startswith("text/"):
        return Response(decoded.encode(), status, shown, f"{kind}; charset=utf-8")
    try:
        found = base64.b64decode(decoded, validate=True)
    except ValueError:
        found = decoded.encode()
    return Response(found, status, shown, sendable(content_type))


async def on_error(request: Request, error: Exception) -> Response:
    """Respond in Ditto's form to an error of a route, of the framework, or of the program, which is logged."""
    if isinstance(error, DittoError):
        return of_error(error)
    if isinstance(error, HTTPException):
        allowed = sorted((error.headers or {}).get("Allow", "").split(", "))
        wrong_method = error.status_code == METHOD_NOT_ALLOWED
        return of_error(method_not_allowed(request.method, allowed) if wrong_method else not_found(request.url.path))
    log.error("The request %s %s failed.", request.method, request.url.path, exc_info=error)
    return of_error(internal_error())
