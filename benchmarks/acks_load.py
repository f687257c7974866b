"""Open-loop publishers in a process of their own: messages at a fixed rate, and the time of each ack.

A message's time is the moment it was due, not the moment it went out. Every tenth message requests ``received`` and
``processed`` too; once a second each client flushes, and one more client publishes a single message. Written: for each
stage pairs of the due time (epoch seconds) and how long it took.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from ackstream.protocol.messages import CommandAck, decode_ack
from benchmarks import broker

CLIENTS = 5
LONE = "lone"
DETAILED_EVERY = 10
VALUE = b"x" * 250
POLL_SECONDS = 0.002
PATIENCE_SECONDS = 60


class Load:
    """Publishes and listens until everything is stored, or until it is clear that something will not be."""

    def __init__(self, bootstrap: str, prefix: str, rate: float, seconds: float) -> None:
        self._messages = prefix + "messages"
        self._rate, self._seconds = rate, seconds
        self._producer = broker.producer(bootstrap, **{"linger.ms": 1})
        self._consumer = broker.consumer_at_end(bootstrap, prefix + "publisher-acks")
        self._due: dict[tuple[str, int | str], float] = {}
        self._open: set[tuple[str, int]] = set()
        self.took: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def run(self) -> int:
        """Publish everything, wait for open messages; return the number of messages without acknowledgement."""
        start = time.time() + 0.2
        count, beats = round(self._rate * self._seconds), round(self._seconds)
        number = beat = 0
        over = start + self._seconds + PATIENCE_SECONDS
        while (number < count or beat < beats or self._open) and (now := time.time()) < over:
            while number < count and (due := start + number / self._rate) <= now:
                self._publish(f"p{number % CLIENTS}", number // CLIENTS + 1, due)
                number += 1
            if beat < beats and (due := start + beat) <= now:
                beat += 1
                self._publish(LONE, beat, due)
                for client in range(CLIENTS):
                    self._flush(f"p{client}", beat, due)
            self._producer.poll(0)
            for message in self._consumer.consume(1000, timeout=POLL_SECONDS):
                if message.error() is None:
                    self._take(message.key().decode(), decode_ack(message.value()), time.time())
        self._producer.flush(10)
        self._consumer.close()
        return len(self._open)

    def _publish(self, client: str, seq: int, due: float) -> None:
        self._open.add((client, seq))
        headers = {"seq": seq, "ack": "persisted", "topic": "weather"}
        if client != LONE and seq % DETAILED_EVERY == 0:
            headers |= {"ack": "received,processed,persisted", "cid": f"c{seq}"}
            self._due[client, f"c{seq}"] = due
        self._due[client, seq] = due
        self._send(client, headers, VALUE, partial(self._accepted, due))

    def _flush(self, client: str, beat: int, due: float) -> None:
        self._due[client, f"f{beat}"] = due
        self._send(client, {"command": "flush", "cid": f"f{beat}", "ack": "persisted"}, b"", None)

    def _send(self, client: str, headers: dict[str, Any], value: bytes, delivered: Any) -> None:
        encoded = [(name, str(text).encode()) for name, text in {"client": client, **headers}.items()]
        self._producer.produce(self._messages, value, client, headers=encoded, on_delivery=delivered)

    def _accepted(self, due: float, error: Any, _message: Any) -> None:
        if error is None:
            self.took["accepted"].append((due, time.time() - due))

    def _take(self, client: str, ack: CommandAck, now: float) -> None:
        if ack.cid is not None:
            due = self._due[client, ack.cid]
            self.took["flush" if ack.ack_type == "persisted" else ack.ack_type].append((due, now - due))
            return
        for seq in range(ack.first or 0, (ack.seq or 0) + 1):
            if (client, seq) in self._open:
                self._open.remove((client, seq))
                due = self._due[client, seq]
                self.took["single" if client == LONE else "merged"].append((due, now - due))


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "prefix", "out"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("rate", "seconds"):
        parser.add_argument(f"--{name}", type=float, required=True)
    arguments = parser.parse_args()
    load = Load(arguments.bootstrap, arguments.prefix, arguments.rate, arguments.seconds)
    missing = load.run()
    Path(arguments.out).write_text(json.dumps({"took": load.took, "missing": missing}), "utf-8")


if __name__ == "__main__":
    main()
