"""What became of requests that get no reply: with response-required false there is only the ledger, and errors."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ackstream.client import connection
from ackstream.client.reader import Reader
from ackstream.client.records import CORRELATION_ID
from ackstream.protocol.acknowledgements import Acknowledgement
from ackstream.protocol.envelopes import decode
from ackstream.protocol.errors import REQUEST_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.settings import Kafka

log = logging.getLogger(__name__)

CLOSE_MS = 1_000


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended: status, why, an entry for each label that was awaited, and the JSON of an error."""

    status: int
    completed_by: str
    entries: list[Acknowledgement] = []
    error: Raw | UnsetType = UNSET


class _Ack(msgspec.Struct):
    disposition: str
    label: str | None = None
    status: int | None = None
    payload: Raw | UnsetType = UNSET


class _Message(msgspec.Struct):
    value: Raw | UnsetType = UNSET


class _Decided(msgspec.Struct):
    status: int
    completed_by: str
    requested: list[str]
    reply: _Message | None = None


class _Record(msgspec.Struct):
    outcome: _Decided | None = None
    acks: list[_Ack] = []


_decode = msgspec.json.Decoder(_Record).decode


def read_outcome(value: bytes) -> Outcome | None:
    """Return the outcome in a record of the ledger; ``None`` where it has none.

    :raises msgspec.MsgspecError: it is no record of the ledger
    """
    record = _decode(value)
    decided = record.outcome
    if decided is None:
        return None
    used = [ack for ack in record.acks if ack.disposition == "accepted"]
    status = {ack.label: ack.status for ack in used}
    entries = [Acknowledgement(label, status.get(label) or REQUEST_TIMEOUT) for label in decided.requested]
    error: Raw | UnsetType = UNSET
    if decided.completed_by == "invalid" and decided.reply is not None:
        error = decided.reply.value
    elif decided.completed_by in ("error", "response"):
        # the last one ended it
        error = used[-1].payload if used else UNSET
    return Outcome(decided.status, decided.completed_by, entries, error)


def read_answer(value: bytes) -> Outcome:
    """Return what an answer on the acks topic says of a request for which nothing is awaited.

    :raises DittoError: it is no protocol message
    """
    envelope = decode(value)
    what = "error" if envelope.topic.criterion == "errors" else "response"
    return Outcome(envelope.status or 200, what, [], envelope.value)


class Outcomes:
    """Follows the ledger and the acks topic with one thread, and looks only at what somebody waits for."""

    def __init__(self, kafka: Kafka) -> None:
        """Connect; every outcome from now on is seen.

        :raises UnreachableError: no broker, or a topic is missing
        """
        self._ledger, self._acks = kafka.topic("ledger"), kafka.topic("acks")
        self._waiting: dict[bytes, tuple[Future[Outcome], bool]] = {}
        self._closing = threading.Event()
        consumer = connection.connect_consumer(kafka, None, auto_offset_reset="earliest")
        try:
            connection.check_topics(consumer, kafka, self._ledger, self._acks)
            connection.subscribe_at_end(consumer, kafka, self._ledger, self._acks)
        except BaseException:
            consumer.close()
            raise
        self._reader = Reader(consumer, self._closing)
        self._thread = threading.Thread(target=self._run, name="ackstream-outcomes", daemon=True)
        self._thread.start()

    @contextmanager
    def expect(self, correlation_id: str, *, any_answer: bool) -> Iterator[Future[Outcome]]:
        """Wait for a request's outcome for the time of the block.

        :param any_answer: nothing is awaited, so that there will be no outcome: whatever comes on the acks topic counts
        """
        key = correlation_id.encode()
        future: Future[Outcome] = Future()
        self._waiting[key] = (future, any_answer)
        try:
            yield future
        finally:
            self._waiting.pop(key, None)

    def close(self) -> None:
        """Stop reading; what is waited for is left to those who wait."""
        self._closing.set()
        self._thread.join()
        self._reader.consumer.close(timeout_ms=CLOSE_MS)

    def _run(self) -> None:
        while not self._closing.is_set():
            for record in self._reader.read():
                try:
                    self._look(record)
                except Exception as error:  # noqa: BLE001 - whatever stands in a record, the next one is read
                    log.warning("A record of %s was left out (offset %s): %s", record.topic, record.offset, error)

    def _look(self, record: Any) -> None:
        of_acks = record.topic == self._acks
        key = dict(record.headers).get(CORRELATION_ID) if of_acks else record.key
        future, any_answer = self._waiting.get(key or b"", (None, False))
        if future is None or future.done() or (of_acks and not any_answer):
            return
        outcome = read_answer(record.value or b"") if of_acks else read_outcome(record.value or b"")
        if outcome is not None and future.set_running_or_notify_cancel():
            future.set_result(outcome)
