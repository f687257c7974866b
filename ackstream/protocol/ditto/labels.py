"""Acknowledgement labels, and the table of those that the system issues itself.

Source of the rules: Eclipse Ditto, ``AcknowledgementLabels``, ``DittoAcknowledgementLabel``, and the setters
``AbstractCommandAckRequestSetter`` of each kind of signal.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from ackstream.protocol.ditto.errors import label_invalid

TWIN_PERSISTED: Final = "twin-persisted"
LIVE_RESPONSE: Final = "live-response"
SEARCH_PERSISTED: Final = "search-persisted"


class BuiltInLabel(NamedTuple):
    """What is known of a built-in label.

    :ivar channel: signals of the other channel cannot request it: it is removed from their requested-acks
    :ivar response: the response to a signal of the channel counts as it, and a signal without requested-acks requests
        it. Requested alone, it is answered with that response instead of an aggregate
    :ivar issuer: who issues it
    """

    channel: str
    response: bool
    issuer: str


BUILT_IN: Final = {
    TWIN_PERSISTED: BuiltInLabel("twin", response=True, issuer="the twin, when a change is stored"),
    LIVE_RESPONSE: BuiltInLabel("live", response=True, issuer="the subscriber that responds"),
    SEARCH_PERSISTED: BuiltInLabel("twin", response=False, issuer="the search index, when a change is indexed"),
}
"""The labels that no acknowledgement from outside may have; the order is Ditto's."""

RESPONSE_LABELS: Final = {known.channel: label for label, known in BUILT_IN.items() if known.response}
"""By channel, the label that a response counts as."""

# the placeholder prefix does not count towards the length
_PATTERN = re.compile(r"(?:\{\{[ \t\n\x0b\f\r]*[a-z]+:[a-z]+[ \t\n\x0b\f\r]*\}\}:)?[a-zA-Z0-9_:-]{3,165}")

# longer labels are checked but not cached
_CACHED_LENGTH = 256


def parse_label(text: str) -> str:
    """Return the label: 3 to 165 of ``a-z A-Z 0-9 - _ :``, optionally after a placeholder, ``{{connection:id}}:``.

    :raises DittoError: 400 ``acknowledgement:label.invalid``
    """
    if not (_is_label(text) if len(text) <= _CACHED_LENGTH else _PATTERN.fullmatch(text)):
        raise label_invalid(text)
    return text


@lru_cache(maxsize=4096)
def _is_label(text: str) -> bool:
    return _PATTERN.fullmatch(text) is not None


def is_built_in(label: str) -> bool:
    """Tell whether the system issues the label itself; case matters."""
    return label in BUILT_IN


def of_other_channels(channel: str) -> frozenset[str]:
    """Return the built-in labels that signals of a channel cannot request."""
    return frozenset(label for label, known in BUILT_IN.items() if known.channel != channel)
