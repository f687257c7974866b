"""Errors of the HTTP API, one for each entry of ``errors.toml``; arguments fill its ``{}``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.protocol.ditto.envelopes import Envelope, encode, error_envelope
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.errors import DittoError, catalogue

if TYPE_CHECKING:
    from collections.abc import Iterable

TOO_MANY_REQUESTS = 429

_CATALOGUE = catalogue(__file__)

answer_not_expected = _CATALOGUE["answer_not_expected"]
body_incomplete = _CATALOGUE["body_incomplete"]
body_too_large = _CATALOGUE["body_too_large"]
correlation_id_in_use = _CATALOGUE["correlation_id_in_use"]
divergent_header = _CATALOGUE["divergent_header"]
duplicate_header = _CATALOGUE["duplicate_header"]
foreign_host = _CATALOGUE["foreign_host"]
foreign_origin = _CATALOGUE["foreign_origin"]
header_unfit = _CATALOGUE["header_unfit"]
internal_error = _CATALOGUE["internal_error"]
label_not_allowed = _CATALOGUE["label_not_allowed"]
live_creation = _CATALOGUE["live_creation"]
media_type_unsupported = _CATALOGUE["media_type_unsupported"]
_method_not_allowed = _CATALOGUE["method_not_allowed"]
no_answer = _CATALOGUE["no_answer"]
not_acceptable = _CATALOGUE["not_acceptable"]
not_found = _CATALOGUE["not_found"]
not_sent = _CATALOGUE["not_sent"]
parameter_invalid = _CATALOGUE["parameter_invalid"]
protocol_message_refused = _CATALOGUE["protocol_message_refused"]
quota_exhausted = _CATALOGUE["quota_exhausted"]
shutting_down = _CATALOGUE["shutting_down"]
status_refused = _CATALOGUE["status_refused"]
stream_unavailable = _CATALOGUE["stream_unavailable"]
thing_id_differs = _CATALOGUE["thing_id_differs"]
thing_id_generated = _CATALOGUE["thing_id_generated"]
too_many_attempts = _CATALOGUE["too_many_attempts"]
too_many_connections = _CATALOGUE["too_many_connections"]
too_many_of_address = _CATALOGUE["too_many_of_address"]
too_many_requests = _CATALOGUE["too_many_requests"]
too_many_searches = _CATALOGUE["too_many_searches"]
too_many_sockets = _CATALOGUE["too_many_sockets"]
unavailable = _CATALOGUE["unavailable"]


def authentication_failed(message: str, schemes: Iterable[str]) -> DittoError:
    """Reject an unauthenticated request; ``schemes`` are the challenges of ``WWW-Authenticate``."""
    error = DittoError(401, "gateway:authentication.failed", message, "Check if your credentials were correct.")
    error.headers = tuple(("www-authenticate", scheme) for scheme in schemes)
    return error


def method_not_allowed(method: str, allowed: Iterable[str]) -> DittoError:
    """Reject a method that the resource does not support."""
    error = _method_not_allowed(method)
    error.headers = (("allow", ", ".join(allowed)),)
    return error


def error_message(error: DittoError, about: Envelope | None, identity: str | None = None) -> str:
    """Return an error as a message of a WebSocket, with the thing and correlation-id of the message that caused it."""
    thing_id = channel = None
    if about is not None:
        thing_id, channel = None if about.topic.namespace == "_" else about.topic.thing_id, about.topic.channel
        identity = about.headers.get(CORRELATION_ID)
    headers = {CORRELATION_ID: identity} if identity else {}
    return encode(error_envelope(error, thing_id=thing_id, channel=channel, headers=headers)).decode()
