"""A member of a consumer group: its partitions, its commits, and how the group spreads its partitions."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from kafka import TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.errors import KafkaConnectionError, KafkaError
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kafka.structs import OffsetAndMetadata

from ackstream.client.core.messages import OffsetProgress
from ackstream.errors import UnreachableError

log = logging.getLogger(__name__)

JOIN_SECONDS = 60.0
WARN_SECONDS = 10.0
"""Seconds after which a member logs that it waits for its partitions."""
COMMIT_SECONDS = 1.0
SESSION_MS = 10_000
"""Time after a crash until the other members of the group take over."""
HEARTBEAT_MS = 1_000
"""Time until a member notices that another one has joined or left."""

_TIMEOUT_MS = 5_000
_HELD = list[TopicPartition]


def spread(
    partitions: Collection[TopicPartition], members: Mapping[str, tuple[Collection[str], Sequence[TopicPartition]]]
) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each member by its topics, and those that it holds, in the order of its preference.

    All get about the same number. A member keeps those it holds as far as that is fair, and its first one always.
    """
    given: dict[str, list[TopicPartition]] = {name: [] for name in sorted(members)}
    share, larger = divmod(len(partitions), len(members))
    free = set(partitions)
    claims = [(rank, name, each) for name, (_, held) in members.items() for rank, each in enumerate(held)]
    for _, name, partition in sorted(claims):
        size = len(given[name])
        if partition in free and partition.topic in members[name][0] and size < share + bool(larger):
            larger -= size == share
            given[name].append(partition)
            free.remove(partition)
    for partition in sorted(free, key=lambda each: (each.partition, each.topic)):
        readers = [name for name in given if partition.topic in members[name][0]]
        given[min(readers, key=lambda name: len(given[name]))].append(partition)
    return given


class Assignor(AbstractPartitionAssignor):  # type: ignore[misc]  # kafka-python is not typed
    """Has the group keep ``busy`` with this member: its record is handled while the group rebalances."""

    name = "ackstream"
    version = 0

    def __init__(self) -> None:
        self.busy: TopicPartition | None = None
        self.held: list[TopicPartition] = []

    def metadata(self, topics: Iterable[str]) -> Any:
        """Return the record of this member for the one that assigns: its topics, and its partitions."""
        held = sorted(self.held, key=lambda each: (each != self.busy, each.partition, each.topic))
        return ConsumerProtocolSubscription(self.version, sorted(topics), msgspec.json.encode(held))

    def assign(self, cluster: Any, members: Sequence[Any]) -> dict[str, Any]:
        """Return the assignments by the members' records."""
        known = {
            each.member_id: (set(each.metadata.topics), msgspec.json.decode(each.metadata.user_data, type=_HELD))
            for each in members
        }
        topics = {topic for wanted, _ in known.values() for topic in wanted}
        partitions = [
            TopicPartition(topic, number) for topic in topics for number in cluster.partitions_for_topic(topic) or ()
        ]
        found = {}
        for name, given in spread(partitions, known).items():
            by_topic: dict[str, list[int]] = {}
            for topic, partition in sorted(given):
                by_topic.setdefault(topic, []).append(partition)
            found[name] = ConsumerProtocolAssignment(self.version, list(by_topic.items()), b"")
        return found

    def on_assignment(self, assignment: Any, generation: int) -> None:  # noqa: ARG002
        """Note the partitions of this member."""
        self.held = assignment.partitions()


class GroupMember(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python is not typed
    """Follows a consumer's partitions and commits each second, in the polling thread.

    The listener runs in the consumer's own thread, while the polling one waits for it; that thread makes the queries
    of ``wait_until_joined``, too, which any thread may call.

    :ivar rebalancing: whether the group is about to reassign the partitions: no further record is to be handled
    :ivar expelled: whether the group has ruled this member out since :meth:`follow`: others have its partitions
    """

    def __init__(
        self,
        consumer: Any,
        group: str,
        topics: Sequence[str],
        progress: OffsetProgress,
        start: Callable[[TopicPartition, int], None],
        assignor: Assignor | None = None,
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        """Subscribe; ``start`` is called with each new partition and its first offset, and may raise KafkaError.

        ``settle`` is called before partitions may go to others: it notes in ``progress`` the work that is done.
        """
        self.partitions: set[TopicPartition] = set()
        self.rebalancing = self.expelled = self._left = False
        self._consumer, self._group, self._topics = consumer, group, topics
        self._progress, self._start = progress, start
        self._assignor, self._settle = assignor or Assignor(), settle
        self._committed: dict[TopicPartition, int] = {}
        self._commit_at = 0.0
        self._changed, self._joined = threading.Event(), threading.Event()
        consumer.subscribe(list(topics), listener=self)

    def on_partitions_revoked(self, revoked: Any) -> None:  # noqa: ARG002
        """Commit the finished work: the next owner handles only the records after it."""
        self.rebalancing = True
        if self._left:
            return
        self._settle()
        if positions := self._progress.positions():
            self._consumer.commit_async(_offsets(positions), callback=self._note_commit)

    def on_partitions_lost(self, lost: Any) -> None:  # noqa: ARG002
        """Give up all partitions: other members handle the uncommitted records again."""
        self.rebalancing = self.expelled = True
        self.handles(None)
        self._assignor.held = []

    def on_partitions_assigned(self, assigned: Any) -> None:  # noqa: ARG002 - the consumer is queried, in its thread
        """Have the next :meth:`follow` check the assignment."""
        self.rebalancing = False
        self._changed.set()

    def handles(self, partition: TopicPartition | None) -> None:
        """Note the partition whose record is being handled: the group leaves it to this member meanwhile."""
        self._assignor.busy = partition

    def wait_until_joined(self) -> None:
        """Wait until partitions, perhaps none, are assigned, or others read them; UnreachableError: neither in 60 s."""
        if self._joined.wait(WARN_SECONDS):
            return
        log.warning(
            "The consumer group %s has assigned no partitions to this member for %g s: it waits for a member that "
            "does not poll, or its coordinator is away.",
            *(self._group, WARN_SECONDS),
        )
        if not self._joined.wait(JOIN_SECONDS - WARN_SECONDS) and not self._reads():
            raise UnreachableError(
                f"The consumer group {self._group} assigned no partitions to this member within {JOIN_SECONDS:g} s: "
                "check the log of its broker."
            )

    def _reads(self) -> bool:
        """Return whether the group has offsets: then it reads all records from now on, with this member or others."""
        consumer, topic = self._consumer, self._topics[0]
        try:
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
            return any(consumer.committed(each, timeout_ms=_TIMEOUT_MS) is not None for each in partitions)
        except KafkaError:
            return False

    def follow(self, records: Iterable[Any]) -> bool:
        """Follow a changed assignment, after each poll, with the records not handled yet; return whether it changed."""
        if not self._changed.is_set():
            return False
        self._changed.clear()
        expelled, self.expelled = self.expelled, False
        partitions = set(self._consumer.assignment())
        self._progress.keep(partitions)
        first = {TopicPartition(one.topic, one.partition): one.offset for one in reversed(list(records))}
        try:
            known = self._progress.positions().keys()
            for partition in partitions if expelled else partitions - known:
                offset = first.get(partition)
                if offset is None:
                    offset = self._consumer.position(partition, timeout_ms=_TIMEOUT_MS)
                if offset is None:
                    raise KafkaError(f"the offset of {partition} is unknown")  # noqa: TRY301 - as position() might
                if partition in known:
                    # another owner may have made progress before this one returned
                    self._progress.pass_over(partition, offset)
                else:
                    self._start(partition, offset)
            # a group that begins has no offsets: the member after a killed one must find where it began
            if positions := self._progress.positions():
                self._consumer.commit(_offsets(positions), timeout_ms=_TIMEOUT_MS)
        except (KafkaError, AssertionError) as error:
            log.warning("Reading the offsets of the group %s failed and is retried: %s", self._group, error)
            self._changed.set()
        else:
            self.partitions = partitions
            self._commit_at = 0.0
            self._joined.set()
        return True

    def commit(self, now: float) -> None:
        """Commit the progress of the last second, without waiting for the broker."""
        if now < self._commit_at or self.rebalancing:
            return
        self._commit_at = now + COMMIT_SECONDS
        if (positions := self._progress.positions()) != self._committed:
            self._consumer.commit_async(_offsets(positions), callback=self._note_commit)

    def leave(self, metadata: Callable[[TopicPartition], str] = lambda _partition: "") -> None:
        """Commit the progress with texts, unless no broker is connected, for at most 5 s; close the consumer."""
        try:
            if not self._consumer.reached:
                raise KafkaConnectionError("no broker is connected")
            self._consumer.commit(_offsets(self._progress.positions(), metadata), timeout_ms=_TIMEOUT_MS)
        except (KafkaError, AssertionError) as error:
            log.warning("The last offsets of the group %s were not committed: %s", self._group, error)
        self.abandon()

    def abandon(self) -> None:
        """Close the consumer without a commit."""
        self._left = True
        self._consumer.close(autocommit=False, timeout_ms=_TIMEOUT_MS)

    def _note_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], result: Any) -> None:
        if isinstance(result, Exception):
            log.warning("Committing the offsets of the group %s failed and is retried: %s", self._group, result)
        else:
            self._committed = {partition: offset.offset for partition, offset in offsets.items()}


def _offsets(
    positions: dict[TopicPartition, int], metadata: Callable[[TopicPartition], str] = lambda _partition: ""
) -> dict[TopicPartition, OffsetAndMetadata]:
    return {partition: OffsetAndMetadata(offset, metadata(partition), -1) for partition, offset in positions.items()}
