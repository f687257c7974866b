"""The messages that a queue's deliveries name: fetched where they are, in Kafka or in the table ``messages``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from ackstream.client import connection, retained
from ackstream.client.errors import MessageGoneError
from ackstream.client.samples import COLUMNS, SERVICE_HEADERS, of_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ackstream.protocol.queues import Delivered
    from ackstream.settings import Kafka, Lake

POLL_MS = 200
PATIENCE_SECONDS = 10.0
NEAR = 1_000
"""Records up to which the next wanted one is waited for; a jump costs a request of its own."""


@dataclass(frozen=True)
class Content:
    """What the publisher sent; ``headers`` are the application's own, of a name that comes twice the last value."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]
    timestamp_ms: int


Place = tuple[str, int, int]


class Fetcher:
    """Reads records by their offsets, the near ones in one go. For one thread."""

    def __init__(self, kafka: Kafka, lake: Lake | None) -> None:
        """Connect.

        :param lake: where the table is, for messages that Kafka has deleted
        :raises UnreachableError: no broker
        """
        self._lake = lake
        self._consumer = connection.connect_consumer(kafka, None, auto_offset_reset="earliest", fetch_max_wait_ms=50)

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close(autocommit=False)

    def fetch(self, deliveries: Sequence[Delivered]) -> dict[str, Content]:
        """Return the messages by their ids.

        :raises MessageGoneError: one is not in Kafka, and there is no other place to look, or it is not there either
        :raises KafkaError: the broker does not answer in time; to be tried again
        """
        wanted = {(one.topic, one.partition, one.offset): one for one in deliveries}
        found = self._from_kafka(wanted)
        gone = {place: one for place, one in wanted.items() if place not in found}
        if gone:
            found |= self._from_table(gone)
        return {one.message: found[place] for place, one in wanted.items()}

    def _from_kafka(self, wanted: Iterable[Place]) -> dict[Place, Content]:
        pending: dict[Any, list[int]] = {}
        for topic, partition, offset in sorted(wanted, reverse=True):
            pending.setdefault(TopicPartition(topic, partition), []).append(offset)
        found: dict[Place, Content] = {}
        for place, beginning in self._consumer.beginning_offsets(list(pending)).items():
            # what Kafka has deleted is looked for elsewhere
            pending[place] = [offset for offset in pending[place] if offset >= beginning]
        positions: dict[Any, int] = {}
        assigned: set[Any] = set()
        until = time.monotonic() + PATIENCE_SECONDS
        while pending := {place: offsets for place, offsets in pending.items() if offsets}:
            if changed := pending.keys() != assigned:
                assigned = set(pending)
                self._consumer.assign(sorted(assigned))
            for place, offsets in pending.items():
                position = positions.get(place)
                far = position is None or offsets[-1] > position + NEAR
                if far or changed:
                    self._consumer.seek(place, offsets[-1] if far else position)
            for place, records in self._consumer.poll(timeout_ms=POLL_MS).items():
                until = time.monotonic() + PATIENCE_SECONDS
                positions[place] = records[-1].offset + 1
                _take(records, pending[place], found)
            if time.monotonic() > until:
                raise KafkaTimeoutError(f"nothing came from {', '.join(map(str, pending))}")
        return found

    def _from_table(self, gone: Mapping[Place, Delivered]) -> dict[Place, Content]:
        one = next(iter(gone.values()))
        if self._lake is None:
            raise MessageGoneError(
                f"Message {one.message} is no longer in Kafka: give the consumer the lake of the settings, whose table"
                " messages has it."
            )
        batches = sorted({delivery.batch for delivery in gone.values()})
        found = {}
        for row in retained.rows(self._lake, ("topic", *COLUMNS), lambda field: field("batch").isin(batches)):
            place = (row["topic"], row["partition"], row["offset"])
            if place in gone:
                sample = of_row(row)
                found[place] = Content(sample.key, sample.value, sample.headers, sample.timestamp_ms)
        for place, delivery in gone.items():
            if place not in found:
                raise MessageGoneError(f"Message {delivery.message} is neither in Kafka nor in the table messages.")
        return found


def _take(records: Iterable[Any], offsets: list[int], found: dict[Place, Content]) -> None:
    """Take the wanted records of a partition; ``offsets`` are what is still wanted, the lowest last."""
    for record in records:
        while offsets and offsets[-1] < record.offset:
            # it has been deleted meanwhile
            offsets.pop()
        if offsets and offsets[-1] == record.offset:
            offsets.pop()
            headers = dict(record.headers)
            own = {name: value for name, value in headers.items() if name not in SERVICE_HEADERS}
            place = (record.topic, record.partition, record.offset)
            found[place] = Content(headers.get("key"), record.value, own, record.timestamp)
