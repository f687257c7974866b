"""Open-loop load from a process of its own: requests at a fixed rate regardless of replies, their acknowledgements.

A request's time is the moment it was due, not the moment it went out: a client that falls behind does not look better.
The first request is sent alone; once it is answered, the others follow. Acknowledgements follow their request by 20 to
200 ms. Every reply is compared with what it has to be. Written: one entry a request, times in epoch seconds.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from pathlib import Path

from benchmarks import broker
from benchmarks.replies import Verdicts
from benchmarks.workload import LABELS, Workload

SOONEST, LATEST = 0.02, 0.2
POLL_SECONDS = 0.002
HEARTBEAT_SECONDS = 0.1
PATIENCE_SECONDS = 90


class Load:
    """Sends and receives until every request is answered, or until it is clear that some will not be."""

    def __init__(
        self, bootstrap: str, prefix: str, workload: Workload, rate: float, timeout: float, *, heartbeats: bool
    ) -> None:
        self._signals, self._acks = prefix + "signals", prefix + "acks"
        self._workload = workload
        self._rate = rate
        self._timeout = timeout
        self._verdicts = Verdicts(workload)
        self._random = random.Random(7)
        self._due: list[tuple[float, int, int]] = []
        self._producer = broker.producer(bootstrap, **{"linger.ms": 1})
        self._consumer = broker.consumer_at_end(bootstrap, prefix + "replies")
        count = workload.requests
        self.sent, self.last_ack, self.replied = [0.0] * count, [0.0] * count, [0.0] * count
        self.completed_by: list[str | None] = [None] * count
        self.verdicts = self._verdicts.counts
        self._beat = 0.0
        topics = (self._signals, self._acks) if heartbeats else ()
        self._partitions = [(topic, number) for topic in topics for number in broker.partitions(self._consumer, topic)]

    def run(self) -> None:
        """Send everything, wait for open requests."""
        now = time.time()
        self._request(0, now)
        over = now + PATIENCE_SECONDS
        while not self._verdicts.answered and (now := time.time()) < over:
            self._go_on(now)
        start = now + 0.2
        count, number = self._workload.requests, 1
        over = start + count / self._rate + self._timeout + PATIENCE_SECONDS
        while self._verdicts.answered < count and (now := time.time()) < over:
            while number < count and (due := start + (number - 1) / self._rate) <= now:
                self._request(number, due)
                number += 1
            self._go_on(now)
        self._producer.flush(10)
        self._consumer.close()

    def _go_on(self, now: float) -> None:
        """Send the acknowledgements that are due and the time; receive new replies."""
        while self._due and self._due[0][0] <= now:
            _, ack, label = heapq.heappop(self._due)
            self._acknowledge(ack, label, now)
        if self._beat <= now:
            broker.heartbeat(self._producer, self._partitions)
            self._beat = now + HEARTBEAT_SECONDS
        self._producer.poll(0)
        self._receive()

    def _request(self, number: int, due: float) -> None:
        self.sent[number] = due
        self._send(self._signals, number, self._workload.signal(number))
        for label in range(len(LABELS)):
            if self._workload.came(number, label):
                heapq.heappush(self._due, (due + self._random.uniform(SOONEST, LATEST), number, label))

    def _acknowledge(self, number: int, label: int, now: float) -> None:
        self._send(self._acks, number, self._workload.ack(number, label))
        self.last_ack[number] = now

    def _send(self, topic: str, number: int, value: bytes) -> None:
        key = b"org.acme:lamp-%05d" % self._workload.thing(number)
        headers = [("correlation-id", self._workload.ids[number].encode())]
        self._producer.produce(topic, value, key, headers=headers)

    def _receive(self) -> None:
        for message in self._consumer.consume(1000, timeout=POLL_SECONDS):
            if message.error() is not None:
                continue
            completed_by = dict(message.headers())["completed-by"]
            number = self._verdicts.take(message.key(), completed_by, message.value())
            if number is not None:
                self.replied[number] = time.time()
                self.completed_by[number] = completed_by.decode()


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "prefix", "out"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("rate", "seconds", "timeout"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--heartbeats", action="store_true", help="tell the time in each partition")
    arguments = parser.parse_args()
    workload = Workload(round(arguments.rate * arguments.seconds), timeout=f"{arguments.timeout:.0f}s")
    load = Load(
        arguments.bootstrap, arguments.prefix, workload, arguments.rate, arguments.timeout,
        heartbeats=arguments.heartbeats,
    )  # fmt: skip
    load.run()
    report = {name: getattr(load, name) for name in ("sent", "last_ack", "replied", "completed_by", "verdicts")}
    Path(arguments.out).write_text(json.dumps(report), "utf-8")


if __name__ == "__main__":
    main()
