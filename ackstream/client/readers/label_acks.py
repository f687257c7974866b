"""Acknowledgements of the labels that publishers' messages request, sent by a reader that has declared them."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.client.group import Work
from ackstream.client.outbox import Outgoing
from ackstream.client.readers.samples import text
from ackstream.protocol.ditto.acknowledgements import OK, Acknowledgement, issued_ack, write_ack
from ackstream.protocol.ditto.envelopes import encode, raw
from ackstream.protocol.ditto.headers import CHANNEL, CORRELATION_ID, REQUESTED_ACKS, WEAK_ACK, requested_acks_in
from ackstream.protocol.ditto.subscriptions import FILTERED
from ackstream.protocol.json import UNREADABLE

if TYPE_CHECKING:
    from ackstream.client.labels import Labels
    from ackstream.client.outbox import Outbox
    from ackstream.client.readers.samples import Sample
    from ackstream.protocol.readers import AutoReason

ENTITY_ID = "ditto-entity-id"
_ENTITY_TYPE = "thing:"


class LabelAcks:
    """Acknowledges the declared labels that a message requests, to the request with the message's correlation-id.

    The message has the record headers ``correlation-id`` and ``requested-acks`` (a JSON list of labels). Its thing is
    named by the header ``ditto-entity-id``, or else by the key if that is an id (``namespace:name``).
    """

    def __init__(self, labels: Labels, outbox: Outbox) -> None:
        """Acknowledge ``labels`` on the topic of ``outbox``."""
        self._labels = labels
        self._outbox = outbox

    def acknowledged(self, sample: Sample, response: bytes | None, auto: AutoReason | None) -> None:
        """Acknowledge that the application has finished with a sample; weakly if it never saw the sample."""
        for label in self._requested(sample):
            headers = _headers(sample)
            if auto is None:
                self._send(sample, Acknowledgement(label, OK, _payload(response), headers))
            else:
                self._send(sample, Acknowledgement(label, OK, raw(FILTERED), headers | {WEAK_ACK: True}))

    def rejected(self, sample: Sample, reason: str, status: int) -> None:
        """Report that the application rejected a sample."""
        for label in self._requested(sample):
            self._send(sample, Acknowledgement(label, status, raw(reason), _headers(sample)))

    def failed(self, sample: Sample, error: BaseException) -> None:
        """Report that the handler failed."""
        for label in self._requested(sample):
            self._send(sample, issued_ack(label, error, _headers(sample)))

    def _requested(self, sample: Sample) -> list[str]:
        requested = sample.headers.get(REQUESTED_ACKS)
        held = self._labels.held
        if not requested or not held or not sample.headers.get(CORRELATION_ID):
            return []
        labels = [label for label in requested_acks_in(text(requested)) if isinstance(label, str) and label in held]
        return list(dict.fromkeys(labels))

    def _send(self, sample: Sample, ack: Acknowledgement) -> None:
        message = write_ack(ack, _thing_id(sample))
        correlation_id = text(sample.headers.get(CORRELATION_ID))
        key = message.topic.thing_id.encode()
        self._outbox.put(Outgoing(correlation_id, key, encode(message), Work(sample.offset)), 0.0, time.monotonic())


def _headers(sample: Sample) -> dict[str, Any]:
    headers: dict[str, Any] = {CORRELATION_ID: text(sample.headers.get(CORRELATION_ID))}
    return headers | {CHANNEL: "live"} if sample.headers.get(CHANNEL) == b"live" else headers


def _thing_id(sample: Sample) -> str:
    for id_ in (text(sample.headers.get(ENTITY_ID)).removeprefix(_ENTITY_TYPE), text(sample.key)):
        namespace, _, name = id_.partition(":")
        if namespace and name and "/" not in id_:
            return id_
    return "unknown:unknown"


def _payload(response: bytes | None) -> Raw | UnsetType:
    """Return a response as a JSON value: itself if it is JSON, else its text, else its base64."""
    if response is None:
        return UNSET
    try:
        return raw(msgspec.json.decode(response))
    except (*UNREADABLE, OverflowError):
        pass
    try:
        return raw(response.decode())
    except UnicodeDecodeError:
        return raw(base64.b64encode(response).decode())
