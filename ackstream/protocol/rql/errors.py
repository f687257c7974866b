"""The errors of a filter, with Ditto's codes and descriptions.

Source of the texts: Eclipse Ditto, ``InvalidRqlExpressionException`` and ``JsonPointerInvalidException``.
"""

from __future__ import annotations

from ackstream.protocol.errors import BAD_REQUEST, DittoError


def rql_expression_invalid(message: str) -> DittoError:
    """Refuse a filter for the reason in ``message``."""
    return DittoError(
        BAD_REQUEST,
        "rql.expression.invalid",
        message,
        "Ensure that all opening parentheses have also closing ones and that the RQL expression is valid.",
    )


def json_pointer_invalid(pointer: str) -> DittoError:
    """Refuse a path with an empty segment in it."""
    return DittoError(
        BAD_REQUEST,
        "json.pointer.invalid",
        f"The JSON pointer <{pointer}> is invalid!",
        "Consecutive slashes in JSON pointers are not supported.",
    )
