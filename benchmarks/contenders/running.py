"""The processes of a contender: started, watched, killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ackstream.local.machine import owner
from benchmarks import common
from benchmarks.contenders.programs import Contender, Place, environment

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Processor seconds used by a contender and of the broker, and the contender's memory in bytes, at a time."""

    time: float
    processor: float
    broker: float
    memory: int


class Running:
    """A contender at work, until :meth:`close`."""

    def __init__(self, contender: Contender, place: Place) -> None:
        self._contender, self._place = contender, place
        self.log = place.directory.with_name(f"{place.directory.name}.log")
        self._broker = listener(place.settings.kafka.bootstrap)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.used: list[Usage] = []
        self.start()

    def start(self) -> None:
        """Start all processes, each in a session of its own, by which its children are known."""
        with self.log.open("ab") as log:
            self._processes = [
                subprocess.Popen(
                    command, cwd=common.ROOT, env=environment(self._place.settings), stdout=log, stderr=log,
                    start_new_session=True,
                )
                for command in self._contender.commands(self._place)
            ]  # fmt: skip

    def close(self) -> None:
        """Kill -9 all processes and their children."""
        for pid in members({process.pid for process in self._processes}):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def check(self) -> None:
        """Raise an error if a process has ended."""
        if any(process.poll() is not None for process in self._processes):
            raise RuntimeError(f"{self._contender.name} ended by itself: {self.log.read_text('utf-8')[-3000:]}")

    def sample(self) -> None:
        """Measure its present use."""
        own = members({process.pid for process in self._processes})
        used, memory = sum(map(processor, own)), sum(map(_memory, own))
        self.used.append(Usage(time.time(), used, processor(self._broker), memory))

    def between(self, start: float, end: float) -> tuple[Usage, Usage]:
        """Return the samples next to two times."""
        times = [usage.time for usage in self.used]
        first = min(bisect_left(times, start), len(times) - 2)
        return self.used[first], self.used[max(min(bisect_left(times, end), len(times) - 1), first + 1)]


def listener(bootstrap: str) -> int:
    """Return the process id of a broker on this machine."""
    found = re.search(r"\(process (\d+)\b", owner(int(bootstrap.rpartition(":")[2])) or "")
    if found is None:
        raise RuntimeError(f"The broker at {bootstrap} has to run on this machine: its processor time is measured")
    return int(found[1])


def members(sessions: set[int]) -> list[int]:
    """Return the processes of sessions."""
    return [pid for pid in _pids() if _session(pid) in sessions]


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    parents = {other: int(fields[1]) for other in _pids() if (fields := _fields(other))}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name; none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _session(pid: int) -> int | None:
    fields = _fields(pid)
    return int(fields[3]) if fields else None


def processor(pid: int) -> float:
    """Return the processor seconds of a process and of its children that have ended."""
    return sum(map(int, _fields(pid)[11:15])) / TICKS_A_SECOND


def _memory(pid: int) -> int:
    """Return the memory of a process, its share of what it has in common with others."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8")
    except OSError:
        return 0
    found = re.search(r"^Pss: +(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
