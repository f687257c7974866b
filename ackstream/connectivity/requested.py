"""``acknowledgementRequests`` of a source: which acknowledgements are requested for the signals that come from it.

Source of the rules: Eclipse Ditto, ``InboundDispatchingSink#appendConnectionAcknowledgementsToSignal``,
``RequestedAcksFilter`` (ditto.md 1.7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.protocol.envelopes import json_text
from ackstream.protocol.headers import REQUESTED_ACKS, read_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.protocol.placeholders import Context, Pipeline

_NONE = "[]"


def requested_acks(
    own: list[str] | None, includes: Sequence[str], condition: Pipeline | None, context: Context
) -> list[str] | None:
    """Return the labels that are requested for a signal; ``None``: the channel's default follows.

    :param own: those the signal itself requests, ``None`` where it does not say
    :param includes: added, unless the signal says ``[]``
    :param condition: the filter, over the headers of the external message. Where it lets nothing through, nothing is
        requested; what it lets through is requested; without any labels its own result is
    :raises DittoError: 400 ``header.invalid``: the filter's result is not a JSON array of labels
    """
    labels = own
    if includes and own != []:
        labels = list(dict.fromkeys([*(own or ()), *includes]))
    if condition is None:
        return labels
    text = _NONE if labels is None else json_text(labels)
    result = condition.resolve(context, _NONE if "'" in text else text)
    if result is None:
        return []
    if labels is None:
        result = condition.resolve(context)
    return None if result is None else _labels(result)


def _labels(text: str) -> list[str]:
    headers: dict[str, Any] = read_headers({REQUESTED_ACKS: text})
    return list(headers[REQUESTED_ACKS])
