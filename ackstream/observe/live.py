"""The content of the live page: counts, jobs and planes of the moment, and histories from memory and the tables."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
from kafka.errors import KafkaError
from msgspec.structs import asdict, replace

from ackstream.kafka.clients import Closing
from ackstream.lake import questions
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.feeds import JobSign, LedgerFeed, PlaneFeed, PlaneWatch
from ackstream.observe.journal import (
    FailureEntry,
    Happening,
    Journal,
    LabelTally,
    TracedRequest,
    in_order,
    stored,
    stored_message,
    stored_trace,
)
from ackstream.observe.meter import Meter, Snapshot, Verdict, epoch_milliseconds
from ackstream.observe.planes import Planes, PlanesView

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.settings import Lake, Settings


log = logging.getLogger(__name__)

T = TypeVar("T")

KAFKA = "Kafka"
"""The sign of life of a process that follows the ledger."""

CLOCK_SECONDS = 2.0
TALLY_MS = 1_000
"""How long computed counts are reused."""

SHOWN = 15
"""Maximum number of labels and parties shown; a fleet may have thousands."""


class View(Snapshot, frozen=True):
    """The content of the page at one moment; durations and epoch times are in milliseconds.

    ``labels`` and ``parties`` are those with most failures; ``labels_in_all`` and ``parties_in_all`` count all of them.
    ``newest`` is the broker's time of the newest decision, ``trends`` those of ten minutes in bars of ten seconds.
    ``jobs`` and ``planes`` are for those who may read everything.
    """

    now: int
    labels: list[LabelTally]
    parties: list[LabelTally]
    labels_in_all: int
    parties_in_all: int
    failures: list[FailureEntry]
    note: str
    newest: int | None
    trends: dict[Verdict, list[int]]
    jobs: list[JobSign]
    planes: PlanesView | None


class Story(msgspec.Struct, frozen=True):
    """The history of a request or a message; ``note`` is set if the tables could not be read."""

    of: str
    happenings: list[Happening]
    note: str = ""


class Trace(msgspec.Struct, frozen=True):
    """The first requests of a trace, and how many there are; ``note`` is set if the tables could not be read."""

    of: str
    requests: list[TracedRequest]
    in_all: int
    note: str = ""


class Live(Closing):
    """Follows the ledger from one window before its start."""

    def __init__(self, settings: Settings) -> None:
        """Connect and start following; raises if the broker is unavailable or a topic is missing."""
        self._settings = settings
        window = settings.gateway.page_window
        self._meter = Meter(window)
        self._journal = Journal(window)
        self._lock = threading.Lock()
        self._note = ""
        self._view: View | None = None
        self._closing = threading.Event()
        self._feed = LedgerFeed(settings, epoch_milliseconds() - max(window, settings.correlate.default_timeout))
        self._planes = PlaneWatch(settings)
        self._thread = threading.Thread(target=self._run, name="ackstream-live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._closing.set()
        self._thread.join()
        self._planes.close()
        self._feed.close()

    def view(self) -> View:
        """Return the current content of the page."""
        now = epoch_milliseconds()
        with self._lock:
            if self._view is None or now - self._view.now >= TALLY_MS:
                labels, parties = self._journal.tallies(now), self._journal.tallies(now, parties=True)
                self._view = View(
                    **asdict(self._meter.snapshot(now)),
                    now=now,
                    labels=labels[:SHOWN],
                    parties=parties[:SHOWN],
                    labels_in_all=len(labels),
                    parties_in_all=len(parties),
                    failures=self._journal.failures(),
                    note=self._note,
                    newest=self._meter.newest,
                    trends=self._meter.trends(now),
                    jobs=[],
                    planes=None,
                )
            return self._view

    def whole(self) -> View:
        """Return the content of the page with all planes and jobs, for those who may read everything."""
        planes, jobs, note = self._planes.look()
        view = self.view()
        return replace(view, planes=planes, jobs=jobs, note=" ".join(filter(None, (view.note, note))))

    def message(self, argument: str) -> Story:
        """Return the history of a message, ``CLIENT/SEQ`` (or ``InputError``), from the tables; this takes a moment."""
        values = questions.parameters("message_story", argument)
        found, note = self._stored(partial(stored_message, values=values))
        return Story(argument, found, note)

    def story(self, correlation_id: str) -> Story:
        """Return the history of a request from memory and from the tables; reading these takes a moment."""
        with self._lock:
            remembered = self._journal.story(correlation_id)
        found, note = self._stored(partial(stored, correlation_id=correlation_id))
        return Story(correlation_id, in_order([*remembered, *found]), note)

    def trace(self, wanted: str) -> Trace:
        """Return all requests of a trace from memory and from the tables, by its id; reading these takes a moment."""
        with self._lock:
            remembered = self._journal.trace(wanted)
        found, note = self._stored(partial(stored_trace, wanted=wanted))
        requests = sorted({*remembered, *found}, key=lambda one: (one.at, one.correlation_id))
        return Trace(wanted, requests, len(requests), note)

    def _stored(self, read: Callable[[Lake], list[T]]) -> tuple[list[T], str]:
        """Read the tables; return the rows, and a note if they cannot be read."""
        lake = self._settings.lake
        try:
            return read(lake), ""
        except Exception as error:
            log.exception("The tables of %s cannot be read.", lake.path)
            return [], f"The tables cannot be read: {error}"

    def _run(self) -> None:
        clock_at = 0.0
        while not self._closing.is_set():
            for entry in self._feed.entries():
                with self._lock:
                    self._meter.take(entry)
                    self._journal.take(entry)
            if time.monotonic() >= clock_at:
                try:
                    self._note = self._feed.warning()
                    HEALTH.beat(KAFKA, time.monotonic())
                except KafkaError as error:
                    self._note = f"Kafka does not respond: {error}"
                clock_at = time.monotonic() + CLOCK_SECONDS


class Overview(NamedTuple):
    """All planes at one moment, for the terminal; times are in epoch milliseconds."""

    now: int
    requests: Snapshot
    trends: dict[Verdict, list[int]]
    newest: int | None
    jobs: list[JobSign]
    planes: PlanesView | None
    note: str


class Watching(Closing):
    """Follows requests and all other planes in the thread of its caller."""

    def __init__(self, settings: Settings, window: int) -> None:
        """Connect, with a window of recent counts in milliseconds; raises if broker or ledger is missing."""
        self._meter, self._planes = Meter(window), Planes(window)
        self._jobs: list[JobSign] = []
        self._note = ""
        since = epoch_milliseconds() - max(window, settings.correlate.default_timeout)
        with ExitStack() as stack:
            self._ledger = stack.enter_context(LedgerFeed(settings, since))
            self._topics = stack.enter_context(PlaneFeed(settings, since))
            self._connected = stack.pop_all()

    def close(self) -> None:
        """Disconnect."""
        self._connected.close()

    def read_to_end(self) -> None:
        """Read all present records; ``KafkaError``: the broker is unavailable."""
        self._ledger.read_to_end(self._meter)
        self._topics.read_to_end(self._planes)
        self._jobs, self._note = self._topics.signs(), self._ledger.warning()

    def follow(self, seconds: float) -> None:
        """Read new records for a time; note it if Kafka does not respond."""
        try:
            self._jobs, self._note = self._topics.signs(), self._ledger.warning()
        except KafkaError as error:
            self._note = f"Kafka does not respond: {error}"
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for entry in self._ledger.entries():
                self._meter.take(entry)
            self._topics.give(self._planes)

    def now(self) -> Overview:
        """Return the current state of all planes."""
        now, meter = epoch_milliseconds(), self._meter
        found = meter.snapshot(now), meter.trends(now), meter.newest
        return Overview(now, *found, self._jobs, self._planes.view(now), self._note)
