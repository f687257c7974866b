"""Errors of the HTTP API, one for each entry of ``errors.toml``; arguments fill its ``{}``."""

from collections.abc import Callable, Iterable

from ackstream.protocol.ditto.envelopes import Envelope, encode, error_envelope
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.errors import DittoError, catalogue, factory

TOO_MANY_REQUESTS = 429

_CATALOGUE = catalogue(__file__)


def __getattr__(name: str) -> Callable[..., DittoError]:
    """Return the factory of an error by its name (PEP 562)."""
    return factory(_CATALOGUE, name)


def authentication_failed(message: str, schemes: Iterable[str]) -> DittoError:
    """Reject an unauthenticated request; ``schemes`` are the challenges of ``WWW-Authenticate``."""
    error = DittoError(401, "gateway:authentication.failed", message, "Check if your credentials were correct.")
    error.headers = tuple(("www-authenticate", scheme) for scheme in schemes)
    return error


def method_not_allowed(method: str, allowed: Iterable[str]) -> DittoError:
    """Reject a method that the resource does not support."""
    error = _CATALOGUE["method_not_allowed"](method)
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
