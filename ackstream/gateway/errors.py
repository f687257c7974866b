"""Errors of the HTTP API, with Ditto's codes and texts where it has them.

Source: the exception classes of Eclipse Ditto's gateway (``GatewayDuplicateHeaderException``,
``GatewayMethodNotAllowedException``, ``UnsupportedMediaTypeException`` …).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.protocol.ditto.errors import DittoError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

RETRY_AFTER_SECONDS = 1


class GatewayError(DittoError):
    """An error with HTTP headers of its own."""

    headers: tuple[tuple[str, str], ...] = ()


def authentication_failed(message: str, schemes: Iterable[str]) -> DittoError:
    """Refuse a request whose sender is not known; ``schemes`` are the challenges of ``WWW-Authenticate``."""
    error = GatewayError(401, "gateway:authentication.failed", message, "Check if your credentials were correct.")
    error.headers = tuple(("www-authenticate", scheme) for scheme in schemes)
    return error


def unavailable(message: str, description: str) -> DittoError:
    """Say that the request cannot be answered now and may be sent again in a moment."""
    error = GatewayError(503, "gateway:service.unavailable", message, description)
    error.headers = (("retry-after", str(RETRY_AFTER_SECONDS)),)
    return error


def shutting_down() -> DittoError:
    """Tell a client that waits that the gateway stops."""
    return unavailable(
        "The gateway is shutting down while the request is open.",
        "The request itself goes on, and its outcome is recorded under its correlation-id. Ask again in a moment.",
    )


def no_answer() -> DittoError:
    """Tell a client that nobody decided its request in time."""
    return unavailable(
        "Nobody answered the request, not even that its deadline passed.",
        "The operator should check that the correlate job runs. The outcome is recorded under the correlation-id.",
    )


def duplicate_header(name: str) -> DittoError:
    """Refuse a header that comes twice."""
    return _duplicate(f"The message contains headers which include a duplicate header field: '{shown(name)}'")


def divergent_header(name: str) -> DittoError:
    """Refuse a header that a query parameter contradicts."""
    return _duplicate(f"<{name}> was provided as header as well as query parameter with divergent values!")


def _duplicate(message: str) -> DittoError:
    return DittoError(
        400,
        "gateway:duplicate.header.field",
        message,
        "A request must not contain multiple header fields with the same field name. For more information see RFC 7230"
        " section 3.2.2.",
        "https://tools.ietf.org/rfc/rfc7230.txt",
    )


def not_found(path: str) -> DittoError:
    """Say that there is no such resource in the API."""
    return DittoError(
        404,
        "gateway:resource.notfound",
        f"There is no resource at '{shown(path)}'.",
        "Check the path: the resources are listed at /doc.",
    )


def method_not_allowed(method: str, allowed: Iterable[str]) -> DittoError:
    """Refuse a method that the resource does not have."""
    error = GatewayError(
        405,
        "gateway:method.notallowed",
        f"The provided HTTP method '{shown(method)}' is not allowed on this resource.",
        "Check if you used the correct resource and method combination.",
    )
    error.headers = (("allow", ", ".join(allowed)),)
    return error


def media_type_unsupported(found: str, allowed: Iterable[str]) -> DittoError:
    """Refuse a body of a type the resource does not take."""
    return DittoError(
        415,
        "mediatype.unsupported",
        f"The Media-Type <{shown(found)}> is not supported for this resource.",
        f"Allowed Media-Types are: <[{', '.join(allowed)}]>.",
    )


def body_too_large(maximum: int) -> DittoError:
    """Refuse a body that is longer than the settings allow."""
    return DittoError(
        413,
        "gateway:payload.toolarge",
        f"The body of the request exceeds the maximum of '{maximum}' bytes.",
        "Send less at once.",
    )


def parameter_invalid(name: str, problem: str) -> DittoError:
    """Refuse a query parameter."""
    return DittoError(400, "gateway:parameter.invalid", f"The query parameter '{name}' {problem}.")


def correlation_id_in_use(correlation_id: str) -> DittoError:
    """Refuse a request whose correlation-id another open request has."""
    return DittoError(
        409,
        "acknowledgement:request.duplicate.correlation-id",
        f"Another request with the correlation-id '{shown(correlation_id)}' is open.",
        "Choose another correlation-id.",
    )


def thing_id_generated() -> DittoError:
    """Refuse a thing id in the body of a POST."""
    return DittoError(
        400,
        "things:id.notsettable",
        "It is not allowed to provide a Thing ID in the request body for method POST. The method POST will generate the"
        " Thing ID by itself.",
        "To provide your own Thing ID use a PUT request instead.",
    )


def live_creation() -> DittoError:
    """Refuse to create a thing on the live channel by POST: no device could answer for an id it cannot know."""
    return DittoError(
        405,
        "things:thing.notcreatable",
        "Thing could not be created via channel <live>.",
        "Creating a thing via <live> channel is not supported. If you want to create a digital twin instead, please use"
        " channel <twin>.",
    )


def thing_id_differs() -> DittoError:
    """Refuse a thing id in the body that is not the one of the path."""
    return DittoError(
        400,
        "things:id.notsettable",
        "The Thing ID in the request body is not equal to the Thing ID in the request URL.",
        "Either delete the Thing ID from the request body or use the same Thing ID as in the request URL.",
    )


def thing_not_modifiable(thing_id: str) -> DittoError:
    """Refuse a change by somebody who may only read."""
    return DittoError(
        403,
        "things:thing.notmodifiable",
        f"The Thing with ID '{shown(thing_id)}' could not be modified as the requester had insufficient permissions"
        " ('WRITE' is required).",
        "Check if the ID of your requested Thing was correct and you have sufficient permissions.",
    )


def internal_error() -> DittoError:
    """Say that the gateway failed; its log has the reason."""
    return DittoError(500, "internalerror", "There was an error processing your request.", "Sorry for that.")
