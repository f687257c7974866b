from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer
from typer.testing import CliRunner

from ackstream.cli import monitoring
from ackstream.cli.main import app
from ackstream.jobs.archive.job import ArchiveFold
from ackstream.jobs.correlate import inflight
from ackstream.jobs.correlate.inflight import InFlight
from ackstream.kafka.topics import ensure_topics
from ackstream.lake import maintenance, tables, things
from ackstream.lake import questions as lake_questions
from ackstream.settings import Lake, Settings
from ackstream.spark import migration
from ackstream.spark.migration import Migration
from tests.harness import ledgers
from tests.lake import records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result
    from pyspark.sql import SparkSession

    from ackstream.settings import Kafka

SECOND = 1_000


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def none(*_: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(monitoring, "quiet_session", none)


@pytest.fixture
def filled(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    lake = Lake(path=str(tmp_path / "lake"))
    monkeypatch.setenv("ACKSTREAM_LAKE_PATH", lake.path)
    tables.create(spark, lake)
    ArchiveFold(lake).write(records.frame(spark, [records.outcome(1), records.outcome(2)]), 0, "query")
    return lake


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def rows(result: Result) -> list[list[str]]:
    return [line.split() for line in result.stdout.splitlines()]


# -- watch ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("ACKSTREAM_KAFKA_TOPIC_PREFIX", kafka.topic_prefix)
    monkeypatch.setenv("COLUMNS", "60")
    return Settings(kafka=kafka)


@pytest.mark.integration
def test_once_shows_the_last_window(settings: Settings):
    ensure_topics(settings, ("signals", "acks", "ledger"))
    with KafkaProducer(bootstrap_servers=settings.kafka.bootstrap) as producer:
        for number, (status, completed_by) in enumerate(
            [(200, "acknowledgements"), (200, "response"), (424, "timeout"), (404, "error")]
        ):
            record = ledgers.outcome(str(number), status=status, completed_by=completed_by)
            producer.send(settings.kafka.topic("ledger"), value=record)
        producer.send(settings.kafka.topic("ledger"), value=ledgers.signal("open"))
    result = run("watch", "--once", "--window", "10m")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["last", "10m", "total", "p50", "p95"] in rows
    assert [row[1:3] for row in rows if row[:1] == ["answered"]] == [["2", "2"]]
    assert [row[2:4] for row in rows if row[:2] == ["timed", "out"]] == [["1", "1"]]
    assert [row[1:3] for row in rows if row[:1] == ["failed"]] == [["1", "1"]]
    assert ["in", "flight", "1"] in rows
    assert [row[1:] for row in rows if row and row[0].endswith("ledger")] == [["unknown", "ackstream-archive"]]


@pytest.mark.integration
def test_without_topics_there_is_a_sentence(settings: Settings):
    result = run("watch", "--once")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"There is no topic {settings.kafka.topic('ledger')} at ")


def test_a_window_that_is_no_duration_is_a_sentence():
    result = run("watch", "--once", "--window", "soon")
    assert result.exit_code == 1
    assert result.stderr.startswith("--window is 'soon': ")


# -- inflight ---------------------------------------------------------------------------------------------------------


def open_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() // 1_000_000
    # what is shown does not depend on how long the command takes
    monkeypatch.setattr(monitoring, "epoch_milliseconds", lambda: now)
    found = [
        InFlight("c-1", "org.acme:lamp", now - 70 * SECOND, now - 9_500, ("a:b", "c:d")),
        InFlight("c-2", None, now - 2 * SECOND, now + 3_600 * SECOND + 500, ()),
    ]
    monkeypatch.setattr(inflight, "inflight", lambda *_: found)


@pytest.mark.usefixtures("_no_spark")
def test_open_requests_are_shown_with_age_and_time_left(monkeypatch: pytest.MonkeyPatch):
    open_requests(monkeypatch)
    found = rows(run("inflight"))
    assert found[0] == ["correlation-id", "age", "left", "thing", "missing"]
    assert found[1][0] == "c-1"
    assert found[1][1:] == ["1m10s", "-9.5s", "org.acme:lamp", "a:b,", "c:d"]
    assert found[2][0] == "c-2"
    assert found[2][2:] == ["1h", "the", "response"]


@pytest.mark.usefixtures("_no_spark")
def test_more_than_the_limit_is_said(monkeypatch: pytest.MonkeyPatch):
    open_requests(monkeypatch)
    result = run("inflight", "--limit", "1")
    assert "c-2" not in result.stdout
    assert result.stdout.endswith("1 more are open; --limit 2 shows all.\n")


@pytest.mark.usefixtures("_no_spark")
def test_json_has_a_line_for_each_open_request(monkeypatch: pytest.MonkeyPatch):
    open_requests(monkeypatch)
    lines = [json.loads(line) for line in run("inflight", "--json").stdout.splitlines()]
    assert [line["correlation_id"] for line in lines] == ["c-1", "c-2"]
    assert lines[0]["missing"] == ["a:b", "c:d"]


@pytest.mark.usefixtures("_no_spark")
def test_no_open_request_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inflight, "inflight", lambda *_: [])
    assert run("inflight").stdout == "No request is open.\n"
    assert run("inflight", "--json").stdout == ""


@pytest.mark.usefixtures("spark")
def test_without_a_checkpoint_there_is_a_sentence():
    result = run("inflight")
    assert result.exit_code == 1
    assert result.stderr.startswith("No state can be read at .ackstream/checkpoints/correlate: start the correlate job")


# -- outcomes ---------------------------------------------------------------------------------------------------------


def test_without_a_question_all_are_listed_with_what_they_tell():
    result = run("outcomes")
    assert result.exit_code == 0
    assert {row[0] for row in rows(result) if row} >= lake_questions.QUESTIONS.keys()
    assert "the slowest labels" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["why"], "Unknown question 'why'; the questions are slowest_labels, "),
        (["story"], "The question story is about one request: add its correlation-id.\n"),
        (
            ["slowest-labels", "c-1"],
            "The question slowest_labels is about all requests: leave out the correlation-id.\n",
        ),
        (["slowest-labels"], "The table acknowledgements does not exist at "),
    ],
)
def test_a_question_that_cannot_be_answered_is_a_sentence(arguments: list[str], sentence: str):
    result = run("outcomes", *arguments)
    assert result.exit_code == 1
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
    settings = Settings(lake=filled)
    for name in ("outcomes_by_status", "timeouts_by_hour"):
        duckdb, spark = monitoring.ask_duckdb(settings, name), monitoring.ask_spark(settings, name)
        assert list(duckdb[0]) == list(spark[0])
        assert len(duckdb[1]) == len(spark[1]) > 0


def test_without_duckdb_spark_is_asked(monkeypatch: pytest.MonkeyPatch, filled: Lake):
    expected = monitoring.ask(Settings(lake=filled), "timeouts_by_hour")
    monkeypatch.setattr(monitoring, "find_spec", lambda _name: None)
    monkeypatch.setattr(monitoring, "ask_duckdb", None)
    assert monitoring.ask(Settings(lake=filled), "timeouts_by_hour") == expected


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


def test_only_jobs_with_such_settings_are_migrated() -> None:
    result = run("migrate", "twin")
    assert result.exit_code == 1
    assert result.stderr.startswith("The checkpoint of 'twin' cannot be migrated; the jobs are correlate, settle, que")


# -- maintain ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("filled")
def test_maintenance_reports_each_table():
    found = rows(run("maintain", "outcomes", "dead_letters"))
    assert found[0] == ["table", "files", "before", "files", "after", "bytes", "before", "bytes", "after"]
    assert [row[:3] for row in found[1:]] == [["outcomes", "1", "1"], ["dead_letters", "0", "0"]]


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
    reports = [maintenance.TableReport("things", failure="A file was removed."), maintenance.TableReport("messages")]
    monkeypatch.setattr(maintenance, "maintain", lambda *_, **__: reports)
    result = run("maintain")
    assert result.exit_code == 1
    assert result.stderr == "The table things was not maintained: A file was removed. Try again later.\n"
    assert [row[0] for row in rows(result)] == ["table", "things", "messages"]


@pytest.mark.usefixtures("_no_spark")
def test_things_are_erased_before_the_tables_are_maintained(monkeypatch: pytest.MonkeyPatch):
    done: list[Any] = []
    monkeypatch.setattr(things, "erase", lambda *arguments: done.append(arguments[-1]))
    monkeypatch.setattr(
        maintenance, "maintain", lambda *_, **__: done.append("maintain") or [maintenance.TableReport("things")]
    )
    assert run("maintain", "--erase", "org.acme:a", "--erase", "org.acme:b").exit_code == 0
    assert done == ["org.acme:a", "org.acme:b", "maintain"]
