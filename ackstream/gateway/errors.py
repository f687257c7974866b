"""Errors of the HTTP API, with the codes and texts of Ditto where it has them.

Source: ``GatewayDuplicateHeaderException``, ``GatewayMethodNotAllowedException``, ``UnsupportedMediaTypeException`` …
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ackstream.protocol.ditto.envelopes import Envelope, encode, error_envelope
from ackstream.protocol.ditto.errors import METHOD_NOT_ALLOWED
from ackstream.protocol.ditto.headers import CORRELATION_ID
from ackstream.protocol.errors import (
    BAD_REQUEST,
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    REQUEST_TIMEOUT,
    TOO_LARGE,
    UNAVAILABLE,
    DittoError,
    bad_request,
    error_factory,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


TOO_MANY_REQUESTS = 429
_SOON = {"retry-after": "1"}
_unavailable = partial(error_factory, UNAVAILABLE, "gateway:service.unavailable", headers=_SOON)
_too_many = partial(error_factory, TOO_MANY_REQUESTS, "too.many.requests")
_forbidden = partial(error_factory, FORBIDDEN)

# the message, and the remedy; the request may be sent again after a second
unavailable = _unavailable("{}", "{}")

shutting_down = _unavailable(
    "The gateway is shutting down while the request is open.",
    "The request itself continues; its outcome is recorded under its correlation-id and a suffix. Try again in a"
    " moment.",
)

not_sent = _unavailable("The gateway is shutting down and did not send the request.", "Send it again in a moment.")

no_answer = _unavailable(
    "The request was not decided, not even as timed out.",
    "Check that the correlate job is running. The outcome is recorded under the correlation-id and a suffix.",
)

# the rest of the body, which may still arrive, is not read
body_incomplete = error_factory(
    REQUEST_TIMEOUT,
    "gateway:request.incomplete",
    "The body of the request did not arrive within {:g} s, and the request was not sent.",
    "Send the body at once, with its length or chunked.",
    headers={"connection": "close"},
)

# the message, and the whole seconds after which the request may be sent again
too_many_requests = _too_many(
    "{}",
    "Send it again after {:g} s. The operator of the gateway can change the limit.",
    headers={"retry-after": "{1:g}"},
)

too_many_sockets = _too_many(
    "The {} has {} WebSockets and event streams open, which is the maximum.",
    "Send it again after 1 s. The operator of the gateway can change the limit.",
    headers=_SOON,
)

quota_exhausted = _too_many(
    "The quota '{}' has {} {}, which is the maximum.",
    "Wait until some are finished, or ask the operator of the system for a larger quota.",
    headers=_SOON,
)

# the credentials were not checked
too_many_attempts = error_factory(
    TOO_MANY_REQUESTS,
    "gateway:authentication.delayed",
    "Too many wrong passwords were sent for this user, or from this address.",
    "Try again after {:g} s.",
    headers={"retry-after": "{0:g}"},
)

_CONNECTIONS = (
    "too.many.connections",
    "The {} has {} connections, which is the maximum.",
    "Try again in a moment, over connections that stay open. The operator can change gateway.max_connections.",
)
too_many_connections = error_factory(UNAVAILABLE, *_CONNECTIONS, headers=_SOON)
too_many_of_address = error_factory(TOO_MANY_REQUESTS, *_CONNECTIONS, headers=_SOON)

media_type_unsupported = error_factory(
    415,
    "mediatype.unsupported",
    "The Media-Type <{}> is not supported for this resource.",
    "Allowed Media-Types are: <[{}]>.",
)


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


_method_not_allowed = error_factory(
    METHOD_NOT_ALLOWED,
    "gateway:method.notallowed",
    "The provided HTTP method '{}' is not allowed on this resource.",
    "Check if you used the correct resource and method combination.",
)

_duplicate = partial(error_factory, BAD_REQUEST, "gateway:duplicate.header.field")
_ONCE = (
    "A request must not contain multiple header fields with the same field name. For more information see RFC 7230"
    " section 3.2.2."
)
_RFC_7230 = "https://tools.ietf.org/rfc/rfc7230.txt"
duplicate_header = _duplicate(
    "The message contains headers which include a duplicate header field: '{}'", _ONCE, _RFC_7230
)
divergent_header = _duplicate(
    "<{}> was provided as header as well as query parameter with divergent values!", _ONCE, _RFC_7230
)

not_found = error_factory(
    NOT_FOUND,
    "gateway:resource.notfound",
    "There is no resource at '{}'.",
    "Check the path: the resources are listed at /doc.",
)

body_too_large = error_factory(
    TOO_LARGE,
    "gateway:payload.toolarge",
    "The body of the request exceeds the maximum of '{}' bytes.",
    "Send a smaller body.",
)

parameter_invalid = bad_request("gateway:parameter.invalid", "The query parameter '{}' {}.")

protocol_message_refused = bad_request(
    "json.format.invalid",
    "The body is a Ditto Protocol message, not the value of this resource.",
    "Send the value alone, or send the message over the WebSocket /ws/2.",
)

# a header, and the reason why it does not fit the request
header_unfit = bad_request(
    "header.invalid", "The header '{}' cannot be used here: {}.", "Send the request without this header."
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

foreign_origin = _forbidden(
    "gateway:origin.notallowed",
    "Pages of the origin '{}' may not do this.",
    "The operator of the gateway can allow them in the setting gateway.allowed_origins.",
)

foreign_host = _forbidden(
    "gateway:host.notallowed",
    "The gateway is not known by the name '{}'.",
    "Use the name of its machine, such as localhost. The operator can add others in the setting gateway.allowed_hosts.",
)

correlation_id_in_use = error_factory(
    CONFLICT,
    "acknowledgement:request.duplicate.correlation-id",
    "Another request with the correlation-id '{}' is open.",
    "Choose another correlation-id.",
)

# at connect
label_not_allowed = _forbidden(
    "acknowledgement:label.notallowed",
    "The label <{}> may not be declared by this client.",
    "The operator of the gateway can allow it: labels of a rule in gateway.access.",
)

# an acknowledgement of a signal that the client was not sent, or whose time is long over
answer_not_expected = error_factory(
    NOT_FOUND,
    "acknowledgement:signal.notfound",
    "This client was sent no signal with the correlation-id '{}' that it may still acknowledge.",
    "Acknowledge a signal under the correlation-id that it has here, over the same WebSocket.",
)

thing_id_generated = bad_request(
    "things:id.notsettable",
    "It is not allowed to provide a Thing ID in the request body for method POST. The method POST will generate the"
    " Thing ID by itself.",
    "To provide your own Thing ID use a PUT request instead.",
)

# on the live channel no device can respond for an id that is yet to be generated
live_creation = error_factory(
    METHOD_NOT_ALLOWED,
    "things:thing.notcreatable",
    "Thing could not be created via channel <live>.",
    "Creating a thing via <live> channel is not supported. If you want to create a digital twin instead, please use"
    " channel <twin>.",
)

thing_id_differs = bad_request(
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
too_many_searches = _too_many(
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
