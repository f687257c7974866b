"""The outcomes of requests, read from the ledger: a request without a reply has no other answer."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.kafka.clients import Closing
from ackstream.kafka.reader import TopicReader
from ackstream.protocol import ledger
from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.protocol.ditto.envelopes import decode
from ackstream.protocol.errors import REQUEST_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.settings import Kafka


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
