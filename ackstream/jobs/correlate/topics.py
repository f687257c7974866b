"""The topics of the correlate job, and what a record of them may weigh: no record it writes is refused by its broker.

Topics for replies that requests choose come and go while the job runs, so its workers look them up again every few
seconds. A reply whose topic has gone goes to ``replies``: Spark's sink would end the query, and every later start.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from kafka.errors import KafkaError

from ackstream.errors import AckstreamError, SettingsError
from ackstream.kafka.clients import MAX_RECORD_BYTES, connect_admin
from ackstream.kafka.topics import LIMITED, largest_records, of_topics, system_topics
from ackstream.protocol.errors import DittoError, shown
from ackstream.protocol.record_headers import REPLY_TO, SPRING_REPLY_PARTITION, SPRING_REPLY_TOPIC
from ackstream.settings.security import Secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackstream.jobs.correlate.state import Record
    from ackstream.settings import Correlate, Kafka, Settings

log = logging.getLogger(__name__)

OVERHEAD_BYTES = 16_384
"""What a record may have beside its value: the key and the record headers, both of limited length, and Kafka's own."""

BUFFER_BYTES = 32_000_000
"""The largest record that the JVM's producer can buffer."""

REFRESH_SECONDS = 5.0
INTEGER_BYTES = 4
"""Of an integer as Spring writes it."""


def check_reply_topics(settings: Settings) -> None:
    """Refuse patterns of reply topics that a topic of the system matches: its records would act upon the system.

    :raises SettingsError: with the pattern and the topic
    """
    kafka = settings.kafka
    own = sorted(system_topics(kafka) - {kafka.topic("replies")})
    for pattern in settings.correlate.reply_topics:
        found = [topic for topic in own if re.fullmatch(pattern, topic)]
        if found:
            raise SettingsError(
                f"The setting correlate.reply_topics has the pattern {pattern!r}, which {found[0]} matches: a request"
                f" could have its reply written to that topic of the system, where it would count. Write a pattern"
                f" that none of these matches, such as {re.escape(kafka.topic('replies-'))}.*, and name topics by it."
            )


class CorrelateTopics(msgspec.Struct, frozen=True):
    """The topics of the job with their prefix, and the limits of their records, in bytes.

    ``reply_topics`` are those that a request may choose for its reply, with their limits; ``partitions`` are the
    numbers of partitions of these topics and of ``replies``; ``record_bytes`` is the limit of the topics that the job
    writes itself; ``originator_key`` signs who sent a signal.
    """

    signals: str = "signals"
    acks: str = "acks"
    replies: str = "replies"
    ledger: str = "ledger"
    dead_letters: str = "dead-letters"
    reply_topics: dict[str, int] = {}
    record_bytes: int = MAX_RECORD_BYTES
    twin_acks: str = "twin-acks"
    declarations: str = "declarations"
    originator_key: Secret | None = None
    partitions: dict[str, int] = {}

    @classmethod
    def of(cls, settings: Settings, limits: Mapping[str, int], partitions: Mapping[str, int]) -> CorrelateTopics:
        """Derive the topics from the settings and the topics on the broker with their limits and partitions."""
        topic = settings.kafka.topic
        replies, ledger, dead_letters = own = [topic(name) for name in LIMITED]
        smallest = min([BUFFER_BYTES, *[limits.get(name, MAX_RECORD_BYTES) for name in own]])
        allowed = {name: limits[name] for name in sorted(settings.correlate.allowed_reply_topics(limits))}
        return cls(
            topic("signals"), topic("acks"), replies, ledger, dead_letters, allowed, smallest,
            topic("twin-acks"), topic("declarations"), settings.kafka.originator_key, dict(partitions),
        )  # fmt: skip

    @property
    def by_source(self) -> tuple[str, str, str, str]:
        """The topics that are read, by the numbers of the state (``SIGNALS``, ``ACKS``, …)."""
        return self.signals, self.acks, self.twin_acks, self.declarations

    @property
    def value_bytes(self) -> int:
        """How many bytes the value of a record may have."""
        return self.record_bytes - OVERHEAD_BYTES

    def reply_topic(self, record: Record) -> str:
        """Return the topic for the reply: the one the request chose, else the replies topic.

        :raises DittoError: 400 ``header.invalid`` if the chosen topic is not allowed
        """
        for name in (REPLY_TO, SPRING_REPLY_TOPIC):
            chosen = record.headers.get(name)
            if chosen is None:
                continue
            topic = chosen.decode("utf-8", "replace")
            if topic != self.replies and topic not in self.reply_topics:
                raise DittoError(
                    400,
                    "header.invalid",
                    f"The value '{shown(topic)}' of the header '{name}' is not an allowed reply topic.",
                    "Choose an existing topic that matches one of the configured reply topics, or omit the header.",
                    invalidHeaderKey=name,
                )
            return topic
        return self.replies

    def reply_partition(self, record: Record, topic: str) -> int | None:
        """Return the partition that the request chose for its reply; ``None``: any.

        :param topic: of the reply
        :raises DittoError: 400 ``header.invalid`` if the topic has no such partition
        """
        chosen = record.headers.get(SPRING_REPLY_PARTITION)
        if chosen is None:
            return None
        partition, count = int.from_bytes(chosen, "big"), self.partitions.get(topic, 0)
        if len(chosen) == INTEGER_BYTES and partition < count:
            return partition
        raise DittoError(
            400,
            "header.invalid",
            f"The value of the header '{SPRING_REPLY_PARTITION}' is no partition of the reply topic '{topic}'.",
            f"Give one of its {count} partitions as a big-endian integer of {INTEGER_BYTES} bytes, or omit the header.",
            invalidHeaderKey=SPRING_REPLY_PARTITION,
        )

    def destination(self, topic: str, partition: int | None, size: int) -> tuple[str, int | None]:
        """Return where a reply of so many bytes goes: as chosen for it, else to any partition, or to ``replies``."""
        if topic != self.replies and size + OVERHEAD_BYTES > self.reply_topics.get(topic, 0):
            return self.replies, None
        # a topic that was created anew may have fewer
        return topic, partition if partition is not None and partition < self.partitions.get(topic, 0) else None


_Found = tuple[dict[str, int], dict[str, int]]
"""The largest records, and the numbers of partitions, of topics."""

_looked_up: dict[tuple[str, str, tuple[str, ...], frozenset[str]], tuple[float, _Found]] = {}
"""When a worker has looked up the reply topics of a broker and its patterns, and what it found; by what the start of
the job had found, too: a worker may have worked for an earlier start."""


class ReplyTopics:
    """Looks up the topics that requests may choose, in the workers; at most every :data:`REFRESH_SECONDS`."""

    def __init__(self, kafka: Kafka, limits: Correlate) -> None:
        """Look up by these settings."""
        self._kafka = kafka
        self._limits = limits

    def refreshed(self, topics: CorrelateTopics) -> CorrelateTopics:
        """Return the topics with the reply topics of now; while Kafka does not answer, with those that were known."""
        patterns = self._limits.reply_topics
        if not patterns:
            return topics
        key = (self._kafka.bootstrap, topics.replies, patterns, frozenset(topics.reply_topics))
        at, known = _looked_up.get(key, (None, (topics.reply_topics, topics.partitions)))
        if at is None or time.monotonic() - at >= REFRESH_SECONDS:
            try:
                known = self._allowed(topics.replies)
            except (KafkaError, AckstreamError) as error:
                log.warning("The reply topics cannot be looked up: %s", error)
            _looked_up[key] = (time.monotonic(), known)
        return msgspec.structs.replace(topics, reply_topics=known[0], partitions=known[1])

    def _allowed(self, replies: str) -> _Found:
        with connect_admin(self._kafka) as admin:
            limits = largest_records(admin, self._limits.allowed_reply_topics(admin.list_topics()))
            return limits, partition_counts(admin, [replies, *limits])


def partition_counts(admin: Any, topics: Iterable[str]) -> dict[str, int]:
    """Return how many partitions topics have (real names, of topics that exist)."""
    return Counter(partition.topic for partition in of_topics(admin, topics))
