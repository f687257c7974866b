"""Messages of a work queue, read from Kafka, or from the table ``messages`` if they are deleted or unreadable there."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

import msgspec
from kafka.errors import LeaderNotAvailableError

from ackstream.client.core.arguments import names
from ackstream.client.core.connection import Connection
from ackstream.client.core.messages import Message
from ackstream.client.reading import samples
from ackstream.errors import InconsistentQosError, OutcomeNotEnabledError
from ackstream.kafka.reader import Place, TopicReader
from ackstream.protocol.queues import MessageDelivered, Settlement
from ackstream.protocol.readers import SampleOutcome
from ackstream.protocol.record_headers import FOR_QUEUE
from ackstream.settings import Lake

Settle: TypeAlias = Callable[[MessageDelivered, Settlement], None]


@dataclass(frozen=True, eq=False)
class QueueMessage(Message):
    """One delivery of a message, which belongs to its consumer until it is settled.

    Safe to settle from any thread and in any order; see :class:`QueueConsumer` for who settles when.

    :ivar seq: the publisher's sequence number of it
    :ivar delivery: the queue's record of the delivery
    """

    seq: int
    delivery: MessageDelivered
    _settle: Settle = field(repr=False)
    _link: Any = field(repr=False)

    @classmethod
    def of(cls, content: samples.Sample, delivery: MessageDelivered, settle: Settle, link: Any) -> "QueueMessage":
        """Return the delivery of a message that was fetched; ``link``: the ``QueueLink`` of its consumer."""
        message = {each.name: getattr(content, each.name) for each in fields(Message)}
        if FOR_QUEUE in content.headers:
            # a copy that the application publishes is for all
            message["headers"] = {name: value for name, value in content.headers.items() if name != FOR_QUEUE}
        return cls(**message, seq=content.seq, delivery=delivery, _settle=settle, _link=link)

    @property
    def id(self) -> str:
        """Its id in the queue, the same in each delivery."""
        return self.delivery.message

    @property
    def count(self) -> int:
        """How often it has been delivered, including this time."""
        return self.delivery.count

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before."""
        return self.delivery.redelivered

    @property
    def lease_left(self) -> float | None:
        """Seconds until the queue may give it to another consumer; ``None``: as long as the session lasts."""
        left = self._link.lease_left(self.delivery)
        return None if left is None else left / 1000

    def settle(self, outcome: SampleOutcome = "accepted") -> None:
        """Settle the message; a second time has no effect.

        :raises OutcomeNotEnabledError: the consumer did not declare the outcome; it keeps the message
        :raises NotConnectedError: the session in which it was delivered is over; it is redelivered, here or elsewhere
        """
        self._settle(self.delivery, outcome)

    def working(self) -> None:
        """Report that the work continues: the lease restarts, up to ``max_lease`` of the queue since the handing out.

        Call it as often as you like: a record is sent each third of a lease at most, and none without a lease. The
        queue reports to ``on_refused`` when a lease has ended before, or may not last longer.

        :raises PreconditionNotMetError: the message is settled, or was delivered again
        :raises NotConnectedError: as of :meth:`settle`
        """
        self._settle(self.delivery, "working")


AckMode: TypeAlias = Literal["client", "auto", "auto-cancel"]
"""Who settles (brokers.md S17, A30): the application; or the library after the handler. If the handler raised, the
message then stays with its consumer (``auto``, as in Solace) or is given back (``auto-cancel``, as in AMPS)."""


class FlowQos(msgspec.Struct, frozen=True):
    """When the library reports which deliveries it has received (S15): a transport ack, which settles nothing.

    :ivar window: deliveries; the granted backlog counts instead if it is smaller
    :ivar threshold_percent: percentage of the window, rounded down, at least one delivery, that causes a report
    :ivar ack_time: seconds after the first unreported delivery when a report is sent at the latest
    """

    window: int = 255
    threshold_percent: int = 60
    ack_time: float = 1.0

    def __post_init__(self) -> None:
        """Check the values; raise ``InconsistentQosError`` if nothing would be reported, or not in time."""
        if self.window < 1 or not 1 <= self.threshold_percent <= 100 or self.ack_time <= 0:  # noqa: PLR2004
            raise InconsistentQosError(
                f"A flow with a window of {self.window}, {self.threshold_percent} % and {self.ack_time:g} s reports"
                " nothing in time: use a window of at least 1, 1 to 100 %, and more than 0 s."
            )

    def threshold(self, backlog: int) -> int:
        """Return how many deliveries cause a report; ``backlog`` is the granted one (0: any number)."""
        return max(1, min(self.window, backlog or self.window) * self.threshold_percent // 100)


def outcomes_of(mode: AckMode, outcomes: Iterable[SampleOutcome]) -> tuple[SampleOutcome, ...]:
    """Return the outcomes that a consumer declares besides ``accepted``, sorted."""
    found: Any = {*names("outcomes", outcomes, SampleOutcome), *(["failed"] if mode == "auto-cancel" else [])}
    return tuple(sorted(found))


def after_handler(mode: AckMode, *, raised: bool) -> SampleOutcome | None:
    """Return how the library settles a message when its handler has ended; ``None`` if it does not."""
    if mode == "client" or (raised and mode == "auto"):
        return None
    return "failed" if raised else "accepted"


def takes_call(mode: AckMode, outcome: SampleOutcome) -> bool:
    """Return whether a call settles a message; in the library's modes only ``accepted`` is allowed, without effect."""
    if mode != "client" and outcome != "accepted":
        raise OutcomeNotEnabledError(f"A message cannot be settled as {outcome} where the library acknowledges.")
    return mode == "client"


class MessageFetcher:
    """Reads records by offset, nearby ones in one request; ``absence``: why one is missing. For one thread."""

    def __init__(self, connection: Connection, lake: Lake | None) -> None:
        self._lake = lake
        self.offline: set[int] = set()
        """The partitions that had no leader at the last fetch: their messages are there later."""
        self._reader = TopicReader(connection.consumer(connection.kafka.topic("messages"), fetch_max_wait_ms=50))
        self.absence = "is neither in Kafka nor in the table messages"
        if lake is None:
            remedy = "give the consumer the lake of the settings, whose table messages has it"
            self.absence = f"cannot be read from Kafka: {remedy}"

    def close(self) -> None:
        """Disconnect."""
        self._reader.close()

    def fetch(self, deliveries: Sequence[MessageDelivered]) -> dict[str, samples.Sample]:
        """Return the messages by id, without those that cannot be read (:attr:`absence`); an error is to be retried."""
        wanted = {(delivery.topic, delivery.partition, delivery.offset): delivery for delivery in deliveries}
        self.offline.clear()
        records = self._from_kafka(list(wanted))
        found = {place: one for place, record in records.items() if (one := samples.of_record(record)) is not None}
        if self._lake is not None and len(found) < len(wanted):
            from ackstream.lake import reading  # noqa: PLC0415 - it loads slowly, and most clients never need it

            gone = [one for location, one in wanted.items() if location not in found]
            rows = reading.messages_at(self._lake, [(one.batch, one.partition, one.offset) for one in gone])
            found |= {(row["topic"], row["partition"], row["offset"]): samples.of_row(row) for row in rows}
        return {delivery.message: found[location] for location, delivery in wanted.items() if location in found}

    def _from_kafka(self, places: Sequence[Place]) -> dict[Place, Any]:
        try:
            return self._reader.fetch(places)
        except LeaderNotAvailableError:
            partitions = {partition for _, partition, _ in places}
            if len(partitions) == 1:
                self.offline |= partitions
                return {}
            apart = (self._from_kafka([place for place in places if place[1] == one]) for one in partitions)
            return {place: record for records in apart for place, record in records.items()}
