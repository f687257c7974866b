"""Another Delta writer is at work while rows are appended: no append fails, and each row is in the table once."""

from __future__ import annotations

import os
import random
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from ackstream.jobs.archive.job import TABLES, ArchiveFold
from ackstream.lake import commits, tables
from ackstream.lake.schemas import ALL_TABLES
from tests.lake import empty, planes, records

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from ackstream.settings import Lake

APPENDED = [name for name, table in ALL_TABLES.items() if not table.derived]
"""The tables that delta-rs can write to."""
ROUNDS = 3
OLD = time.time() - 40 * 86_400
"""A time before the retention of the log, in epoch seconds."""


def append(place: str) -> None:
    """Append a copy of a row, and let it be older than the retention of the log, as all before it."""
    deltalake.write_deltalake(place, deltalake.DeltaTable(place).to_pyarrow_table().slice(0, 1), mode="append")
    age(place)


def age(place: str) -> None:
    for commit in (Path(place) / "_delta_log").glob("*.json"):
        os.utime(commit, (OLD, OLD))


def compact(place: str) -> None:
    deltalake.DeltaTable(place).optimize.compact()


def checkpoint(place: str) -> None:
    deltalake.DeltaTable(place).create_checkpoint()


def clean_up(place: str) -> None:
    age(place)
    checkpoint(place)
    deltalake.DeltaTable(place).cleanup_metadata()


def vacuum(place: str) -> None:
    # removes files that a version has had, and no later one has
    deltalake.DeltaTable(place).vacuum(0, dry_run=False, enforce_retention_duration=False)


WORKS: dict[str, tuple[Callable[[str], None], ...]] = {
    "a commit": (append,),
    "a compaction": (compact, vacuum),
    "a clean-up": (clean_up,),
    "commits and their clean-up": (append, append, clean_up),
    "commits, a compaction and a clean-up": (append, compact, clean_up, vacuum),
}
MOMENTS = {
    "before the look at the log": ["known_snapshot"],
    "after the look": ["versions"],
    "before the commit": ["added"],
    # also called in the look
    "after the commit": ["added", "_continued"],
}
"""The last of these functions is about to be called, after the others."""
STEPS = ("known_snapshot", "versions", "added", "_continued")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("works", WORKS)
def test_an_append_is_in_the_table_once_whatever_another_writer_does_beside_it(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, works: str, moment: str
) -> None:
    name = "queue_events"
    place, rows = lake.table(name), planes.filled(name, [{}])
    empty.create(spark, lake, [name])
    tables.append_rows(spark, rows, lake, name, "q", 0)
    due: list[str] = []

    def acting(step: str, real: Callable[..., Any], *arguments: Any) -> Any:
        if [step] == due[:1]:
            due.pop(0)
            if not due:
                for work in WORKS[works]:
                    work(place)
        return real(*arguments)

    for step in STEPS:
        monkeypatch.setattr(commits, step, partial(acting, step, getattr(commits, step)))
    by_spark = spark.createDataFrame(rows, ALL_TABLES[name].schema)
    for version, write in enumerate(
        [
            lambda version: tables.append_rows(spark, rows, lake, name, "q", version),
            lambda version: tables.append(by_spark, lake, name, "q", version),
            lambda version: tables.append_rows(spark, rows, lake, name, "q", version, check=lambda _: None),
        ],
        1,
    ):
        due[:] = MOMENTS[moment]
        write(version)
        assert not due
        # the batch is repeated
        assert not write(version)
    monkeypatch.undo()
    expected = 4 + 3 * WORKS[works].count(append)
    assert deltalake.DeltaTable(place).to_pyarrow_table().num_rows == expected
    assert tables.read(spark, lake, name).count() == expected
    assert tables.transactions(spark, lake, name) == {"q": 3}


class Neighbour:
    """A writer whose works at a table are chosen by a seed."""

    def __init__(self, lake: Lake, name: str, seed: int) -> None:
        self._place, self._choice, self.appended = lake.table(name), random.Random(f"{name} {seed}"), 0

    def work(self) -> None:
        """Do up to two works."""
        for work in self._choice.sample([append, compact, checkpoint, clean_up, vacuum], self._choice.randrange(3)):
            work(self._place)
            self.appended += work is append


@pytest.mark.parametrize("name", APPENDED)
def test_delta_rs_at_work_at_any_moment_of_an_append_stops_none(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    empty.create(spark, lake, [name])
    rows, neighbour = planes.filled(name, [{}]), Neighbour(lake, name, 0)
    tables.append_rows(spark, rows, lake, name, "q", 0)

    def beside(step: str) -> None:
        real = getattr(commits, step)

        def acting(*arguments: Any) -> Any:
            neighbour.work()
            return real(*arguments)

        monkeypatch.setattr(commits, step, acting)

    for step in STEPS:
        beside(step)
    for version in range(1, ROUNDS):
        tables.append_rows(spark, rows, lake, name, "q", version)
        tables.append_rows(spark, rows, lake, name, "q", version)
    monkeypatch.undo()
    expected = ROUNDS + neighbour.appended
    assert deltalake.DeltaTable(lake.table(name)).to_pyarrow_table().num_rows == expected
    assert tables.read(spark, lake, name).count() == expected
    assert tables.transactions(spark, lake, name) == {"q": ROUNDS - 1}


@pytest.mark.parametrize("seed", range(3))
def test_delta_rs_at_work_while_archive_appends_to_several_tables_stops_it_not(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    empty.create(spark, lake)
    running, real = ArchiveFold(lake), commits.log_and_snapshot
    neighbours = {tables.location(lake, name): Neighbour(lake, name, seed) for name in TABLES}
    running.write(records.frame(spark, [records.outcome(0, 0)], 0), 0, "q")
    before = {name: tables.read(spark, lake, name).count() for name in TABLES}

    def acting(spark: SparkSession, path: str) -> Any:
        # a table is written by one thread at a time
        neighbours[path].work()
        return real(spark, path)

    monkeypatch.setattr(commits, "log_and_snapshot", acting)
    for batch in range(1, ROUNDS):
        frame = records.frame(spark, [records.outcome(batch, batch)], batch)
        running.write(frame, batch, "q")
        running.write(frame, batch, "q")
    monkeypatch.undo()
    for name, rows in before.items():
        expected = ROUNDS * rows + neighbours[tables.location(lake, name)].appended
        assert deltalake.DeltaTable(lake.table(name)).to_pyarrow_table().num_rows == expected
