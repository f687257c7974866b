"""The record headers of requests, acknowledgements and replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

CORRELATION_ID = "correlation-id"
REPLY_ID = "reply-id"
REPLY_TO = "reply-to"
STATUS = "status"
COMPLETED_BY = "completed-by"
SPRING_CORRELATION_ID = "kafka_correlationid"
SPRING_REPLY_TOPIC = "kafka_replytopic"


def correlation_id(
    record_headers: Iterable[tuple[str, bytes | None]], headers: dict[str, Any], coordinates: tuple[str, int, int]
) -> str:
    """Return the correlation-id of a request: of the record, else of its JSON, else of Spring, else its coordinates.

    :param headers: those in the JSON
    :param coordinates: topic, partition, offset
    """
    named = {name.lower(): value for name, value in record_headers if value}
    found = named.get(CORRELATION_ID)
    if found is not None:
        return found.decode("utf-8", "replace")
    in_json = header(headers, CORRELATION_ID)
    if in_json not in (None, ""):
        return str(in_json)
    spring = named.get(SPRING_CORRELATION_ID)
    if spring is not None:
        return _text_or_hexadecimal(spring)
    return "-".join(map(str, coordinates))


def header(headers: dict[str, Any], name: str) -> Any:
    """Return a JSON header by its name in lower case, whatever case it is written in; ``None`` where there is none."""
    if name in headers:
        return headers[name]
    return next((value for key, value in headers.items() if key.lower() == name), None)


def _text_or_hexadecimal(value: bytes) -> str:
    """Read Spring's header as text where it is text; its default is the 16 bytes of a UUID."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex().upper()
