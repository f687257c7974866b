"""A connection of a client whose consumers and producers are those of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.client.core.connection import Connection, Producer
from ackstream.kafka.reader import TopicReader
from ackstream.settings import Kafka

if TYPE_CHECKING:
    import threading


class FakeConnection(Connection):
    """Gives out the consumer, the producer (both of kafka-python's kind) and the link that the test has made.

    :ivar time: of the monotonic clock; ``None``: that of the machine
    """

    def __init__(
        self, consumer: Any = None, producer: Any = None, link: Any = None, kafka: Kafka | None = None
    ) -> None:
        super().__init__(kafka or Kafka())
        self.made = [consumer, producer, link]
        self.time: float | None = None

    def now(self) -> float:
        return super().now() if self.time is None else self.time

    def reader(self, *_: str, stop: threading.Event | None = None, **__: Any) -> TopicReader:
        return TopicReader(self.made[0], stop)

    def consumer(self, *_: str, **__: Any) -> Any:
        return self.made[0]

    def producer(self, *_: str, **__: Any) -> Producer:
        return Producer(self.kafka, self.made[1])

    def link(self, name: str, *_: Any, **options: Any) -> Any:  # noqa: ARG002
        return self.made[2]
