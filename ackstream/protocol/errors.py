"""The error that a requester receives: an HTTP status, a machine-readable code and texts, in Ditto's form.

The catalogue of Ditto's own errors is ``protocol.ditto.errors``; the errors that people who run ackstream see are in
``ackstream.errors``.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ackstream.errors import AckstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BAD_REQUEST = 400
FORBIDDEN = 403
NOT_FOUND = 404
REQUEST_TIMEOUT = 408
CONFLICT = 409
TOO_LARGE = 413
UNAVAILABLE = 503

SHOWN_CHARACTERS = 1_000
"""How many characters of a foreign text an error repeats; Ditto repeats all of them."""


class DittoError(AckstreamError):
    """An error with an HTTP status, a machine-readable code and texts for people.

    ``extra`` holds further JSON fields, such as ``invalidHeaderKey``; ``headers`` are those of an HTTP response.
    """

    headers: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        description: str | None = None,
        href: str | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.message = message
        self.description = description
        self.href = href
        self.extra = extra

    def to_dict(self) -> dict[str, Any]:
        """Return the error JSON in Ditto's order: status, error, message, description, href, further fields."""
        body = {name: getattr(self, name) for name in ("status", "error", "message", "description", "href")}
        return {name: value for name, value in body.items() if value is not None} | self.extra


class AccessDeniedError(DittoError):
    """An error of someone who lacks a right; ``lacking`` names it for the readers of the audit alone."""

    def __init__(self, error: DittoError, lacking: str) -> None:
        super().__init__(error.status, error.error, error.message, error.description, error.href, **error.extra)
        self.lacking = lacking


def shown(text: object) -> str:
    """Return a foreign text as error messages repeat it, cut to ``SHOWN_CHARACTERS``."""
    full = str(text)
    return full if len(full) <= SHOWN_CHARACTERS else f"{full[:SHOWN_CHARACTERS]}…"


def error_factory(
    status: int,
    code: str,
    message: str,
    description: str | None = None,
    href: str | None = None,
    *,
    headers: Mapping[str, str] = MappingProxyType({}),
    **extra: str,
) -> Callable[..., DittoError]:
    """Return a function that makes an error; its arguments fill the ``{}`` of message and description, texts cut."""
    # ``headers``: of an HTTP response; ``{0}`` is the first argument
    in_message = message.count("{")
    expected = in_message + (description or "").count("{")

    def make(*values: object) -> DittoError:
        if len(values) != expected:
            raise TypeError(f"The error {code} takes {expected} values, not {len(values)}.")
        fit = [value if isinstance(value, int | float) else shown(value) for value in values]
        text = message.format(*fit[:in_message])
        made = DittoError(status, code, text, description and description.format(*fit[in_message:]), href, **extra)
        made.headers = tuple((name, value.format(*fit)) for name, value in headers.items())
        return made

    return make


bad_request = partial(error_factory, BAD_REQUEST)
"""``error_factory`` of most errors: those with the status 400."""
