"""The trace of a message (W3C Trace Context): agents write it into record headers, Ditto into JSON headers.

A request's record header becomes the header of the message where that has none; so it is stored with the request, what
repeats the request's headers repeats it, and the reply has it in a record header again.
"""

from __future__ import annotations

import re
from typing import Any, Final

TRACEPARENT: Final = "traceparent"

_VALUE = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_IN_JSON = re.compile(rb'"traceparent":"([^"\\]*)"')


def checked_trace(traceparent: bytes | None) -> bytes | None:
    """Return a trace as it was received; one that is malformed counts as none, as the standard says."""
    return traceparent if traceparent is not None and _VALUE.fullmatch(traceparent) is not None else None


def trace_id(text: str) -> str | None:
    """Return the trace-id that a text is, or has as a whole ``traceparent``; ``None``: it is neither."""
    text = text.strip().lower()
    found = text.split("-")[1] if checked_trace(text.encode()) else text
    return found if _ID.fullmatch(found) else None


def with_trace(headers: dict[str, Any], traceparent: bytes | None) -> dict[str, Any]:
    """Return the headers of a message with the trace of its record header, unless they have one of their own."""
    trace = checked_trace(traceparent)
    if trace is None or any(name.lower() == TRACEPARENT for name in headers):
        return headers
    return {**headers, TRACEPARENT: trace.decode()}


def trace_of(headers: bytes) -> bytes | None:
    """Return the trace in headers that are given as compact JSON text; ``None``: there is none, or a malformed one."""
    found = _IN_JSON.search(headers)
    return None if found is None else checked_trace(found[1])
