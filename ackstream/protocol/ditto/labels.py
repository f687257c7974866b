"""Acknowledgement labels and acknowledgement requests.

Source of the rules: Eclipse Ditto, ``AcknowledgementLabels``, ``DittoAcknowledgementLabel``,
``AcknowledgementRequests``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ackstream.protocol.ditto.errors import label_invalid, request_parsing_failed
from ackstream.protocol.errors import DittoError

TWIN_PERSISTED = "twin-persisted"
LIVE_RESPONSE = "live-response"
SEARCH_PERSISTED = "search-persisted"
BUILT_IN = (TWIN_PERSISTED, LIVE_RESPONSE, SEARCH_PERSISTED)

# the placeholder prefix does not count towards the length
_PATTERN = re.compile(r"(?:\{\{[ \t\n\x0b\f\r]*[a-z]+:[a-z]+[ \t\n\x0b\f\r]*\}\}:)?[a-zA-Z0-9_:-]{3,165}")


# longer ones are checked, but not remembered
_CACHED_LENGTH = 256


def parse_label(text: str) -> str:
    """Return the label: 3 to 165 of ``a-z A-Z 0-9 - _ :``, a placeholder such as ``{{connection:id}}:`` may precede.

    :raises DittoError: 400 ``acknowledgement:label.invalid``
    """
    if not (_is_label(text) if len(text) <= _CACHED_LENGTH else _PATTERN.fullmatch(text)):
        raise label_invalid(text)
    return text


@lru_cache(maxsize=4096)
def _is_label(text: str) -> bool:
    return _PATTERN.fullmatch(text) is not None


def is_built_in(label: str) -> bool:
    """Tell whether the label is one the system issues itself; case matters."""
    return label in BUILT_IN


def parse_request(text: str) -> str:
    """Return the label of an acknowledgement request.

    :raises DittoError: 422 ``acknowledgement:request.parsing.failed``
    """
    try:
        return parse_label(text)
    except DittoError as error:
        raise request_parsing_failed(text, error.message) from error
