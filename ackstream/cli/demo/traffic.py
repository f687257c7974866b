"""Send the commands of the demo at a steady rate, with live progress, until the last reply."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ackstream.cli.console.display import requests_table
from ackstream.cli.demo.fleet import LABELS, TIMEOUT_SECONDS
from ackstream.client import Command, RequestError
from ackstream.gateway.meter import Meter, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from rich.console import Console, RenderableType

    from ackstream.cli.demo.fleet import Device
    from ackstream.client import Reply, Requester
    from ackstream.gateway.meter import Snapshot, Verdict

WINDOW_MS = 10_000
REFRESH_SECONDS = 0.25


class Tally:
    """Counts commands, replies and latencies; thread-safe, as the requester calls it from its own thread."""

    def __init__(self) -> None:
        """Start with zero counts."""
        self.sent: dict[str, float] = {}
        self.replies: dict[str, Reply] = {}
        self.failures: list[RequestError] = []
        self.latencies: list[tuple[Verdict, int]] = []
        self._meter = Meter(WINDOW_MS)
        self._lock = threading.Lock()

    def opened(self, correlation_id: str) -> None:
        """Count a command that is about to be sent."""
        with self._lock:
            self.sent[correlation_id] = time.monotonic()
            self._meter.opened(correlation_id, _now())

    def ended(self, correlation_id: str, future: Future[Reply]) -> None:
        """Count how a command ended; its latency runs from sending to receiving the reply."""
        error = future.exception()
        with self._lock:
            if isinstance(error, RequestError):
                self.failures.append(error)
                return
            reply = future.result()
            latency = round((time.monotonic() - self.sent[correlation_id]) * 1000)
            how = verdict(reply.status, reply.completed_by)
            self.replies[correlation_id] = reply
            self.latencies.append((how, latency))
            self._meter.decided(correlation_id, _now(), how, latency)

    def snapshot(self) -> Snapshot:
        """Return the current counts."""
        with self._lock:
            return self._meter.snapshot(_now())


def send_all(
    requester: Requester,
    devices: Sequence[Device],
    number: int,
    rate: float,
    console: Console,
    healthy: Callable[[], None],
) -> Tally:
    """Send commands to the devices in turn and wait for all replies.

    :param rate: commands per second
    :param healthy: polled meanwhile; raises once waiting is pointless
    """
    tally = Tally()
    futures: list[Future[Reply]] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    progress = Progress(*columns, console=console)
    task = progress.add_task("Commands sent", total=number)

    def screen() -> RenderableType:
        return Group(progress, Text(), requests_table(tally.snapshot()))

    with Live(console=console, get_renderable=screen, refresh_per_second=4) as live:
        started = time.monotonic()
        for count in range(number):
            _sleep_until(started + count / rate)
            futures.append(_send(requester, tally, devices[count % len(devices)], count))
            progress.advance(task)
            if count % rate < 1:
                healthy()
        progress.update(task, description="Waiting for replies")
        while wait(futures, timeout=REFRESH_SECONDS).not_done:
            healthy()
        progress.update(task, description="All replies received")
        live.refresh()
    console.print()
    return tally


def _send(requester: Requester, tally: Tally, device: Device, count: int) -> Future[Reply]:
    correlation_id = f"demo-{count:05d}"
    command = Command.modify_attribute(device.thing_id, "speed", count % 90)
    tally.opened(correlation_id)
    future = requester.send(command, acks=LABELS, timeout=TIMEOUT_SECONDS, correlation_id=correlation_id)
    future.add_done_callback(lambda done: tally.ended(correlation_id, done))
    return future


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _now() -> int:
    return time.time_ns() // 1_000_000
