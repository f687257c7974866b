"""The answer to a request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.client.records import COMPLETED_BY, CORRELATION_ID, REPLY_ID, STATUS
from ackstream.protocol.acknowledgements import Acknowledgement, is_success, read_ack, read_acks
from ackstream.protocol.envelopes import Envelope, decode

if TYPE_CHECKING:
    from collections.abc import Iterable

COMPLETE = ("acknowledgements", "response")


@dataclass(frozen=True)
class Reply:
    """One reply: facts of its record headers, and the message itself, which is decoded when it is first looked at.

    ``status`` is an HTTP status. ``completed_by`` says what ended the wait: ``acknowledgements`` (all arrived),
    ``response``, ``timeout``, ``error`` or ``invalid``. ``timestamp`` is the broker's time of the reply, in epoch
    milliseconds.
    """

    correlation_id: str
    reply_id: str
    status: int
    completed_by: str
    data: bytes
    timestamp: int = 0

    @property
    def ok(self) -> bool:
        """Whether the status is 200 to 299."""
        return is_success(self.status)

    @property
    def complete(self) -> bool:
        """Whether everything that was waited for is in the answer; ``explanation`` says why not."""
        return self.completed_by in COMPLETE

    @cached_property
    def envelope(self) -> Envelope:
        """The message.

        :raises DittoError: it is none
        """
        return decode(self.data)

    @cached_property
    def value(self) -> Any:
        """The JSON value of the message; ``None`` where it has none."""
        value = self.envelope.value
        return None if value is msgspec.UNSET else msgspec.json.decode(value)

    @cached_property
    def acks(self) -> dict[str, Acknowledgement]:
        """The acknowledgements by label, in order of the request; empty for a plain response or an error."""
        topic = self.envelope.topic
        if topic.criterion != "acks":
            return {}
        acks = read_acks(self.envelope) if topic.subject is None else [read_ack(self.envelope)]
        return {ack.label: ack for ack in acks}

    @property
    def missing(self) -> tuple[str, ...]:
        """The labels that did not come in time (status 408), in order of the request."""
        return tuple(label for label, ack in self.acks.items() if ack.timed_out)

    @property
    def explanation(self) -> str:
        """One sentence: why the answer is complete, or why it is not."""
        match self.completed_by:
            case "acknowledgements":
                return "Every requested acknowledgement arrived."
            case "response":
                return "The response arrived."
            case "timeout":
                late = ", ".join(self.missing) or "the response"
                return f"The deadline passed before this arrived: {late}."
            case "error":
                return f"An error ended the wait: {self._message}"
            case "invalid":
                return f"The request was refused: {self._message}"
        return f"It was completed by {self.completed_by!r}."

    @property
    def _message(self) -> str:
        return str(self.value["message"]) if isinstance(self.value, dict) and "message" in self.value else "no reason."


def read_reply(record_headers: Iterable[tuple[str, bytes | None]], data: bytes | None, timestamp: int) -> Reply | None:
    """Return the reply that a record is; ``None`` where its headers are not those of a reply."""
    named = dict(record_headers)
    try:
        return Reply(
            (named[CORRELATION_ID] or b"").decode(),
            (named[REPLY_ID] or b"").decode(),
            int(named[STATUS] or b""),
            (named[COMPLETED_BY] or b"").decode(),
            data or b"",
            timestamp,
        )
    except (KeyError, ValueError):
        return None
