"""The summary of the demo: how the commands ended, three sample replies, the tables, and how to query them."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.json import JSON
from rich.padding import Padding
from rich.text import Text

from ackstream.cli.console.display import STYLES, span
from ackstream.cli.console.terminal import PlainTable, data
from ackstream.cli.demo.traffic import HABITS
from ackstream.lake.schemas import ALL_TABLES
from ackstream.observe.meter import VERDICTS, percentiles, verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console

    from ackstream.cli.demo.check import Finding
    from ackstream.cli.demo.traffic import Habit, Tally
    from ackstream.client import Reply
    from ackstream.settings import Settings


PERCENTILES = (0.5, 0.95, 0.99)


def show(console: Console, tally: Tally, devices: Mapping[str, Habit]) -> None:
    """Print how the commands ended, and sample replies."""
    _title(console, "How the commands ended")
    console.print(_verdicts(tally), "", _habits(tally, devices), "", sep="\n")
    for name, reply in samples(tally.replies.values()):
        _title(console, f"A reply: {name}")
        topic = reply.envelope.topic
        console.print(data(f"{reply.correlation_id} to {topic.thing_id}, completed by {reply.completed_by}"))
        console.print(data(reply.explanation, "dim"))
        value = JSON.from_data(reply.value).text
        value.no_wrap = False
        console.print(Padding(value, (0, 0, 1, 2)))


def show_tables(console: Console, settings: Settings, rows: dict[str, int]) -> None:
    """Print the row counts."""
    _title(console, f"Delta tables in {settings.lake.path}")
    table = PlainTable("table", "rows", "", right=[1])
    for name, number in rows.items():
        table.add_row(name, f"{number:,}", Text(ALL_TABLES[name].comment, style="dim"))
    console.print(table, "", sep="\n")


def show_findings(console: Console, findings: Iterable[Finding], *, caught_up: bool) -> None:
    """Print each check and its differences."""
    _title(console, "Does it add up?")
    if not caught_up:
        console.print(Text("The jobs did not catch up in time; their remaining work is missing below.", "red"))
    for finding in findings:
        good = not finding.differences
        console.print(Text.assemble(("yes  " if good else "NO   ", "green" if good else "bold red"), finding.text))
        for difference in finding.differences:
            console.print(data(f"     {difference}", "red"))
    console.print()


def samples(replies: Iterable[Reply]) -> list[tuple[str, Reply]]:
    """Return a complete reply, one with a 408 entry, and an error, as far as they occurred."""
    found: dict[str, Reply] = {}
    for reply in replies:
        if reply.completed_by == "error":
            found.setdefault(f"the error {reply.status}", reply)
        elif reply.missing and reply.missing != tuple(reply.acks):
            found.setdefault(f"{reply.status}, with a label that timed out", reply)
        elif reply.ok:
            found.setdefault(str(reply.status), reply)
    return sorted(found.items())


def _verdicts(tally: Tally) -> PlainTable:
    headings = [f"p{round(share * 100)}" for share in PERCENTILES]
    table = PlainTable("", "commands", "share", *headings, right=range(1, 3 + len(headings)))
    sent = len(tally.sent)
    for how in VERDICTS:
        latencies = [latency for found, latency in tally.latencies if found == how]
        spans = map(span, percentiles(latencies, *PERCENTILES))
        table.add_row(Text(how, style=STYLES[how]), f"{len(latencies):,}", f"{len(latencies) / sent:.1%}", *spans)
    if tally.failures:
        share = f"{len(tally.failures) / sent:.1%}"
        table.add_row(Text("without a reply", style="bold red"), f"{len(tally.failures):,}", share)
    table.add_row("sent", f"{sent:,}")
    return table


def _habits(tally: Tally, devices: Mapping[str, Habit]) -> PlainTable:
    answers: dict[str, Counter[str]] = {habit: Counter() for habit in HABITS}
    for reply in tally.replies.values():
        how = f"{verdict(reply.status, reply.completed_by)} {reply.status}"
        answers[devices[reply.envelope.topic.thing_id]][how] += 1
    table = PlainTable("devices", "", "behaviour", "answers", right=[1])
    for habit, (about, _) in HABITS.items():
        number = sum(found == habit for found in devices.values())
        counts = ", ".join(f"{count:,} {how}" for how, count in answers[habit].most_common())
        table.add_row(habit, str(number), Text(about, style="dim"), counts)
    return table


def _title(console: Console, text: str) -> None:
    console.rule(Text(text, style="bold"), align="left", style="dim")


def shell_queries(settings: Settings) -> list[tuple[str, str]]:
    """Return named shell commands that query the tables, runnable from the current directory."""
    python, lake = _short(Path(sys.executable)), settings.lake.path
    outcomes = settings.lake.table("outcomes")
    delta = f"from deltalake import DeltaTable; outcomes = DeltaTable('{outcomes}')"
    pandas = f"{delta}.to_pandas(); print(outcomes.groupby(['completed_by', 'status']).latency_ms.describe())"
    question = "SELECT thing_id, status, count(*) AS n FROM outcomes WHERE status <> 200 GROUP BY ALL ORDER BY ALL"
    program = f"ACKSTREAM_LAKE_PATH={shlex.quote(lake)} {invocation()}"
    spark = (
        "from ackstream.local import jars; from ackstream.settings import load; "
        "from ackstream.spark.session import session; "
        f"outcomes = session(load(), 'look', jars=jars.resolve('spark')).read.format('delta').load('{outcomes}'); "
        "outcomes.groupBy('completed_by', 'status').count().show()"
    )
    return [
        ("predefined questions", f"{program} outcomes slowest-labels"),
        ("SQL", f'{program} sql "{question}"'),
        ("pandas", f'{python} -c "{pandas}"'),
        ("Spark", f'{python} -c "{spark}"'),
    ]


def show_queries(console: Console, settings: Settings) -> None:
    """Print the commands unwrapped, so that they can be copied."""
    _title(console, "How to query them")
    for name, line in shell_queries(settings):
        console.print(Text(f"# {name}", style="dim"))
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print()


def invocation() -> str:
    """Return how to invoke this program again."""
    beside = Path(sys.executable).with_name("ackstream")
    found = shutil.which("ackstream")
    if found is not None and Path(found).absolute() == beside.absolute():
        return "ackstream"
    if beside.exists():
        return _short(beside)
    return f"{_short(Path(sys.executable))} -m ackstream"


def _short(path: Path) -> str:
    """Quote a path for the shell, relative to the working directory if it is below it."""
    path = path.absolute()
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
