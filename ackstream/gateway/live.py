"""The data of the live page: a thread follows the ledger, requests read what it has collected."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
from kafka.errors import KafkaError
from msgspec import UNSET, Raw

from ackstream.gateway.feed import Lag, LedgerFeed
from ackstream.gateway.journal import Event, FailureEntry, Happening, Journal, LabelTally, in_order
from ackstream.gateway.meter import Count, Meter, Verdict
from ackstream.lake import reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.settings import Lake, Settings


log = logging.getLogger(__name__)

LAG_SECONDS = 2.0
TALLY_MS = 1_000
"""How long computed counts are reused."""

SHOWN = 15
"""Maximum number of labels and parties shown; a fleet may have thousands."""


class View(msgspec.Struct, frozen=True):
    """The content of the page at one moment; durations and epoch times are in milliseconds.

    ``labels`` and ``parties`` are those with most failures; ``labels_in_all`` and ``parties_in_all`` count all of them.
    """

    now: int
    window: int
    counts: dict[Verdict, Count]
    in_flight: int
    oldest: int | None
    labels: list[LabelTally]
    parties: list[LabelTally]
    labels_in_all: int
    parties_in_all: int
    failures: list[FailureEntry]
    lags: list[Lag]
    note: str


class Story(msgspec.Struct, frozen=True):
    """The history of a request; ``note`` is set if the tables could not be read."""

    correlation_id: str
    happenings: list[Happening]
    note: str = ""


class Live:
    """Follows the ledger from one window before its start."""

    def __init__(self, settings: Settings) -> None:
        """Connect and start following.

        :raises AckstreamError: the broker is unavailable or a topic is missing
        """
        self._settings = settings
        window = settings.gateway.page_window
        self._window = window
        self._meter = Meter(window)
        self._journal = Journal(window)
        self._lock = threading.Lock()
        self._lags: list[Lag] = []
        self._note = ""
        self._view: View | None = None
        self._closing = threading.Event()
        since = _now() - max(window, settings.correlate.default_timeout)
        with ExitStack() as stack:
            self._feed = stack.enter_context(LedgerFeed(settings, since))
            self._connected = stack.pop_all()
        self._thread = threading.Thread(target=self._run, name="ackstream-live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._closing.set()
        self._thread.join()
        self._connected.close()

    def view(self) -> View:
        """Return the current content of the page."""
        now = _now()
        with self._lock:
            if self._view is None or now - self._view.now >= TALLY_MS:
                seen = self._meter.snapshot(now)
                labels, parties = self._journal.labels(now), self._journal.parties(now)
                self._view = View(
                    now,
                    self._window,
                    seen.counts,
                    seen.in_flight,
                    seen.oldest,
                    labels[:SHOWN],
                    parties[:SHOWN],
                    len(labels),
                    len(parties),
                    self._journal.failures(),
                    self._lags,
                    self._note,
                )
            return self._view

    def story(self, correlation_id: str) -> Story:
        """Return the history of a request from memory and from the tables; reading these takes a moment."""
        with self._lock:
            remembered = self._journal.story(correlation_id)
        try:
            return Story(correlation_id, in_order([*remembered, *stored(self._settings.lake, correlation_id)]))
        except Exception as error:
            log.exception("The tables of %s cannot be read.", self._settings.lake.path)
            return Story(correlation_id, remembered, f"The tables cannot be read: {error}")

    def _run(self) -> None:
        lags_at = 0.0
        while not self._closing.is_set():
            for record in self._feed.records():
                with self._lock:
                    self._meter.take(record.value, record.timestamp)
                    key = (record.key or b"").decode("utf-8", "replace")
                    self._journal.take(key, record.value or b"", record.timestamp)
            if time.monotonic() >= lags_at:
                self._update_lags()
                lags_at = time.monotonic() + LAG_SECONDS

    def _update_lags(self) -> None:
        try:
            self._lags, self._note = self._feed.lags(), ""
        except KafkaError as error:
            self._note = f"Kafka does not respond: {error}"


def _now() -> int:
    return time.time_ns() // 1_000_000


def stored(lake: Lake, correlation_id: str) -> list[Happening]:
    """Return the history of a request from the tables; empty if they do not exist yet.

    :raises Exception: the tables cannot be read; the type depends on the storage
    """
    return [
        tell(row)
        for table, (columns, tell) in _TABLES.items()
        for row in reading.request_rows(lake, table, columns, correlation_id)
    ]


def _request(row: dict[str, Any]) -> Happening:
    detail = " ".join(filter(None, (row["channel"], row["criterion"], row["action"], row["path"])))
    return _happening("request", row, "received_at", "value", detail=detail, thing_id=row["thing_id"])


def _acknowledgement(row: dict[str, Any]) -> Happening:
    return _happening(
        "acknowledgement",
        row,
        "received_at",
        "payload",
        label=row["label"],
        status=row["status"],
        detail=row["disposition"],
    )


def _outcome(row: dict[str, Any]) -> Happening:
    return _happening(
        "outcome",
        row,
        "decided_at",
        "reply",
        status=row["status"],
        detail=row["completed_by"],
        thing_id=row["thing_id"],
    )


def _dead_letter(row: dict[str, Any]) -> Happening:
    return _happening("dead letter", row, "received_at", None, detail=row["reason"])


def _happening(event: Event, row: dict[str, Any], time: str, content: str | None, **fields: Any) -> Happening:
    text = row[content] if content else None
    at = round(row[time].timestamp() * 1000)
    return Happening(at, event, row["id"], content=UNSET if text is None else Raw(text.encode()), **fields)


_TABLES: dict[str, tuple[tuple[str, ...], Callable[[dict[str, Any]], Happening]]] = {
    "signals": (("id", "received_at", "thing_id", "channel", "criterion", "action", "path", "value"), _request),
    "acknowledgements": (("id", "received_at", "label", "status", "disposition", "payload"), _acknowledgement),
    "outcomes": (("id", "decided_at", "thing_id", "status", "completed_by", "reply"), _outcome),
    "dead_letters": (("id", "received_at", "reason"), _dead_letter),
}
