"""The audit's records on their way to Kafka: numbered, and sent again until the broker has them."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ackstream.kafka import clients
from ackstream.protocol.ledger import LedgerRecord, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ackstream.gateway.middleware.audit import Audit
    from ackstream.protocol.ledger import AuditRow
    from ackstream.settings import Kafka

log = logging.getLogger(__name__)

TOPIC = "audit"
MAX_WAITING = 10_000
"""Records that wait to be stored; the gateway does nothing more that needs a record until there are fewer."""

GATHERING_SECONDS = 0.1
"""Records of this time are sent together, at a fraction of the work; no client waits for them."""

LINGER_MS = 20
"""The records of one turn go in few requests."""

TURN_SECONDS = 1.0
RESEND_SECONDS = 1.0


class AuditTrail(clients.Closing):
    """Stores records in order without making anyone wait, in one partition and numbered, so that a gap shows."""

    def __init__(self, kafka: Kafka) -> None:
        """Connect; ``UnreachableError``: no broker, or the topic is missing."""
        self._topic = kafka.topic(TOPIC)
        self._run_id = f"gateway-{secrets.token_hex(8)}"
        self._number = 0
        self._unsent: list[tuple[int, bytes]] = []
        self._unstored: dict[int, bytes] = {}
        self._again: dict[int, float] = {}
        self._lock, self._waiting, self._closed = threading.Lock(), threading.Event(), threading.Event()
        self._working = True
        self._producer = clients.connect_producer(kafka, self._topic, linger_ms=LINGER_MS)
        self._thread = threading.Thread(target=self._run, name="ackstream-audit", daemon=True)

    def start(self, turn: Callable[[], None]) -> None:
        """Begin to send; ``turn`` is called once a second, in a thread."""
        self._turn = turn
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether too many records wait to be stored."""
        return len(self._unstored) >= MAX_WAITING

    def take(self, row: AuditRow) -> None:
        """Store a record; may be called in any thread."""
        with self._lock:
            self._number += 1
            number = self._number
            if len(self._unstored) >= 2 * MAX_WAITING:
                # refusals only; a missing record is seen by its number
                return
            record = LedgerRecord("audit", f"{self._run_id}-{number}", self._run_id, number, audit=row)
            self._unstored[number] = value = encode(record)
            self._unsent.append((number, value))
        if not self._waiting.is_set():
            self._waiting.set()

    def close(self) -> None:
        """Send waiting records, for at most 5 s."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._waiting.set()
        self._thread.join(clients.CLOSE_SECONDS)
        clients.close_producer(self._producer)
        if self._unstored:
            log.error("%s records of the audit were not stored: Kafka did not accept them.", len(self._unstored))

    def _run(self) -> None:
        turned = time.monotonic()
        closed = False
        while not closed:
            self._waiting.wait(TURN_SECONDS)
            closed = self._closed.wait(GATHERING_SECONDS)
            with self._lock:
                self._waiting.clear()
                now = time.monotonic()
                due = [number for number, at in self._again.items() if at <= now or closed]
                for number in due:
                    del self._again[number]
                sending = [*((number, self._unstored[number]) for number in due), *self._unsent]
                self._unsent = []
            for number, value in sending:
                stored, failed = partial(self._stored, number), partial(self._failed, number)
                key = self._run_id.encode()
                clients.send(self._producer, stored, failed, self._topic, key=key, value=value)
            if not closed and now - turned >= TURN_SECONDS:
                turned = now
                self._turn()

    def _stored(self, number: int, _metadata: Any) -> None:
        with self._lock:
            self._unstored.pop(number, None)
            self._working = True

    def _failed(self, number: int, error: BaseException) -> None:
        with self._lock:
            if not self._closed.is_set():
                # a second copy is recognised by its number
                self._again[number] = time.monotonic() + RESEND_SECONDS
            worked, self._working = self._working, False
        if worked:
            log.warning("Kafka does not store records of the audit, which are sent again until it does: %s", error)


@contextmanager
def recording(audit: Audit, kafka: Kafka) -> Iterator[None]:
    """Store the records for the time of the block; ``UnreachableError``: no broker, or the topic is missing."""
    if audit.level == "off":
        yield
        return
    with AuditTrail(kafka) as trail:
        audit.store(trail.take, lambda: trail.full)
        trail.start(audit.turn)
        try:
            yield
        finally:
            audit.turn(closing=True)
