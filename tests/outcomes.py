"""The protocol's errors are values to compare, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ackstream.protocol.errors import DittoError


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a call returns, or the error it is refused with."""
    try:
        return call(*arguments)
    except DittoError as error:
        return error


def refusal(call: Callable[..., Any], *arguments: Any) -> DittoError:
    """Return the error a call is refused with."""
    error = outcome(call, *arguments)
    assert isinstance(error, DittoError)
    return error
