"""Errors of the HTTP API, one for each entry of ``errors.toml``; arguments fill its ``{}``, as in ``error_factory``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ackstream.protocol.ditto.envelopes import Envelope, encode, error_envelope
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.errors import DittoError, error_factory
from ackstream.settings.base import parse_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOO_MANY_REQUESTS = 429

_CATALOGUE = parse_toml(Path(__file__).with_name("errors.toml").read_text("utf-8"))


def _named(name: str) -> Callable[..., DittoError]:
    return error_factory(**_CATALOGUE[name])


answer_not_expected = _named("answer_not_expected")
body_incomplete = _named("body_incomplete")
body_too_large = _named("body_too_large")
correlation_id_in_use = _named("correlation_id_in_use")
divergent_header = _named("divergent_header")
duplicate_header = _named("duplicate_header")
foreign_host = _named("foreign_host")
foreign_origin = _named("foreign_origin")
header_unfit = _named("header_unfit")
internal_error = _named("internal_error")
label_not_allowed = _named("label_not_allowed")
live_creation = _named("live_creation")
media_type_unsupported = _named("media_type_unsupported")
_method_not_allowed = _named("method_not_allowed")
no_answer = _named("no_answer")
not_acceptable = _named("not_acceptable")
not_found = _named("not_found")
not_sent = _named("not_sent")
parameter_invalid = _named("parameter_invalid")
protocol_message_refused = _named("protocol_message_refused")
quota_exhausted = _named("quota_exhausted")
shutting_down = _named("shutting_down")
status_refused = _named("status_refused")
stream_unavailable = _named("stream_unavailable")
thing_id_differs = _named("thing_id_differs")
thing_id_generated = _named("thing_id_generated")
too_many_attempts = _named("too_many_attempts")
too_many_connections = _named("too_many_connections")
too_many_of_address = _named("too_many_of_address")
too_many_requests = _named("too_many_requests")
too_many_searches = _named("too_many_searches")
too_many_sockets = _named("too_many_sockets")
unavailable = _named("unavailable")


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
