"""Make the pictures of docs/guides/ten-questions.md and the outputs of the notebook, from tables made for them.

``python -m notebooks.ten_questions``; it needs the extras dev and bench. Two runs make the same pictures.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
from deltalake import DeltaTable
from matplotlib.ticker import PercentFormatter
from nbclient import NotebookClient

from ackstream.lake import reading
from ackstream.lake.schemas import ALL_TABLES, PARTITION
from ackstream.settings import Lake
from benchmarks import questions

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
NOTEBOOK = ROOT / "notebooks" / "acknowledgements.ipynb"
REQUESTS, DAYS = 40_000, 3
BLUE, ORANGE, RED, GREY = "#2f6f9f", "#e08e1b", "#c0392b", "#9aa5ad"
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "font.size": 9,
    "grid.color": "#e5e8ea",
    # texts stay texts, and names are the same in each run
    "svg.fonttype": "none",
    "svg.hashsalt": "ackstream",
}


def main() -> None:
    """Make the tables, the pictures and the outputs of the notebook."""
    mpl.use("svg")
    plt.rcParams.update(STYLE)
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        lake = Lake(path=f"{directory}/lake")
        for name, table in ALL_TABLES.items():
            days = [PARTITION] if PARTITION in table.names else None
            DeltaTable.create(lake.table(name), table.arrow, partition_by=days)
        questions.fill(lake, REQUESTS, DAYS)
        for name, draw in DRAWN.items():
            draw(_newest(lake, name))
            plt.savefig(PICTURES / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
            plt.close()
        _execute(Path(directory))


def _newest(lake: Lake, name: str) -> pd.DataFrame:
    """Return the answer to a question about the newest day."""
    with reading.database(lake) as connection:
        reading.create_views(connection, lake)
        return connection.sql(f"SELECT * FROM {name} WHERE day = (SELECT max(day) FROM signals)").df()


def _labels(rows: pd.DataFrame) -> None:
    rows = rows.sort_values("p95_ms")
    _, axes = plt.subplots(figsize=(7, 2.6))
    axes.hlines(rows.label, rows.p50_ms, rows.p95_ms, color=GREY)
    for column, colour in {"p50_ms": BLUE, "p95_ms": ORANGE, "max_ms": RED}.items():
        axes.scatter(rows[column], rows.label, color=colour, label=column.removesuffix("_ms"), zorder=2)
    axes.set(title="Who is slow", xlabel="milliseconds from the request (log)", xscale="log")
    axes.legend(frameon=False, bbox_to_anchor=(1, 1), loc="upper left")


def _missing(rows: pd.DataFrame) -> None:
    rows = rows.sort_values("share")
    _, axes = plt.subplots(figsize=(7, 1.8))
    axes.barh(rows.label, rows.share, color=[RED if share > 0.04 else BLUE for share in rows.share])
    axes.set(title="What is missing", xlabel="of the requests that waited for the label (red: over 4 %)")
    axes.xaxis.set_major_formatter(PercentFormatter(1))


def _success(rows: pd.DataFrame) -> None:
    _, axes = plt.subplots(figsize=(7, 2.6))
    for label, own in rows[rows.label.isin(["billing:booked", "audit:filed", "map:drawn"])].groupby("label"):
        axes.plot(own.hour.dt.hour, own.share, label=label, marker="o", markersize=3)
    axes.set(title="Success by hour", xlabel="hour, UTC", ylabel="of the requests", ylim=(0.5, 1.02))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.legend(frameon=False, bbox_to_anchor=(1, 1), loc="upper left")


def _counts(title: str, label: str, count: str, unit: str, colour: str = BLUE) -> Any:
    """Return a function that draws a bar for each row."""

    def draw(rows: pd.DataFrame) -> None:
        rows = rows.iloc[::-1]
        _, axes = plt.subplots(figsize=(7, 0.7 + 0.25 * len(rows)))
        bars = axes.barh(rows[label].astype(str), rows[count], color=colour)
        axes.bar_label(bars, padding=3)
        axes.set(title=title, xlabel=unit)
        axes.grid(axis="y", visible=False)

    return draw


def _attempts(rows: pd.DataFrame) -> None:
    _, axes = plt.subplots(figsize=(7, 2))
    table = rows.pivot_table(index="attempt", columns="queue", values="deliveries", fill_value=0)
    table.plot.bar(ax=axes, color=[BLUE, ORANGE, GREY], rot=0, logy=True)
    axes.set(title="Delivery attempts", xlabel="attempt", ylabel="deliveries (log)")
    axes.legend(frameon=False, bbox_to_anchor=(1, 1), loc="upper left")


def _behind(rows: pd.DataFrame) -> None:
    rows = rows.groupby("reader", as_index=False).behind.sum()
    _counts("Readers behind", "reader", "behind", "messages of the day that it has not acknowledged", RED)(rows)


DRAWN = {
    "slowest_labels": _labels,
    "missing_labels": _missing,
    "success_by_hour": _success,
    "late_acknowledgements": _counts(
        "Late acknowledgements", "label", "acknowledgements", "after the decision", ORANGE
    ),
    "duplicate_acknowledgements": _counts("Duplicates", "label", "acknowledgements", "without effect"),
    "dead_letters_by_reason": _counts("Dead letters", "reason", "records", "records"),
    "delivery_attempts": _attempts,
    "readers_behind": _behind,
}


def _execute(directory: Path) -> None:
    """Run the notebook where the tables are, and keep its outputs."""
    os.environ |= {"ACKSTREAM_LAKE_PATH": "lake", "PYTHONPATH": str(ROOT)}
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(directory)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    for cell in notebook.cells:
        # times of the run
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
