"""The topics of correlate: its own, those that a signal may choose for its reply, and those of applications.

Reply topics come and go while the job runs, so workers look them up every few seconds. A reply to a missing topic goes
to ``replies``: Spark's sink ends the query for one, and every later start. Topics of applications are found at a start.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec
from kafka.errors import KafkaError

from ackstream.errors import AckstreamError, SettingsError
from ackstream.kafka.clients import MAX_RECORD_BYTES, connect_admin
from ackstream.kafka.topics import LIMITED, largest_records, replicas, system_topics
from ackstream.settings import Correlate, Kafka, Settings
from ackstream.settings.jobs import matches
from ackstream.settings.kafka import real
from ackstream.settings.security import Secret

log = logging.getLogger(__name__)

Destination: TypeAlias = tuple[str, "int | None"]
"""The topic of a reply, and its partition; ``None``: any."""

OVERHEAD_BYTES = 16_384
"""The bytes of a record beside its value: key and record headers, both of limited length, and Kafka's own."""
BUFFER_BYTES = 32_000_000
"""The largest record that the JVM's producer can buffer."""
REFRESH_SECONDS = 5.0


class CorrelateTopics(msgspec.Struct, frozen=True):
    """The topics of the job with their prefix, and the limits of their records, in bytes.

    ``reply_topics``: present topics that a request may choose, with their limits; ``partitions``: their numbers of
    partitions; ``record_bytes``: limit of the topics that the job writes; ``originator_key`` signs who sent a signal.
    ``requests``, ``answers``: the further topics of requests and of answers, without prefix.
    Choices are judged only by the settings: a batch replayed after a topic was deleted decides the same.
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
    requests: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, settings: Settings, limits: Mapping[str, int], partitions: Mapping[str, int], further: Iterable[str] = ()
    ) -> CorrelateTopics:
        """Derive the topics from the settings and those on the broker; ``further``: of :func:`further_topics`."""
        topic, asked, further = settings.kafka.topic, settings.correlate, list(further)
        replies, ledger, dead_letters = own = [topic(name) for name in LIMITED]
        smallest = min([BUFFER_BYTES, *[limits.get(name, MAX_RECORD_BYTES) for name in own]])
        allowed = {name: limits[name] for name in sorted(filter(asked.allows_reply_topic, limits))}
        requests, answers = (
            tuple([name for name in further if matches(patterns, name)])
            for patterns in (asked.request_topics, asked.ack_topics)
        )
        return cls(
            topic("signals"), topic("acks"), replies, ledger, dead_letters, allowed, smallest,
            topic("twin-acks"), topic("declarations"), settings.kafka.originator_key, dict(partitions),
            requests, answers,
        )  # fmt: skip

    @property
    def value_bytes(self) -> int:
        """How many bytes the value of a record may have."""
        return self.record_bytes - OVERHEAD_BYTES

    def destination(self, topic: str, partition: int | None, size: int) -> Destination:
        """Return the destination of a reply of ``size`` bytes: as chosen, else any partition, or ``replies``."""
        if topic != self.replies and size + OVERHEAD_BYTES > self.reply_topics.get(topic, 0):
            return self.replies, None
        # a re-created topic may have fewer
        return topic, partition if partition is not None and partition < self.partitions.get(topic, 0) else None


def check_patterns(settings: Settings) -> None:
    """Refuse patterns that match a topic of the system (SettingsError); reply topics may match ``replies``."""
    own, replies = system_topics(settings.kafka), settings.kafka.topic("replies")
    for key in ("reply_topics", "request_topics", "ack_topics"):
        for pattern in getattr(settings.correlate, key):
            refused = sorted(one for one in own if matches((pattern,), one) and (key, one) != ("reply_topics", replies))
            if refused:
                raise SettingsError(
                    f"The setting correlate.{key} has the pattern {pattern!r}, which {refused[0]} matches: that is a "
                    "topic of the system, where records of programs would act upon it. Write a pattern that none of "
                    f"these matches, such as {re.escape(settings.kafka.topic('own-'))}.*, and name topics by it."
                )


def further_topics(settings: Settings) -> tuple[str, ...]:
    """Return the topics of applications that the job reads, sorted. Raises SettingsError: a pattern matches none."""
    wanted, found = (*settings.correlate.request_topics, *settings.correlate.ack_topics), set[str]()
    if not wanted:
        return ()
    with connect_admin(settings.kafka) as admin:
        present = admin.list_topics()
    for pattern in wanted:
        named = {topic for topic in present if matches((pattern,), topic)}
        if not named:
            raise SettingsError(
                f"No topic matches {pattern!r} of correlate.request_topics or correlate.ack_topics: create the topic "
                "first, and let this login describe it, or correct the pattern."
            )
        found |= named
    return tuple(map(real, sorted(found)))


_Found = tuple[dict[str, int], dict[str, int]]


def look_up(kafka: Kafka, limits: Correlate, own: Iterable[str] = ()) -> _Found:
    """Return the limits of present reply topics and of the job's ``own`` (real names), and numbers of partitions."""
    with connect_admin(kafka) as admin:
        chosen = set(filter(limits.allows_reply_topic, admin.list_topics()))
        sizes = largest_records(admin, [*chosen, *own])
        partitions = replicas(admin, [kafka.topic("replies"), *chosen & sizes.keys()])
        return sizes, Counter(partition.topic for partition in partitions)


_looked_up: dict[tuple[str, str, tuple[str, ...]], tuple[float, _Found]] = {}
"""By broker, topic ``replies`` and patterns: when a worker has looked up the reply topics, and the result."""


def with_present_topics(topics: CorrelateTopics, kafka: Kafka, limits: Correlate) -> CorrelateTopics:
    """Return the topics with the reply topics of now, looked up every :data:`REFRESH_SECONDS` if Kafka answers."""
    if not limits.reply_topics:
        return topics
    key = kafka.bootstrap, topics.replies, limits.reply_topics
    at, known = _looked_up.get(key, (None, (topics.reply_topics, topics.partitions)))
    if at is None or time.monotonic() - at >= REFRESH_SECONDS:
        try:
            known = look_up(kafka, limits)
        except (KafkaError, AckstreamError) as error:
            log.warning("The reply topics cannot be looked up: %s", error)
        _looked_up[key] = (time.monotonic(), known)
    return msgspec.structs.replace(topics, reply_topics=known[0], partitions=known[1])
