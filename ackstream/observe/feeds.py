"""Feeds of the live page and of ``ackstream watch``: topics without a consumer group, and the jobs' signs of life."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import RetriableError, UnknownTopicOrPartitionError

from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import Closing, connect_admin, connect_consumer
from ackstream.kafka.connection import offsets_since
from ackstream.kafka.parties import LEASED, PARTIES
from ackstream.kafka.reader import TopicReader, check_topics
from ackstream.observe.outcomes import LedgerEntry, epoch_milliseconds, read_entry
from ackstream.observe.planes import TOPICS, Planes, PlanesView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.settings import Settings

log = logging.getLogger(__name__)

POLL_MS = 200
END_POLLS = 50
"""Maximum number of attempts to reach the end of topics that keep growing."""


class TopicFeed(Closing):
    """Reads topics without a consumer group, leaving no trace on the broker; a context manager."""

    def __init__(self, settings: Settings, topics: Iterable[str], since: int) -> None:
        """Connect, to read topics (no prefix) since epoch milliseconds; raises if one or the broker is missing."""
        self._settings = settings
        kafka = settings.kafka
        self.names = {kafka.topic(name): name for name in topics}
        with ExitStack() as stack:
            self._admin = stack.enter_context(connect_admin(kafka))
            self._consumer = connect_consumer(kafka, None)
            stack.callback(self._consumer.close)
            check_topics(self._consumer, kafka, reads=list(self.names))
            self._reader = TopicReader(self._consumer)
            # without a name Kafka describes all topics
            self._partitions = kafka_topics.of_topics(self._admin, list(self.names)) if self.names else []
            self._consumer.assign(self._partitions)
            for partition, offset in offsets_since(self._consumer, self._partitions, max(0, since)).items():
                self._consumer.seek(partition, offset)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Disconnect."""
        self._stack.close()

    def records(self, timeout_ms: int = POLL_MS) -> list[Any]:
        """Return new records, waiting briefly for some."""
        if self._partitions:
            return self._reader.read(timeout_ms)
        self._reader.stop.wait(timeout_ms / 1000)
        return []

    def read_all(self, take: Callable[[Any], None]) -> None:
        """Give all present records to a function; ``KafkaError``: the broker is unavailable."""
        ends = kafka_topics.ends(self._admin, self._partitions) if self._partitions else {}
        for _ in range(END_POLLS):
            while records := self.records():
                for record in records:
                    take(record)
            if all(self._consumer.position(partition) >= end for partition, end in ends.items()):
                return


SILENT_MS = 15_000
"""A clock without a sign of life for this time is reported; allows for the difference between two clocks."""


def clock_warning(signed_at: int | None, now: int) -> str:
    """Return a warning if the clock of requests stands still, else ""; ``signed_at``: epoch ms, ``None``: no sign."""
    if signed_at is not None and now - signed_at < SILENT_MS:
        return ""
    signs = "no sign of life yet"
    if signed_at is not None:
        signs = f"its last sign of life {(now - signed_at) // 1000} s ago"
    return f"The clock has given {signs}, so no request times out: is correlate running?"


class LedgerFeed(TopicFeed):
    """Reads the ledger, and checks the clock of requests."""

    def __init__(self, settings: Settings, since: int) -> None:
        """Connect, to read since epoch milliseconds; raises if the broker is unavailable or a topic is missing."""
        super().__init__(settings, ["ledger"], since)

    def records(self, timeout_ms: int = POLL_MS) -> list[LedgerEntry]:
        """Return new records, waiting briefly for some; anything that is no record of the ledger is skipped."""
        found = [
            read_entry((record.key or b"").decode("utf-8", "replace"), record.value, record.timestamp)
            for record in super().records(timeout_ms)
        ]
        return [entry for entry in found if entry is not None]

    def warning(self) -> str:
        """Return a warning if the clock of requests stands still, else ""; ``KafkaError``: no broker."""
        signs = TopicPartition(self._settings.kafka.topic("correlate-lease"), 0)
        try:
            latest = self._admin.list_partition_offsets({signs: OffsetSpec.MAX_TIMESTAMP})[signs].timestamp
        except UnknownTopicOrPartitionError:
            latest = -1
        return clock_warning(latest if latest >= 0 else None, epoch_milliseconds())


IDLE_SECONDS = 60.0
"""Reading stops after this time without a look at the page."""

VIEW_SECONDS, SIGNS_SECONDS = 1.0, 5.0
RETRY_SECONDS = 2.0

_SIDE = ("declarations", "destinations", "clock")
JOBS = {
    job: tuple(name for name in PARTIES[job].reads if name not in _SIDE and not name.endswith(("-clock", "-lease")))
    for job in LEASED
}
"""The topics whose records each job with a lease processes; topics of state, clocks and leases are left out."""


class Lag(msgspec.Struct, frozen=True):
    """Number of records of a topic that a consumer group has yet to read."""

    topic: str
    group: str
    records: int


class JobSign(msgspec.Struct, frozen=True):
    """A job that has run at some time: milliseconds since its last sign of life, and the lag per topic it committed."""

    job: str
    silent: int
    alive: bool
    lags: list[Lag]


class PlaneFeed(TopicFeed):
    """Reads those topics of all planes that exist."""

    def __init__(self, settings: Settings, since: int) -> None:
        """Connect, to read the records since epoch milliseconds; raises if the broker is unavailable."""
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
        """Give all present records to the planes; ``KafkaError``: the broker is unavailable."""
        self.read_all(lambda record: planes.take(self.names[record.topic], record))

    def signs(self) -> list[JobSign]:
        """Return the jobs that have run at some time; ``KafkaError``: the broker is unavailable."""
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
    """Follows the planes in a thread, from one window before the first look; only while it is looked at."""

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
        """Return the planes, the jobs, and a note if they cannot be followed."""
        self._looked = time.monotonic()
        self._wanted.set()
        return self._view, self._signs, self._note

    @property
    def _idle(self) -> bool:
        return time.monotonic() - self._looked > IDLE_SECONDS

    def _run(self) -> None:
        while not self._closing.is_set():
            if self._idle:
                # a page would open with the state of an hour ago
                self._forget()
                self._wanted.wait()
                # only now: a look, or the end, since the question above counts
                self._wanted.clear()
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
        """Follow until the page is closed everywhere."""
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
