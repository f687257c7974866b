"""A monitor on the terminal: what requests came to, and how far behind the jobs are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ackstream.monitor.meter import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.monitor.feed import Lag
    from ackstream.monitor.meter import Snapshot, Verdict

STYLES: dict[Verdict, str] = {"answered": "green", "timed out": "yellow", "failed": "red"}
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


def requests_table(snapshot: Snapshot) -> Table:
    """Return a row for each way to end, and one for what is still open; 40 columns are enough."""
    table = Table("", *(f"last {span(snapshot.window)}", "total", "p50", "p95"), box=None, pad_edge=False)
    for number, column in enumerate(table.columns):
        column.justify, column.no_wrap = "right" if number else "left", True
    for how in VERDICTS:
        count = snapshot.counts[how]
        cells = f"{count.recent:,}", f"{count.total:,}", span(count.p50), span(count.p95)
        table.add_row(Text(how, style=STYLES[how]), *cells)
    oldest = "" if snapshot.oldest is None else f"oldest {span(snapshot.oldest)}"
    table.add_row(Text("in flight", style="cyan"), f"{snapshot.in_flight:,}", "", "", "")
    table.caption, table.caption_justify = oldest or None, "left"
    return table


def lag_table(lags: Sequence[Lag]) -> Table:
    """Return a row for each topic that a job reads."""
    table = Table("topic", "lag", "read by", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for lag in lags:
        behind = Text("unknown", style="dim") if lag.records is None else Text(f"{lag.records:,}")
        table.add_row(lag.topic, behind, lag.group)
    return table


def screen(snapshot: Snapshot, lags: Sequence[Lag], note: str = "") -> Group:
    """Return both tables, and a note below where there is one."""
    return Group(requests_table(snapshot), Text(), lag_table(lags), Text(note, style="red"))


def span(milliseconds: int | None) -> str:
    """Write a span of time in few letters, such as ``12ms``, ``1.24s``, ``2m05s``, ``3h07m``; ``None`` as nothing."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:  # noqa: PLR2004 - a second
        return f"{milliseconds}ms"
    seconds = milliseconds / 1000
    if milliseconds < MINUTE_MS:
        return f"{seconds:.3g}s" if milliseconds % 1000 else f"{seconds:g}s"
    if milliseconds < HOUR_MS:
        minutes, rest = divmod(milliseconds // 1000, 60)
        return f"{minutes}m{rest:02d}s" if rest else f"{minutes}m"
    hours, rest = divmod(milliseconds // MINUTE_MS, 60)
    return f"{hours}h{rest:02d}m" if rest else f"{hours}h"
