"""Tables and views in a catalog: Spark's own, in this process and in a Hive metastore that other processes share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import UnsupportedOperationException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.errors import StartError
from ackstream.lake import commits, maintenance, reading, tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.local import jars
from ackstream.settings import Lake
from tests.harness.processes import QUICK
from tests.lake import empty, planes
from tests.lake.test_questions import TEN, naive, queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

SCHEMA = "ack"
DAILY = [name for name, question in reading.VIEWS.items() if "day" in question.columns]
"""The ten questions, as views that are bounded by day."""
LEDGER = {"signals", "acknowledgements", "outcomes", "dead_letters"}
SECONDS = 200


@pytest.fixture(scope="module")
def registered(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return tables that are registered, with the views of all questions, and to which nothing was written by it."""
    found = Lake(path=str(tmp_path_factory.mktemp("lake")), catalog="spark_catalog.ack")
    planes.fill(found)
    before = versions(spark, found)
    assert maintenance.register(spark, found) == (len(ALL_TABLES), len(reading.VIEWS))
    assert versions(spark, found) == before
    yield found
    spark.sql("DROP SCHEMA ack CASCADE")


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    """Return one table, which only a few questions need."""
    found = Lake(path=str(tmp_path / "lake"), catalog="spark_catalog.small")
    planes.write(found, "audit")
    yield found
    spark.sql("DROP SCHEMA IF EXISTS small CASCADE")


def versions(spark: SparkSession, lake: Lake) -> dict[str, int]:
    return {name: commits.log_and_snapshot(spark, lake.table(name))[1].version() for name in ALL_TABLES}


def test_tables_are_read_by_name(spark: SparkSession, registered: Lake) -> None:
    for name in ALL_TABLES:
        assert spark.table(f"ack.{name}").count() == tables.read(spark, registered, name).count() > 0


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", reading.VIEWS)
def test_a_view_has_the_answer_of_its_question(spark: SparkSession, name: str) -> None:
    condition = "WHERE correlation_id = 'c-1'" if name == "story" else ""
    assert naive(spark.sql(f"SELECT * FROM ack.{name} {condition}").collect()) == planes.ANSWERS[name]


def test_the_queries_of_the_ten_questions_have_the_answers_of_duckdb(spark: SparkSession, registered: Lake) -> None:
    spark.sql("USE ack")
    with reading.database(registered) as connection:
        reading.create_views(connection, registered)
        for query in queries(TEN):
            expected = naive(connection.execute(query).fetchall())
            assert naive(spark.sql(query).collect()) == expected != [], query
    spark.sql("USE default")


@pytest.mark.usefixtures("registered")
def test_a_view_explains_its_columns(spark: SparkSession) -> None:
    described = {row.col_name: row.comment for row in spark.sql("DESCRIBE ack.slowest_labels").collect()}
    assert described == reading.QUESTIONS["slowest_labels"].columns


def test_a_repetition_adds_the_tables_that_are_new(spark: SparkSession, small: Lake) -> None:
    assert maintenance.register(spark, small) == (1, 1)
    planes.write(small, "dead_letters")
    assert maintenance.register(spark, small) == (2, 2)
    assert spark.table("small.dead_letters").columns == ALL_TABLES["dead_letters"].names


def test_another_table_of_the_name_is_left_alone(spark: SparkSession, small: Lake, tmp_path: Path) -> None:
    maintenance.register(spark, small)
    moved = small.model_copy(update={"path": str(tmp_path / "elsewhere")})
    planes.write(moved, "audit")
    with pytest.raises(
        StartError, match=r"^spark_catalog\.small\.audit is not the table at .*elsewhere/audit: drop it"
    ):
        maintenance.register(spark, moved)


def test_an_unknown_catalog_is_a_sentence(spark: SparkSession, small: Lake) -> None:
    unknown = small.model_copy(update={"catalog": "unity.ack"})
    with pytest.raises(StartError, match=r"^lake\.catalog = unity\.ack cannot be used: "):
        maintenance.register(spark, unknown)


@pytest.mark.parametrize("plugin", ["io.unitycatalog.spark.UCSingleCatalog", "java.lang.String"])
def test_a_catalog_whose_connector_is_missing_or_wrong_is_a_sentence(
    spark: SparkSession, small: Lake, plugin: str
) -> None:
    name = plugin.rpartition(".")[2]
    spark.conf.set(f"spark.sql.catalog.{name}", plugin)
    with pytest.raises(StartError, match=rf"^lake\.catalog = {name}\.ack cannot be used: .*{plugin}"):
        maintenance.register(spark, small.model_copy(update={"catalog": f"{name}.ack"}))


def test_a_catalog_that_replaces_no_view_gets_it_anew(
    spark: SparkSession, small: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql, refused = SparkSession.sql, []

    def refusing(session: SparkSession, query: str, *values: Any, **named: Any) -> DataFrame:
        if query.startswith("CREATE OR REPLACE VIEW"):
            refused.append(query)
            raise UnsupportedOperationException("Replacing a view is not supported yet")
        return sql(session, query, *values, **named)

    monkeypatch.setattr(SparkSession, "sql", refusing)
    for times in (1, 2):
        assert maintenance.register(spark, small) == (1, 1)
        assert spark.sql("SHOW VIEWS IN small").count() == 1
        assert len(refused) == times


@pytest.mark.parametrize("schema", ["", "ack"])
def test_a_schema_that_would_end_with_the_command_is_refused(spark: SparkSession, small: Lake, schema: str) -> None:
    with pytest.raises(StartError, match=rf"^lake\.catalog = '{schema}' is not a permanent schema: set it to "):
        maintenance.register(spark, small.model_copy(update={"catalog": schema}))


# -- a Hive metastore -------------------------------------------------------------------------------------------------

ANALYST = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]")
for key, value in json.loads(sys.argv[1]).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
found = {query: [[str(cell) for cell in row] for row in spark.sql(query).collect()] for query in sys.argv[2:]}
spark.stop()
print(json.dumps(found))
"""
"""The program of an analyst: it knows the catalog, and neither the product nor the place of the tables."""


def test_another_program_finds_the_tables_in_a_hive_metastore(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path / "lake"))
    planes.fill(lake)
    # a metastore takes seconds for each table and view
    for name in ALL_TABLES.keys() - LEDGER:
        shutil.rmtree(lake.table(name))
    views = {name for name, view in reading.VIEWS.items() if set(view.tables) <= LEDGER}
    metastore = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        # the product's sessions have no locale, which Derby needs to create a database
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{tmp_path}/metastore;create=true;territory=en_US",
    }
    conf = tmp_path / "ackstream.toml"
    entries = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in (QUICK | metastore).items())
    places = f'[lake]\npath = "{lake.path}"\ncatalog = "{SCHEMA}"\n[local]\ndata = "{tmp_path}/data"\n'
    conf.write_text(f"{places}[spark.conf]\n{entries}")
    done = run([sys.executable, "-m", "ackstream", "register"], tmp_path, ACKSTREAM_CONF=str(conf))
    assert done == f"{SCHEMA} has {len(LEDGER)} tables and {len(views)} views.\n"
    delta = {
        "spark.jars": ",".join(map(str, jars.resolve("spark"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    queries = [
        f"SELECT label, p95_ms FROM {SCHEMA}.slowest_labels",
        f"SELECT event FROM {SCHEMA}.story WHERE correlation_id = 'c-1'",
        f"SHOW VIEWS IN {SCHEMA}",
    ]
    found = json.loads(
        run([sys.executable, "-c", ANALYST, json.dumps(QUICK | metastore | delta), *queries], tmp_path).splitlines()[-1]
    )
    assert found[queries[0]] == [["c:d", "1000"], ["a:b", "40"]]
    assert [event for (event,) in found[queries[1]]] == [
        "request",
        *["acknowledgement"] * 2,
        "outcome",
        "acknowledgement",
    ]
    assert {row[1] for row in found[queries[2]]} == views


def run(command: list[str], directory: Path, **environment: str) -> str:
    own = {"PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    done = subprocess.run(
        command, cwd=directory, env=os.environ | own, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# -- days -------------------------------------------------------------------------------------------------------------

OLD, NEW = planes.START.date(), planes.START.date() + timedelta(days=1)
WHOLE = {"readers_behind": {"deliveries"}}
"""The tables of which a question reads all days, if few columns: old deliveries count for the messages of a new day."""


@pytest.fixture(scope="module")
def two_days(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return tables with the same rows on two days, a day later."""
    found = Lake(path=str(tmp_path_factory.mktemp("days")))
    first = Lake(path=str(tmp_path_factory.mktemp("first")))
    planes.fill(first)
    names = sorted({name for question in DAILY for name in reading.QUESTIONS[question].tables})
    empty.create(spark, found, names)
    for name in names:
        for day in OLD, NEW:
            rows = tables.read(spark, first, name).withColumn("day", F.lit(day))
            for column in ALL_TABLES[name].columns:
                if column.kind == "timestamp":
                    rows = rows.withColumn(column.name, F.expr(f"`{column.name}` + INTERVAL {(day - OLD).days} DAYS"))
            rows.write.format("delta").mode("append").save(found.table(name))
    return found


def test_the_ten_questions_have_a_day() -> None:
    assert len(DAILY) == 10


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
@pytest.mark.parametrize("name", DAILY)
def test_a_question_about_a_day_opens_no_file_of_earlier_days(
    spark: SparkSession, two_days: Lake, tmp_path: Path, engine: str, name: str
) -> None:
    lake = Lake(path=str(tmp_path / "lake"))
    used = reading.QUESTIONS[name].tables
    for table in used:
        shutil.copytree(two_days.table(table), lake.table(table))
        if table not in WHOLE.get(name, ()):
            shutil.rmtree(Path(lake.table(table)) / f"day={OLD}")
    condition = f"WHERE day >= DATE '{NEW}'" + (" AND correlation_id = 'c-1'" if name == "story" else "")
    if engine == "duckdb":
        with reading.database(lake, used) as connection:
            reading.create_views(connection, lake)
            found = naive(connection.execute(f"SELECT * FROM {name} {condition}").fetchall())
    else:
        for table in used:
            tables.read(spark, lake, table).createOrReplaceTempView(table)
        found = naive(spark.sql(f"SELECT * FROM ({reading.VIEWS[name].view(used, lake)}) {condition}").collect())
    expected = [tuple(map(a_day_later, row)) for row in planes.ANSWERS[name]]
    assert found == expected


def a_day_later(cell: Any) -> Any:
    return cell + (NEW - OLD) if isinstance(cell, date) else cell
