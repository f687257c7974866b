"""How to look into the tables after the demo: lines for a shell that work from the working directory as it is."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from ackstream.settings import Settings


def ways_in(settings: Settings) -> list[tuple[str, str]]:
    """Return a name and a shell line for each way."""
    python, lake = _short(Path(sys.executable)), settings.lake.path
    outcomes = settings.lake.table("outcomes")
    delta = f"from deltalake import DeltaTable; outcomes = DeltaTable('{outcomes}')"
    pandas = f"{delta}.to_pandas(); print(outcomes.groupby(['completed_by', 'status']).latency_ms.describe())"
    question = "FROM outcomes SELECT thing_id, status, count(*) AS n WHERE status <> 200 GROUP BY ALL ORDER BY ALL"
    duckdb = f"import duckdb; {delta}.to_pyarrow_dataset(); print(duckdb.sql('{question}'))"
    spark = (
        "from ackstream.local import jars; from ackstream.session import session; from ackstream.settings import load; "
        f"outcomes = session(load(), 'look', jars=jars.resolve('spark')).read.format('delta').load('{outcomes}'); "
        "outcomes.groupBy('completed_by', 'status').count().show()"
    )
    return [
        ("ready-made questions", f"ACKSTREAM_LAKE_PATH={shlex.quote(lake)} {_program()} outcomes slowest-labels"),
        ("pandas", f'{python} -c "{pandas}"'),
        ("DuckDB", f'{python} -c "{duckdb}"'),
        ("Spark", f'{python} -c "{spark}"'),
    ]


def show(console: Console, settings: Settings) -> None:
    """Print the lines, unwrapped, so that they can be copied."""
    console.rule(Text("How to open them", style="bold"), align="left", style="dim")
    if find_spec("deltalake") is None or find_spec("duckdb") is None:
        console.print("pandas and DuckDB need: pip install deltalake duckdb", highlight=False)
    for name, line in ways_in(settings):
        console.print(Text(f"# {name}", style="dim"))
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print()


def _program() -> str:
    """Return how this command can be called again."""
    beside = Path(sys.executable).with_name("ackstream")
    found = shutil.which("ackstream")
    if found is not None and Path(found).absolute() == beside.absolute():
        return "ackstream"
    return (
        _short(beside) if beside.exists() else f'{_short(Path(sys.executable))} -c "import ackstream.cli as c; c.app()"'
    )


def _short(path: Path) -> str:
    """Return a path as it is best written here: relative to the working directory where it is below it."""
    path = path.absolute()
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
