"""Acknowledgements under the declared labels of a client that reads messages: a reader, or a route."""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.client.core.group import Work
from ackstream.client.reading.samples import text
from ackstream.protocol.ditto.acknowledgements import OK, Acknowledgement, issued_ack, write_ack
from ackstream.protocol.ditto.envelopes import raw
from ackstream.protocol.ditto.headers import CHANNEL, CORRELATION_ID, WEAK_ACK, requested_acks_in
from ackstream.protocol.ditto.subscriptions import FILTERED
from ackstream.protocol.json import UNREADABLE
from ackstream.protocol.record_headers import ENTITY_ID, REQUESTED_ACKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.client.core.labels import Labels
    from ackstream.client.core.worker import Answers
    from ackstream.client.reading.samples import Sample
    from ackstream.protocol.readers import AutoReason

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""As many acknowledgements wait for a lapsed lease at most; of the others the requester's deadline is the answer."""


class LabelAcks:
    """Acknowledges the declared labels that a message requests, to the request with the message's correlation-id.

    While their lease has lapsed, the acknowledgements wait in the outbox, which has the same labels.

    The message has the record headers ``correlation-id`` and ``requested-acks`` (a JSON list of labels). Its thing is
    named by the header ``ditto-entity-id``, or else by the key if that is an id (``namespace:name``).
    """

    def __init__(self, labels: Labels, outbox: Answers) -> None:
        """Acknowledge ``labels`` through ``outbox``."""
        self._labels, self._outbox = labels, outbox

    def acknowledged(self, sample: Sample, response: bytes | None, auto: AutoReason | None) -> None:
        """Acknowledge that the application has finished with a sample; weakly if it never saw the sample."""
        payload, weak = (_payload(response), {}) if auto is None else (raw(FILTERED), {WEAK_ACK: True})
        self._issue(sample, lambda label, headers: Acknowledgement(label, OK, payload, headers | weak))

    def rejected(self, sample: Sample, reason: str, status: int) -> None:
        """Report that the application rejected a sample."""
        self._issue(sample, lambda label, headers: Acknowledgement(label, status, raw(reason), headers))

    def failed(self, sample: Sample, error: BaseException) -> None:
        """Report that the handler failed."""
        self._issue(sample, lambda label, headers: issued_ack(label, error, headers))

    def requested(self, sample: Sample) -> list[str]:
        """Return the labels to be issued that a message requests."""
        requested, issued = text(sample.headers.get(REQUESTED_ACKS)), self._labels.issued
        if not requested or not issued or not sample.headers.get(CORRELATION_ID):
            return []
        found = [label for label in requested_acks_in(requested) if isinstance(label, str) and label in issued]
        return list(dict.fromkeys(found))

    def _issue(self, sample: Sample, write: Callable[[str, dict[str, Any]], Acknowledgement]) -> None:
        """Send what ``write`` returns for each requested label and the headers of its acknowledgement."""
        labels, correlation_id = self.requested(sample), text(sample.headers.get(CORRELATION_ID))
        if not labels:
            return
        if self._outbox.delayed >= MAX_WAITING:
            log.warning("%s acknowledgements wait for their labels: %s gets none.", MAX_WAITING, correlation_id)
            return
        headers = {CORRELATION_ID: correlation_id}
        if sample.headers.get(CHANNEL) == b"live":
            headers[CHANNEL] = "live"
        for label in labels:
            message = write_ack(write(label, headers), _thing_id(sample))
            self._outbox.send(correlation_id, message, Work(sample.offset))


def _thing_id(sample: Sample) -> str:
    for id_ in (text(sample.headers.get(ENTITY_ID)).removeprefix("thing:"), text(sample.key)):
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
