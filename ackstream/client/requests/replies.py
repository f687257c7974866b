"""Replies to requests; and the outcomes of requests without a reply, read from the ledger."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.kafka.clients import Closing
from ackstream.kafka.reader import TopicReader
from ackstream.protocol import ledger
from ackstream.protocol.ditto.acknowledgements import Acknowledgement, is_success, read_ack, read_acks
from ackstream.protocol.ditto.envelopes import Envelope, decode, decoded
from ackstream.protocol.errors import REQUEST_TIMEOUT
from ackstream.protocol.record_headers import COMPLETED_BY, CORRELATION_ID, REPLY_ID, STATUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.protocol.ditto.topics import TopicPath
    from ackstream.settings import Kafka


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


class RequestOutcome(msgspec.Struct, frozen=True):
    """How a request ended: status, reason, an entry per awaited label, and the JSON of an error."""

    status: int
    completed_by: str
    entries: list[Acknowledgement] = []
    error: Raw | UnsetType = UNSET


def read_outcome(value: bytes, thing_id: str) -> RequestOutcome | None:
    """Return the outcome in a record of the ledger, ``None`` if it has none, or one of a request about another thing.

    :raises msgspec.MsgspecError: it is not a record of the ledger
    """
    record = ledger.decode(value)
    decided, used = record.outcome, record.accepted
    # of a request that could not be read the thing is unknown
    if decided is None or decided.thing_id not in (thing_id, None):
        return None
    status = {ack.label: ack.status for ack in used}
    entries = [Acknowledgement(label, status.get(label) or REQUEST_TIMEOUT) for label in decided.requested]
    error: Raw | UnsetType = UNSET
    if decided.completed_by == "invalid" and decided.reply is not UNSET:
        error = decode(bytes(decided.reply)).value
    elif decided.completed_by in ("error", "response"):
        # the last one ended it
        error = used[-1].payload if used else UNSET
    return RequestOutcome(decided.status, decided.completed_by, entries, error)


class Outcomes(Closing):
    """Follows the ledger with one thread; decodes only records that someone waits for.

    Requests with response-required false get no reply: their outcome is only in the ledger.
    """

    def __init__(self, kafka: Kafka) -> None:
        """Connect; every outcome from now on is seen.

        :raises UnreachableError: no broker, or a topic is missing
        """
        self._waiting: dict[bytes, tuple[Future[RequestOutcome], str]] = {}
        self._reader = TopicReader.at_end(kafka, kafka.topic("ledger"))
        self._reader.start("ackstream-outcomes", self._look)

    @contextmanager
    def expect(self, correlation_id: str, thing_id: str) -> Iterator[Future[RequestOutcome]]:
        """Wait for the outcome of a request about a thing for the time of the block."""
        key = correlation_id.encode()
        future: Future[RequestOutcome] = Future()
        self._waiting[key] = future, thing_id
        try:
            yield future
        finally:
            self._waiting.pop(key, None)

    def close(self) -> None:
        """Stop reading; open futures stay unresolved."""
        self._reader.close()

    def _look(self, record: Any) -> None:
        future, thing_id = self._waiting.get(record.key or b"", (None, ""))
        if future is None or future.done():
            return
        outcome = read_outcome(record.value or b"", thing_id)
        if outcome is not None and future.set_running_or_notify_cancel():
            future.set_result(outcome)
