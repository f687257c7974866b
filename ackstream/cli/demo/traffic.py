"""The traffic of the demo: simulated devices, and commands to them at a steady rate until the last reply.

Most devices are prompt, some slow or silent; one refuses, one is gone.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Literal

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ackstream.cli.console.display import requests_table
from ackstream.client import Ack, After, Command, RequestError
from ackstream.observe.meter import Meter, epoch_milliseconds, verdict
from ackstream.protocol.ditto.thing_errors import thing_not_found

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from rich.console import Console, RenderableType

    from ackstream.client import Answer, Reply, Requester, Signal
    from ackstream.observe.meter import Snapshot, Verdict


RECEIVED, DONE = LABELS = ("fleet:received", "fleet:done")
TIMEOUT_SECONDS = 5.0
"""The timeout of each command."""

FULL = 507

Habit = Literal["prompt", "slow", "late", "forgetful", "silent", "stuttering", "refusing", "gone"]
HABITS: dict[Habit, tuple[str, int]] = {
    "prompt": ("acknowledges received at once and done soon after", 0),
    "slow": ("takes seconds to acknowledge done", 4),
    "late": ("acknowledges done after the deadline", 2),
    "forgetful": ("never acknowledges done", 2),
    "silent": ("never acknowledges anything", 1),
    "stuttering": ("acknowledges done twice", 1),
    "refusing": (f"acknowledges done with status {FULL}", 1),
    "gone": ("its gateway acknowledges with an error", 1),
}
"""What a device does, and how many do so; all others are prompt."""


def fleet(size: int) -> dict[str, Habit]:
    """Return at least 12 devices, of all habits, by their thing ids."""
    unusual = [habit for habit, (_, number) in HABITS.items() for _ in range(number)]
    habits: list[Habit] = [*unusual, *["prompt"] * (size - len(unusual))]  # type: ignore[list-item]
    return {f"org.acme.fleet:truck-{number:02d}": habit for number, habit in enumerate(habits, start=1)}


def respond(devices: Mapping[str, Habit], signal: Signal) -> Answer:
    """Acknowledge a command as its device would."""
    habit = devices.get(signal.thing_id)
    if habit is None:
        return None
    return answer(habit, signal.thing_id, signal.value, random.Random(signal.correlation_id))  # noqa: S311 - chance


def answer(  # noqa: PLR0911 - one per habit
    habit: Habit, thing_id: str, value: object, chance: random.Random
) -> Answer:
    """Return how a device with the habit answers a command; ``chance`` decides the delays."""
    received = Ack(label=RECEIVED)
    done = Ack(200, {"applied": value}, DONE)
    moment = After(chance.uniform(0.02, 0.4), done)
    match habit:
        case "prompt":
            return received, moment
        case "slow":
            return received, After(chance.uniform(1.0, 0.7 * TIMEOUT_SECONDS), done)
        case "late":
            return received, After(TIMEOUT_SECONDS + chance.uniform(0.5, 2.0), done)
        case "forgetful":
            return received
        case "stuttering":
            return received, moment, moment
        case "refusing":
            return received, After(chance.uniform(0.02, 0.4), Ack(FULL, {"error": "storage.full"}, DONE))
        case "gone":
            return thing_not_found(thing_id)
        case "silent":
            return None


# -- the commands ------------------------------------------------------------------------------------------------------

WINDOW_MS = 10_000
REFRESH_SECONDS = 0.25


class Tally:
    """Counts commands, replies and latencies; thread-safe, as the requester calls it from its own thread."""

    def __init__(self) -> None:
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
            self._meter.opened(correlation_id, epoch_milliseconds())

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
            self._meter.decided(correlation_id, epoch_milliseconds(), how, latency)

    def snapshot(self) -> Snapshot:
        """Return the current counts."""
        with self._lock:
            return self._meter.snapshot(epoch_milliseconds())


def send_all(
    requester: Requester,
    things: Sequence[str],
    number: int,
    rate: float,
    console: Console,
    healthy: Callable[[], None],
) -> Tally:
    """Send commands to the things in turn, ``rate`` per second, and wait for all replies.

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
            time.sleep(max(0.0, started + count / rate - time.monotonic()))
            correlation_id = f"demo-{count:05d}"
            command = Command.modify_attribute(things[count % len(things)], "speed", count % 90)
            tally.opened(correlation_id)
            future = requester.send(command, acks=LABELS, timeout=TIMEOUT_SECONDS, correlation_id=correlation_id)
            future.add_done_callback(partial(tally.ended, correlation_id))
            futures.append(future)
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
