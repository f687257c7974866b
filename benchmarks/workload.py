"""The messages: commands that request two acknowledgements, some of which never come. The same for the same numbers."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec.json import decode

from ackstream.jobs.correlate.state import ACKS, SIGNALS, Record
from benchmarks.contenders.joining import receive, reply

LABELS = ("fleet:delivered", "billing:recorded")
THINGS = 20_000
MISSING = 0.05
"""The share of acknowledgements that never come."""
APART = 2_000
"""An acknowledgement follows its request within this many further requests."""
HOT = 7
"""The thing that has more than its share."""
EVERY, PADDING = 20, 30_000
"""Which requests are the heavy thing's, and how many bytes more they have."""

_SIGNAL = (
    '{"topic":"org.acme/lamp-%05d/things/twin/commands/modify","headers":{"correlation-id":"%s",'
    '"content-type":"application/json","requested-acks":["fleet:delivered","billing:recorded"],"timeout":"%s",'
    '"response-required":true,"ditto-originator":"nginx:facility-service","traceparent":'
    '"00-4bf92f3577b34da6a3ce929d0e0e4736-%016x-01","version":2},"path":"/features/illumination/properties",'
    '"value":{"mode":"scheduled","brightness":%d,"colour":{"hue":%d,"saturation":71,"value":88},"schedule":'
    '[{"from":"06:30","to":"08:15","brightness":70},{"from":"17:45","to":"23:00","brightness":55}],'
    '"fadeSeconds":4.5,"requestedBy":"facility-manager@acme.example","reason":"Evening programme of building 7"}}'
)
_ACK = (
    '{"topic":"org.acme/lamp-%05d/things/twin/acks/%s","headers":{"correlation-id":"%s",'
    '"content-type":"application/json","ditto-originator":"connection:%s"},"path":"/",'
    '"value":{"receivedAt":"2025-03-01T12:00:%02d.%03dZ","sequence":%d,"queue":"outbound-7"},"status":200}'
)


class Workload:
    """Requests by number, each with its acknowledgements.

    :param requests: how many
    :param timeout: of each, in the protocol's form
    :param missing: the share of acknowledgements that never come
    :param first: number of the first request; workloads with other numbers have other correlation-ids
    """

    def __init__(self, requests: int, *, timeout: str = "2s", missing: float = MISSING, first: int = 0) -> None:
        self.requests = requests
        self._first = first
        self._timeout = timeout
        generator = np.random.default_rng(first + 1)
        self._came = generator.random((requests, len(LABELS))) >= missing
        self._apart = generator.uniform(1, APART, (requests, len(LABELS)))
        self.acks = int(self._came.sum())
        self.complete = int(self._came.all(axis=1).sum())
        self.messages = requests + self.acks
        # all from one seed: a run on other days has the same bytes
        source = random.Random(first + 1)
        self.ids = [str(uuid.UUID(int=source.getrandbits(128), version=4)) for _ in range(requests)]

    def came(self, number: int, label: int) -> bool:
        """Return whether an acknowledgement comes."""
        return bool(self._came[number, label])

    def thing(self, number: int) -> int:
        """Return the number of the thing a request is for."""
        return (number + self._first) * 7919 % THINGS

    def signal(self, number: int) -> bytes:
        """Write a request."""
        key = self.ids[number]
        return (_SIGNAL % (self.thing(number), key, self._timeout, number, number % 101, number % 360)).encode()

    def ack(self, number: int, label: int) -> bytes:
        """Write an acknowledgement."""
        name, key = LABELS[label], self.ids[number]
        return (_ACK % (self.thing(number), name, key, name, number % 60, number % 1000, number)).encode()

    def completed_by(self, number: int) -> str:
        """Return the cause of a request's completion, unless it is answered wrongly."""
        return "acknowledgements" if self._came[number].all() else "timeout"

    def reply(self, number: int) -> dict[str, Any]:
        """Return the expected answer to a request."""
        entry = receive(None, decode(self.signal(number)), 0)
        for label in range(len(LABELS)):
            if self.came(number, label):
                receive(entry, decode(self.ack(number, label)), 0)
        return reply(entry)

    def order(self) -> list[tuple[int, int]]:
        """Return (request, label) in the order in which they are sent; label -1 is the request itself."""
        numbers = np.arange(self.requests)
        sent = np.concatenate([numbers, *[numbers + self._apart[:, label] for label in range(len(LABELS))]])
        labels = np.repeat(np.arange(-1, len(LABELS)), self.requests)
        there = np.concatenate([np.ones(self.requests, bool), *[self._came[:, label] for label in range(len(LABELS))]])
        by_time = np.argsort(sent, kind="stable")
        by_time = by_time[there[by_time]]
        return list(zip((by_time % self.requests).tolist(), labels[by_time].tolist(), strict=True))

    def kafka(self, prefix: str) -> Iterator[tuple[str, bytes, bytes, list[tuple[str, bytes]]]]:
        """Give topic, key, value and headers of all messages in order; the key is the thing's id."""
        for number, label in self.order():
            yield self.message(prefix, number, label)

    def message(self, prefix: str, number: int, label: int) -> tuple[str, bytes, bytes, list[tuple[str, bytes]]]:
        """Give topic, key, value and headers of a request (label -1) or of one of its acknowledgements."""
        topic, value = ("signals", self.signal(number)) if label < 0 else ("acks", self.ack(number, label))
        headers = [("correlation-id", self.ids[number].encode())]
        return prefix + topic, b"org.acme:lamp-%05d" % self.thing(number), value, headers

    def records(self, *, start: int = 1_700_000_000_000, a_second: int = 50_000) -> list[Record]:
        """Return all messages in order as the shard operator gets them, at this rate in messages a second."""
        offsets = [0, 0]
        found = []
        for position, (number, label) in enumerate(self.order()):
            source = SIGNALS if label < 0 else ACKS
            value = self.signal(number) if label < 0 else self.ack(number, label)
            key = self.ids[number]
            found.append(
                Record(
                    start + position * 1000 // a_second, source, 0, offsets[source],
                    int(key[:15].replace("-", ""), 16), key, b"org.acme:lamp-%05d" % self.thing(number),
                    value, len(value), {},
                )
            )  # fmt: skip
            offsets[source] += 1
        return found


class HotThing(Workload):
    """Half of all messages are about one thing, and in one partition."""

    def thing(self, number: int) -> int:
        """Return the hot one for every other request."""
        return HOT if number % 2 else super().thing(number)


class HeavyThing(Workload):
    """One partition has a few large messages: the task that reads it takes longer than all others."""

    def thing(self, number: int) -> int:
        """Return the heavy one for some requests."""
        return super().thing(number) if number % EVERY else HOT

    def signal(self, number: int) -> bytes:
        """Write a request; the heavy thing's are long."""
        text = super().signal(number)
        return text if number % EVERY else text.replace(b'"Evening', b'"' + b"x" * PADDING + b"Evening")
