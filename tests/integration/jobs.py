"""Jobs as their own processes, as an operator runs them, to be killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ackstream.settings import Settings


def environment(settings: Settings) -> dict[str, str]:
    """Say to a process what these settings say."""
    return {
        **{
            name: text for name, text in os.environ.items() if not name.startswith(("ACKSTREAM_", "PYSPARK_", "SPARK_"))
        },
        "ACKSTREAM_KAFKA_BOOTSTRAP": settings.kafka.bootstrap,
        "ACKSTREAM_KAFKA_TOPIC_PREFIX": settings.kafka.topic_prefix,
        "ACKSTREAM_KAFKA_PARTITIONS": str(settings.kafka.partitions),
        "ACKSTREAM_LAKE_PATH": settings.lake.path,
        "ACKSTREAM_LAKE_CHECKPOINTS": settings.lake.checkpoints,
        "ACKSTREAM_CORRELATE_MAX_OFFSETS_PER_TRIGGER": str(settings.correlate.max_offsets_per_trigger),
        "ACKSTREAM_SPARK_DRIVER_MEMORY": "1g",
    }


class Job:
    """``ackstream submit NAME`` in a process group of its own."""

    def __init__(self, name: str, settings: Settings, logs: Path) -> None:
        self.name = name
        self._settings = settings
        self.log = logs / f"{name}.log"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", "from ackstream.cli import app; app()", "submit", self.name]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment(self._settings), start_new_session=True
            )

    def kill(self) -> None:
        """Kill -9 the driver and its Python workers, wherever they are."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def check(self) -> None:
        if self._process.poll() is not None:
            raise AssertionError(f"{self.name} ended by itself: {self.log.read_text('utf-8')[-3000:]}")
