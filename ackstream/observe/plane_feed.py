"""Following the topics of all planes while the page is open somewhere, and the signs of life of the jobs."""

from __future__ import annotations

import logging
import threading
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import RetriableError

from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import Closing, connect_admin
from ackstream.observe.meter import SILENT_MS, epoch_milliseconds
from ackstream.observe.planes import TOPICS, Planes, PlanesView
from ackstream.observe.topic_feed import POLL_MS, TopicFeed

if TYPE_CHECKING:
    from ackstream.settings import Settings

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""Once nobody has looked for so long, nothing is read."""

VIEW_SECONDS, SIGNS_SECONDS = 1.0, 5.0
RETRY_SECONDS = 2.0

JOBS = {
    "correlate": ("signals", "acks", "twin-acks"),
    "archive": ("ledger", "audit"),
    "twin": ("signals",),
    "persist": ("messages",),
    "settle": ("stored", "app-acks"),
    "queues": ("app-acks",),
    "query": ("queries", "stored"),
}
"""The topics that each job with a lease reads."""


class Lag(msgspec.Struct, frozen=True):
    """Number of records of a topic that a consumer group has yet to read."""

    topic: str
    group: str
    records: int


class JobSign(msgspec.Struct, frozen=True):
    """A job that has run at some time: for how long it is silent, and what it has yet to read.

    :ivar silent: milliseconds since its last sign of life
    :ivar lags: of the topics for which its group has committed something
    """

    job: str
    silent: int
    alive: bool
    lags: list[Lag]


class PlaneFeed(TopicFeed):
    """Reads those topics of all planes that exist."""

    def __init__(self, settings: Settings, since: int) -> None:
        """Connect, to read the records since a time in epoch milliseconds.

        :raises AckstreamError: the broker is unavailable
        """
        with connect_admin(settings.kafka) as admin:
            self._existing = set(admin.list_topics())
        super().__init__(settings, [name for name in TOPICS if settings.kafka.topic(name) in self._existing], since)
        # the last report of each destination counts, however old it is
        whole = [one for one in self._partitions if self.names[one.topic] == "destinations"]
        if whole:
            self._consumer.seek_to_beginning(*whole)

    @property
    def outdated(self) -> bool:
        """Whether a topic of the planes or a lease has been created since the feed began."""
        wanted = {self._settings.kafka.topic(name) for name in (*TOPICS, *(f"{job}-lease" for job in JOBS))}
        return not (set(self._admin.list_topics()) & wanted <= self._existing)

    def give(self, planes: Planes, timeout_ms: int = 0) -> None:
        """Give the new records to the planes, in the order of time."""
        for record in sorted(self.records(timeout_ms), key=attrgetter("timestamp")):
            planes.take(self.names[record.topic], record)

    def read_to_end(self, planes: Planes) -> None:
        """Give all present records to the planes.

        :raises KafkaError: the broker is unavailable
        """
        self.read_all(lambda record: planes.take(self.names[record.topic], record))

    def signs(self) -> list[JobSign]:
        """Return the jobs that have run at some time.

        :raises KafkaError: the broker is unavailable
        """
        topic = self._settings.kafka.topic
        leases = {TopicPartition(topic(f"{job}-lease"), 0): job for job in JOBS}
        wanted = {one: OffsetSpec.MAX_TIMESTAMP for one in leases if one.topic in self._existing}
        found = self._admin.list_partition_offsets(wanted) if wanted else {}
        last = {leases[partition]: entry.timestamp for partition, entry in found.items() if entry.timestamp >= 0}
        lags, now = self._lags(last), epoch_milliseconds()
        return [
            JobSign(job, max(0, now - at), now - at < SILENT_MS, lags[job])
            for job, at in sorted(last.items(), key=lambda one: list(JOBS).index(one[0]))
        ]

    def _lags(self, jobs: Any) -> dict[str, list[Lag]]:
        groups = {job: self._settings.kafka.group_of(job) for job in jobs}
        topics = {job: [self._settings.kafka.topic(name) for name in JOBS[job]] for job in jobs}
        existing = {name for names in topics.values() for name in names} & self._existing
        ends = kafka_topics.ends(self._admin, kafka_topics.of_topics(self._admin, sorted(existing))) if existing else {}
        try:
            committed = self._admin.list_group_offsets(list(groups.values())) if groups else {}
        except RetriableError:
            # no group has committed on this broker yet, or the coordinator is moving
            committed = {}
        found: dict[str, list[Lag]] = {}
        for job, group in groups.items():
            read = {partition: entry.offset for partition, entry in committed.get(group, {}).items()}
            found[job] = []
            for name in topics[job]:
                own = {partition: end for partition, end in ends.items() if partition.topic == name}
                if own.keys() & read.keys():
                    behind = sum(end - read.get(partition, 0) for partition, end in own.items())
                    found[job].append(Lag(name, group, behind))
        return found


class PlaneWatch(Closing):
    """Follows the planes in a thread of its own, but only while it is looked at: reports of readers cost the gateway.

    What is shown begins one window before the first look.
    """

    def __init__(self, settings: Settings) -> None:
        """Begin; nothing is connected before the first look."""
        self._settings = settings
        self._forget()
        self._note = ""
        self._looked = -IDLE_SECONDS
        self._wanted, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ackstream-planes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._closing.set()
        self._wanted.set()
        self._thread.join()

    def look(self) -> tuple[PlanesView, list[JobSign], str]:
        """Return what is known of the planes, the jobs, and a note if they cannot be followed."""
        self._looked = time.monotonic()
        self._wanted.set()
        return self._view, self._signs, self._note

    @property
    def _idle(self) -> bool:
        return time.monotonic() - self._looked > IDLE_SECONDS

    def _run(self) -> None:
        while not self._closing.is_set():
            if self._idle:
                # what was true an hour ago would be the first that a page shows
                self._forget()
                self._wanted.clear()
                # a look, or the end, since the question above would otherwise go unnoticed
                if self._idle and not self._closing.is_set():
                    self._wanted.wait()
                continue
            try:
                self._follow()
            except Exception as error:  # noqa: BLE001 - a thread that dies would freeze the page
                log.warning("The planes cannot be followed: %r", error)
                self._note = f"The planes cannot be followed: {error}"
                self._closing.wait(RETRY_SECONDS)

    def _forget(self) -> None:
        self._view = Planes(self._settings.gateway.page_window).view(epoch_milliseconds())
        self._signs: list[JobSign] = []

    def _follow(self) -> None:
        """Follow until nobody looks any more."""
        window = self._settings.gateway.page_window
        with PlaneFeed(self._settings, epoch_milliseconds() - window) as feed:
            planes, signs_at, view_at = Planes(window), 0.0, 0.0
            while not (self._closing.is_set() or self._idle):
                feed.give(planes, POLL_MS)
                if time.monotonic() >= view_at:
                    self._view = planes.view(epoch_milliseconds())
                    view_at = time.monotonic() + VIEW_SECONDS
                if time.monotonic() >= signs_at:
                    if feed.outdated:
                        return
                    self._signs, self._note = feed.signs(), ""
                    signs_at = time.monotonic() + SIGNS_SECONDS
