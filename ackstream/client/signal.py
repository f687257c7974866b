"""A command, message or event as those who receive it get it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.client.records import correlation_id
from ackstream.protocol.envelopes import Envelope, decode
from ackstream.protocol.errors import json_invalid
from ackstream.protocol.labels import BUILT_IN, LIVE_RESPONSE
from ackstream.protocol.requests import read_request

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True)
class Signal:
    """One signal.

    ``labels`` are those of the requested acknowledgements that its receiver issues, in order of the request;
    ``response_required`` is what its sender wants, ``response_wanted`` whether the receiver is to respond to a live
    command or message; ``timeout_ms`` is how long its answers count, ``None`` where that is not known (an event).
    ``timestamp`` is the broker's time, in epoch milliseconds, from which the timeout of a command or message runs.
    """

    correlation_id: str
    envelope: Envelope
    channel: str
    labels: tuple[str, ...]
    response_required: bool
    response_wanted: bool
    timeout_ms: int | None
    timestamp: int
    topic: str
    partition: int
    offset: int

    @property
    def thing_id(self) -> str:
        """The id of the entity the signal is for."""
        return self.envelope.topic.thing_id

    @property
    def path(self) -> str:
        """The JSON pointer of what it is about."""
        return self.envelope.path

    @cached_property
    def value(self) -> Any:
        """The JSON value; ``None`` where there is none."""
        value = self.envelope.value
        return None if value is msgspec.UNSET else msgspec.json.decode(value)


def read_signal(record: Any, labels: Collection[str] | None) -> Signal:
    """Return the signal that a consumed record is.

    :param labels: those the responder issues, ``live-response`` among them where it responds; ``None`` for all
    :raises DittoError: it is no valid request; the service tells the requester so
    """
    if record.value is None:
        raise json_invalid("The record has no value (a tombstone).")
    envelope = decode(record.value)
    request = read_request(envelope)
    live = request.channel == "live" and request.response_required
    return Signal(
        correlation_id(record.headers, envelope.headers, (record.topic, record.partition, record.offset)),
        envelope,
        request.channel,
        tuple([name for name in request.awaited if name not in BUILT_IN and (labels is None or name in labels)]),
        request.response_required,
        live and (labels is None or LIVE_RESPONSE in labels),
        request.timeout_ms,
        record.timestamp,
        record.topic,
        record.partition,
        record.offset,
    )
