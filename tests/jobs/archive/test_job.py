from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
import pytest

from ackstream.jobs.archive import job
from ackstream.jobs.archive.job import ArchiveFold
from ackstream.lake import tables
from ackstream.lake.schemas import TABLES
from tests.lake import empty, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackstream.settings import Lake

APPLICATION = "archive-query"


@pytest.fixture
def made(spark: SparkSession, lake: Lake) -> Lake:
    empty.create(spark, lake)
    return lake


BOTH_WAYS = pytest.mark.parametrize("way", ["driver", "spark"], indirect=True)
# what is written at all does not depend on the way
EITHER_WAY = pytest.mark.parametrize("way", ["driver", pytest.param("spark", marks=pytest.mark.long)], indirect=True)


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the rows of all batches on the driver, or by Spark, as those of a large one."""
    if request.param == "spark":
        monkeypatch.setattr(job, "LARGEST", -1)


def ids(lake: Lake) -> dict[str, list[str]]:
    """Return the ids of all rows of all tables, sorted, read without Spark."""
    columns = {name: deltalake.DeltaTable(lake.table(name)).to_pyarrow_table(columns=["id"]) for name in TABLES}
    return {name: sorted(column["id"].to_pylist()) for name, column in columns.items()}


def expected(*numbers: int) -> dict[str, list[str]]:
    """Return the ids that outcome records of these numbers give, each once."""
    requests = sorted(map(records.reply_id, numbers))
    acks = sorted(f"acks-0-{number}-{index}" for number in numbers for index in (0, 1))
    return {"signals": requests, "acknowledgements": acks, "outcomes": requests, "dead_letters": [], "audit": []}


def outcomes(*numbers: int, batch: int = 0) -> list[bytes | None]:
    return [records.outcome(number, batch) for number in numbers]


def version(lake: Lake, name: str) -> int:
    return deltalake.DeltaTable(lake.table(name)).version()


@BOTH_WAYS
@pytest.mark.usefixtures("way")
def test_a_batch_is_there_for_delta_rs_and_duckdb_once_it_is_written(spark: SparkSession, made: Lake) -> None:
    values = [*outcomes(1, 2), records.acknowledgement(9), records.dead_letter(7), b"garbage"]
    ArchiveFold(made).write(records.frame(spark, values), 0, APPLICATION)
    wanted = expected(1, 2)
    wanted["acknowledgements"].append("acks-0-9-0")
    assert ids(made) == wanted | {"dead_letters": ["ledger-0-4", "signals-1-7"]}
    outcomes_table = deltalake.DeltaTable(made.table("outcomes")).to_pyarrow_table()  # noqa: F841 - DuckDB's by name
    acks_table = deltalake.DeltaTable(made.table("acknowledgements")).to_pyarrow_table()  # noqa: F841 - likewise
    joined = """
        SELECT o.correlation_id, o.status, count(*) FROM outcomes_table AS o JOIN acks_table USING (correlation_id)
        GROUP BY ALL ORDER BY ALL
    """
    assert duckdb.sql(joined).fetchall() == [("c-1", 200, 2), ("c-2", 200, 2)]


@BOTH_WAYS
@pytest.mark.usefixtures("way")
def test_a_batch_writes_one_file_a_table_and_leaves_tables_without_rows_alone(spark: SparkSession, made: Lake) -> None:
    frame = records.frame(spark, outcomes(*range(50))).repartition(4)
    ArchiveFold(made).write(frame, 0, APPLICATION)
    files = {name: len(deltalake.DeltaTable(made.table(name)).file_uris()) for name in TABLES}
    assert files == {"signals": 1, "acknowledgements": 1, "outcomes": 1, "dead_letters": 0, "audit": 0}
    assert version(made, "dead_letters") == 0


def test_an_empty_batch_commits_nothing(spark: SparkSession, made: Lake) -> None:
    ArchiveFold(made).write(records.frame(spark, []), 0, APPLICATION)
    assert [version(made, name) for name in TABLES] == [0] * len(TABLES)


@EITHER_WAY
@pytest.mark.usefixtures("way")
def test_copies_within_a_batch_and_across_batches_stay_out(spark: SparkSession, made: Lake) -> None:
    """Correlate died in its batch 1 twice, and each time wrote a part of it again."""
    running = ArchiveFold(made)
    running.write(records.frame(spark, [*outcomes(1, 2), *outcomes(3, 3, 4, batch=1)]), 0, APPLICATION)
    late = [records.acknowledgement(90, 2), records.acknowledgement(90, 2), records.acknowledgement(91, 2)]
    running.write(records.frame(spark, [*outcomes(3, 4, 5, batch=1), *late], 10), 1, APPLICATION)
    # only copies: nothing to write, but nothing breaks
    running.write(records.frame(spark, outcomes(4, 5, batch=1), 20), 2, APPLICATION)
    wanted = expected(1, 2, 3, 4, 5)
    wanted["acknowledgements"] += ["acks-0-90-0", "acks-0-91-0"]
    assert ids(made) == wanted


def test_what_delta_rs_does_to_the_tables_between_two_batches_stops_none(spark: SparkSession, made: Lake) -> None:
    running, choice = ArchiveFold(made), random.Random(7)
    for batch in range(6):
        running.write(records.frame(spark, outcomes(batch, batch=batch), 10 * batch), batch, APPLICATION)
        for name in TABLES:
            table = deltalake.DeltaTable(made.table(name))
            works = [
                table.optimize.compact,
                table.create_checkpoint,
                table.cleanup_metadata,
                partial(table.vacuum, 0, dry_run=False, enforce_retention_duration=False),
            ]
            for work in works[:2] if batch == 0 else choice.sample(works, choice.randrange(len(works) + 1)):
                work()
    assert ids(made) == expected(*range(6))


def test_copies_stay_out_after_a_restart(spark: SparkSession, made: Lake) -> None:
    ArchiveFold(made).write(records.frame(spark, outcomes(1, 2, batch=6)), 0, APPLICATION)
    restarted = ArchiveFold(made)
    restarted.write(records.frame(spark, [*outcomes(2, 3, batch=6), *outcomes(4, batch=7)], 10), 1, APPLICATION)
    assert ids(made) == expected(1, 2, 3, 4)


def test_the_newest_batch_of_correlate_may_come_in_several_batches_without_a_look_at_the_table(
    spark: SparkSession, made: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = ArchiveFold(made)
    running.write(records.frame(spark, outcomes(1, batch=1)), 0, APPLICATION)
    running.write(records.frame(spark, outcomes(2, batch=2), 10), 1, APPLICATION)
    with monkeypatch.context() as patch:
        patch.setattr(tables, "read", None)
        # correlate died, and wrote its batch 2 again
        running.write(records.frame(spark, outcomes(3, 4, batch=2), 20), 2, APPLICATION)
        running.write(records.frame(spark, [*outcomes(2, 3, 4, batch=2), *outcomes(5, batch=3)], 30), 3, APPLICATION)
        running.write(records.frame(spark, outcomes(5, batch=3), 40), 4, APPLICATION)
    assert ids(made) == expected(1, 2, 3, 4, 5)


def test_a_ledger_read_again_with_a_new_checkpoint_adds_nothing(spark: SparkSession, made: Lake) -> None:
    values = [*outcomes(1, 2, batch=0), *outcomes(3, batch=1), b"garbage", records.dead_letter(7)]
    first = ArchiveFold(made)
    first.write(records.frame(spark, values[:2]), 0, APPLICATION)
    first.write(records.frame(spark, values[2:], 2), 1, APPLICATION)
    before = ids(made)
    again = ArchiveFold(made)
    # cut otherwise: the new query's first batch does not reach as far as the table does
    again.write(records.frame(spark, values[:1]), 0, "another-query")
    again.write(records.frame(spark, values[1:], 1), 1, "another-query")
    assert ids(made) == before == expected(1, 2, 3) | {"dead_letters": ["ledger-0-3", "signals-1-7"]}


@pytest.mark.long
def test_two_archives_beside_each_other_recognise_what_the_other_has_committed(spark: SparkSession, made: Lake) -> None:
    one, other = ArchiveFold(made), ArchiveFold(made)
    for batch in range(3):
        # the second one reads the same records a batch later
        one.write(records.frame(spark, outcomes(batch, batch=batch), batch), batch, "one")
        if batch:
            other.write(records.frame(spark, outcomes(batch - 1, batch=batch - 1), batch - 1), batch - 1, "other")
    other.write(records.frame(spark, outcomes(2, 3, batch=2), 2), 2, "other")
    one.write(records.frame(spark, outcomes(3, 4, batch=2), 3), 3, "one")
    assert ids(made) == expected(*range(5))


def test_a_new_query_of_correlate_may_use_the_same_batch_numbers(spark: SparkSession, made: Lake) -> None:
    running = ArchiveFold(made)
    running.write(records.frame(spark, [records.outcome(1, 0, "first")]), 0, APPLICATION)
    running.write(records.frame(spark, [records.outcome(2, 0, "second")], 1), 1, APPLICATION)
    assert ids(made) == expected(1, 2)


def test_records_of_the_audit_are_rows_once_however_often_gateway_and_archive_repeat_them(
    spark: SparkSession, made: Lake
) -> None:
    sent = [records.audit(1), records.audit(2), records.audit(2), records.audit(1, "gateway-2")]
    batch = records.frame(spark, outcomes(1)).unionAll(records.frame(spark, sent, topic="x-audit"))
    for _ in range(2):
        ArchiveFold(made).write(batch, 0, APPLICATION)
    again = ArchiveFold(made)
    again.write(records.frame(spark, [records.audit(2), records.audit(3)], 10, "x-audit"), 1, APPLICATION)
    # a new checkpoint reads both topics from their start
    ArchiveFold(made).write(batch, 0, "another-query")
    assert ids(made) == expected(1) | {"audit": ["gateway-1-1", "gateway-1-2", "gateway-1-3", "gateway-2-1"]}


def break_tables(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the appends to some tables fail before they begin."""
    real = ArchiveFold._append

    def broken(self: ArchiveFold, table: str, *args: Any, **kwargs: Any) -> None:
        if table in names:
            raise OSError(f"the store of {table} is away")
        real(self, table, *args, **kwargs)

    monkeypatch.setattr(ArchiveFold, "_append", broken)


def test_a_batch_that_died_after_the_second_table_writes_only_what_is_missing(
    spark: SparkSession, made: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [*outcomes(1, 2), records.dead_letter(7)]
    frame = records.frame(spark, values)
    with monkeypatch.context() as patch:
        break_tables(patch, "outcomes", "dead_letters")
        with pytest.raises(OSError, match="the store of outcomes is away"):
            ArchiveFold(made).write(frame, 0, APPLICATION)
    assert ids(made) == expected(1, 2) | {"outcomes": [], "dead_letters": []}
    ArchiveFold(made).write(frame, 0, APPLICATION)
    assert ids(made) == expected(1, 2) | {"dead_letters": ["signals-1-7"]}
    # the tables that had the batch were not even touched
    assert {name: version(made, name) for name in TABLES} == dict.fromkeys(TABLES, 1) | {"audit": 0}


def test_a_batch_run_again_is_skipped_by_its_transaction_even_without_ids(
    spark: SparkSession, made: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "newest_batch", lambda *_: -1)
    for _ in range(2):
        ArchiveFold(made).write(records.frame(spark, outcomes(1)), 0, APPLICATION)
    assert ids(made) == expected(1)


def test_many_rows_go_to_several_files(spark: SparkSession, made: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS_PER_FILE", 10)
    ArchiveFold(made).write(records.frame(spark, outcomes(*range(20))).repartition(4), 0, APPLICATION)
    assert len(deltalake.DeltaTable(made.table("acknowledgements")).file_uris()) == 4
    assert ids(made) == expected(*range(20))
