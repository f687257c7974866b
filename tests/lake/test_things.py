from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.lake import tables, things
from ackstream.lake.schemas import TWIN_TABLES
from ackstream.settings import Lake
from tests.lake.changes import change, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY = "query-1"
BATCHES = [
    [change("a:1", 1, {"n": 1}), change("a:2", 1, {"n": 1})],
    [change("a:1", 2), change("a:1", 3, {"n": 3})],
    [change("a:2", 2, deleted=True), change("a:3", 1, {"n": 1})],
]
BEFORE = [
    {},
    {"a:1": (1, 1), "a:2": (1, 1)},
    {"a:1": (3, 3), "a:2": (1, 1)},
    {"a:1": (3, 3), "a:2": (2, None), "a:3": (1, 1)},
]
"""What the things are before each batch: revision and content."""


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    place = tmp_path_factory.mktemp("things")
    made = Lake(path=str(place / "lake"), checkpoints=str(place / "checkpoints"))
    tables.create(spark, made, TWIN_TABLES)
    for number, rows in enumerate(BATCHES):
        things.append(spark, made, table(*rows), QUERY, number)
    return made


def found(spark: SparkSession, lake: Lake, batch: int) -> dict[str, Any]:
    rows = things.before(spark, lake, batch).collect()
    return {row.thing_id: (row.revision, None if row.thing is None else json.loads(row.thing)["n"]) for row in rows}


def journal(spark: SparkSession, lake: Lake, batches: int) -> Any:
    return tables.read(spark, lake, "thing_events").where(f"batch < {batches}")


def test_a_batch_that_is_in_the_journal_is_not_appended_again(spark: SparkSession, lake: Lake) -> None:
    things.append(spark, lake, table(*BATCHES[1]), QUERY, 1)
    assert tables.read(spark, lake, "thing_events").count() == sum(map(len, BATCHES))


def test_the_batches_of_a_new_checkpoint_come_after_those_of_the_old(spark: SparkSession, lake: Lake) -> None:
    assert things.first_batch(spark, lake, QUERY) == 0
    assert things.first_batch(spark, lake, "query-2") == len(BATCHES)
    assert things.next_offsets(spark, lake) == {"signals": {0: 4}}


@pytest.mark.parametrize("merged", range(len(BATCHES) + 1))
def test_things_are_told_as_they_were_before_any_batch_however_far_the_merge_is(
    spark: SparkSession, lake: Lake, merged: int
) -> None:
    things.merge(spark, lake, journal(spark, lake, merged))
    assert [found(spark, lake, batch) for batch in range(len(BATCHES) + 1)] == BEFORE


def test_merging_again_changes_nothing(spark: SparkSession, lake: Lake) -> None:
    things.merge(spark, lake, journal(spark, lake, 9))
    things.merge(spark, lake, journal(spark, lake, 1))
    rows = tables.read(spark, lake, "things").collect()
    assert {row.thing_id: (row.revision, row.deleted) for row in rows} == {
        "a:1": (3, False),
        "a:2": (2, True),
        "a:3": (1, False),
    }
