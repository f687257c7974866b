"""The parts of the two README.md that are made of results, each between two marks."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from ackstream.local import jars

README = Path(__file__).resolve().with_name("README.md")
FRONT = README.parents[1] / README.name
RESULTS = README.with_name("results")
PACKAGES = (
    "pyspark", "delta-spark", "pandas", "pyarrow", "numpy", "msgspec", "kafka-python", "confluent-kafka", "quixstreams",
)  # fmt: skip
NOT_MEASURED = "Not measured yet: `python -m benchmarks {}` on a quiet machine writes the tables."
BACKLOG = (
    "contender", "messages/s, warm", "whole run", "ackstream is … times that", "µs of processor per message",
    "of the broker", "memory, GB",
)  # fmt: skip
LOADS = {
    "100/s": "100 requests/s",
    "500/s": "500 requests/s",
    "2,000/s": "2,000 requests/s",
    "500/s + archive": "500 requests/s, archive in the same session",
    "50/s + archive, twin, index": "50 requests/s, archive, the twin and its index in the same session",
}
RATES = {
    "correlate": "**correlate** (state, timeouts, protocol checks, ledger)",
    "quixstreams, 1 process": "quixstreams with RocksDB and changelogs, 1 process (no timeouts, no ledger, no checks)",
    "quixstreams, 2 processes": "quixstreams, 2 processes",
    "state a correlation-id": "`applyInPandasWithState` keyed by the correlation-id",
    "copy": "Spark copying Kafka to Kafka, nothing else: the floor",
}
STAGES = {
    "accepted": "accepted",
    "received": "received, processed",
    "merged": "persisted, merged",
    "single": "persisted, single",
    "flush": "flush",
}
SHORT = 0.1
CLUSTER = (
    "executors", "messages", "partitions of a topic", "shards", "messages/s, warm", "whole run",
    "µs of the driver's processor per message",
)  # fmt: skip
BESIDE = (
    "a fresh program", "messages/s", "µs of processor per message", "reply, s", "timeout late, s",
    "silent after kill -9, s", "memory, GB", "replies repeated",
)  # fmt: skip
LIVE = (
    "contender", "reply p50", "p95", "last ack p50", "p95", "timeout late p50", "p95", "cores", "memory, GB",
    "silent after a kill", "caught up", "repeated", "wrong or missing",
)  # fmt: skip


def with_part(page: str, name: str, text: str) -> str:
    """Return a page with another text between the marks of a part."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = page.partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"The page has no part {name!r}: put the marks {start!r} and {end!r} there")
    return f"{before}{start}{text}\n{end}{after}"


def part(page: str, name: str) -> str:
    """Return the text of a part."""
    return page.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- end of {name} -->")[0]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; the first column is text, the others are figures."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def show(value: Any) -> str:
    """Write a figure with three or so digits."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def latency(report: dict[str, Any]) -> str:
    """Write the table of a requester's waits."""
    cases = report["figures"]["cases"]
    rows = [
        (LOADS[name], *(f"{value:.2f} s" for value in (*one["reply"].values(), one["late"]["p50"])))
        for name, one in cases.items()
    ]
    return _alone(table(("load", "p50", "p95", "p99", "timeout, p50"), rows))


def throughput(report: dict[str, Any]) -> str:
    """Write the table of correlate and its contenders."""
    rates, times = (report["figures"][name] for name in ("messages_a_second", "correlate_is_times"))
    rows = [(said, f"{rates[name]['warm']:,.0f}", f"{times[name]:.3g}") for name, said in RATES.items()]
    return _alone(table(("Kafka to Kafka, warm", "messages/s", "correlate is … times as fast"), rows))


def acks(report: dict[str, Any]) -> str:
    """Write the table of a publisher's waits."""
    cases = report["figures"]["cases"]
    columns = ["stage, s"]
    for rate in cases:
        columns += [f"{rate} p50", "p95"]
    rows = []
    for stage, said in STAGES.items():
        waits = [one["stages"][stage][figure] for one in cases.values() for figure in ("p50", "p95")]
        rows.append((said, *(f"{wait:.3f}" if wait < SHORT else f"{wait:.2f}" for wait in waits)))
    return _alone(table(columns, rows))


def peers(report: dict[str, Any]) -> str:
    """Write the tables of the peers."""
    figures = report["figures"]
    found = figures["contenders"]
    base = found["ackstream"]["messages_a_second"]["warm"]
    backlog = [
        (
            name,
            f"{one['messages_a_second']['warm']:,.0f}",
            f"{one['messages_a_second']['whole']:,.0f}",
            f"{base / one['messages_a_second']['warm']:.2f}",
            f"{one['processor_microseconds']:.0f}",
            f"{one['broker_microseconds']:.1f}",
            f"{one['memory_bytes'] / 2**30:.2f}",
        )
        for name, one in found.items()
    ]
    live = [
        (
            name,
            *_seconds(one["live"]["reply"]["p50"], one["live"]["reply"]["p95"]),
            *_seconds(one["live"]["last_ack"]["p50"], one["live"]["last_ack"]["p95"]),
            *_seconds(one["live"]["late"]["p50"], one["live"]["late"]["p95"]),
            f"{one['live']['cores']:.2f}",
            f"{one['live']['memory_bytes'] / 2**30:.2f}",
            *_seconds(one["live"]["kill"]["silent"], one["live"]["kill"]["caught_up"]),
            f"{one['live']['counts'].get('repeated', 0):,}",
            f"{_wrong(one['live']['counts']):,}",
        )
        for name, one in found.items()
    ]
    lines = [
        f"A backlog of {figures['messages']:,} messages, median of {figures['rounds']} rounds ({_measured(report)}):",
        "",
        *table(BACKLOG, backlog),
        "",
        f"{figures['rate']} requests/s, in seconds; then kill -9 of all its processes and an immediate restart:",
        "",
        *table(LIVE, live),
    ]
    return "\n".join(lines)


def beside(report: dict[str, Any]) -> str:
    """Write the table of each peer's cost as a program of its own."""
    rows = [
        (
            f"**{name}**" if name.startswith("ackstream") else name,
            f"{one['messages_a_second']['warm']:,.0f}",
            f"{one['processor_microseconds'] + one['broker_microseconds']:.0f}",
            *_seconds(one["live"]["reply"]["p50"], one["live"]["late"]["p50"], one["live"]["kill"]["silent"]),
            f"{one['memory_bytes'] / 2**30:.1f}",
            f"{one['live']['counts'].get('repeated', 0):,}",
        )
        for name, one in report["figures"]["contenders"].items()
    ]
    return _alone(table(BESIDE, rows))


def profile(report: dict[str, Any]) -> str:
    """Write the tables of processor time and of a small batch."""
    backlog, small = report["figures"]["backlog"], report["figures"]["small"]
    used = backlog["microseconds"]
    rows = [(where, f"{found:.1f}") for where, found in (*used.items(), ("all", sum(used.values())))]
    steps = [(step, f"{found:.0f}") for step, found in small["milliseconds"].items()]
    lines = [
        f"A backlog in warm batches, {backlog['messages'] / backlog['seconds']:,.0f} messages/s ({_measured(report)}):",
        "",
        *table(("processor time per message", "µs"), rows),
        "",
        f"{small['rate']} requests/s, {small['messages_a_batch']:.0f} messages per batch (medians):",
        "",
        *table(("part of a batch", "ms"), steps),
        "",
        f"and the parts of a core that they take, {sum(small['cores'].values()):.2f} in all:",
        "",
        *table(("where", "cores"), [(where, f"{found:.2f}") for where, found in small["cores"].items()]),
    ]
    return "\n".join(lines)


def scale(report: dict[str, Any]) -> str:
    """Write the tables of the cluster and of the driver."""
    cluster, driver = report["figures"]["cluster"], report["figures"]["driver"]
    executors = [
        (
            *(f"{one[name]}" for name in ("executors", "messages_are", "partitions", "shards")),
            *(f"{one[name]:,.0f}" for name in ("warm", "whole", "driver_microseconds")),
        )
        for one in cluster
    ]
    widths = driver["widths"]
    parts = driver["milliseconds"][widths[0]["name"]]
    columns = ["ms", *(f"{width['partitions']:,} partitions, {width['shards']} shards" for width in widths)]
    rows = [(part, *(f"{driver['milliseconds'][width['name']][part]:,.3g}" for width in widths)) for part in parts]
    lines = [
        f"A backlog on a standalone cluster, executors of one core each ({_measured(report)}):",
        "",
        *table(CLUSTER, executors),
        "",
        "The driver's part:",
        "",
        *table(columns, rows),
    ]
    return "\n".join(lines)


def _alone(lines: Sequence[str]) -> str:
    """Write a table that is a part by itself: after a mark there has to be an empty line."""
    return "\n".join(["", *lines])


def _measured(report: dict[str, Any]) -> str:
    machine = report["machine"]
    return f"{report['date'][:10]}, {machine['cores']} cores, {machine['cpu']}"


def _wrong(counts: dict[str, int]) -> int:
    return sum(counts.get(name, 0) for name in ("wrong", "contradicted", "unknown", "unanswered"))


def _seconds(*values: float | None) -> list[str]:
    return ["-" if value is None else f"{value:.2f}" for value in values]


class Part(NamedTuple):
    """A part of a page, and the function that writes it from the report of a benchmark."""

    page: Path
    result: str
    text: Callable[[dict[str, Any]], str]


PARTS = {
    "latency": Part(README, "latency", latency),
    "throughput": Part(README, "throughput", throughput),
    "beside": Part(FRONT, "peers", beside),
    "acks": Part(README, "acks", acks),
    "peers": Part(README, "peers", peers),
    "profile": Part(README, "profile", profile),
    "scale": Part(README, "scale", scale),
}


def write(benchmark: str, report: dict[str, Any]) -> None:
    """Write a benchmark's parts, if there are any, into their pages."""
    for name, found in PARTS.items():
        if found.result == benchmark:
            replace(found.page, name, found.text(report))


def replace(page: Path, name: str, text: str) -> None:
    """Write the text of a part into a page."""
    page.write_text(with_part(page.read_text("utf-8"), name, text), "utf-8")


def machine() -> dict[str, Any]:
    """Describe the machine and its programs."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = lines[0].partition(":")[2].strip() if lines else cpu
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kafka = [jar.stem.rpartition("-")[2] for jar in jars.resolve("broker") if jar.name.startswith("kafka_")]
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "kafka": kafka[0] if kafka else None,
        **{name: found for name in PACKAGES if (found := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
