"""Acknowledgements a transport issues by itself, because publishing failed.

Source of the rules: Eclipse Ditto, ``DefaultExceptionToAcknowledgementConverter``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.protocol.acknowledgements import INTERNAL_ERROR, Acknowledgement, acknowledgement
from ackstream.protocol.envelopes import raw
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from collections.abc import Mapping


def issued_ack(
    label: str, error: BaseException, headers: Mapping[str, Any], status: int = INTERNAL_ERROR
) -> Acknowledgement:
    """Return the acknowledgement that says why a signal could not be published.

    A Ditto error gives its own status and JSON (without the status); anything else ``status`` with the error's name and
    text.

    :param headers: of the signal
    """
    if isinstance(error, DittoError):
        body = error.to_dict()
        return acknowledgement(label, body.pop("status"), raw(body), headers)
    payload = {"message": f"Encountered <{type(error).__name__}>.", "description": _describe(error)}
    return acknowledgement(label, status, raw(payload), headers)


def _describe(error: BaseException) -> str:
    cause = error.__cause__
    if cause is None:
        return str(error) or "Unknown error."
    name = type(cause).__name__
    return f"{str(error) or str(cause) or name} - Caused by <{name}>."
