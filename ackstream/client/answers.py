"""What a handler may answer to a signal, and the messages that makes.

Source of the forms: Eclipse Ditto, protocol specification of acknowledgements, responses and errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from ackstream.client.commands import json_value
from ackstream.protocol.acknowledgements import Acknowledgement, write_ack
from ackstream.protocol.envelopes import JSON_CONTENT_TYPE, Envelope, error_envelope
from ackstream.protocol.errors import DittoError
from ackstream.protocol.headers import CHANNEL, CONTENT_TYPE, CORRELATION_ID, RESPONSE_REQUIRED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackstream.client.signal import Signal

INTERNAL_ERROR = 500


@dataclass(frozen=True)
class Ack:
    """An acknowledgement, by its status a good one (2xx) or a nack.

    :param payload: any JSON value
    :param label: ``None`` for every label of ``signal.labels``
    """

    status: int = 200
    payload: Any = UNSET
    label: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """The response to a command or message; for live ones the one that ``live-response`` stands for."""

    status: int = 200
    value: Any = UNSET
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class After:
    """An answer that is given so many seconds later; meanwhile other signals are handled."""

    seconds: float
    answer: Answer


Answer = Ack | Response | DittoError | After | Iterable["Answer"] | None
"""Of a handler: one or several of these. A ``DittoError`` ends the wait for everybody; ``None`` is silence."""


def messages(signal: Signal, answer: Answer, delay: float = 0.0) -> list[tuple[float, Envelope]]:
    """Return the messages of an answer, each with its delay in seconds.

    :raises DittoError: a label is invalid or built in
    :raises TypeError: it is no answer
    """
    match answer:
        case None:
            return []
        case Ack():
            labels = signal.labels if answer.label is None else (answer.label,)
            return [(delay, _ack(signal, answer, label)) for label in labels]
        case Response():
            return [(delay, _response(signal, answer))]
        case DittoError():
            return [(delay, _error(signal, answer))]
        case After():
            return messages(signal, answer.answer, delay + answer.seconds)
        case Iterable() if not isinstance(answer, (str, bytes, dict)):
            return [message for part in answer for message in messages(signal, part, delay)]
    raise TypeError(f"A handler returns Ack, Response, DittoError, After, several of these or None, not {answer!r}.")


def failure(signal: Signal, error: Exception) -> list[Envelope]:
    """Return what is answered where the handler raised an error: a nack for each label, its message as payload.

    A ``DittoError`` gives its own status and texts, anything else 500. Where this responder is to respond, the response
    is an error, too.
    """
    if not isinstance(error, DittoError):
        text = str(error) or type(error).__name__
        error = DittoError(INTERNAL_ERROR, "responder:handler.failed", f"The handler of the signal failed: {text}")
    nack = Ack(error.status, error.to_dict(), headers={CONTENT_TYPE: JSON_CONTENT_TYPE})
    found = [_ack(signal, nack, label) for label in signal.labels]
    return [*found, _error(signal, error)] if signal.response_wanted else found


def _ack(signal: Signal, ack: Ack, label: str) -> Envelope:
    headers = {**ack.headers, CORRELATION_ID: signal.correlation_id}
    if signal.channel == "live":
        headers[CHANNEL] = "live"
    return write_ack(Acknowledgement(label, ack.status, json_value(ack.payload), headers), signal.thing_id)


def _response(signal: Signal, response: Response) -> Envelope:
    command = signal.envelope
    headers = {**response.headers, CORRELATION_ID: signal.correlation_id, RESPONSE_REQUIRED: False}
    return Envelope(command.topic, headers, command.path, json_value(response.value), status=response.status)


def _error(signal: Signal, error: DittoError) -> Envelope:
    return error_envelope(
        error,
        thing_id=signal.thing_id,
        channel=signal.channel,
        headers={CORRELATION_ID: signal.correlation_id},
    )
