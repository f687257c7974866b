"""Shared by all benchmarks: their command line, settings and session, tables, results, the machine."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ackstream.kafka.topics import TOPICS, ensure_topics
from ackstream.local import jars
from ackstream.settings import Settings, load
from ackstream.spark.session import session
from benchmarks import pages
from benchmarks.broker import Offsets
from benchmarks.node import running
from benchmarks.pages import RESULTS, machine, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 3
"""Figures are medians of this number of rounds."""
_numbers = count()


@dataclass(frozen=True)
class Bench:
    """One run of one benchmark.

    :param base: the product's settings, with the benchmark's broker and directory
    :param small: a quick check that everything works: the figures mean nothing
    :param requests: how many requests, or rows, are wanted, if the benchmark leaves that open
    """

    name: str
    base: Settings
    directory: Path
    small: bool
    console: Console
    requests: int = 0

    @cached_property
    def spark(self) -> SparkSession:
        """The Spark session, made when it is first needed."""
        # the workers must find this package too
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        # the default of 100 forgets the first batches of a long run
        conf = {"spark.sql.streaming.numRecentProgressUpdates": "100000"}
        made = session(self.base, f"bench-{self.name}", jars=jars.resolve("spark"), conf=conf)
        made.sparkContext.setLogLevel("ERROR")
        return made

    @cached_property
    def offsets(self) -> Offsets:
        """Counts records."""
        return Offsets(self.base.kafka.bootstrap)

    def settings(self, label: str, *, prefix: str | None = None, **parts: Mapping[str, Any]) -> Settings:
        """Return settings with topics, tables and checkpoints of their own; the topics are created.

        :param label: names this use
        :param prefix: take the topics of another use
        :param parts: changed keys by part, ``correlate={"shards": 64}``
        """
        own = f"{label}-{next(_numbers)}"
        place = self.directory / own
        changes: dict[str, dict[str, Any]] = {
            "kafka": {"topic_prefix": f"bench-{os.getpid()}-{own}-" if prefix is None else prefix},
            "lake": {"path": str(place / "lake"), "checkpoints": str(place / "checkpoints")},
        }
        for part, keys in parts.items():
            changes.setdefault(part, {}).update(keys)
        settings = _with(self.base, **changes)
        ensure_topics(settings)
        return settings

    def close(self) -> None:
        """End the started processes."""
        if "spark" in vars(self):
            self.spark.stop()
        if "offsets" in vars(self):
            self.offsets.close()

    def names(self, settings: Settings) -> list[str]:
        """Return the real names of all topics."""
        return [settings.kafka.topic(name) for name in TOPICS]

    def say(self, text: str) -> None:
        """Report the progress of the run."""
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {text}", highlight=False)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print a table; the first column is text, the others are figures."""
        # a title of the table's own would be folded to its width
        self.console.print(f"\n[bold]{title}[/bold]", highlight=False)
        table = Table()
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(show, row))
        self.console.print(table)


def main(
    name: str,
    measure: Callable[[Bench], dict[str, Any]],
    *,
    kafka: bool = True,
    requests: int = 0,
    option: str = "requests",
) -> None:
    """Run a benchmark as a program.

    :param kafka: whether it needs one
    :param requests: its number of requests, if an option gives another one
    :param option: the name of that option
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--small", action="store_true", help="a check of a minute; its figures mean nothing")
    parser.add_argument("--bootstrap", help="use this running Kafka instead of one of the benchmark's own")
    parser.add_argument("--results", type=Path, help=f"where NAME.json goes; {RESULTS}, with --small nowhere")
    if requests:
        parser.add_argument(f"--{option}", type=int, default=requests, help=f"fewer than {requests:,}: for a trial")
    arguments = parser.parse_args()
    wanted = getattr(arguments, option, 0)
    trial = arguments.small or wanted != requests
    # kill ends this as Ctrl-C does, with all its processes
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = terminal()
    began = time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"ackstream-bench-{name}-")))
        bootstrap = arguments.bootstrap
        if kafka and bootstrap is None:
            bootstrap = stack.enter_context(running(load().local, console)).bootstrap
        base = load()
        base = _with(base, kafka={"bootstrap": bootstrap or base.kafka.bootstrap}, local={"data": directory})
        bench = Bench(name, base, directory, arguments.small, console, wanted)
        stack.callback(bench.close)
        figures = measure(bench)
    seconds = time.monotonic() - began
    bench.say(f"{name}: {seconds:.0f} s")
    place = arguments.results or (None if trial else RESULTS)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        parts = {
            "kafka": {"partitions"},
            **dict.fromkeys(("spark", "correlate", "clock", "archive", "twin", "persist", "settle"), True),
        }
        report = {
            "benchmark": name,
            "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            "small": arguments.small,
            "seconds": seconds,
            "machine": machine(),
            "settings": base.model_dump(mode="json", include=parts),
            "figures": figures,
        }
        report = rounded(report)
        (place / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n", "utf-8")
        if place == RESULTS:
            pages.write(name, report)
        console.print(f"Written: {place / f'{name}.json'}", highlight=False)


def terminal() -> Console:
    """Return where tables go: those of eight columns do not fit the 80 that Rich takes where there is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 120)


def _with(settings: Settings, **parts: Mapping[str, Any]) -> Settings:
    """Return settings with some keys changed, given by part."""
    return settings.model_copy(
        update={part: getattr(settings, part).model_copy(update=dict(keys)) for part, keys in parts.items()}
    )


def rounded(value: Any) -> Any:
    """Round all figures to five digits."""
    if isinstance(value, dict):
        return {str(key): rounded(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(entry) for entry in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
