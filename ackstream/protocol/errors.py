"""The error that a requester receives: an HTTP status, a machine-readable code and texts, in Ditto's form.

The texts of most are in ``errors.toml``; the errors that people who run ackstream see are in ``ackstream.errors``.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.errors import AckstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NOT_MODIFIED = 304
BAD_REQUEST = 400
FORBIDDEN = 403
NOT_FOUND = 404
METHOD_NOT_ALLOWED = 405
REQUEST_TIMEOUT = 408
CONFLICT = 409
PRECONDITION_FAILED = 412
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


def catalogue(module: str) -> dict[str, Callable[..., DittoError]]:
    """Return the factories of the errors in ``errors.toml`` beside a module, by name; the default status is 400."""
    text = Path(module).with_name("errors.toml").read_bytes()
    entries = msgspec.toml.decode(text, type=dict[str, dict[str, Any]])
    return {name: error_factory(**{"status": BAD_REQUEST, **entry}) for name, entry in entries.items()}


CATALOGUE = catalogue(__file__)
"""The errors of all parts that read and write signals."""


# -- errors of several modules -----------------------------------------------------------------------------------------

# labels
label_invalid = CATALOGUE["label_invalid"]
ditto_label_forbidden = CATALOGUE["ditto_label_forbidden"]
label_not_declared = CATALOGUE["label_not_declared"]
label_not_unique = CATALOGUE["label_not_unique"]
issued_label_not_unique = CATALOGUE["issued_label_not_unique"]
id_enforcement_failed = CATALOGUE["id_enforcement_failed"]
correlation_id_missing = CATALOGUE["correlation_id_missing"]
ack_request_timeout = CATALOGUE["ack_request_timeout"]

# JSON
json_invalid = CATALOGUE["json_invalid"]
json_type_invalid = CATALOGUE["json_type_invalid"]
json_field_missing = CATALOGUE["json_field_missing"]
json_format_invalid = CATALOGUE["json_format_invalid"]

# messages and their parts
record_too_large = CATALOGUE["record_too_large"]
reply_too_large = CATALOGUE["reply_too_large"]
acknowledgement_left_out = CATALOGUE["acknowledgement_left_out"]
internal_error = CATALOGUE["internal_error"]
not_available = CATALOGUE["not_available"]
target_address_invalid = CATALOGUE["target_address_invalid"]
kafka_message_rejected = CATALOGUE["kafka_message_rejected"]

# things
unknown_path = CATALOGUE["unknown_path"]
thing_not_found = CATALOGUE["thing_not_found"]
thing_not_modifiable = CATALOGUE["thing_not_modifiable"]
conflict = CATALOGUE["conflict"]
thing_precondition_failed = CATALOGUE["thing_precondition_failed"]
not_modified = CATALOGUE["not_modified"]
nothing_changed = CATALOGUE["nothing_changed"]
condition_failed = CATALOGUE["condition_failed"]
live_channel_condition_unfit = CATALOGUE["live_channel_condition_unfit"]
id_not_settable = CATALOGUE["id_not_settable"]
id_not_deletable = CATALOGUE["id_not_deletable"]
policy_id_not_deletable = CATALOGUE["policy_id_not_deletable"]
id_invalid = CATALOGUE["id_invalid"]
definition_invalid = CATALOGUE["definition_invalid"]
merge_invalid = CATALOGUE["merge_invalid"]
thing_too_large = CATALOGUE["thing_too_large"]
quota_exceeded = CATALOGUE["quota_exceeded"]
answer_too_large = CATALOGUE["answer_too_large"]
twin_failed = CATALOGUE["twin_failed"]
cursor_invalid = CATALOGUE["cursor_invalid"]
option_invalid = CATALOGUE["option_invalid"]


def command_timeout(timeout: int, note: str | None = None) -> DittoError:
    """Report that no response arrived in time; ``note``: why those that did arrive were invalid."""
    message = f"The Command reached the specified timeout of {timeout:,}ms."
    description = "Try increasing the command timeout."
    return DittoError(REQUEST_TIMEOUT, "command.timeout", message, f"{description} {note}" if note else description)


def header_invalid(key: str, message: str, description: str | None = None, *, named: bool = True) -> DittoError:
    """Refuse a header for the reason in ``message``; ``named`` adds its name as ``invalidHeaderKey``."""
    return DittoError(
        BAD_REQUEST,
        "header.invalid",
        message,
        description or "Verify that the header has the correct syntax and try again.",
        **({"invalidHeaderKey": key} if named else {}),
    )


def header_too_long(key: str, limit: int) -> DittoError:
    """Refuse a header whose value has more bytes than ``limit``."""
    return header_invalid(key, f"The value of the header '{key}' has more than {limit:,} bytes.", "Use a shorter one.")


def header_type_invalid(key: str, value: str, kind: str) -> DittoError:
    """Refuse a header value of the wrong type (``boolean``, ``JSON array`` …)."""
    return header_invalid(
        key,
        f"The value '{shown(value)}' of the header '{key}' is not a valid {kind}.",
        f"Verify that the value of the header '{key}' is a valid '{kind}' and try again.",
    )


def unknown_topic_path(topic: str, description: str = "Check if the topic path is correct.") -> DittoError:
    """Refuse a topic path, or a message whose topic path does not match the rest of it."""
    message = f"The topic path '{shown(topic)}' is not supported."
    return DittoError(BAD_REQUEST, "protocoladapter:unknown.topicpath", message, shown(description))
