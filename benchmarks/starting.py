"""Jobs as programs of their own, as their users start them, and the cost of a start with waiting messages."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.soaking import probe
from tests.harness.processes import Program, alive
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.settings import Settings
    from benchmarks.common import Bench


@contextmanager
def running(bench: Bench, name: str, arguments: list[str], settings: Settings, **more: str) -> Iterator[Program]:
    """Run a program until the block ends, with the JVM's options and memory as by default, and not as for tests.

    :param more: variables of its environment
    """
    own = {
        "JDK_JAVA_OPTIONS": "",
        "ACKSTREAM_SPARK_DRIVER_MEMORY": settings.spark.driver_memory,
        "SPARK_LOCAL_DIRS": str(bench.directory),
    }
    program = Program(name, arguments, settings, bench.directory, own | more)
    try:
        yield program
    finally:
        program.kill()


def answering(bench: Bench, job: str, settings: Settings, topic: str, answers: int, **more: str) -> dict[str, float]:
    """Start a job for which messages wait.

    :param topic: where it answers, without the prefix
    :param answers: how many there will be
    :param more: variables of its environment
    :return: seconds to its first answer; MB that its JVM and its Python have in memory (resident) after the last
    """
    name = settings.kafka.topic(topic)
    before, began = bench.offsets.count(name), time.monotonic()
    with running(bench, job, ["submit", job], settings, **more) as program:
        eventually(lambda: alive([program]) and bench.offsets.count(name) > before, f"an answer of {job}")
        first = time.monotonic() - began
        eventually(lambda: bench.offsets.count(name) >= before + answers, f"all answers of {job}")
        own = probe.processes()[program.session]
    return {
        "first_reply_seconds": first,
        "jvm_mb": sum(one.resident for one in own if one.java) / 2**20,
        "python_mb": sum(one.resident for one in own if one.python) / 2**20,
    }
