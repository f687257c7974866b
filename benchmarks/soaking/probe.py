"""The outside measurements of a running system: processes, directories, topics, tables, checkpoints, clients."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from kafka.errors import RetriableError

from ackstream.kafka import topics
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.topics import TOPICS
from ackstream.lake.schemas import ALL_TABLES
from benchmarks.progress import percentiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackstream.settings import Lake, Settings

PAGE = os.sysconf("SC_PAGE_SIZE")
TOOL_SECONDS = 60
READS = {
    "correlate": ("signals", "acks", "twin-acks"),
    "archive": ("ledger",),
    "twin": ("signals",),
    "persist": ("messages",),
    "settle": ("stored", "app-acks"),
}
"""The jobs that read topics alone, and which."""


class Process:
    """A process as /proc shows it."""

    def __init__(self, pid: int) -> None:
        """Read it.

        :raises OSError: it has ended
        """
        name, _, rest = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")
        fields = rest.split()
        self.pid = pid
        self.session, self.threads, self.resident = int(fields[3]), int(fields[17]), int(fields[21]) * PAGE
        self.java, self.python = name.endswith("(java"), "(python" in name
        self.worker = "pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace")
        self.descriptors = sum(1 for _ in os.scandir(f"/proc/{pid}/fd"))


def processes() -> dict[int, list[Process]]:
    """Return all processes by their session."""
    found = defaultdict(list)
    for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        try:
            process = Process(pid)
        except OSError:
            continue
        # a child that a JVM has just forked seems to have all its memory
        if process.java or process.python:
            found[process.session].append(process)
    return found


def memory(sessions: Mapping[str, int]) -> dict[str, float]:
    """Measure the processes of programs, given by their sessions."""
    values: dict[str, float] = {}
    everything = processes()
    for name, session in sessions.items():
        found = everything.get(session, [])
        for process in found:
            if process.java:
                values |= {f"jvm/{name}": process.resident, **_java(name, process)}
        workers = [process for process in found if process.worker]
        if workers:
            values |= {f"workers/{name}": sum(p.resident for p in workers), f"worker-count/{name}": len(workers)}
        pythons = [process.resident for process in found if not process.java and not process.worker]
        if pythons:
            values[f"python/{name}"] = sum(pythons)
        values |= {
            f"threads/{name}": sum(process.threads for process in found),
            f"descriptors/{name}": sum(process.descriptors for process in found),
        }
    return values


def _java(name: str, process: Process) -> dict[str, float]:
    lines = _tool("jstat", "-gc", str(process.pid)).splitlines()
    if len(lines) != 2:
        return {}
    kilobytes = dict(zip(lines[0].split(), lines[1].split(), strict=False))
    heap, classes = (
        sum(float(kilobytes[key]) * 1024 for key in keys) for keys in (("S0C", "S1C", "EC", "OC"), ("MU",))
    )
    return {f"classes/{name}": classes, f"native/{name}": process.resident - heap}


def live(sessions: Mapping[str, int]) -> dict[str, Counter[str]]:
    """Return the bytes of live objects by class, of each program with a JVM; this takes a full collection of each."""
    found = {}
    everything = processes()
    for name, session in sessions.items():
        for process in everything.get(session, []):
            if process.java:
                text = _tool("jcmd", str(process.pid), "GC.class_histogram")
                rows = re.findall(r"^ *\d+: +\d+ +(\d+) +(\S+)", text, re.MULTILINE)
                found[name] = Counter({kind: int(size) for size, kind in rows})
    return found


def _tool(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        # a Java without tools: these series are missing
        return ""


def usage(directory: Path) -> tuple[int, int]:
    """Return bytes on disk and files below a directory; files that vanish meanwhile do not count."""
    size = files = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                size += os.lstat(f"{place}/{name}").st_blocks * 512
            except OSError:
                continue
            files += 1
    return size, files


class Notes:
    """The lines of a file that only grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        self.count, self.last = 0, ""

    def read(self) -> None:
        """Read on."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._at)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._at += len(whole) + 1
                found = whole.decode().splitlines()
                self.count, self.last = self.count + len(found), found[-1]


class Probe:
    """Measures a system of which all parts are on this machine.

    :ivar arrived: records by topic and versions by table, at the last look
    """

    def __init__(self, settings: Settings, standby: Lake, data: Path, notes: Mapping[str, Path]) -> None:
        """Connect.

        :param data: the broker's directory of partitions
        :param notes: the notes of the clients: ``subscriber``, ``reader``, ``follower``, ``consumer``, and the receipts
            of the publishers ``p1`` and ``p2``
        """
        self._settings, self._data = settings, data
        self._lakes = {"": settings.lake, "standby.": standby}
        self._notes = {name: Notes(path) for name, path in notes.items()}
        self._admin = connect_admin(settings.kafka)
        self._tables: dict[str, DeltaTable] = {}
        self._seen: dict[str, int] = {}
        self._arrived: Counter[str] = Counter()
        self._at = time.monotonic()

    def close(self) -> None:
        """Disconnect."""
        self._admin.close()

    def directories(self) -> dict[str, float]:
        """Measure checkpoints, tables and topics on disk."""
        values: dict[str, float] = {}
        for place in sorted(Path(self._settings.lake.checkpoints).iterdir()):
            if not place.name.startswith("."):
                values[f"state/{place.name}"], values[f"state-files/{place.name}"] = usage(place)
        for name, place in self._places():
            log, log_files = usage(place / "_delta_log")
            size, files = usage(place)
            values |= {f"disk/{name}": size - log, f"disk-files/{name}": files - log_files}
            values |= {f"log/{name}": log, f"log-files/{name}": log_files}
        by_topic: Counter[str] = Counter()
        prefix = self._settings.kafka.topic_prefix
        for place in self._data.iterdir():
            if place.is_dir():
                by_topic[place.name.rpartition("-")[0].removeprefix(prefix)] += usage(place)[0]
        return values | {f"kafka/{name}": size for name, size in by_topic.items()}

    def _places(self) -> Iterable[tuple[str, Path]]:
        for prefix, lake in self._lakes.items():
            for table in ALL_TABLES:
                place = Path(lake.table(table))
                if (place / "_delta_log").is_dir():
                    yield prefix + table, place

    def tables(self) -> dict[str, float]:
        """Measure the newest version of each table."""
        values: dict[str, float] = {}
        for name, place in self._places():
            if name not in self._tables:
                self._tables[name] = DeltaTable(str(place))
            table = self._tables[name]
            table.update_incremental()
            actions = pa.table(table.get_add_actions()).select(["size_bytes", "num_records"])
            values |= {
                f"files/{name}": actions.num_rows,
                f"live/{name}": sum(actions["size_bytes"].to_pylist()),
                f"rows/{name}": sum(count or 0 for count in actions["num_records"].to_pylist()),
                f"commits/{name}": table.version() + 1,
            }
        return values

    def batches(self) -> dict[str, float]:
        """Measure the batches that ended since the last look: Spark writes a file before and after each."""
        values: dict[str, float] = {}
        for place in sorted(Path(self._settings.lake.checkpoints).iterdir()):
            begun, ended = (_times(place / part) for part in ("offsets", "commits"))
            done = sorted(begun.keys() & ended.keys())
            # a query without batches has no value
            took = [ended[n] - begun[n] for n in done if n > self._seen.get(place.name, -1)]
            if took:
                self._seen[place.name] = done[-1]
                found = percentiles(took, (50, 95))
                values |= {f"batch/{place.name} {key}": value for key, value in found.items() if value is not None}
        return values

    def backlogs(self, tables: Mapping[str, float]) -> dict[str, float]:
        """Measure the backlog of each job and client, in seconds of the arrivals since the last check.

        :param tables: the result of :meth:`tables`
        """
        settings, notes = self._settings, self._notes
        for note in notes.values():
            note.read()
        ends = topics.ends(self._admin, topics.replicas(self._admin, map(settings.kafka.topic, TOPICS)))
        records: Counter[str] = Counter()
        for partition, end in ends.items():
            records[partition.topic.removeprefix(settings.kafka.topic_prefix)] += end
        groups = {name: settings.kafka.group_of(name) for name in READS}
        try:
            committed = self._admin.list_group_offsets(list(groups.values()))
        except RetriableError:
            # no group has committed yet, or the coordinator is moving
            committed = {}
        behind: dict[str, tuple[float, tuple[str, ...]]] = {}
        for name, read in READS.items():
            names = {settings.kafka.topic(topic) for topic in read}
            known = committed.get(groups[name], {})
            behind[name] = (
                sum(end - (known[p].offset if p in known else 0) for p, end in ends.items() if p.topic in names),
                read,
            )
        last = {name: int(notes[name].last.partition(",")[2] or 0) for name in ("p1", "p2")}
        behind |= {
            "subscriber": (records["events"] - notes["subscriber"].count, ("events",)),
            # of stored messages: the topic also has those that a publisher repeats because the service was late
            "reader": (tables.get("rows/messages", 0) - notes["reader"].count, ("messages",)),
            "publishers": (tables.get("rows/messages", 0) - sum(last.values()), ("messages",)),
            "query": (last["p1"] - int(notes["follower"].last or 0), ("p1",)),
            "queues": (last["p2"] - notes["consumer"].count, ("p2",)),
            "mirror": (tables.get("rows/messages", 0) - tables.get("rows/standby.messages", 0), ("messages",)),
            "twin-index": (self._unmerged(tables), ("thing_events",)),
        }
        arrived = records + Counter(last) + Counter({"thing_events": int(tables.get("commits/thing_events", 0))})
        passed, self._at = time.monotonic() - self._at, time.monotonic()
        new, self._arrived = arrived - self._arrived, arrived
        values = {f"records/{topic}": float(count) for topic, count in records.items()}
        for name, (count, sources) in behind.items():
            if rate := sum(new[source] for source in sources) / passed:
                values[f"backlog/{name}"] = max(0.0, count) / rate
        return values

    def _unmerged(self, tables: Mapping[str, float]) -> float:
        """Return how many versions of the journal the index has not merged."""
        place = Path(self._settings.lake.checkpoints) / "twin-index"
        done = _times(place / "offsets").keys() & _times(place / "commits").keys()
        if not done:
            return 0.0
        last = json.loads((place / "offsets" / str(max(done))).read_text("utf-8").splitlines()[-1])
        return max(0.0, tables.get("commits/thing_events", 0) - int(_version(last)))


def _version(offset: Any) -> int:
    return int(offset["reservoirVersion"]) if isinstance(offset, dict) else 0


def _times(directory: Path) -> dict[int, float]:
    found = {}
    if directory.is_dir():
        for entry in os.scandir(directory):
            if entry.name.isdigit():
                found[int(entry.name)] = entry.stat().st_mtime
    return found
