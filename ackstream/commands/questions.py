"""Ready-made questions to the Delta tables: asked of DuckDB where it is installed, else of Spark.

Both give the same answers; without a JVM they are there at once.
"""

from __future__ import annotations

from datetime import datetime, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ackstream.errors import StartError
from ackstream.lake import queries, tables
from ackstream.lake.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.settings import Settings

Answer = tuple[list[str], list[list[Any]]]
"""Columns and rows; times are in UTC."""


def ask(settings: Settings, name: str, *parameters: str) -> Answer:
    """Ask a question of ``queries``.

    :param parameters: of the question, such as a correlation-id
    :raises StartError: a table is not there yet
    """
    here = "://" not in settings.lake.path
    columns, rows = (ask_duckdb if here and _have_duckdb() else ask_spark)(settings, name, *parameters)
    return columns, [[_in_utc(value) for value in row] for row in rows]


def ask_duckdb(settings: Settings, name: str, *parameters: str) -> tuple[list[str], Sequence[Sequence[Any]]]:
    """Ask without a JVM; the packages deltalake and duckdb must be there."""
    import deltalake  # noqa: PLC0415 - not everybody has it
    import duckdb  # noqa: PLC0415 - not everybody has it

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("CREATE MACRO explode(list) AS unnest(list)")
        for table in (table for table in TABLES if f"{{{table}}}" in queries.QUESTIONS[name]):
            place = tables.location(settings.lake, table)
            if not deltalake.DeltaTable.is_deltatable(place):
                raise StartError(f"There is no table {table} at {place}; start the archive job, or correct lake.path.")
            connection.register(table, deltalake.DeltaTable(place).to_pyarrow_dataset())
        question = queries.sql(name)
        # the one parameter stands in several places
        found = connection.execute(question, list(parameters) * question.count("?"))
        return [column[0] for column in found.description or ()], found.fetchall()


def ask_spark(settings: Settings, name: str, *parameters: str) -> tuple[list[str], Sequence[Sequence[Any]]]:
    """Ask with Spark, wherever the tables are."""
    from ackstream.quiet import quiet_session  # noqa: PLC0415 - loads slowly

    with quiet_session(settings, "outcomes") as spark:
        frame = getattr(queries, name)(spark, settings.lake, *parameters)
        return frame.columns, frame.collect()


def _have_duckdb() -> bool:
    return find_spec("deltalake") is not None and find_spec("duckdb") is not None


def _in_utc(value: Any) -> Any:
    """Return a time as UTC; Spark gives times of this machine's zone, without saying so."""
    return value.astimezone(timezone.utc) if isinstance(value, datetime) else value
