"""Feeds of the live page and of ``ackstream watch``: topics without a consumer group, and the jobs' signs of life."""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from kafka import TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError, RetriableError, UnknownTopicOrPartitionError

from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import Closing, connect_admin, connect_consumer
from ackstream.kafka.connection import offsets_since
from ackstream.kafka.parties import LEASED, PARTIES
from ackstream.kafka.reader import TopicReader, check_topics
from ackstream.observe.outcomes import LedgerEntry, Meter, Snapshot, Verdict, epoch_milliseconds, read_entry
from ackstream.observe.planes import Planes, PlanesView
from ackstream.settings import Settings

POLL_MS = 200
END_POLLS = 50
"""Maximum number of attempts to reach the end of topics that keep growing."""
_LIMITED = {"request_timeout_ms": 10_000}
"""A broker that hangs holds up all topics that one thread follows, and with them the gateway's sign of life."""


class TopicFeed(Closing):
    """Reads topics without a consumer group, leaving no trace on the broker; a context manager."""

    def __init__(self, settings: Settings, topics: Iterable[str], since: int, *, existing: bool = False) -> None:
        """Connect, to read (only the ``existing``) topics since epoch ms; raises if one or the broker is missing."""
        self._settings, kafka = settings, settings.kafka
        self._newest: dict[TopicPartition, int] = {}
        self.names = {kafka.topic(name): name for name in topics}
        with ExitStack() as stack:
            self._admin = stack.enter_context(connect_admin(kafka, **_LIMITED))
            self._consumer = connect_consumer(kafka, None, **_LIMITED)
            stack.callback(self._consumer.close)
            self._existing = set(self._admin.list_topics() if existing else self.names)
            self.names = {topic: self.names[topic] for topic in self.names if topic in self._existing}
            check_topics(self._consumer, kafka, reads=list(self.names))
            self._reader = TopicReader(self._consumer)
            # without a name Kafka describes all topics
            self._partitions = list(kafka_topics.replicas(self._admin, self.names)) if self.names else []
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

    def _look_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Note the time of the newest record of each partition, epoch ms; a broker may know none for a moment."""
        wanted = dict.fromkeys(partitions, OffsetSpec.MAX_TIMESTAMP)
        found = self._admin.list_partition_offsets(wanted) if wanted else {}
        self._newest |= {one: entry.timestamp for one, entry in found.items() if entry.timestamp >= 0}

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


def silence(signed_at: int | None, now: int) -> str:
    """Return a warning if correlate has given no sign of life of late, else ""; epoch ms, ``None``: no sign ever."""
    if signed_at is not None and now - signed_at < SILENT_MS:
        return ""
    signs = "no sign of life yet"
    if signed_at is not None:
        signs = f"its last sign of life {(now - signed_at) // 1000} s ago"
    return f"The job correlate has given {signs}, so no request is answered or times out: is it running?"


class LedgerFeed(TopicFeed):
    """Reads the ledger, and checks the clock of requests."""

    def __init__(self, settings: Settings, since: int) -> None:
        """Connect, to read since epoch milliseconds; raises if the broker is unavailable or a topic is missing."""
        super().__init__(settings, ["ledger"], since)

    def records(self, timeout_ms: int = POLL_MS) -> list[LedgerEntry]:
        """Return new records, waiting briefly for some; anything else than a record of the ledger is skipped."""
        found = [
            read_entry((record.key or b"").decode("utf-8", "replace"), record.value, record.timestamp)
            for record in super().records(timeout_ms)
        ]
        return [entry for entry in found if entry is not None]

    def signed_at(self) -> int | None:
        """Return the time of correlate's newest sign of life, epoch ms, or ``None``; ``KafkaError``: no broker."""
        signs = TopicPartition(self._settings.kafka.topic("correlate-lease"), 0)
        with suppress(UnknownTopicOrPartitionError):
            self._look_up([signs])
        return self._newest.get(signs)

    def warning(self) -> str:
        """Return a warning if correlate is silent, else ""; ``KafkaError``: no broker."""
        return silence(self.signed_at(), epoch_milliseconds())


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
        super().__init__(settings, Planes.TOPICS, since, existing=True)
        # the last report of each destination counts, however old it is
        whole = [one for one in self._partitions if self.names[one.topic] == "destinations"]
        if whole:
            self._consumer.seek_to_beginning(*whole)

    @property
    def outdated(self) -> bool:
        """Whether a topic of the planes or a lease has been created since the feed began."""
        wanted = {self._settings.kafka.topic(name) for name in (*Planes.TOPICS, *(f"{job}-lease" for job in JOBS))}
        return not (set(self._admin.list_topics()) & wanted <= self._existing)

    def give(self, planes: Planes) -> bool:
        """Give the new records to the planes, in the order of time; return whether there were any."""
        records = sorted(self.records(0), key=attrgetter("timestamp"))
        for record in records:
            planes.take(self.names[record.topic], record)
        return bool(records)

    def read_to_end(self, planes: Planes) -> None:
        """Give all present records to the planes; ``KafkaError``: the broker is unavailable."""
        self.read_all(lambda record: planes.take(self.names[record.topic], record))

    def signs(self) -> list[JobSign]:
        """Return the jobs that have run at some time; ``KafkaError``: the broker is unavailable."""
        leases = {TopicPartition(self._settings.kafka.topic(f"{job}-lease"), 0): job for job in JOBS}
        self._look_up(one for one in leases if one.topic in self._existing)
        last = {leases[partition]: at for partition, at in self._newest.items()}
        lags, now = self._lags(last), epoch_milliseconds()
        return [
            JobSign(job, max(0, now - at), now - at < SILENT_MS, lags[job])
            for job, at in sorted(last.items(), key=lambda one: list(JOBS).index(one[0]))
        ]

    def _lags(self, jobs: Any) -> dict[str, list[Lag]]:
        groups = {job: self._settings.kafka.group_of(job) for job in jobs}
        topics = {job: [self._settings.kafka.topic(name) for name in JOBS[job]] for job in jobs}
        try:
            committed = self._admin.list_group_offsets(list(groups.values())) if groups else {}
        except RetriableError:
            # no group has committed on this broker yet, or the coordinator is moving
            committed = {}
        names = {partition.topic for entries in committed.values() for partition in entries}
        applications = sorted(names - {self._settings.kafka.topic(one) for job in JOBS for one in PARTIES[job].topics})
        existing = sorted({*applications, *chain(*topics.values())} & set(self._admin.list_topics()))
        ends = kafka_topics.ends(self._admin, kafka_topics.replicas(self._admin, existing)) if existing else {}
        found: dict[str, list[Lag]] = {}
        for job, group in groups.items():
            read = {partition: entry.offset for partition, entry in committed.get(group, {}).items()}
            found[job] = []
            for name in (*topics[job], *applications):
                own = {partition: end for partition, end in ends.items() if partition.topic == name}
                if own.keys() & read.keys():
                    behind = sum(end - read.get(partition, 0) for partition, end in own.items())
                    found[job].append(Lag(name, group, behind))
        return found


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
        self._ledger.read_all(self._meter.take)
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
            for entry in self._ledger.records():
                self._meter.take(entry)
            self._topics.give(self._planes)

    def now(self) -> Overview:
        """Return the current state of all planes."""
        now, meter = epoch_milliseconds(), self._meter
        found = meter.snapshot(now), meter.trends(now), meter.newest
        return Overview(now, *found, self._jobs, self._planes.view(now), self._note)
