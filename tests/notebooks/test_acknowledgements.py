"""The notebook, executed on a small day in real tables."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from ackstream.jobs.archive.job import ArchiveFold
from ackstream.settings import Lake
from tests.lake import empty, planes, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "acknowledgements.ipynb"
# median in milliseconds, share that never comes
PARTIES = {"twin-persisted": (30, 0.0), "billing:booked": (250, 0.02), "pump:done": (900, 0.12)}
TIMEOUT_MS = 5000


def request(number: int, chance: random.Random) -> bytes:
    received_at = records.START + number * 9_000
    acks, missing = [], []
    for index, (label, (median, loss)) in enumerate(PARTIES.items()):
        latency = round(chance.lognormvariate(0, 0.6) * median)
        if chance.random() < loss or latency > TIMEOUT_MS:
            missing.append(label)
        else:
            times: dict[str, Any] = {"received_at": received_at + latency, "latency_ms": latency}
            acks.append(records.ack_row(number, label, index, **times))
    latency = TIMEOUT_MS if missing else max(ack.latency_ms or 0 for ack in acks)
    outcome = records.outcome_row(
        number,
        status=424 if missing else 200,
        completed_by="timeout" if missing else "acknowledgements",
        requested=tuple(PARTIES),
        missing=missing,
        started_at=received_at,
        decided_at=received_at + latency,
        latency_ms=latency,
    )
    return records.outcome(
        number, signal=records.signal_row(number, received_at=received_at), acks=acks, outcome=outcome
    )


def small_day() -> list[bytes | None]:
    chance = random.Random(7)
    late = [records.acknowledgement(900 + at, label="pump:done") for at in range(5)]
    return [*[request(number, chance) for number in range(600)], *late]


def execute(lake: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> Any:
    """Run all cells in a kernel of their own, in the notebook's directory as Jupyter does; return the notebook."""
    for name, value in {"LAKE_PATH": str(lake), **environment}.items():
        monkeypatch.setenv(f"ACKSTREAM_{name}", value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    return notebook


def plots(notebook: Any, directory: Path) -> int:
    found = [base64.b64decode(plot) for plot in outputs(notebook, "image/png")]
    for at, plot in enumerate(found):
        (directory / f"plot-{at}.png").write_bytes(plot)
        assert len(plot) > 10_000
    return len(found)


def text(notebook: Any) -> str:
    printed = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join([*outputs(notebook, "text/plain"), *outputs(notebook, "text/html"), *printed])


def outputs(notebook: Any, kind: str) -> list[Any]:
    found = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output["data"][kind] for output in found if kind in output.get("data", {})]


def test_it_shows_who_is_slow_and_who_is_missing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(path=str(tmp_path / "lake"))
    empty.create(spark, lake)
    ArchiveFold(lake).write(records.frame(spark, small_day()), 0, "query")
    executed = execute(tmp_path / "lake", monkeypatch)
    assert plots(executed, tmp_path) == 4
    shown = text(executed)
    assert all(label in shown for label in PARTIES)
    assert "does not have the tables of reader_latencies yet" in shown


def test_it_shows_publishers_readers_and_queues_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planes.fill(Lake(path=str(tmp_path / "lake")))
    executed = execute(tmp_path / "lake", monkeypatch)
    assert plots(executed, tmp_path) == 6
    assert all(name in text(executed) for name in ("orders", "log", "dead-letter"))


def test_without_tables_it_shows_those_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planes.fill(Lake(path=str(tmp_path / "demo" / "lake")))
    executed = execute(tmp_path / "none", monkeypatch, LOCAL_DATA=str(tmp_path))
    assert str(tmp_path / "demo" / "lake") in text(executed)


def test_without_any_tables_it_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CellExecutionError, match=r"There are no tables in .*none: run `make demo`, start the jobs"):
        execute(tmp_path / "none", monkeypatch, LOCAL_DATA=str(tmp_path))


def test_it_says_so_when_there_is_nothing_to_show(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.create(spark, Lake(path=str(tmp_path / "lake")))
    with pytest.raises(CellExecutionError, match=r"There is no outcome yet in .*outcomes: run `make demo`"):
        execute(tmp_path / "lake", monkeypatch)


def test_it_is_kept_with_outputs_of_the_kinds_that_its_cells_have_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planes.fill(Lake(path=str(tmp_path / "lake")))
    executed, kept = execute(tmp_path / "lake", monkeypatch), nbformat.read(NOTEBOOK, as_version=4)
    assert list(map(kinds, kept.cells)) == list(map(kinds, executed.cells))
    numbers = [cell.execution_count for cell in kept.cells if cell.cell_type == "code"]
    assert numbers == list(range(1, len(numbers) + 1)), "executed from the first cell to the last, in one run"
    assert NOTEBOOK.stat().st_size < 400_000


def kinds(cell: Any) -> list[list[str]]:
    """Return the kinds of a cell's outputs, such as a plot with its text."""
    return [sorted(output.get("data", {"stream": ""})) for output in cell.get("outputs", ())]
