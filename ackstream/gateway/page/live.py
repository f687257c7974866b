"""The content of the live page: requests, labels and failures from the ledger, and all planes during views."""

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from kafka.errors import KafkaError
from msgspec.structs import replace

from ackstream.gateway.page.stories import Stories
from ackstream.kafka.clients import CLOSE_SECONDS, Closing, monotonic_ms
from ackstream.observe.endpoint import HEALTH
from ackstream.observe.feeds import POLL_MS, SILENT_MS, JobSign, LedgerFeed, PlaneFeed, silence
from ackstream.observe.outcomes import LedgerEntry, Meter, Snapshot, Verdict, epoch_milliseconds, percentiles, verdict
from ackstream.observe.planes import SHOWN, Planes, PlanesView
from ackstream.protocol.ditto.acknowledgements import is_success
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.settings import Settings

log = logging.getLogger(__name__)

KAFKA, KAFKA_SECONDS = "Kafka", 20.0
"""The sign of life of a process that follows the ledger: it reads the newest sign of correlate."""

CLOCK_SECONDS = 2.0
TALLY_MS = 1_000
"""How long computed counts are reused."""

MAX_SEEN = 200_000
"""Maximum number of acknowledgements counted, keeping the latest."""

VIEWERS = 20
"""Subjects that may see some things only, whose requests are counted: the latest visitors."""

FAILURES = 50
"""Maximum number of failures kept, the latest ones."""

RESTART_MS = 60_000
"""A job is missing after this time without a sign of life: its lease (3 s), and its usual restart by a supervisor."""


@dataclass
class JobPresence:
    """Whether correlate is certainly ``missing`` (a sentence), by checks of its newest sign of life every few seconds.

    It is until its first sign, and :data:`RESTART_MS` after the last one. A sign must have stayed the newest for
    :data:`SILENT_MS` of checks, too: neither differing clocks nor an outage of Kafka make a job missing.
    """

    missing: str = ""
    _sign: int | None = None
    _since: int = 0
    _looked: float = -math.inf

    def look(self, signed_at: int | None, now: int, passed: int) -> None:
        """Take the newest sign, this machine's time (both as :func:`silence`), and that of a monotonic clock, in ms."""
        if signed_at != self._sign or passed - self._looked >= SILENT_MS:
            self._sign, self._since = signed_at, passed
        self._looked, seen = passed, passed - self._since
        now = max(now, (signed_at or 0) + seen)
        gone = signed_at is None or (seen >= SILENT_MS and now - signed_at >= RESTART_MS)
        self.missing = silence(signed_at, now) if gone else ""


class FailureEntry(msgspec.Struct, frozen=True):
    """A request that did not succeed; times in (epoch) milliseconds."""

    correlation_id: str
    thing_id: str | None
    status: int
    completed_by: str
    missing: list[str]
    at: int
    latency: int


class LabelTally(msgspec.Struct, frozen=True):
    """Counts of a label, or of all labels of a party; latencies are in milliseconds."""

    name: str
    acknowledged: int = 0
    refused: int = 0
    missing: int = 0
    p50: int | None = None
    p95: int | None = None


class View(Snapshot, frozen=True):
    """The content of the page at one moment; durations and epoch times are in milliseconds."""

    now: int
    # of labels and parties those with most failures, and how many there are in all
    labels: list[LabelTally]
    parties: list[LabelTally]
    labels_in_all: int
    parties_in_all: int
    failures: list[FailureEntry]
    note: str
    # the broker's time of the newest decision
    newest: int | None
    # of ten minutes in bars of ten seconds
    trends: dict[Verdict, list[int]]
    # for clients that may read everything
    jobs: list[JobSign]
    planes: PlanesView | None
    # whether the client may use the actions of the page
    may_act: bool = False


def _view(
    meter: Meter, now: int, labels: list[LabelTally], parties: list[LabelTally], failures: list[FailureEntry], note: str
) -> View:
    found = meter.snapshot(now)
    known = found.window, found.counts, found.in_flight, found.oldest
    tallies = labels[:SHOWN], parties[:SHOWN], len(labels), len(parties)
    return View(*known, now, *tallies, failures, note, meter.newest, meter.trends(now), [], None)


class _Seen(msgspec.Struct, frozen=True):
    at: int
    label: str
    status: int | None
    latency: int | None


class LabelCounts:
    """Counts acknowledgements over a window (in ms) and keeps recent failures; times are epoch ms."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._seen: deque[_Seen] = deque(maxlen=MAX_SEEN)
        self._failures: Latest[str, FailureEntry] = Latest(FAILURES)

    def take(self, entry: LedgerEntry) -> None:
        """Process a record of the ledger, once."""
        record, written_at = entry.content, entry.at
        if (outcome := record.outcome) is None:
            return
        used = {ack.label: ack for ack in record.accepted}
        for label in outcome.requested:
            ack = used.get(label)
            status, latency = (None, None) if ack is None else (ack.status, ack.latency_ms)
            self._seen.append(_Seen(written_at, label, status, latency))
        self._forget(written_at)
        if verdict(outcome.status, outcome.completed_by) != "answered":
            about = outcome.thing_id, outcome.status, outcome.completed_by, outcome.missing
            latency = max(0, written_at - outcome.started_at)
            self._failures[record.id] = FailureEntry(entry.correlation_id, *about, written_at, latency)

    def _forget(self, now: int) -> None:
        # without waiting for the next view of the page
        while self._seen and self._seen[0].at <= now - self._window:
            self._seen.popleft()

    def failures(self) -> list[FailureEntry]:
        """Return recent failures, latest first."""
        return list(reversed(self._failures.values()))

    def tallies(self, now: int, *, parties: bool = False) -> list[LabelTally]:
        """Return the counts in the window per label, or per party (its part before the colon), most failures first."""
        self._forget(now)
        groups: dict[str, list[_Seen]] = defaultdict(list)
        for seen in self._seen:
            groups[seen.label.partition(":")[0] if parties else seen.label].append(seen)
        tallies = []
        for name, group in groups.items():
            statuses = [seen.status for seen in group if seen.status is not None]
            good = sum(map(is_success, statuses))
            spans = percentiles([seen.latency for seen in group if seen.latency is not None], 0.5, 0.95)
            tallies.append(LabelTally(name, good, len(statuses) - good, len(group) - len(statuses), *spans))
        return sorted(tallies, key=lambda tally: (-(tally.missing + tally.refused), -tally.acknowledged, tally.name))


IDLE_SECONDS = 60.0
"""The planes are no longer followed after this time without a view of the page."""

VIEW_SECONDS, SIGNS_SECONDS, RETRY_SECONDS = 1.0, 5.0, 2.0


class Live(Closing):
    """Follows the ledger from one window before its start, and the planes from one before a view, in one thread."""

    def __init__(self, settings: Settings) -> None:
        """Connect and start following; raises if the broker is unavailable or a topic is missing."""
        self._settings, self._window = settings, settings.gateway.page_window
        self._meter = Meter(self._window)
        self._labels = LabelCounts(self._window)
        self._own: Latest[tuple[str, ...], tuple[Meter, Callable[[str | None], bool]]] = Latest(VIEWERS)
        self.stories = Stories(settings.lake)
        self._lock = threading.Lock()
        self._note = self._planes_note = ""
        self._view: View | None = None
        self._closing = threading.Event()
        self._looked = -IDLE_SECONDS
        # of the planes, connected only while the page is viewed
        self._topics: PlaneFeed | None = None
        self._planes = Planes(self._window)
        self._shown_at = self._signs_at = 0.0
        self._forget()
        since = epoch_milliseconds() - max(self._window, settings.correlate.default_timeout)
        self._feed, self.presence = LedgerFeed(settings, since), JobPresence()
        self._thread = threading.Thread(target=self._run, name="ackstream-live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)
        self._leave()
        self._feed.close()

    def view(self) -> View:
        """Return the current content of the page."""
        now = epoch_milliseconds()
        with self._lock:
            if self._view is None or now - self._view.now >= TALLY_MS:
                labels, parties = self._labels.tallies(now), self._labels.tallies(now, parties=True)
                self._view = _view(self._meter, now, labels, parties, self._labels.failures(), self._note)
            return self._view

    def own(self, subjects: tuple[str, ...], may_see: Callable[[str | None], bool]) -> View:
        """Return the page's content for subjects that may see some things: their requests since their first view."""
        with self._lock:
            meter, _ = self._own.touch(subjects, lambda: (Meter(self._window), may_see))
            failures = [failure for failure in self._labels.failures() if may_see(failure.thing_id)]
            # without places
            note = "An error occurred. Users who may read all things see the details." if self._note else ""
            return _view(meter, epoch_milliseconds(), [], [], failures, note)

    def whole(self) -> View:
        """Return the content of the page with all planes and jobs, for clients that may read everything."""
        self._looked = time.monotonic()
        view = self.view()
        note = " ".join(filter(None, (view.note, self._planes_note)))
        return replace(view, planes=self._shown, jobs=self._jobs, note=note)

    def _run(self) -> None:
        clock_at, busy = 0.0, False
        while not self._closing.is_set():
            for entry in self._feed.records(0 if busy else POLL_MS):
                new = self.stories.take(entry)
                with self._lock:
                    self._meter.take(entry)
                    about = entry.content.outcome or entry.content.signal
                    for meter, may_see in self._own.values():
                        if about is not None and may_see(about.thing_id):
                            meter.take(entry)
                    if new:
                        self._labels.take(entry)
            if time.monotonic() >= clock_at:
                before = self.presence.missing
                try:
                    signed_at, now = self._feed.signed_at(), epoch_milliseconds()
                    self.presence.look(signed_at, now, monotonic_ms())
                    self._note = silence(signed_at, now)
                    HEALTH.beat(KAFKA, time.monotonic())
                except KafkaError as error:
                    self._note = f"Kafka does not respond: {error}"
                    HEALTH.fail(KAFKA, error)
                _report(before, self.presence.missing)
                clock_at = time.monotonic() + CLOCK_SECONDS
            try:
                busy = self._follow(time.monotonic())
            except Exception as error:  # noqa: BLE001 - a thread that dies would freeze the page
                log.warning("The planes cannot be followed: %r", error)
                self._planes_note, busy = f"The planes cannot be followed: {error}", False
                self._leave()
                self._signs_at = time.monotonic() + RETRY_SECONDS

    def _follow(self, now: float) -> bool:
        """Follow the planes while they are viewed; return whether there were records, and may be more."""
        read = False
        if now - self._looked > IDLE_SECONDS:
            if self._topics is not None:
                self._leave()
                self._forget()
        elif self._topics is not None:
            read = self._topics.give(self._planes)
            if now >= self._shown_at:
                self._shown, self._shown_at = self._planes.view(epoch_milliseconds()), now + VIEW_SECONDS
            if now >= self._signs_at and self._topics.outdated:
                self._leave()
            elif now >= self._signs_at:
                self._jobs, self._planes_note = self._topics.signs(), ""
                self._signs_at = now + SIGNS_SECONDS
        elif now >= self._signs_at:
            self._topics = PlaneFeed(self._settings, epoch_milliseconds() - self._window)
            self._planes = Planes(self._window)
        return read

    def _forget(self) -> None:
        """Show nothing of the planes: a page would open with the state of an hour ago."""
        self._planes, self._jobs = Planes(self._window), list[JobSign]()
        self._shown = self._planes.view(epoch_milliseconds())

    def _leave(self) -> None:
        topics, self._topics, self._signs_at = self._topics, None, 0.0
        if topics is not None:
            # where following has failed, this may, too
            with suppress(Exception):
                topics.close()


def _report(before: str, missing: str) -> None:
    """Log that correlate has become missing, or answers again."""
    if missing and not before:
        log.warning("%s Requests that need an answer get 503.", missing)
    elif before and not missing:
        log.info("correlate runs again, and requests are sent to it.")
