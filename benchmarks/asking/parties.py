"""A party: read all requests, and answer each by the plan. ``parties BOOTSTRAP PREFIX LABEL REQUESTS``.

It shares nothing with the product: a Kafka client that reads and writes record headers. Answers to one request are in
partitions of one number, so that those in one topic have an order.
"""

from __future__ import annotations

import heapq
import sys
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from benchmarks.asking import plan
from benchmarks.broker import partitions, producer

POLL_SECONDS = 0.01


class Party:
    """Answers under one label, an index of ``plan.LABELS``."""

    def __init__(self, bootstrap: str, prefix: str, label: int, requests: int) -> None:
        self._prefix, self._label, self._left = prefix, label, requests
        own = {"bootstrap.servers": bootstrap, "group.id": f"party-{label}", "enable.auto.commit": False}
        own |= {"auto.offset.reset": "earliest"}
        self._consumer = Consumer({**own, "fetch.wait.max.ms": 20})
        places = [
            TopicPartition(prefix + topic, number, OFFSET_BEGINNING)
            for topic in plan.REQUEST_TOPICS
            for number in partitions(self._consumer, prefix + topic)
        ]
        self._consumer.assign(places)
        self._partitions = len(partitions(self._consumer, prefix + plan.ACK_TOPIC))
        self._producer: Producer = producer(bootstrap, **{"linger.ms": 5})
        self._due: list[tuple[float, int, int, bytes]] = []
        self._failed: list[str] = []

    def run(self) -> None:
        """Answer until all requests are read, and all their answers sent."""
        while self._left or self._due:
            for message in self._consumer.consume(1000, timeout=POLL_SECONDS):
                if message.error() is not None:
                    raise RuntimeError(f"The requests cannot be read: {message.error()}")
                self._take(message)
            while self._due and self._due[0][0] <= time.time():
                _, turn, number, identity = heapq.heappop(self._due)
                self._send(number, turn, identity)
                self._producer.poll(0)
            self._producer.poll(0)
        self._producer.flush()
        self._consumer.close()
        if self._failed:
            raise RuntimeError(f"{len(self._failed)} answers were not written: {self._failed[0]}")

    def _take(self, message: Any) -> None:
        self._left -= 1
        number, asked = int(message.key()), message.timestamp()[1] / 1000
        identity = identity_of(message)
        for turn, answer in enumerate(plan.answers(number, self._label)):
            heapq.heappush(self._due, (asked + answer.after, turn, number, identity.encode()))

    def _send(self, number: int, turn: int, identity: bytes) -> None:
        topic, value, headers = plan.written(number, self._label, turn, identity)
        self._producer.produce(
            self._prefix + topic, value, b"%d" % number, number % self._partitions, headers=headers,
            on_delivery=self._delivered,
        )  # fmt: skip

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed.append(str(error))


def identity_of(message: Any) -> str:
    """Return the correlation-id of a request: by its header, as a CloudEvent, else its coordinates."""
    headers = dict(message.headers())
    found = headers.get("correlation-id") or headers.get("ce_id")
    return found.decode() if found else f"{message.topic()}-{message.partition()}-{message.offset()}"


if __name__ == "__main__":
    bootstrap_, prefix_, label_, requests_ = sys.argv[1:]
    Party(bootstrap_, prefix_, int(label_), int(requests_)).run()
