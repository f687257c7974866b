from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from delta.exceptions import ConcurrentAppendException
from delta.tables import DeltaTable

from ackstream.errors import StartError
from ackstream.jobs.twin import job
from ackstream.jobs.twin.job import build_index
from ackstream.lake import maintenance, tables, things
from ackstream.settings import Lake, Settings
from tests.harness.waiting import eventually
from tests.lake import empty
from tests.lake.changes import change, table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_every_value_of_a_thing_has_its_path() -> None:
    thing = {
        "thingId": "a:b",
        "attributes": {"a/b~c": 1, "empty": {}, "list": [1, [2, "x"], {"y": None}, []], "on": True},
    }
    assert list(things.flatten(thing)) == [
        ("thingId", "a:b"),
        ("attributes/a~1b~0c", 1),
        ("attributes/empty", {}),
        ("attributes/list", 1),
        ("attributes/list", 2),
        ("attributes/list", "x"),
        ("attributes/list/y", None),
        ("attributes/list", []),
        ("attributes/on", True),
    ]


def test_the_values_of_a_path_are_counted_and_typed() -> None:
    found = list(things.value_rows("a:b", '{"n":[1,"x",false,2.5,null]}'))
    assert found == [
        ("a:b", "n", 0, None, 1.0, None, "1"),
        ("a:b", "n", 1, "x", None, None, '"x"'),
        ("a:b", "n", 2, None, None, False, "false"),
        ("a:b", "n", 3, None, 2.5, None, "2.5"),
        ("a:b", "n", 4, None, None, None, "null"),
    ]


def test_the_index_follows_things_that_change_and_go(spark: SparkSession, lake: Lake) -> None:
    empty.create(spark, lake, ["thing_events", "things", "things_search"])

    def index(*rows: dict[str, object], times: int = 1) -> set[tuple[str, str, str]]:
        frame = spark.createDataFrame(table(*rows)).selectExpr("*", "0L AS batch")
        for _ in range(times):
            things.merge_values(spark, lake, frame)
        found = tables.read(spark, lake, "things_search").collect()
        assert len(found) == len({(row.thing_id, row.path, row.element) for row in found})
        return {(row.thing_id, row.path, row.value) for row in found if row.path != "thingId"}

    first = index(change("a:1", 1, {"n": [1, 2], "m": "x"}), change("a:2", 1, {"n": 1}))
    assert first == {("a:1", "n", "1"), ("a:1", "n", "2"), ("a:1", "m", '"x"'), ("a:2", "n", "1")}
    # what is merged again changes nothing
    second = index(change("a:1", 2), change("a:1", 3, {"n": [3]}), change("a:2", 2, deleted=True), times=2)
    assert second == {("a:1", "n", "3")}
    version = spark.sql(f"DESCRIBE HISTORY delta.`{tables.location(lake, 'things_search')}`").count()
    assert index(change("a:1", 4, {"n": [3]}, visible=False)) == second
    assert spark.sql(f"DESCRIBE HISTORY delta.`{tables.location(lake, 'things_search')}`").count() == version


def test_a_state_that_is_merged_after_a_later_one_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    own = Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    empty.create(spark, own, ["thing_events", "things", "things_search"])
    for revision in (9, 3):
        rows = spark.createDataFrame(table(change("a:1", revision, {"n": revision}))).selectExpr("*", "0L AS batch")
        things.merge(spark, own, rows)
        things.merge_values(spark, own, rows)
    index = tables.read(spark, own, "things_search").where("path = 'n'").collect()
    assert [row.value for row in index] == ["9"]


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
    empty.create(spark, made, ["thing_events", "things", "things_search"])
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
    assert things.next_offsets(spark, lake, "signals") == {0: 4}
    assert things.next_offsets(spark, lake, "other") == {}


@pytest.mark.parametrize(
    "merged", [0, *[pytest.param(number, marks=pytest.mark.long) for number in range(1, len(BATCHES))], len(BATCHES)]
)
def test_things_are_told_as_they_were_before_any_batch_however_far_the_merge_is(
    spark: SparkSession, lake: Lake, merged: int
) -> None:
    things.merge(spark, lake, journal(spark, lake, merged))
    if merged:
        things.remember_merged(spark, lake, merged - 1)
    assert [found(spark, lake, batch) for batch in range(len(BATCHES) + 1)] == BEFORE


def test_things_are_told_as_they_were_although_the_index_merges_meanwhile(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))
    empty.create(spark, own, ["thing_events", "things"])
    for number, rows in enumerate(BATCHES):
        things.append(spark, own, table(*rows), QUERY, number)
    things.merge(spark, own, journal(spark, own, 2))
    real = things.latest

    def overtaken(rows: Any) -> Any:
        monkeypatch.setattr(things, "latest", real)
        things.merge(spark, own, journal(spark, own, 3))
        return real(rows)

    monkeypatch.setattr(things, "latest", overtaken)
    assert found(spark, own, 2) == BEFORE[2]


def test_things_are_told_as_they_were_although_a_batch_is_stored_and_merged_in_parts(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(path=str(tmp_path))
    empty.create(spark, lake, ["thing_events", "things", "things_search"])
    first, second = [change("a:1", 1, {"n": 1})], [change("a:1", 2, {"n": 2}), change("a:2", 1, {"n": 1})]
    for _ in range(2):
        # the second time is a replay
        for part, rows in enumerate((first, second)):
            things.append(spark, lake, table(*rows), QUERY, 0, part)
            if part == 0:
                things.merge(spark, lake, journal(spark, lake, 1))
    assert tables.read(spark, lake, "thing_events").count() == 3
    assert found(spark, lake, 1) == {"a:1": (2, 2), "a:2": (1, 1)}
    assert found(spark, lake, 0) == {}
    assert things.first_batch(spark, lake, QUERY) == 0
    assert things.first_batch(spark, lake, "query-2") == 1


def test_the_offsets_of_another_topic_of_the_same_name_do_not_count(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    assert things.origin(spark, lake) is None
    empty.create(spark, lake, ["thing_events"])
    things.append(spark, lake, table(change("a:1", 7, {"n": 1})), QUERY, 0)
    # those of a release that did not remember it do
    things.remember_origin(spark, lake, "one")
    assert (things.origin(spark, lake), things.next_offsets(spark, lake, "signals")) == ("one", {0: 8})
    things.remember_origin(spark, lake, "two")
    assert (things.origin(spark, lake), things.next_offsets(spark, lake, "signals")) == ("two", {})
    things.append(spark, lake, table(change("a:1", 3, {"n": 1})), "query-2", 1)
    things.remember_origin(spark, lake, "two")
    assert things.next_offsets(spark, lake, "signals") == {0: 4}


# -- the end of old changes --------------------------------------------------------------------------------------------

LONG_AGO = 1_600_000_000_000
HISTORY = [
    [change("a:1", 1, {"n": 1}, modified_at=LONG_AGO), change("a:2", 1, {"n": 1}, modified_at=LONG_AGO)],
    [
        change("a:1", 2, {"n": 2}, modified_at=LONG_AGO + 1),
        change("a:3", 1, modified_at=LONG_AGO, offset=5),
        change("a:3", 2, {"n": 1}, modified_at=LONG_AGO, offset=9),
    ],
    [change("a:3", 3, deleted=True, partition=1)],
    [change("a:1", 3, {"n": 3})],
]


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    lake = Lake(path=str(tmp_path_factory.mktemp("history")))
    empty.create(spark, lake, ["thing_events", "things", "things_search"])
    for batch, rows in enumerate(HISTORY):
        things.append(spark, lake, table(*rows), QUERY, batch)
    things.merge(spark, lake, journal(spark, lake, 9))
    things.remember_merged(spark, lake, 3)
    return lake.path


@pytest.fixture
def old(history: str, tmp_path: Path) -> Lake:
    return Lake(path=shutil.copytree(history, tmp_path / "lake").as_posix(), checkpoints=str(tmp_path / "checkpoints"))


def revisions(spark: SparkSession, lake: Lake) -> set[tuple[str, int]]:
    rows = tables.read(spark, lake, "thing_events").select("thing_id", "revision").collect()
    return {(row.thing_id, row.revision) for row in rows}


def test_old_changes_go_and_all_that_things_and_offsets_are_restored_from_stays(spark: SparkSession, old: Lake) -> None:
    before = [found(spark, old, batch) for batch in (3, 4)]
    offsets = things.next_offsets(spark, old, "signals")
    maintenance.prune(spark, old, LONG_AGO + 10)
    # what is old and superseded, but for the last command of partition 0
    assert revisions(spark, old) == {("a:1", 2), ("a:1", 3), ("a:2", 1), ("a:3", 2), ("a:3", 3)}
    assert [found(spark, old, batch) for batch in (3, 4)] == before
    assert things.next_offsets(spark, old, "signals") == offsets
    version = spark.sql(f"DESCRIBE HISTORY delta.`{tables.location(old, 'thing_events')}`").count()
    maintenance.prune(spark, old, LONG_AGO + 10)
    assert spark.sql(f"DESCRIBE HISTORY delta.`{tables.location(old, 'thing_events')}`").count() == version


def test_a_deleted_thing_is_erased_but_for_its_deletion(spark: SparkSession, old: Lake) -> None:
    offsets = things.next_offsets(spark, old, "signals")
    maintenance.erase(spark, old, "a:3")
    left = tables.read(spark, old, "thing_events").where("thing_id = 'a:3'").orderBy("revision").collect()
    # the last command of partition 0 has to be known, or a new checkpoint would execute it again
    assert [(row.revision, row.value, row.thing) for row in left] == [(2, None, None), (3, None, None)]
    assert things.next_offsets(spark, old, "signals") == offsets
    assert found(spark, old, 4)["a:3"] == (3, None)
    assert len(revisions(spark, old)) == 6


@pytest.mark.parametrize(
    ("thing_id", "sentence"),
    [
        ("a:1", "The thing a:1 exists: delete it first by a command"),
        ("a:9", "There is no thing a:9 in the table things"),
    ],
)
def test_what_is_not_deleted_is_not_erased(spark: SparkSession, old: Lake, thing_id: str, sentence: str) -> None:
    with pytest.raises(StartError, match=sentence):
        maintenance.erase(spark, old, thing_id)


def test_a_thing_whose_deletion_may_be_replayed_is_not_erased(spark: SparkSession, old: Lake) -> None:
    things.append(spark, old, table(change("a:2", 2, deleted=True)), QUERY, 4)
    things.merge(spark, old, journal(spark, old, 9))
    with pytest.raises(StartError, match=r"in the newest batch: erase it once another thing has changed"):
        maintenance.erase(spark, old, "a:2")


def test_a_thing_is_erased_beside_a_twin_that_writes_without_a_pause(
    spark: SparkSession, old: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges, real = [], DeltaTable.merge
    monkeypatch.setattr(DeltaTable, "merge", lambda *arguments: merges.append(1) or real(*arguments))
    written, ended = [], Event()

    def write() -> None:
        for batch in count(4):
            if ended.is_set():
                return
            # the last command of the partition stays that of a:3, however fast this is
            things.append(spark, old, table(change("a:1", batch, {"n": batch}, offset=0)), QUERY, batch)
            written.append(batch)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        eventually(lambda: written, "a change")
        begun = len(written)
        maintenance.erase(spark, old, "a:3")
        assert len(written) > begun
        ended.set()
        writing.result()
    # it did not conflict, as it is about another day
    assert len(merges) == 1
    assert {revision for thing_id, revision in revisions(spark, old) if thing_id == "a:3"} == {2, 3}


def test_what_cannot_be_erased_today_is_told(spark: SparkSession, old: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def conflict(*_: object) -> None:
        raise ConcurrentAppendException("a concurrent WRITE added data")

    monkeypatch.setattr(DeltaTable, "merge", conflict)
    with pytest.raises(StartError, match=r"changes of a:3 of today could not be erased; .* Erase it again tomorrow"):
        maintenance.erase(spark, old, "a:3")


@pytest.fixture(scope="module")
def two_days(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make a journal with a thing of each of two days, in files of which the later day's come first."""
    lake = Lake(path=str(tmp_path_factory.mktemp("two-days")))
    tables.create(spark, lake, ["thing_events", "things", "things_search"])
    for batch, (thing_id, day) in enumerate((("a:1", 0), ("a:2", 0), ("a:3", 1), ("a:4", 1))):
        row = change(thing_id, 1, {"n": batch}, modified_at=LONG_AGO + day * 86_400_000)
        things.append(spark, lake, table(row), QUERY, batch)
    path = tables.location(lake, "thing_events")
    for day in ("2020-09-14", "2020-09-13"):
        # as maintenance does it, in any order; the index reads files by their times
        DeltaTable.forPath(spark, path).optimize().where(f"day = '{day}'").executeCompaction()
        time.sleep(0.01)
    return lake.path


@pytest.fixture
def settings(two_days: str, tmp_path: Path) -> Settings:
    path = shutil.copytree(two_days, tmp_path / "lake").as_posix()
    return Settings(lake=Lake(path=path, checkpoints=str(tmp_path / "checkpoints")))


def restored(spark: SparkSession, settings: Settings) -> set[str]:
    return {row.thing_id for row in things.before(spark, settings.lake, 9).collect()}


ALL = {"a:1", "a:2", "a:3", "a:4"}


def test_a_twin_that_starts_while_its_index_merges_anew_has_all_things(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = job.TwinIndex.write
    seen: list[set[str]] = []

    def killed(index: job.TwinIndex, frame: Any, batch: int, query_id: str) -> None:
        real(index, frame, batch, query_id)
        indexed = {row.thing_id for row in tables.read(spark, settings.lake, "things").collect()}
        seen.append(indexed)
        assert restored(spark, settings) >= ALL

    monkeypatch.setattr(job.TwinIndex, "write", killed)
    monkeypatch.setattr(job, "FETCH_BYTES", 1)
    build_index(spark, settings, {"availableNow": True}).awaitTermination()
    # otherwise it shows nothing
    assert seen == [{"a:3", "a:4"}, ALL]
    things.append(spark, settings.lake, table(change("a:5", 1, {"n": 5})), QUERY, 4)
    build_index(spark, settings, {"availableNow": True}).awaitTermination()
    # the first batch after a start completes the table up to itself
    assert things.merged(spark, settings.lake) == 4
    assert restored(spark, settings) == {*ALL, "a:5"}


def test_a_table_of_things_that_was_made_anew_beside_the_checkpoint_of_its_index_gets_all_things(
    spark: SparkSession, settings: Settings
) -> None:
    build_index(spark, settings, {"availableNow": True}).awaitTermination()
    for name in ("things", "things_search"):
        shutil.rmtree(settings.lake.table(name))
    tables.create(spark, settings.lake, ["things", "things_search"])
    assert restored(spark, settings) == ALL
    things.append(spark, settings.lake, table(change("a:5", 1, {"n": 5})), QUERY, 4)
    build_index(spark, settings, {"availableNow": True}).awaitTermination()
    assert restored(spark, settings) == {*ALL, "a:5"}
    for name in ("things", "things_search"):
        assert tables.read(spark, settings.lake, name).select("thing_id").distinct().count() == 5


# by default the one before shows that what the table lacks is merged: one that was made anew lacks all
@pytest.mark.long
def test_a_table_of_things_from_an_older_backup_beside_the_checkpoint_of_its_index_gets_the_changes_since(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(job, "MERGES", 1)

    def change_and_index(batch: int) -> None:
        things.append(spark, settings.lake, table(change(f"a:{batch + 1}", 1, {"n": batch})), QUERY, batch)
        build_index(spark, settings, {"availableNow": True}).awaitTermination()

    build_index(spark, settings, {"availableNow": True}).awaitTermination()
    change_and_index(4)
    place = settings.lake.table("things")
    shutil.copytree(place, tmp_path / "backup")
    change_and_index(5)
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    change_and_index(6)
    assert things.merged(spark, settings.lake) == 6
    assert restored(spark, settings) == {*ALL, "a:5", "a:6", "a:7"}


def test_the_things_of_an_earlier_release_are_restored_and_its_index_is_completed(
    spark: SparkSession, settings: Settings
) -> None:
    # it said nothing of how far it had merged
    things.merge(spark, settings.lake, tables.read(spark, settings.lake, "thing_events").where("batch >= 2"))
    assert things.merged(spark, settings.lake) == 0
    assert restored(spark, settings) == ALL
    missing = things.unmerged(spark, settings.lake, 3)
    assert {row.thing_id for row in missing.collect()} == {"a:1", "a:2"}
    assert {row.thing_id for row in things.unmerged(spark, settings.lake, 0).collect()} == {"a:1"}


def test_the_index_goes_on_although_changes_were_removed_from_the_journal(spark: SparkSession, old: Lake) -> None:
    settings = Settings(lake=old)

    def index() -> set[str]:
        build_index(spark, settings, {"availableNow": True}).awaitTermination()
        return {row.value for row in tables.read(spark, old, "things_search").where("path = 'n'").collect()}

    assert index() == {"1", "3"}
    maintenance.prune(spark, old, LONG_AGO + 10)
    maintenance.erase(spark, old, "a:3")
    things.append(spark, old, table(change("a:1", 4, {"n": 4})), QUERY, 4)
    assert index() == {"1", "4"}


def test_merging_again_changes_nothing(spark: SparkSession, lake: Lake) -> None:
    things.merge(spark, lake, journal(spark, lake, 9))
    things.merge(spark, lake, journal(spark, lake, 1))
    rows = [("a:1", 3, False), ("a:2", 2, True), ("a:3", 1, False)]
    wanted = spark.createDataFrame(rows, "thing_id STRING, revision LONG, deleted BOOLEAN")
    found = tables.read(spark, lake, "things").select(wanted.columns)
    assert_df_equality(found, wanted, ignore_nullable=True, ignore_metadata=True, ignore_row_order=True)
