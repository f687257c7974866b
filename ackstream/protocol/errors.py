"""The error that a requester receives: an HTTP status, a machine-readable code and texts, in Ditto's form.

The texts of most are in ``errors.toml``; the errors that people who run ackstream see are in ``ackstream.errors``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from ackstream.errors import AckstreamError

NOT_MODIFIED = 304
BAD_REQUEST = 400
NOT_FOUND = 404
METHOD_NOT_ALLOWED = 405
REQUEST_TIMEOUT = 408
CONFLICT = 409
PRECONDITION_FAILED = 412
TOO_LARGE = 413
UNAVAILABLE = 503

SHOWN_CHARACTERS = 1_000
"""Characters of a foreign text that an error repeats; Ditto repeats all."""


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
        self.error, self.message, self.description = error, message, description
        self.href, self.extra = href, extra

    def to_dict(self) -> dict[str, Any]:
        """Return the error JSON in Ditto's order: status, error, message, description, href, further fields."""
        body = {name: getattr(self, name) for name in ("status", "error", "message", "description", "href")}
        return {name: value for name, value in body.items() if value is not None} | self.extra


class AccessDeniedError(DittoError):
    """An error of a client that lacks a right; only the audit shows which (``lacking``)."""

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


def catalogue(module: str) -> dict[str, Callable[..., DittoError]]:
    """Return the factories of the errors in ``errors.toml`` beside a module, by name; the default status is 400."""
    text = Path(module).with_name("errors.toml").read_bytes()
    entries = msgspec.toml.decode(text, type=dict[str, dict[str, Any]])
    return {name: error_factory(**{"status": BAD_REQUEST, **entry}) for name, entry in entries.items()}


def factory(known: Mapping[str, Callable[..., DittoError]], name: str) -> Callable[..., DittoError]:
    """Return an error of a catalogue, or raise an ``AttributeError``, as the ``__getattr__`` of its module does."""
    if name not in known:
        raise AttributeError(f"errors.toml has no error {name}")
    return known[name]


CATALOGUE = catalogue(__file__)
"""The errors of all parts that read and write signals: ``errors.thing_not_found`` is the factory of that name."""


def __getattr__(name: str) -> Callable[..., DittoError]:
    """Return the factory of an error by its name (PEP 562)."""
    return factory(CATALOGUE, name)


def command_timeout(timeout: int, note: str | None = None) -> DittoError:
    """Report that no response arrived in time; ``note``: why those that did arrive were invalid."""
    message = f"The Command reached the specified timeout of {timeout:,}ms."
    description = "Try increasing the command timeout."
    return DittoError(REQUEST_TIMEOUT, "command.timeout", message, f"{description} {note}" if note else description)


def header_invalid(key: str, message: str, description: str | None = None, *, named: bool = True) -> DittoError:
    """Refuse a header for the reason in ``message``; ``named`` adds its name as ``invalidHeaderKey``."""
    description = description or "Verify that the header has the correct syntax and try again."
    extra = {"invalidHeaderKey": key} if named else {}
    return DittoError(BAD_REQUEST, "header.invalid", message, description, **extra)


def header_too_long(key: str, limit: int) -> DittoError:
    """Refuse a header whose value has more bytes than ``limit``."""
    return header_invalid(key, f"The value of the header '{key}' has more than {limit:,} bytes.", "Use a shorter one.")


def header_type_invalid(key: str, value: str, kind: str) -> DittoError:
    """Refuse a header value of the wrong type (``boolean``, ``JSON array`` …)."""
    message = f"The value '{shown(value)}' of the header '{key}' is not a valid {kind}."
    remedy = f"Verify that the value of the header '{key}' is a valid '{kind}' and try again."
    return header_invalid(key, message, remedy)


def unknown_topic_path(topic: str, description: str = "Check if the topic path is correct.") -> DittoError:
    """Refuse a topic path, or a message whose topic path does not match the rest of it."""
    message = f"The topic path '{shown(topic)}' is not supported."
    return DittoError(BAD_REQUEST, "protocoladapter:unknown.topicpath", message, shown(description))
