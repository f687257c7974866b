from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.cli import tables as tables_cli
from ackstream.jobs.archive.job import ArchiveFold
from ackstream.lake import maintenance, reading
from ackstream.settings import Lake, Settings
from ackstream.spark import migration, session
from ackstream.spark.migration import Migration
from tests.cli.commands import rows, run
from tests.lake import empty, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def filled(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    lake = Lake(path=str(tmp_path / "lake"))
    monkeypatch.setenv("ACKSTREAM_LAKE_PATH", lake.path)
    empty.create(spark, lake)
    ArchiveFold(lake).write(records.frame(spark, [records.outcome(1), records.outcome(2)]), 0, "query")
    return lake


# -- outcomes ---------------------------------------------------------------------------------------------------------


def test_without_a_question_all_are_listed_with_what_they_tell():
    result = run("outcomes")
    assert result.exit_code == 0
    assert {word for row in rows(result) for word in row[:2]} >= {*reading.QUESTIONS, *reading.PLANES}
    assert "Who is slow: " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["why"], 2, "Unknown question 'why': none is like it; `ackstream outcomes` lists the questions.\n"),
        (
            ["slow-labels"],
            2,
            "Unknown question 'slow-labels': the nearest known one is slowest_labels; ",
        ),
        (["trace"], 2, "The question trace is about one trace: add its id, or the whole traceparent.\n"),
        (["trace", "c-1"], 2, "The trace is 'c-1': write its id, 32 hexadecimal digits, or the whole traceparent"),
        (["story"], 2, "The question story is about one request: add its correlation-id.\n"),
        (
            ["slowest-labels", "c-1"],
            2,
            "The question slowest_labels is about everything: leave out 'c-1'.\n",
        ),
        (["slowest-labels"], 1, "The table acknowledgements does not exist at "),
    ],
)
def test_a_question_that_cannot_be_answered_is_a_sentence(arguments: list[str], code: int, sentence: str):
    result = run("outcomes", *arguments)
    assert result.exit_code == code
    assert result.stderr.startswith(sentence)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("name", ["outcomes_by_status", "outcomes-by-status"])
def test_an_answer_is_a_table(name: str):
    found = rows(run("outcomes", name))
    assert found[0] == ["status", "completed", "by", "outcomes", "p50", "p95", "max"]
    assert found[1][:3] == ["200", "acknowledgements", "2"]


@pytest.mark.usefixtures("filled")
def test_an_answer_may_be_json_lines_with_times_in_utc():
    lines = [json.loads(line) for line in run("outcomes", "story", "c-1", "--json").stdout.splitlines()]
    assert lines[-1]["event"] == "outcome"
    assert all(line["occurred_at"].endswith("Z") for line in lines)


def test_both_engines_give_the_same_answer(filled: Lake):
    # a lake with a scheme is that of a cluster, which Spark reads
    local, remote = Settings(lake=filled), Settings(lake=Lake(path=f"file://{filled.path}"))
    for name in ("outcomes_by_status", "timeouts_by_hour"):
        duckdb, spark = tables_cli.ask(local, name), tables_cli.ask(remote, name)
        assert list(duckdb[0]) == list(spark[0])
        assert len(duckdb[1]) == len(spark[1]) > 0


@pytest.mark.usefixtures("filled")
def test_a_story_is_a_block_per_event():
    lines = run("outcomes", "story", "c-1").stdout.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert [head.split()[2] for head in heads] == ["request", "acknowledgement", "acknowledgement", "outcome"]
    assert heads[-1].endswith(" outcome 200")


@pytest.mark.usefixtures("filled")
def test_the_story_of_an_unknown_request_is_empty_and_exit_1():
    result = run("outcomes", "story", "c-404")
    assert (result.exit_code, result.stdout) == (1, "No rows match.\n")
    result = run("outcomes", "story", "c-404", "--json")
    assert (result.exit_code, result.stdout) == (1, "")


def test_the_questions_are_listed_as_json_too():
    lines = [json.loads(line) for line in run("outcomes", "--json").stdout.splitlines()]
    assert [line["question"] for line in lines] == list(reading.QUESTIONS)
    assert all(line["columns"] and line["tables"] for line in lines)


def test_the_sql_of_a_question_is_printed_with_the_meaning_of_its_columns():
    result = run("outcomes", "queue-depths", "--sql")
    assert result.exit_code == 0
    assert result.stdout.startswith("-- Per queue the messages ")
    assert "-- oldest_at: " in result.stdout
    assert "FROM queue_events" in result.stdout, "as `ackstream sql` takes it"
    for name in reading.QUESTIONS:
        assert "{" not in run("outcomes", name, "--sql").stdout


# -- migrate ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_no_spark")
@pytest.mark.parametrize(
    ("done", "lines"),
    [
        (
            Migration({"correlate.shards": (6, 12)}, "/checkpoints/correlate.1"),
            ["correlate.shards: 6 -> 12", "Start correlate again; delete /checkpoints/correlate.1 when it runs."],
        ),
        (
            None,
            [
                (
                    "The checkpoint of correlate has the values of the settings: correlate.shards = 12, "
                    "correlate.shuffle_partitions = 2, correlate.state_store = hdfs."
                )
            ],
        ),
    ],
)
def test_a_migration_says_what_has_changed(
    monkeypatch: pytest.MonkeyPatch, done: Migration | None, lines: list[str]
) -> None:
    monkeypatch.setenv("ACKSTREAM_CORRELATE_SHARDS", "12")
    monkeypatch.setattr(migration, "migrate", lambda _spark, _settings, _job: done)
    assert run("migrate", "correlate").stdout.splitlines() == lines
    found = json.loads(run("migrate", "correlate", "--json").stdout)
    assert found["former"] == (done.former if done else None)
    assert found["job"] == "correlate"


def test_only_jobs_with_such_settings_are_migrated() -> None:
    result = run("migrate", "twin")
    assert result.exit_code == 2
    assert result.stderr.startswith("The checkpoint of 'twin' cannot be migrated; the jobs are correlate, settle, que")


# -- register ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_no_spark")
def test_the_tables_and_views_of_a_catalog_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKSTREAM_LAKE_CATALOG", "unity.ack")
    monkeypatch.setattr(maintenance, "register", lambda _spark, lake: (len(lake.catalog), 0))
    assert run("register").stdout == "unity.ack has 9 tables and 0 views.\n"


def test_a_name_that_is_no_schema_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKSTREAM_LAKE_CATALOG", "ack; DROP")
    result = run("register")
    assert result.exit_code == 2
    assert result.stderr.startswith("The setting lake.catalog is 'ack; DROP': it is not the name of a schema")


# -- maintain ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("filled")
def test_maintenance_reports_each_table():
    found = rows(run("maintain", "outcomes", "dead_letters"))
    assert found[0] == ["table", "files", "before", "files", "after", "bytes", "before", "bytes", "after"]
    assert [row[:3] for row in found[1:]] == [["outcomes", "1", "1"], ["dead_letters", "0", "0"]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["outcome"], "There is no table outcome; the tables are signals, "),
        (["--journal", "90 days"], "--journal is '90 days': a duration is a text with its unit, "),
    ],
)
def test_wrong_input_is_refused_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
):
    monkeypatch.setattr(session, "quiet_session", lambda *_: pytest.fail("Spark was started"))
    result = run("maintain", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence)


@pytest.mark.usefixtures("_no_spark")
def test_maintenance_takes_all_tables_where_none_is_named(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []

    def note(_spark: Any, _settings: Settings, names: Any, **more: Any) -> list[maintenance.TableReport]:
        asked.append((names, more))
        return [maintenance.TableReport("signals", 12_000, 1, 2_000_000, 1_000_000)]

    monkeypatch.setattr(maintenance, "maintain", note)
    assert rows(run("maintain"))[1] == ["signals", "12,000", "1", "2,000,000", "1,000,000"]
    assert run("maintain", "--journal", "90d", "thing_events").exit_code == 0
    assert asked == [(None, {"journal_ms": None}), (["thing_events"], {"journal_ms": 90 * 86_400_000})]


@pytest.mark.usefixtures("_no_spark")
def test_a_table_that_could_not_be_maintained_is_named_and_ends_with_1(monkeypatch: pytest.MonkeyPatch):
    reports = [maintenance.TableReport("things", failure="A file was removed"), maintenance.TableReport("messages")]
    monkeypatch.setattr(maintenance, "maintain", lambda *_, **__: reports)
    result = run("maintain")
    assert result.exit_code == 1
    log = Path(".ackstream/logs/spark-maintain.log").absolute()
    assert result.stderr == f"The table things was not maintained (see {log}): A file was removed.\n"
    assert [row[0] for row in rows(result)] == ["table", "things", "messages"]
    lines = [json.loads(line) for line in run("maintain", "--json").stdout.splitlines()]
    assert [(line["table"], line["failure"]) for line in lines] == [("things", "A file was removed"), ("messages", "")]


@pytest.mark.usefixtures("_no_spark")
def test_things_are_erased_before_the_tables_are_maintained(monkeypatch: pytest.MonkeyPatch):
    done: list[Any] = []
    monkeypatch.setattr(maintenance, "erase", lambda *arguments: done.append(arguments[-1]))
    monkeypatch.setattr(
        maintenance, "maintain", lambda *_, **__: done.append("maintain") or [maintenance.TableReport("things")]
    )
    assert run("maintain", "--erase", "org.acme:a", "--erase", "org.acme:b").exit_code == 0
    assert done == ["org.acme:a", "org.acme:b", "maintain"]
