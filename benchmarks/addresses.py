"""One bad address, one bad message, an outage: the fate of 10,000 messages to 100 addresses of another system.

``python -m benchmarks.addresses`` runs a Kafka of its own and, for each transport, ``ackstream connect`` with a target
whose address has a placeholder. The other system, a real broker or an HTTP service of this program, never takes
messages to one address and never settles one message; the service answers 500 for a minute. Names of things and
correlation-ids are outside ASCII. Afterwards every other message must have arrived, in the order of its address; each
bad one must be a dead letter with its reason. ``results/addresses.json`` has the figures of each transport.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from rich.console import Console

from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Kafka, Local, Settings
from benchmarks.addressing.plan import Plan, Sent, judge, number_in, waits
from benchmarks.addressing.remotes import ID, REMOTES
from benchmarks.node import running
from benchmarks.pages import RESULTS, show
from tests.harness.processes import Program
from tests.harness.waiting import eventually

SYSTEM = ("signals", "acks", "twin-acks", "replies", "ledger", "events", "declarations", "dead-letters")
STUTTER = 0.2
FURTHER_RATE, LOOK_SECONDS = 20.0, 1.0
"""After the plan: messages per second by which the other system shows that it is up, and how often is looked."""


@dataclass(frozen=True)
class Load:
    """How a plan is sent: messages per second, the outage of a service, how long the end may take; in seconds.

    :param stutter: how long before and after the outage the service answers a part of the requests with 500
    """

    rate: float = 100.0
    outage: tuple[float, float] = (20.0, 80.0)
    stutter: float = 10.0
    patience: float = 150.0
    max_attempts: int = 12


FULL, SMALL = Load(), Load(60.0, (5.0, 8.0), 1.5, 180.0, 6)


class Run:
    """One transport."""

    def __init__(self, kind: str, load: Load, bootstrap: str, directory: Path, stack: ExitStack) -> None:
        remote = REMOTES[kind]
        self._load, self._plan = load, remote.small if load is SMALL else remote.plan
        self._kafka = Kafka(bootstrap=bootstrap, topic_prefix=f"{kind}-", partitions=3)
        settings = Settings(kafka=self._kafka)
        ensure_topics(settings, SYSTEM)
        brokers = directory / kind
        brokers.mkdir(exist_ok=True)
        self._remote = stack.enter_context(closing(remote(self._plan, brokers)))
        # of an earlier run
        (directory / f"connect-{kind}.log").unlink(missing_ok=True)
        connection = self._remote.connection | {"max_attempts": min(load.max_attempts, remote.max_attempts)}
        more = {"ACKSTREAM_CONNECTIONS": json.dumps([connection])}
        self._connect = Program(f"connect-{kind}", ["connect"], settings, directory, more)
        stack.callback(self._connect.kill)
        self._sent: dict[int, Sent] = {}
        self._letters: list[tuple[int, str]] = []
        servers = self._kafka.bootstrap
        self._producer = stack.enter_context(closing(KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=5)))
        self._reader = stack.enter_context(closing(KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)))
        self._admin = stack.enter_context(closing(KafkaAdminClient(bootstrap_servers=servers)))

    def figures(self) -> dict[str, Any]:
        """Send all messages, wait for their outcomes, and return the figures with the faults."""
        opened = f"The connection {ID} is open."
        eventually(lambda: opened in self._connect.log.read_text("utf-8"), "the connection", None)
        name = self._kafka.topic("dead-letters")
        self._reader.assign([TopicPartition(name, each) for each in self._reader.partitions_for_topic(name)])
        self._reader.seek_to_beginning()
        began = time.monotonic()
        outage = self._send_all(began)
        caught_up = self._finish()
        arrived = list(self._remote.arrived)
        found = judge(self._plan, self._sent, arrived, self._letters)
        uncommitted = self._uncommitted()
        if self._remote.exact and found["repeated"]:
            found["faults"]["accepted more than once"] = {"number": found["repeated"]}
        if uncommitted:
            found["faults"]["offsets that are not committed"] = {"number": uncommitted}
        found["seconds"] = time.monotonic() - began
        found["sent"] = len(self._sent)
        found["attempts"] = sum(self._remote.attempts.values())
        until = outage[0] - self._load.stutter if self._remote.outage else outage[1] + self._load.patience
        found["longest_wait_seconds"] = waits(self._plan, self._sent, arrived, within=(began, until))
        if self._remote.outage:
            after = [each.at for each in arrived if each.at >= outage[1]]
            found["resumed_after_seconds"] = min(after, default=caught_up) - outage[1]
            found["caught_up_after_seconds"] = caught_up - outage[1]
            burst = sum(at < caught_up for at in after)
            found["caught_up_messages_a_second"] = burst / max(0.001, caught_up - min(after, default=outage[1]))
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}

    def _send_all(self, began: float) -> tuple[float, float]:
        """Send the plan at its rate, with the outage; return when that began and ended."""
        begins, ends = (began + seconds for seconds in self._load.outage)
        for number in range(self._plan.messages):
            due = began + number / self._load.rate
            time.sleep(max(0.0, due - time.monotonic()))
            stutters = begins - self._load.stutter <= due < ends + self._load.stutter
            self._remote.failing = 1.0 if begins <= due < ends else STUTTER if stutters else 0.0
            self._send(number)
        self._remote.failing = 0.0
        return begins, ends

    def _send(self, number: int) -> None:
        plan = self._plan
        headers = [("correlation-id", plan.identity(number).encode())]
        key = f"org.acme:{plan.names[plan.address(number)]}".encode()
        self._producer.send(self._kafka.topic("events"), plan.event(number), key, headers=headers)
        self._sent[number] = Sent(plan.address(number), time.monotonic())

    def _finish(self) -> float:
        """Go on slowly until nothing is missing or the patience is at its end; return when the good were all there."""
        plan, until, number, caught_up = self._plan, time.monotonic() + self._load.patience, self._plan.messages, 0.0
        good = {each for each in range(plan.messages) if not plan.bad(each)}
        bad = set(range(plan.messages)) - good
        while time.monotonic() < until:
            self._connect.check()
            look = time.monotonic() + LOOK_SECONDS
            while time.monotonic() < look:
                self._send(number)
                number += 1
                time.sleep(1 / FURTHER_RATE)
            self._read_letters()
            arrived = list(self._remote.arrived)
            if not caught_up and good <= {each.number for each in arrived}:
                caught_up = max(each.at for each in arrived if each.number < plan.messages)
            if caught_up and bad <= {each for each, _ in self._letters}:
                break
        # the last messages are still on their way
        last = time.monotonic() + 5.0
        while time.monotonic() < last and not {*self._sent} - bad <= {each.number for each in self._remote.arrived}:
            time.sleep(0.1)
        self._read_letters()
        return caught_up or time.monotonic()

    def _read_letters(self) -> None:
        for records in self._reader.poll(timeout_ms=100).values():
            for record in records:
                reason = dict(record.headers).get("reason", b"").decode()
                self._letters.append((number_in(record.value), reason))

    def _uncommitted(self) -> int:
        """Return how many events the connection has not committed, some seconds later."""
        topic, group = self._kafka.topic("events"), self._kafka.group(f"ackstream-target-{ID}")
        places = [TopicPartition(topic, each) for each in self._reader.partitions_for_topic(topic)]
        until, left = time.monotonic() + 10.0, -1
        while left and time.monotonic() < until:
            ends = self._reader.end_offsets(places)
            committed = self._admin.list_group_offsets([group])[group]
            left = sum(end - committed[place].offset if place in committed else end for place, end in ends.items())
            time.sleep(0.2)
        return left


def main() -> int:
    """Run as a program; return whether a transport has faults."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.addresses")
    parser.add_argument("transports", nargs="*", metavar="TRANSPORT", help=f"all without one, of: {', '.join(REMOTES)}")
    parser.add_argument("--small", action="store_true", help="a check of half a minute each; its figures mean nothing")
    parser.add_argument("--logs", type=Path, help="where the logs of the connectors go")
    arguments = parser.parse_args()
    if unknown := set(arguments.transports) - set(REMOTES):
        parser.error(f"there is no transport {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Terminated."))
    console, load = Console(highlight=False), SMALL if arguments.small else FULL
    found: dict[str, Any] = {}
    failed: list[str] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ackstream-addresses-")))
        broker = stack.enter_context(running(Local(), console))
        logs = arguments.logs or directory
        logs.mkdir(parents=True, exist_ok=True)
        for kind in arguments.transports or REMOTES:
            try:
                with ExitStack() as own:
                    found[kind] = one = Run(kind, load, broker.bootstrap, logs, own).figures()
            except Exception:  # noqa: BLE001 - whatever it is
                # the other transports are measured
                console.print_exception()
                failed.append(kind)
                continue
            said = ", ".join(f"{name} {show(value)}" for name, value in one.items() if not isinstance(value, dict))
            console.print(f"{'[red]fails[/]' if one['faults'] else 'holds'}  {kind}: {said}")
            console.print(f"  {one['reasons']} {one['faults'] or ''}")
    if not arguments.small:
        write(found, load, RESULTS / "addresses.json")
    return int(bool(failed) or any(one["faults"] for one in found.values()))


def write(found: dict[str, Any], load: Load, path: Path) -> None:
    """Write the figures, in place of earlier ones of the same transports."""
    earlier = json.loads(path.read_text("utf-8"))["transports"] if path.exists() else {}
    report = {
        "benchmark": "addresses",
        "cores": os.cpu_count(),
        "messages": Plan.messages,
        "addresses": Plan.addresses,
        "rate": load.rate,
        "outage_seconds": load.outage[1] - load.outage[0],
        "transports": earlier | found,
    }
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
