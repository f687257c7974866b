"""Errors of the HTTP API, with the codes and texts of Ditto where it has them.

Source: the exception classes of Eclipse Ditto's gateway (``GatewayDuplicateHeaderException``,
``GatewayMethodNotAllowedException``, ``UnsupportedMediaTypeException`` …).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.protocol.ditto.envelopes import encode, error_envelope
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.errors import DittoError, error_factory, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.protocol.ditto.envelopes import Envelope


class GatewayError(DittoError):
    """An error with additional HTTP headers."""

    def __init__(self, *error: Any, headers: Iterable[tuple[str, str]]) -> None:
        super().__init__(*error)
        self.headers = tuple(headers)


def authentication_failed(message: str, schemes: Iterable[str]) -> DittoError:
    """Reject an unauthenticated request; ``schemes`` are the challenges of ``WWW-Authenticate``."""
    remedy = "Check if your credentials were correct."
    challenges = (("www-authenticate", scheme) for scheme in schemes)
    return GatewayError(401, "gateway:authentication.failed", message, remedy, headers=challenges)


def unavailable(message: str, description: str) -> DittoError:
    """Report that the request cannot be served now and may be retried after a second."""
    return GatewayError(503, "gateway:service.unavailable", message, description, headers=[("retry-after", "1")])


def shutting_down() -> DittoError:
    """Report to a waiting client that the gateway is shutting down."""
    return unavailable(
        "The gateway is shutting down while the request is open.",
        "The request itself continues; its outcome is recorded under its correlation-id and a suffix. Try again in a"
        " moment.",
    )


def not_sent() -> DittoError:
    """Report to a client that the gateway is shutting down and did not send its request."""
    return unavailable("The gateway is shutting down and did not send the request.", "Send it again in a moment.")


def body_incomplete(seconds: float) -> DittoError:
    """Reject a request whose body does not arrive; what may still arrive of it is not read."""
    return GatewayError(
        408,
        "gateway:request.incomplete",
        f"The body of the request did not arrive within {seconds:g} s, and the request was not sent.",
        "Send the body at once, with its length or chunked.",
        headers=[("connection", "close")],
    )


def no_answer() -> DittoError:
    """Report that no outcome of the request arrived in time."""
    return unavailable(
        "The request was not decided, not even as timed out.",
        "Check that the correlate job is running. The outcome is recorded under the correlation-id and a suffix.",
    )


TOO_MANY_REQUESTS = 429


def too_many_requests(message: str, seconds: float) -> DittoError:
    """Reject a request of someone who sends too many; it may be sent again after some whole seconds."""
    remedy = f"Send it again after {seconds:g} s. The operator of the gateway can change the limit."
    return GatewayError(429, "too.many.requests", message, remedy, headers=[("retry-after", f"{seconds:g}")])


def too_many_sockets(whose: str, most: int) -> DittoError:
    """Reject a WebSocket or event stream of a subject or an address that has as many as it may have."""
    return too_many_requests(f"The {whose} has {most} WebSockets and event streams open, which is the maximum.", 1)


def too_many_attempts(seconds: float) -> DittoError:
    """Reject credentials that were not looked at, since wrong ones came before."""
    return GatewayError(
        429,
        "gateway:authentication.delayed",
        "Too many wrong passwords were sent for this user, or from this address.",
        f"Try again after {seconds:g} s.",
        headers=[("retry-after", f"{seconds:g}")],
    )


def too_many_connections(status: int, who_has: str, setting: str) -> GatewayError:
    """Reject a connection."""
    return GatewayError(
        status,
        "too.many.connections",
        f"{who_has}, which is the maximum.",
        f"Try again in a moment, over connections that stay open. The operator can change gateway.{setting}.",
        headers=[("retry-after", "1")],
    )


def quota_exhausted(quota: str, limit: int, what: str) -> DittoError:
    """Reject a request or a socket of a tenant that has as many as it may have."""
    return GatewayError(
        429,
        "too.many.requests",
        f"The quota '{quota}' has {limit} {what}, which is the maximum.",
        "Wait until some are finished, or ask the operator of the system for a larger quota.",
        headers=[("retry-after", "1")],
    )


def method_not_allowed(method: str, allowed: Iterable[str]) -> DittoError:
    """Reject a method that the resource does not support."""
    return GatewayError(
        405,
        "gateway:method.notallowed",
        f"The provided HTTP method '{shown(method)}' is not allowed on this resource.",
        "Check if you used the correct resource and method combination.",
        headers=[("allow", ", ".join(allowed))],
    )


def media_type_unsupported(found: str, allowed: str) -> DittoError:
    """Reject a body of an unsupported media type."""
    return DittoError(
        415,
        "mediatype.unsupported",
        f"The Media-Type <{shown(found)}> is not supported for this resource.",
        f"Allowed Media-Types are: <[{allowed}]>.",
    )


_DUPLICATE = 400, "gateway:duplicate.header.field"
_ONCE = (
    "A request must not contain multiple header fields with the same field name. For more information see RFC 7230"
    " section 3.2.2."
)
_RFC_7230 = "https://tools.ietf.org/rfc/rfc7230.txt"
duplicate_header = error_factory(
    *_DUPLICATE, "The message contains headers which include a duplicate header field: '{}'", _ONCE, _RFC_7230
)
divergent_header = error_factory(
    *_DUPLICATE, "<{}> was provided as header as well as query parameter with divergent values!", _ONCE, _RFC_7230
)

not_found = error_factory(
    404,
    "gateway:resource.notfound",
    "There is no resource at '{}'.",
    "Check the path: the resources are listed at /doc.",
)

body_too_large = error_factory(
    413,
    "gateway:payload.toolarge",
    "The body of the request exceeds the maximum of '{}' bytes.",
    "Send a smaller body.",
)

parameter_invalid = error_factory(400, "gateway:parameter.invalid", "The query parameter '{}' {}.")

protocol_message_refused = error_factory(
    400,
    "json.format.invalid",
    "The body is a Ditto Protocol message, not the value of this resource.",
    "Send the value alone, or send the message over the WebSocket /ws/2.",
)

# a header, and why it does not fit the request
header_unfit = error_factory(
    400, "header.invalid", "The header '{}' cannot be used here: {}.", "Send the request without this header."
)

not_acceptable = error_factory(
    406,
    "gateway:notacceptable",
    "Messages are received as server-sent events.",
    "Send the header 'accept: text/event-stream', or receive them over the WebSocket /ws/2.",
)

status_refused = error_factory(
    502,
    "gateway:response.invalid",
    "The response has the status {}, which ends no request.",
    "The party that answers must use a status from 200 to 599.",
)

foreign_origin = error_factory(
    403,
    "gateway:origin.notallowed",
    "Pages of the origin '{}' may not do this.",
    "The operator of the gateway can allow them in the setting gateway.allowed_origins.",
)

foreign_host = error_factory(
    403,
    "gateway:host.notallowed",
    "The gateway is not known by the name '{}'.",
    "Use the name of its machine, such as localhost. The operator can add others in the setting gateway.allowed_hosts.",
)

correlation_id_in_use = error_factory(
    409,
    "acknowledgement:request.duplicate.correlation-id",
    "Another request with the correlation-id '{}' is open.",
    "Choose another correlation-id.",
)

# at connect
label_not_allowed = error_factory(
    403,
    "acknowledgement:label.notallowed",
    "The label <{}> may not be declared by this client.",
    "The operator of the gateway can allow it: labels of a rule in gateway.access.",
)

# an acknowledgement of a signal that the client was not sent, or whose time is long over
answer_not_expected = error_factory(
    404,
    "acknowledgement:signal.notfound",
    "This client was sent no signal with the correlation-id '{}' that it may still acknowledge.",
    "Acknowledge a signal under the correlation-id that it has here, over the same WebSocket.",
)

thing_id_generated = error_factory(
    400,
    "things:id.notsettable",
    "It is not allowed to provide a Thing ID in the request body for method POST. The method POST will generate the"
    " Thing ID by itself.",
    "To provide your own Thing ID use a PUT request instead.",
)

# on the live channel no device can respond for an id that is yet to be generated
live_creation = error_factory(
    405,
    "things:thing.notcreatable",
    "Thing could not be created via channel <live>.",
    "Creating a thing via <live> channel is not supported. If you want to create a digital twin instead, please use"
    " channel <twin>.",
)

thing_id_differs = error_factory(
    400,
    "things:id.notsettable",
    "The Thing ID in the request body is not equal to the Thing ID in the request URL.",
    "Either delete the Thing ID from the request body or use the same Thing ID as in the request URL.",
)

# the message that asks for it
stream_unavailable = error_factory(
    501,
    "gateway:stream.unavailable",
    "The message '{}' is not supported.",
    "Policies are not available here, and so their announcements are not.",
)

# on one WebSocket
too_many_searches = error_factory(
    429,
    "too.many.requests",
    "The client has {} open searches, which is the maximum.",
    "Cancel a search, or request its pages until it is complete.",
)

internal_error = error_factory(500, "internalerror", "There was an error processing your request.", "Sorry for that.")


def error_message(error: DittoError, about: Envelope | None, identity: str | None = None) -> str:
    """Return an error as a message of a WebSocket, with the thing and correlation-id of the message that caused it."""
    thing_id = channel = None
    if about is not None:
        thing_id, channel = None if about.topic.namespace == "_" else about.topic.thing_id, about.topic.channel
        identity = about.headers.get(CORRELATION_ID)
    headers = {CORRELATION_ID: identity} if identity else {}
    return encode(error_envelope(error, thing_id=thing_id, channel=channel, headers=headers)).decode()
