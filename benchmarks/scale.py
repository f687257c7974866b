"""How correlate grows: executors on a cluster, skew, and what its driver does with many partitions and shards."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import common, driving, pages, throughput
from benchmarks.common import ROUNDS
from benchmarks.contenders.programs import Contender
from benchmarks.progress import medians
from benchmarks.throughput import TIMEOUT
from benchmarks.workload import Workload
from tests.harness.standalone import Standalone

if TYPE_CHECKING:
    from benchmarks.common import Bench
    from benchmarks.contenders.programs import Place

PARTITIONS, SHARDS = 4, 6
"""Of each topic, and of the state, for each executor."""
HOT = 7
"""The thing that has more than its share."""
EVERY, PADDING = 20, 30_000
"""Which requests are the heavy thing's, and how many bytes more they have."""
MEMORY = "768m"
METHOD = (
    "A standalone cluster on this machine: a master, two workers, executors of one core each; the driver is a program "
    "of its own, as `ackstream submit correlate --master` starts it. All messages wait in Kafka; each round starts "
    "with an empty state. Rate = messages, by the broker's times of the replies to complete requests, without the "
    "first batches (as quixstreams in throughput). Driver: its processor time, without executors. Hot: half of all "
    "messages are one thing's, so in one partition. Heavy: "
    f"every {EVERY}th request is one thing's, and {PADDING:,} bytes longer."
)


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


WORKLOADS: dict[str, type[Workload]] = {"even": Workload, "hot thing": HotThing, "heavy thing": HeavyThing}


def measure(bench: Bench) -> dict[str, Any]:
    """Measure the cluster, then the driver's part."""
    return {"method": METHOD, "cluster": _cluster(bench), "driver": driving.measure(bench)}


def _cluster(bench: Bench) -> list[dict[str, Any]]:
    requests, batch, rounds = (4_000, 3_000, 1) if bench.small else (120_000, 50_000, ROUNDS)
    cases = [(executors, "even") for executors in ((1, 2) if bench.small else (1, 2, 4))]
    cases += [(2, name) for name in WORKLOADS if name != "even"]
    found = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ackstream-bench-cluster-")))
        cluster = Standalone(directory, stack)
        for executors, name in cases:
            workload = WORKLOADS[name](requests, timeout=TIMEOUT)
            data = bench.settings("cluster", kafka={"partitions": PARTITIONS * executors})
            throughput.fill(bench, data, workload)
            contender = Contender(f"{executors}-{name}", partial(_submit, cluster.url, executors, batch), False)  # noqa: FBT003
            results = [throughput.program(bench, data, workload, batch, contender) for _ in range(rounds)]
            bench.say(f"{executors} executors, {name}: {json.dumps(common.rounded([one['rates'] for one in results]))}")
            figures = ("processor_microseconds", "first_reply_after_seconds")
            found.append(
                {
                    "executors": executors,
                    "messages_are": name,
                    "partitions": PARTITIONS * executors,
                    "shards": SHARDS * executors,
                    **medians([one["rates"] for one in results]),
                    "driver_microseconds": medians([{key: one[key] for key in figures} for one in results])[figures[0]],
                    "as_expected": all(one["as_expected"] for one in results),
                }
            )
    bench.table(
        f"correlate on a cluster, messages a second, {requests:,} requests, median of {rounds}",
        ("executors", "messages", "partitions", "shards", "warm", "whole run", "driver, µs a message", "as expected"),
        [tuple(entry.values()) for entry in found],
    )
    return found


def _submit(master: str, executors: int, batch: int, _place: Place) -> list[list[str]]:
    """Return the command of a driver whose executors have one core each."""
    environment = {
        "ACKSTREAM_KAFKA_PARTITIONS": PARTITIONS * executors,
        "ACKSTREAM_CORRELATE_SHARDS": SHARDS * executors,
        "ACKSTREAM_CORRELATE_SHUFFLE_PARTITIONS": executors,
        "ACKSTREAM_CORRELATE_MAX_OFFSETS_PER_TRIGGER": batch,
        "ACKSTREAM_SPARK_DRIVER_MEMORY": "1g",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    conf = {"spark.executor.cores": 1, "spark.executor.memory": MEMORY, "spark.cores.max": executors}
    return [
        [
            "env", *(f"{name}={value}" for name, value in environment.items()),
            sys.executable, "-c", "from ackstream.cli.main import app; app()",
            "submit", "correlate", "--master", master,
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
        ]
    ]  # fmt: skip


if __name__ == "__main__":
    common.main("scale", measure, page=pages.scale)
