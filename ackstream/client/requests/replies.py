"""Replies to requests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.protocol.ditto.acknowledgements import Acknowledgement, is_success, read_ack, read_acks
from ackstream.protocol.ditto.envelopes import Envelope, decode, decoded
from ackstream.protocol.record_headers import COMPLETED_BY, CORRELATION_ID, REPLY_ID, STATUS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.protocol.ditto.topics import TopicPath


@dataclass(frozen=True)
class Reply:
    """One reply: its record headers, and the message itself, which is decoded on first access.

    ``status`` is an HTTP status. ``completed_by`` is what ended the wait: ``acknowledgements`` (all arrived),
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
        """Whether the answer contains everything that was awaited; if not, ``explanation`` gives the reason."""
        return self.completed_by in ("acknowledgements", "response")

    @cached_property
    def envelope(self) -> Envelope:
        """The message.

        :raises DittoError: it is not a protocol message
        """
        return decode(self.data)

    def answers(self, command: TopicPath) -> bool:
        """Whether it is of the thing and of the channel of a command, and a response to such a command if it is one.

        A header may have made a command of the twin's channel live.

        :raises DittoError: it is not a protocol message
        """
        topic, channel = self.envelope.topic, command.channel
        if topic.thing_id != command.thing_id or topic.channel not in (channel, "live", channel or "twin"):
            return False
        if topic.criterion in ("acks", "errors"):
            return True
        return topic == msgspec.structs.replace(command, channel=topic.channel)

    @cached_property
    def value(self) -> Any:
        """The JSON value of the message, ``None`` if it has none."""
        return decoded(self.envelope.value)

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
        """The labels that did not arrive in time (status 408), in order of the request."""
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
    """Return the reply in a record, ``None`` if its headers are not those of a reply."""
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
