"""The expectation of each measured series, the verdict on it, the plot, and the report's file."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.soaking.trend import GROWS, trend

BY_DESIGN = "by design"
KEPT = "removed files stay for lake.retention (7 days; things and things_search: 1 day)"
MB = 2**20
Sample = dict[str, Any]
"""``minute`` since the load is steady, and ``values`` by the names of the series, ``GROUP/MEMBER``."""


class Rule(NamedTuple):
    """The expectation of the series of a pattern.

    :ivar reason: why it is flat, or why it is not
    :ivar unit: of the values, in which they are shown divided by ``scale``
    :ivar floor: slopes per hour up to it are no growth, as are those below ``share`` of the level
    :ivar per: the group of the series to divide by: series proportional to the data are flat per record
    :ivar judged: false if it grows by design for longer than the run lasts
    """

    pattern: str
    reason: str
    unit: str = ""
    scale: float = 1
    share: float = 0.05
    floor: float = 0.0
    per: str | None = None
    judged: bool = True


RULES = (
    Rule("jvm/*", "resident set: a heap grows up to spark.driver_memory; leaks show in the next three",
         "MB", MB, judged=False),
    Rule("heap/*", "live objects after a full collection", "MB", MB, floor=10 * MB),
    Rule("classes/*", "metaspace: classes that queries generate are unloaded again", "MB", MB, floor=2 * MB),
    Rule("native/*", "resident set beyond the committed heap: buffers, threads, code", "MB", MB, floor=20 * MB),
    Rule("python/*", "resident set of drivers, gateway and clients", "MB", MB, floor=2 * MB),
    Rule("workers/*", "resident set of all Python workers of a driver", "MB", MB, floor=10 * MB),
    Rule("worker-count/*", "idle Python workers end", floor=1),
    Rule("threads/*", "threads of all processes of a program", floor=4),
    Rule("descriptors/*", "open files and sockets of all processes of a program", floor=8),
    Rule("state/*", "a checkpoint keeps the last 20 batches, and states with what is open", "MB", MB, floor=MB),
    Rule("state-files/*", "a checkpoint keeps the last 20 batches", floor=50),
    Rule("temporary/*", "Spark's local disk: shuffles end with their query's garbage, at the latest after 30 minutes",
         "MB", MB, floor=20 * MB),
    Rule("temporary-files/*", "Spark's local disk", floor=100),
    Rule("files/*", "files of the table's newest version: maintenance compacts them", floor=50),
    # merged, one row per thing: as many as there are things
    Rule("live/things*", "bytes of the newest version: one row per thing", "MB", MB, floor=MB),
    # pruned every 300 batches, compacted with each maintenance: rows and bytes are sawteeth of different lengths
    Rule("live/publishers", "bytes of the newest version: rows of the last batches, until they are pruned", "MB", MB,
         floor=MB),
    Rule("live/*", "bytes of the newest version, per row", "B per row", per="rows"),
    Rule("disk/*", KEPT, "MB", MB, judged=False),
    Rule("disk-files/*", KEPT, judged=False),
    Rule("log/*", "_delta_log: commits stay for lake.retention, and checkpoints name what was removed as long",
         "kB per commit", 1024, per="commits", judged=False),
    Rule("log-files/*", "_delta_log, per commit; commits stay for lake.retention", "per commit", per="commits"),
    Rule("kafka/__*", "Kafka's own: offsets of groups, metadata; cut by segments of 100 MB", "MB", MB, judged=False),
    Rule("kafka/*clock", "ticks, kept for a week: a batch that is replayed needs them", "MB", MB, judged=False),
    Rule("kafka/*-lease", "compacted every 10 minutes", "MB", MB, floor=MB),
    Rule("kafka/declarations", "claims of labels, kept for a day: correlate asks who held a label when", "MB", MB,
         judged=False),
    Rule("kafka/destinations", "compacted every 10 minutes", "MB", MB, floor=MB),
    Rule("kafka/*", "per record; Kafka's retention is 7 days", "B per record", per="records"),
    Rule("batch/*", "seconds of a batch", "s", share=0.1, floor=0.2),
    Rule("backlog/*", "what arrived and is not processed, divided by what arrives per second", "s", share=0.1, floor=1),
    Rule("latency/*", "request to reply, as the client sees it", "s", share=0.1, floor=0.2),
    Rule("open/*", "requests that wait for their reply", share=0.1, floor=20),
    Rule("failed/*", "requests per minute that were answered otherwise than expected", share=0.1, floor=1),
    Rule("notes/*", "what the programs write to standard error", "MB", MB, floor=MB),
    Rule("store/*", "the publisher's store of unacknowledged messages", "MB", MB, floor=MB),
    Rule("rows/*", "rows of the newest version: the data", judged=False),
    Rule("commits/*", "versions of the table: the data", judged=False),
    Rule("records/*", "records ever written: the data", judged=False),
)  # fmt: skip
HIDDEN = {"rows", "commits", "records", "disk-files", "log-files", "worker-count", "temporary-files"}
"""Groups that the plot leaves out."""


def rule_of(name: str) -> Rule:
    """Return the first rule whose pattern fits.

    :raises LookupError: no rule fits
    """
    for rule in RULES:
        if fnmatchcase(name, rule.pattern):
            return rule
    raise LookupError(f"There is no rule for the series {name}")


def points(samples: Sequence[Sample], name: str) -> tuple[list[float], list[float]]:
    """Return minutes and values of a series, in its rule's unit; minutes without a value are left out."""
    rule = rule_of(name)
    per = None if rule.per is None else f"{rule.per}/{name.partition('/')[2]}"
    minutes, values = [], []
    for sample in samples:
        value, divisor = sample["values"].get(name), 1 if per is None else sample["values"].get(per)
        if value is not None and divisor:
            minutes.append(sample["minute"])
            values.append(value / divisor / rule.scale)
    return minutes, values


def judge(samples: Sequence[Sample], warm_up: float) -> dict[str, dict[str, Any]]:
    """Judge all series from a minute on."""
    counted = [sample for sample in samples if sample["minute"] >= warm_up]
    found = {}
    for name in sorted({name for sample in samples for name in sample["values"]}):
        rule = rule_of(name)
        minutes, values = points(counted, name)
        told: dict[str, Any] = {"expected": "flat" if rule.judged and not rule.per else "linear", "reason": rule.reason}
        told |= {"unit": rule.unit, "first": values[0], "last": values[-1]} if values else {}
        if rule.judged:
            result = trend([minute / 60 for minute in minutes], values, rule.share, rule.floor / rule.scale)
            told |= {key: None if isinstance(value, float) and math.isnan(value) else value
                     for key, value in result._asdict().items()}  # fmt: skip
        else:
            told["verdict"] = BY_DESIGN
        found[name] = told
    return found


def growing(verdicts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of the series that grow."""
    return [name for name, told in verdicts.items() if told["verdict"] == GROWS]


def plot(samples: Sequence[Sample], verdicts: Mapping[str, Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw a panel per group; a series that grows is thick and red in the legend."""
    import matplotlib as mpl  # noqa: PLC0415 - loads slowly, and only the end needs it

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted(verdicts, key=lambda name: RULES.index(rule_of(name))):
        if name.partition("/")[0] not in HIDDEN:
            groups[name.partition("/")[0]].append(name)
    columns = 4
    lines = -(-len(groups) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(27, 3.8 * lines), sharex=True, squeeze=False)
    for axis in axes.flat[len(groups) :]:
        axis.axis("off")
    for axis, (group, names) in zip(axes.flat, groups.items(), strict=False):
        units = sorted({rule_of(name).unit for name in names})
        # two percentiles of one thing have its colour
        things = list(dict.fromkeys(name.removesuffix(" p95").removesuffix(" p50") for name in names))
        for name in names:
            minutes, values = points(samples, name)
            grows = verdicts[name]["verdict"] == GROWS
            colour = mpl.colormaps["tab20"](things.index(name.removesuffix(" p95").removesuffix(" p50")) % 20)
            style = "--" if name.endswith(" p95") or rule_of(name).unit != units[0] else "-"
            # the legend leaves out names that begin with _
            label = name.partition("/")[2].lstrip("_")
            axis.plot(minutes, values, style, color=colour, linewidth=2.5 if grows else 1, label=label)
        everything = [value for name in names for value in points(samples, name)[1] if value > 0]
        if everything and max(everything) > 100 * min(everything):
            axis.set_yscale("symlog", linthresh=max(min(everything), max(everything) / 1e4))
        else:
            axis.set_ylim(bottom=0)
        judged = "" if any(rule_of(name).judged for name in names) else " (not judged)"
        axis.set_title(f"{group}{judged}, {' / '.join(units) or 'number'}", fontsize=10)
        axis.grid(alpha=0.3)
        legend = axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        for text, name in zip(legend.get_texts(), names, strict=True):
            if verdicts[name]["verdict"] == GROWS:
                text.set_color("red")
                text.set_fontweight("bold")
    for axis in axes[-1]:
        axis.set_xlabel("minutes")
    figure.suptitle(title)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(path, dpi=72)
    plt.close(figure)


# -- the report -------------------------------------------------------------------------------------------------------


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Round to six digits."""
    return {name: float(f"{value:.6g}") for name, value in values.items()}


def write(report: Mapping[str, Any], place: Path) -> None:
    """Replace the report atomically; a line per series."""
    samples = report["samples"]
    names = sorted({name for sample in samples for name in sample["values"]})
    columns = {"minute": [sample["minute"] for sample in samples]}
    columns |= {name: [sample["values"].get(name) for sample in samples] for name in names}
    whole = [f"{json.dumps(key)}: {_lines(value)}" for key, value in {**report, "samples": columns}.items()]
    part = place / "soak.json.new"
    part.write_text("{\n" + ",\n".join(whole) + "\n}\n", "utf-8")
    part.replace(place / "soak.json")


def _lines(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()) + "\n}"


def read(path: Path) -> dict[str, Any]:
    """Return a report that was written."""
    report: dict[str, Any] = json.loads(path.read_text("utf-8"))
    columns = report["samples"]
    minutes = columns.pop("minute")
    report["samples"] = [
        {"minute": minute, "values": {name: found for name, column in columns.items()
                                      if (found := column[number]) is not None}}
        for number, minute in enumerate(minutes)
    ]  # fmt: skip
    return report
