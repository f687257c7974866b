"""What is published at a source's reply-target, and what an answer means for the settlement of its message.

Source of the rules: Eclipse Ditto, ``OutboundMappingProcessorActor``, ``ResponseType``, ``BaseConsumerActor``
(ditto.md 4, 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.connectivity.messages import outgoing, text_headers
from ackstream.protocol.acknowledgements import read_ack, read_acks, response_type
from ackstream.protocol.envelopes import error_envelope
from ackstream.protocol.headers import CORRELATION_ID
from ackstream.protocol.settlement import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackstream.connections import ReplyTarget, ResponseKind
    from ackstream.connectivity.inbound import Refused
    from ackstream.connectivity.messages import Outgoing
    from ackstream.protocol.envelopes import Envelope


class Failure(msgspec.Struct, frozen=True):
    """An error that came instead of an answer, by its status."""

    status: int


def published_reply(
    answer: Envelope, asked: Mapping[str, Any], target: ReplyTarget | None, connection_id: str
) -> Outgoing | None:
    """Return an answer as it is published; ``None`` where its kind is not expected, or nobody is to get it.

    :param asked: the headers of the request, whose correlation-id the answer has; placeholders find them too
    """
    if target is None or response_kind(answer) not in target.expected:
        return None
    headers = dict(answer.headers)
    if CORRELATION_ID in asked:
        headers[CORRELATION_ID] = asked[CORRELATION_ID]
    named = msgspec.structs.replace(answer, headers=headers)
    return outgoing(named, target.address, target.header_mapping, connection_id, further=text_headers(asked))


def published_error(refused: Refused, target: ReplyTarget | None, connection_id: str) -> Outgoing | None:
    """Return the error of what was refused as it is published, or ``None``."""
    topic = refused.topic
    answer = error_envelope(
        refused.error,
        thing_id=None if topic is None else topic.thing_id,
        channel=None if topic is None else topic.channel,
        headers=refused.headers,
    )
    return published_reply(answer, refused.headers, target, connection_id)


def response_kind(answer: Envelope) -> ResponseKind:
    """Return how an answer counts: acknowledgements are a ``response`` where all succeeded, else a ``nack``."""
    if answer.topic.criterion == "errors":
        return "error"
    return response_type(_statuses(answer)) if answer.topic.criterion == "acks" else "response"


def verdict(answer: Envelope, *, completed_by: str, live: bool) -> Answer | Failure:
    """Return what an answer means for the message that asked.

    :param completed_by: what ended the wait, as the record headers of a reply tell
    :param live: the request was a live command or message, so that a response is the business of the two who talk
    """
    if answer.topic.criterion == "acks":
        return Answer(_statuses(answer))
    status = answer.status or 500
    if completed_by != "response":
        return Failure(status)
    return Answer((status,), live=live)


def _statuses(answer: Envelope) -> tuple[int, ...]:
    acks = read_acks(answer) if answer.topic.subject is None else [read_ack(answer)]
    return tuple(ack.status for ack in acks)
