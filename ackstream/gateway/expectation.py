"""What an HTTP request is to wait for, by the rules of the three headers.

Source: Eclipse Ditto, ``AbstractHttpRequestActor``, ``MessagesRoute``; the table is in ``ditto.md`` 1.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.protocol.defaults import (
    check_combination,
    default_headers,
    signal_kind,
    timeout_milliseconds,
    waits_for_acks,
)
from ackstream.protocol.errors import unknown_topic_path
from ackstream.protocol.headers import REQUESTED_ACKS, RESPONSE_REQUIRED, TIMEOUT

if TYPE_CHECKING:
    from ackstream.protocol.envelopes import Envelope
    from ackstream.settings import Gateway

CLAIM = "claim"


class Expectation(msgspec.Struct, frozen=True):
    """What is awaited: a response, else acknowledgements, else nothing; for how long, in milliseconds."""

    response: bool
    acks: bool
    timeout_ms: int


def expect(command: Envelope, settings: Gateway) -> Expectation:
    """Return what a command has its client wait for, and write the timeout that holds into its headers.

    The headers keep what the client wrote otherwise: the service applies the same defaults to them.

    :raises DittoError: 400; the headers contradict each other, or the timeout is above its bound
    """
    topic = command.topic
    kind = signal_kind(topic, command.headers)
    if kind is None:
        raise unknown_topic_path(str(topic))
    headers = default_headers(kind, command.headers)
    check_combination("HTTP", kind, headers)
    most = settings.max_timeout
    claims = kind == "message" and topic.subject == CLAIM
    bound = settings.max_claim_timeout if claims else most
    waited = timeout_milliseconds("HTTP", kind, headers, most, bound)
    if kind == "message":
        # a claim may name more than it is waited for; Ditto writes whole seconds without a unit
        waited = min(waited, most)
        command.headers[TIMEOUT] = str(waited // 1000) if waited % 1000 == 0 else f"{waited}ms"
    else:
        command.headers.setdefault(TIMEOUT, f"{most}ms" if most % 1000 else f"{most // 1000}s")
    return Expectation(
        bool(headers.get(RESPONSE_REQUIRED, True)),
        waits_for_acks(kind, headers.get(REQUESTED_ACKS) or ()),
        waited,
    )
