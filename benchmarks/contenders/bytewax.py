"""The join in bytewax: a stateful step with a group for each partition, snapshots in SQLite each second.

State is kept by partition, as the time is: that of the topic, signals or acks, that is further behind. A program of
its own; several of them exchange the partitions' records.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import msgspec
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource, KafkaSourceMessage
from bytewax.dataflow import Dataflow
from bytewax.operators import StatefulBatchLogic
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

from benchmarks.contenders.joining import Entry, complete, receive, reply

EPOCH = timedelta(seconds=1)


class Partition(StatefulBatchLogic):
    """The open requests in one partition of signals and the same one of acks."""

    def __init__(self, state: bytes | None) -> None:
        """Begin, or resume from a snapshot."""
        self._times: dict[str, int] = {}
        self._open: dict[str, Entry] = {}
        if state is not None:
            self._times, self._open = msgspec.msgpack.decode(state)
        self._due = [(entry["due"], key) for key, entry in self._open.items()]
        heapq.heapify(self._due)

    def on_batch(self, values: list[KafkaSourceMessage]) -> tuple[list[KafkaSinkMessage], bool]:
        """Take messages, then let time pass."""
        replies = []
        for value in values:
            timestamp = value.timestamp[1]
            self._times[value.topic] = timestamp
            message = msgspec.json.decode(value.value)
            # without a correlation-id it has only a time
            if "correlation-id" in message["headers"]:
                replies += self._receive(message, timestamp)
        if len(self._times) == 2:
            replies += self._expire(min(self._times.values()))
        return replies, StatefulBatchLogic.RETAIN

    def _receive(self, message: dict[str, Any], timestamp: int) -> Iterator[KafkaSinkMessage]:
        key = message["headers"]["correlation-id"]
        before = self._open.get(key)
        due = before and before["due"]
        entry = receive(before, message, timestamp)
        if complete(entry):
            self._open.pop(key, None)
            yield _sent(key, entry, "acknowledgements")
            return
        self._open[key] = entry
        if entry["due"] != due:
            heapq.heappush(self._due, (entry["due"], key))

    def _expire(self, now: int) -> Iterator[KafkaSinkMessage]:
        while self._due and self._due[0][0] <= now:
            _, key = heapq.heappop(self._due)
            entry = self._open.get(key)
            # answered since, or a request whose acknowledgement came first and had another deadline
            if entry is not None and entry["due"] <= now:
                del self._open[key]
                if entry["request"] is not None:
                    yield _sent(key, entry, "timeout")

    def snapshot(self) -> bytes:
        """Return everything that is open."""
        return msgspec.msgpack.encode((self._times, self._open))


def _sent(key: str, entry: Entry, completed_by: str) -> KafkaSinkMessage:
    value = msgspec.json.encode(reply(entry))
    return KafkaSinkMessage(key.encode(), value, headers=[("completed-by", completed_by.encode())])


def flow(bootstrap: str, prefix: str) -> Dataflow:
    """Return the steps."""
    made = Dataflow("correlate")
    messages = op.input("messages", made, KafkaSource([bootstrap], [prefix + "signals", prefix + "acks"]))
    grouped = op.key_on("partition", messages, lambda message: str(message.partition))
    replies = op.stateful_batch("correlate", grouped, Partition)
    op.output("replies", op.key_rm("reply", replies), KafkaSink([bootstrap], prefix + "replies"))
    return made


def main() -> None:
    """Run until it is killed."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "prefix", "state"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--addresses", nargs="*", help="host:port of each process, if there are several")
    arguments = parser.parse_args()
    snapshots = Path(arguments.state)
    if arguments.number == 0 and not snapshots.exists():
        # whole for the other process, which may start at the same moment
        part = snapshots.with_name(f"{snapshots.name}.new")
        part.mkdir(parents=True)
        init_db_dir(part, 1)
        part.rename(snapshots)
    while not snapshots.exists():
        time.sleep(0.01)
    several = {"process_id": arguments.number, "addresses": arguments.addresses} if arguments.addresses else {}
    cli_main(
        flow(arguments.bootstrap, arguments.prefix),
        epoch_interval=EPOCH,
        recovery_config=RecoveryConfig(snapshots),
        **several,
    )


if __name__ == "__main__":
    main()
