"""Twin commands at a fixed rate from a process of its own, and when each was answered; times in epoch seconds.

A command's time is the moment it was due, not the moment it went out.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from benchmarks import broker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.settings import Settings

PATIENCE_SECONDS = 60
CONTENT = (
    '"definition":"org.acme:lamp:1.0","attributes":{"building":%d,"floor":%d,"serial":"SN-%08d",'
    '"installed":"2024-05-01"},"features":{"illumination":{"properties":{"mode":"off","brightness":0,'
    '"colour":{"hue":0,"saturation":0,"value":0}}},"meter":{"properties":{"energy":0.0,"power":0}}}'
)
"""The attributes of a thing, with its building, floor and serial number."""
_CREATE = (
    '{"topic":"org.acme/lamp-%s/things/twin/commands/create","headers":{"response-required":false,'
    '"requested-acks":[]},"path":"/","value":{' + CONTENT + "}}"
)
_MODIFY = (
    '{"topic":"org.acme/lamp-%06d/things/twin/commands/modify","headers":{"content-type":"application/json",'
    '"timeout":"30s"},"path":"/features/illumination/properties","value":{"mode":"scheduled","brightness":%d,'
    '"colour":{"hue":%d,"saturation":71,"value":88}}}'
)


def create(number: int, digits: int = 6) -> tuple[bytes, bytes, str]:
    """Return key, value and correlation-id of the creation of a thing; no client waits for its answer.

    :param digits: of the number in the thing's name
    """
    name = f"{number:0{digits}d}"
    value = _CREATE % (name, number // 1000, number % 12, number)
    return f"org.acme:lamp-{name}".encode(), value.encode(), f"create-{number}"


def produce(settings: Settings, commands: Iterable[tuple[bytes, bytes, str]]) -> None:
    """Write commands, given as key, value and correlation-id."""
    topic = settings.kafka.topic("signals")
    messages = ((topic, key, value, [("correlation-id", identity.encode())]) for key, value, identity in commands)
    broker.produce(settings.kafka.bootstrap, messages)


def modify(number: int, things: int) -> tuple[bytes, bytes, str]:
    """Return key, value and correlation-id of a change; neighbours concern things far apart."""
    thing = number * 7919 % things
    value = _MODIFY % (thing, number % 101, number % 360)
    return b"org.acme:lamp-%06d" % thing, value.encode(), f"modify-{number}"


class Load:
    """Sends, and notes when answers come."""

    def __init__(self, bootstrap: str, prefix: str, *, rate: float, seconds: float, things: int, replies: bool) -> None:
        self._signals = prefix + "signals"
        self._rate = rate
        self._things = things
        self._count = round(rate * seconds)
        self._producer = broker.producer(bootstrap, **{"linger.ms": 1})
        self._topics = {prefix + "twin-acks": "acks", **({prefix + "replies": "replies"} if replies else {})}
        self._consumer = _at_end(bootstrap, list(self._topics))
        self.sent = [0.0] * self._count
        self.came = {name: [0.0] * self._count for name in ("acks", "replies")}

    def run(self) -> None:
        """Send everything, wait for open commands."""
        start = time.time() + 0.2
        over = start + self._count / self._rate + PATIENCE_SECONDS
        number = open_ = 0
        wanted = len(self._topics) * self._count
        while open_ < wanted and (now := time.time()) < over:
            while number < self._count and (due := start + number / self._rate) <= now:
                key, value, identity = modify(number, self._things)
                self._producer.produce(self._signals, value, key, headers=[("correlation-id", identity.encode())])
                self.sent[number] = due
                number += 1
            self._producer.poll(0)
            open_ += self._receive()
        self._producer.flush(10)
        self._consumer.close()

    def _receive(self) -> int:
        new = 0
        for message in self._consumer.consume(1000, timeout=0.002):
            if message.error() is not None:
                continue
            kind, _, number = dict(message.headers())["correlation-id"].decode().partition("-")
            came = self.came[self._topics[message.topic()]]
            if kind == "modify" and not came[int(number)]:
                came[int(number)] = time.time()
                new += 1
        return new


def _at_end(bootstrap: str, topics: list[str]) -> Consumer:
    offsets = broker.Offsets(bootstrap)
    places = [
        TopicPartition(topic, partition, high)
        for topic in topics
        for partition, (_, high) in offsets.ends(topic).items()
    ]
    offsets.close()
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench-twin", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
    )
    consumer.assign(places)
    return consumer


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "prefix", "out"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("rate", "seconds"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--things", type=int, required=True)
    parser.add_argument("--replies", action="store_true")
    arguments = parser.parse_args()
    load = Load(
        arguments.bootstrap, arguments.prefix,
        rate=arguments.rate, seconds=arguments.seconds, things=arguments.things, replies=arguments.replies,
    )  # fmt: skip
    load.run()
    Path(arguments.out).write_text(json.dumps({"sent": load.sent, **load.came}), "utf-8")


if __name__ == "__main__":
    main()
