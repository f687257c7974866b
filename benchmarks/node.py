"""The Kafka of a benchmark: one node on free ports, with data of its own."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ackstream.settings import Local, Settings
from tests.demo.broker import Broker
from tests.harness.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


@contextmanager
def running(local: Local, console: Console) -> Iterator[Broker]:
    """Run a Kafka for the time of the block, on ports that are free now."""
    port, controller_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="ackstream-bench-kafka-") as directory:
        changes = {"data": Path(directory), "port": port, "controller_port": controller_port}
        broker = Broker(Settings(local=local.model_copy(update=changes)))
        broker.start(console)
        try:
            yield broker
        finally:
            broker.stop()
