"""Filters as conditions of Spark."""

from __future__ import annotations

import json
import time

import pytest
from pyspark.sql import DataFrame, SparkSession

from ackstream.jobs.query import records
from ackstream.jobs.query.filters import field, fits
from ackstream.jobs.query.records import UNSOUND, QueryRecord, read_queries
from ackstream.spark.session import FIXED

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def apart(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")
    return session


def _found(spark: SparkSession, text: str, values: list[object]) -> list[int]:
    rows = [(number, json.dumps(value)) for number, value in enumerate(values)]
    found = spark.createDataFrame(rows, "number INT, value STRING").where(fits(spark.sparkContext, text)).collect()
    return sorted(row.number for row in found)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("/x = 'a'' OR 1=1 --'", "a' OR 1=1 --"),
        ("/x = 'a\\'", "a\\"),
        ('/x = "it\'s"', "it's"),
        ("/x = '\\u0041'", "\\u0041"),
        ("/x = '{fn now()}'", "{fn now()}"),
        ("/x = '$' || '{env:HOME}'", "${env:HOME}"),
        ("/x LIKE '^\\$.env:HOME}$'", "${env:HOME}"),
    ],
)
def test_a_text_in_a_filter_is_itself(apart: SparkSession, text: str, value: str) -> None:
    assert _found(apart, text, [{"x": "other"}, {"x": value}]) == [1]


def test_a_filter_is_built_once_for_all_batches_each_of_which_has_a_session_of_python_of_its_own(
    apart: SparkSession,
) -> None:
    one, two = (SparkSession(apart.sparkContext, apart._jsparkSession) for _ in range(2))
    assert one is not two
    assert fits(one.sparkContext, "/built = 1") is fits(two.sparkContext, "/built = 1")
    before = records._sound.cache_info().hits
    assert records._sound(one._jsparkSession, "/built = 1")
    assert records._sound(two._jsparkSession, "/built = 1")
    assert records._sound.cache_info().hits == before + 1


def test_no_session_replaces_variables_in_sql(apart: SparkSession) -> None:
    assert {key: apart.conf.get(key) for key in FIXED} == FIXED
    assert apart.sql("SELECT '${env:PATH}' AS path, '${spark.app.name}' AS name").collect()[0] == (
        "${env:PATH}",
        "${spark.app.name}",
    )


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("/x LIKE 'b.d'", [0]),
        ("NOT /x LIKE 'b.d'", [1]),
        ("/x LIKE '(a|b)*e$' OR /n LIKE '2'", [0, 3]),
        ("UPPER(/x) LIKE '^AB'", [0]),
        ("LENGTH(/x) LIKE '^5$'", [0]),
        ("/x NOT LIKE '^z'", [0, 1]),
    ],
)
def test_a_regular_expression_matches_a_part_of_a_text(apart: SparkSession, text: str, numbers: list[int]) -> None:
    assert _found(apart, text, [{"x": "abcde"}, {"x": "xyz"}, {}, {"n": 12}]) == numbers


def test_a_text_that_is_too_long_for_an_expression_matches_neither_it_nor_its_opposite(apart: SparkSession) -> None:
    values: list[object] = [{"x": "ab" * 200_000}, {"x": "ab"}]
    assert _found(apart, "/x LIKE '^(ab[a-z]{0,300})*$'", values) == [1]
    assert _found(apart, "/x NOT LIKE '^(ab[a-z]{0,300})*$'", values) == []


def test_names_of_fields_are_no_paths_of_their_own(apart: SparkSession) -> None:
    values: list[object] = [{"a.b": 1, "a-c": 2}, {"a": {"b": 1}}]
    assert _found(apart, "/a.b = 1", values) == [0]
    assert _found(apart, "/a-c = 2", values) == [0]
    assert _found(apart, "/a/b = 1", values) == [1]
    rows = apart.createDataFrame([('{"a.b": "x"}',)], "value STRING")
    assert rows.select(field(["a.b"])).collect()[0][0] == "x"


@pytest.mark.parametrize("text", ["ABS(/x)", "ABS()", "SUBSTRING(/x)", "ROUND(/x, /y)"])
def test_a_filter_that_spark_cannot_evaluate_is_refused_with_a_sentence(apart: SparkSession, text: str) -> None:
    headers = [("command", b"sow"), ("topic", b"orders"), ("filter", text.encode())]
    (request,), _ = read_queries(apart, [QueryRecord(0, 0, 0, "queries", b"a", None, headers)])
    if text == "ABS(/x)":
        assert request.reason is None
        return
    assert request.reason == "bad filter"
    assert request.detail == UNSOUND or "expected" in str(request.detail)


LARGEST = " OR ".join([f"/k{number}/x = {number}" for number in range(28)])


def test_the_largest_filter_takes_about_100_ms_on_the_largest_message(apart: SparkSession) -> None:
    value = json.dumps({f"k{number}": {"x": "x" * 100} for number in range(8_000)})
    assert 900_000 < len(value) < 1_000_000
    large, small = (
        apart.createDataFrame([(text,)] * 20, "value STRING").coalesce(1).localCheckpoint() for text in (value, "{}")
    )
    _seconds(large)
    # the JVM of tests compiles less, and other tests run beside this one
    assert (min(_seconds(large) for _ in range(3)) - min(_seconds(small) for _ in range(3))) / 20 < 1


def _seconds(messages: DataFrame) -> float:
    started = time.perf_counter()
    assert messages.where(fits(messages.sparkSession.sparkContext, LARGEST)).count() == 0
    return time.perf_counter() - started
