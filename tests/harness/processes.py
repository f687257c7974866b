"""Jobs as their own processes, as an operator runs them, to be killed in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ackstream.local.submit import QUICK_START
from ackstream.settings.base import Part
from ackstream.settings.security import Secret

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.settings import Settings

NOT_COMPILED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Expressions are interpreted: for batches of few rows, compiling the code for them costs more than running it.

The jobs that are killed alone run the product's conf.
"""

QUICK = {**NOT_COMPILED, "spark.python.daemon.module": "tests.harness.forked"}
"""Nor does a Python worker import what the one before has imported: each query has workers of its own."""


def environment(settings: Settings) -> dict[str, str]:
    """Say to a process what these settings say."""
    return {
        **{
            name: text for name, text in os.environ.items() if not name.startswith(("ACKSTREAM_", "PYSPARK_", "SPARK_"))
        },
        "ACKSTREAM_KAFKA_BOOTSTRAP": settings.kafka.bootstrap,
        "ACKSTREAM_KAFKA_TOPIC_PREFIX": settings.kafka.topic_prefix,
        "ACKSTREAM_KAFKA_PARTITIONS": str(settings.kafka.partitions),
        "ACKSTREAM_KAFKA_REPLICATION": str(settings.kafka.replication),
        "ACKSTREAM_LAKE_PATH": settings.lake.path,
        "ACKSTREAM_LAKE_CHECKPOINTS": settings.lake.checkpoints,
        "ACKSTREAM_CORRELATE_SHARDS": str(settings.correlate.shards),
        "ACKSTREAM_CORRELATE_SHUFFLE_PARTITIONS": str(settings.correlate.shuffle_partitions),
        "ACKSTREAM_CORRELATE_MAX_OFFSETS_PER_TRIGGER": str(settings.correlate.max_offsets_per_trigger),
        **(
            {"ACKSTREAM_KAFKA_SECURITY": json.dumps(_revealed(settings.kafka.security))}
            if settings.kafka.security.protocol != "PLAINTEXT"
            else {}
        ),
        "ACKSTREAM_SPARK_DRIVER_MEMORY": "1g",
        "JDK_JAVA_OPTIONS": QUICK_START,
    }


def _revealed(value: Any) -> Any:
    if isinstance(value, Part):
        return {key: _revealed(entry) for key, entry in value if entry is not None}
    if isinstance(value, Secret):
        return value.reveal()
    return str(value) if isinstance(value, Path) else value


class LoggedProcess:
    """A process in a session of its own, with a log."""

    def __init__(self, name: str, command: list[str], own: dict[str, str], logs: Path) -> None:
        """Start it, in an environment of its own."""
        self.name = name
        self._command, self._environment = command, own
        self.log = logs / f"{name}.log"
        self.start()

    def start(self) -> None:
        """Start it, again if it has ended."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def kill(self) -> None:
        """Kill -9 it alone: what it has started notices, or is killed by itself."""
        self._process.kill()
        self._process.wait()

    @property
    def status(self) -> int | None:
        """The exit status, once it has ended."""
        return self._process.poll()

    @property
    def ended(self) -> bool:
        return self.status is not None

    def check(self) -> None:
        if self.ended:
            raise AssertionError(f"{self.name} ended by itself: {self.log.read_text('utf-8')[-3000:]}")


class Program(LoggedProcess):
    """A program of the product in a process group of its own: an ``ackstream`` command, or ``-c`` and Python code."""

    def __init__(
        self, name: str, arguments: list[str], settings: Settings, logs: Path, more: dict[str, str] | None = None
    ) -> None:
        code = [] if arguments[0] == "-c" else ["-c", "from ackstream.cli.main import app; app()"]
        super().__init__(name, [sys.executable, *code, *arguments], environment(settings) | (more or {}), logs)

    def kill(self) -> None:
        """Kill -9 the program and what it started: a driver has Python workers."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM to the program alone, as a supervisor does."""
        self._process.terminate()

    def interrupt(self) -> None:
        """Send SIGINT to the program and what it started, as a terminal does for Ctrl-C."""
        self._signal(signal.SIGINT)

    def pause(self) -> None:
        """Stop the program and what it started, as a machine does that is out of breath."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    @property
    def session(self) -> int:
        """The process session of the program and of all that it started."""
        return self._process.pid

    @property
    def exists(self) -> bool:
        """Whether it, or anything that it started, runs."""
        try:
            os.killpg(self.session, 0)
        except ProcessLookupError:
            return False
        return True


def alive(programs: Iterable[Program]) -> bool:
    """Look whether all run; one that ended by itself is said at once."""
    for program in programs:
        program.check()
    return True


class Job(Program):
    """``ackstream submit NAME``."""

    def __init__(self, name: str, settings: Settings, logs: Path) -> None:
        super().__init__(name, ["submit", name], settings, logs)
