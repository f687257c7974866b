from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import sqlglot
from rich.console import Console

from ackstream.errors import InputError, StartError
from ackstream.jobs.archive.job import ArchiveFold
from ackstream.lake import reading, tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.local import jars
from ackstream.settings import Lake
from tests.lake import empty, planes, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUMP = "org.example:pump-3"
AT = datetime.fromtimestamp(records.START / 1000, timezone.utc)
HOUR_MS = 3_600_000
DOCS = Path(__file__).parents[2] / "docs"
TABLES, TEN = DOCS / "reference/tables.md", DOCS / "guides/ten-questions.md"


def values() -> list[bytes | None]:
    """Return a small day: two answered, one timed out an hour later, one late acknowledgement, one dead letter."""
    slow = [records.ack_row(2, latency_ms=20), records.ack_row(2, "billing:booked", index=1, latency_ms=400)]
    later = records.START + HOUR_MS
    timeout = records.outcome_row(
        3, status=424, completed_by="timeout", missing=["billing:booked"], latency_ms=5000, decided_at=later
    )
    return [
        records.outcome(1),
        records.outcome(2, acks=slow, outcome=records.outcome_row(2, latency_ms=410)),
        records.outcome(3, signal=records.signal_row(3), acks=[records.ack_row(3)], outcome=timeout),
        records.acknowledgement(4, label="billing:booked", correlation_id="c-3", received_at=later + 1),
        records.dead_letter(5),
    ]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(path=str(tmp_path_factory.mktemp("lake")))
    empty.create(spark, lake)
    refused = [records.audit(1), records.audit(2, count=9), records.audit(3, subject="user:bob")]
    audit = records.frame(spark, [*refused, records.audit(4, allowed=True)], topic="audit")
    ArchiveFold(lake).write(records.frame(spark, values()).unionAll(audit), 0, "query")
    return lake


def naive(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Return rows as tuples with times in UTC, as engines give them in one way or another."""
    return [
        tuple(cell.astimezone(timezone.utc) if isinstance(cell, datetime) else cell for cell in row) for row in rows
    ]


def ask_duckdb(lake: Lake, name: str, argument: str | None = None) -> list[tuple[Any, ...]]:
    with reading.database(lake, reading.QUESTIONS[name].tables) as connection:
        return naive(reading.answer(connection, lake, name, reading.parameters(name, argument)).fetchall())


HOUR, DAY = AT.replace(minute=0, second=0), AT.date()
ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "slowest_labels": [(DAY, "billing:booked", 2, 20, 400, 400), (DAY, "twin-persisted", 3, 20, 20, 20)],
    "missing_labels": [(DAY, "billing", "billing:booked", 3, 1, 1 / 3)],
    "timeouts_by_hour": [(HOUR, 2, 0, 0.0), (HOUR + timedelta(hours=1), 1, 1, 1.0)],
    "outcomes_by_status": [
        (200, "acknowledgements", 2, 30, 410, 410),
        (424, "timeout", 1, 5000, 5000, 5000),
    ],
    "unused_acknowledgements": [
        ("late", "billing:booked", 1, 1, 1, AT + timedelta(hours=1, milliseconds=1)),
    ],
    "refusals": [
        ("command", "user:ada", "10.0.0.9", "WRITE of /attributes/x", 10, AT + timedelta(milliseconds=2)),
        ("command", "user:bob", "10.0.0.9", "WRITE of /attributes/x", 1, AT + timedelta(milliseconds=3)),
    ],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_question_is_answered_from_what_archive_has_written(filled: Lake, name: str) -> None:
    assert ask_duckdb(filled, name) == ANSWERS[name]


def test_the_story_of_a_correlation_id_is_told_in_the_order_of_time(spark: SparkSession, filled: Lake) -> None:
    told = naive(reading.ask(spark, filled, "story", {"correlation_id": "c-3"}).collect())
    step = timedelta(milliseconds=1)
    signal = "twin commands modify /features/water/properties/level"
    terms = "signals-0-3, labels twin-persisted billing:booked, timeout 5000 ms"
    assert [row[-4:] for row in told] == [
        ("c-3", PUMP, DAY, terms), ("c-3", None, DAY, None), ("c-3", PUMP, DAY, None), ("c-3", None, DAY, None),
    ]  # fmt: skip
    assert [row[:-4] for row in told] == [
        (AT + 3 * step, 1, "request", None, None, signal, '{"litres":5}', records.reply_id(3), None),
        (AT + 23 * step, 2, "acknowledgement", "twin-persisted", 204, "accepted", None, "acks-0-3-0", None),
        (AT + timedelta(hours=1), 3, "outcome", None, 424, "timeout", '{"status":200}', records.reply_id(3), None),
        (AT + timedelta(hours=1) + step, 2, "acknowledgement", "billing:booked", 204, "late", None, "acks-0-4-0", None),
    ]
    assert ask_duckdb(filled, "story", "c-3") == told


def test_the_story_of_a_request_of_a_gateway_is_found_by_the_id_of_its_client(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(path=str(tmp_path))
    empty.create(spark, lake)
    refused = {"correlation_id": "c-6#AAAAAAAAAAAAAAAA", "disposition": "invalid", "reason": "Another thing."}
    others = [records.acknowledgement(number, correlation_id=name) for number, name in ((7, "c-60"), (8, "c-6 x"))]
    ArchiveFold(lake).write(records.frame(spark, [records.acknowledgement(6, **refused), *others]), 0, "query")
    (told,) = reading.ask(spark, lake, "story", {"correlation_id": "c-6"}).collect()
    assert (told["detail"], told["id"]) == ("invalid Another thing.", "acks-0-6-0")
    ((*_, identity, _, wire_id, _, _, _),) = ask_duckdb(lake, "story", "c-6")
    assert (identity, wire_id) == ("acks-0-6-0", "c-6#AAAAAAAAAAAAAAAA")


def test_a_quote_in_a_correlation_id_is_no_sql(spark: SparkSession, filled: Lake) -> None:
    assert reading.ask(spark, filled, "story", {"correlation_id": "' OR '1' = '1"}).collect() == []


def test_a_request_that_is_decided_after_midnight_counts_on_its_own_day(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    empty.create(spark, lake)
    late = AT.replace(hour=23, minute=59, second=58)
    asked = round(late.timestamp() * 1000)
    ended = records.outcome_row(1, started_at=asked, decided_at=asked + 5000, latency_ms=5000)
    request = records.outcome(1, signal=records.signal_row(1, received_at=asked), acks=[], outcome=ended)
    open_one = records.outcome(2, signal=records.signal_row(2, received_at=asked), acks=[], outcome=None)
    ArchiveFold(lake).write(records.frame(spark, [request, open_one]), 0, "query")
    hour = late.replace(minute=0, second=0)
    answers = {
        "SELECT day, correlation_id FROM undecided_requests": [(DAY, "c-2")],
        "SELECT DISTINCT day, hour FROM success_by_hour": [(DAY, hour)],
        "SELECT s.id FROM signals AS s JOIN outcomes AS o USING (day, id)": [(records.reply_id(1),)],
    }
    with reading.database(lake) as connection:
        reading.create_views(connection, lake)
        assert {text: naive(connection.execute(text).fetchall()) for text in answers} == answers


# -- every plane ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(path=str(tmp_path_factory.mktemp("planes")))
    planes.fill(lake)
    return lake


def test_every_question_has_an_answer_to_compare() -> None:
    assert planes.ANSWERS.keys() == reading.QUESTIONS.keys()
    assert planes.ARGUMENTS.keys() == reading.PARAMETERS.keys()


@pytest.mark.parametrize("name", reading.QUESTIONS)
def test_a_question_is_answered_from_the_tables_of_its_plane(told: Lake, name: str) -> None:
    assert ask_duckdb(told, name, planes.ARGUMENTS.get(name)) == planes.ANSWERS[name]


def test_spark_answers_every_question_as_duckdb_does(spark: SparkSession, told: Lake) -> None:
    for name in reading.QUESTIONS:
        values = reading.parameters(name, planes.ARGUMENTS.get(name))
        assert naive(reading.ask(spark, told, name, values).collect()) == planes.ANSWERS[name], name


def queries(page: Path) -> list[str]:
    """Return the queries of a page."""
    found = "".join(re.findall(r"```sql\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
    return [query for query in found.split(";") if query.strip()]


def test_the_queries_of_the_ten_questions_have_answers(told: Lake) -> None:
    with reading.database(told) as connection:
        reading.create_views(connection, told)
        assert reading.views(connection) == ALL_TABLES.keys() | reading.VIEWS.keys()
        for query in queries(TEN):
            assert connection.execute(query).fetchall(), query


PORTABLE = {
    *("*", ",", "(", ")", "=", "<>", "<", "<=", ">", ">=", ".", "and", "as", "between", "by", "case", "cast", "date"),
    *("desc", "distinct", "else", "end", "exists", "from", "group", "having", "in", "is", "join", "left", "like"),
    *("limit", "not", "null", "on", "or", "order", "over", "partition", "select", "then", "union", "when", "where"),
}
FUNCTIONS = {"coalesce", "count", "cume_dist", "lead", "max", "min", "sum"}
"""The words of SQL that Trino, Spark and DuckDB have, with one meaning."""
RESERVED = {"at", "auto", "offset"}
"""The names of columns that need quotes: in Trino ``auto``, in DuckDB the others."""


def foreign(query: str) -> set[str]:
    """Return the words of a query that are not SQL of Trino: sqlglot alone accepts those of its other dialects, too."""
    sqlglot.parse(query, dialect="trino")
    tokens = [token for token in sqlglot.tokenize(query, read="trino") if token.token_type.name != "STRING"]
    # two words may be one token
    words = [word for token in tokens for word in token.text.lower().split()]
    names = {token.text.lower() for token in tokens if token.token_type.name in ("VAR", "NUMBER")} - RESERVED
    called = {word for word, following in pairwise(words) if following == "(" and word.isidentifier()}
    return ({*words} - names | called) - PORTABLE - FUNCTIONS


def test_the_example_of_a_spark_session_reads_the_tables(told: Lake, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEN.read_text("utf-8"), re.DOTALL)
    own = {"LAKE": told.path, "JARS": ",".join(map(str, jars.resolve("spark", Console(stderr=True))))}
    command = [sys.executable, "-c", example]
    done = subprocess.run(command, env=os.environ | own, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.search(r"^\|\s*timeout\|\s*1\|$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("page", [TABLES, TEN], ids=lambda page: page.stem)
def test_the_queries_of_the_pages_are_sql_of_trino(page: Path) -> None:
    assert {query: found for query in queries(page) if (found := foreign(query))} == {}


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("SELECT explode(requested) FROM outcomes", "explode"),
        ("SELECT id FROM outcomes WHERE array_contains(missing, 'a:b')", "array_contains"),
        ("SELECT unix_millis(decided_at) FROM outcomes", "unix_millis"),
        ("SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY status) FROM outcomes", "percentile_disc"),
        ("SELECT status::double FROM outcomes", "::"),
        ("SELECT CAST(status AS STRING) FROM outcomes", "string"),
        ("SELECT id FROM outcomes WHERE id ILIKE 'x'", "ilike"),
        ("SELECT * EXCLUDE (id) FROM outcomes", "exclude"),
        ("SELECT auto FROM deliveries", "auto"),
    ],
)
def test_a_word_of_another_dialect_is_found(query: str, word: str) -> None:
    assert word in foreign(query)


def test_only_the_names_that_the_page_lists_need_quotes_in_duckdb() -> None:
    refused = set()
    with reading.connect() as connection:
        for name in sorted({column for table in ALL_TABLES.values() for column in table.names}):
            try:
                connection.execute(f'SELECT {name} FROM (SELECT 1 AS "{name}") WHERE {name} = 1 GROUP BY {name}')
            except duckdb.ParserException:
                refused.add(name)
    assert refused == RESERVED - {"auto"}
    assert all(f'`"{name}"`' in TABLES.read_text("utf-8") for name in RESERVED)


@pytest.mark.parametrize("name", reading.VIEWS)
def test_a_view_has_the_answer_of_its_question(told: Lake, name: str) -> None:
    with reading.database(told) as connection:
        reading.create_views(connection, told)
        condition = " WHERE correlation_id = 'c-1'" if name == "story" else ""
        assert naive(connection.execute(f"SELECT * FROM {name}{condition}").fetchall()) == planes.ANSWERS[name]


FIRST_ANSWERS = [{"timeout", "error", "acknowledgements"}, {"a:b", "c:d"}, {"c-2"}]
"""The first columns."""


def test_the_queries_of_the_tables_page_run_on_spark_too(spark: SparkSession, told: Lake) -> None:
    for name in ("outcomes", "acknowledgements", "signals"):
        tables.read(spark, told, name).createOrReplaceTempView(name)
    answers = [spark.sql(query).collect() for query in queries(TABLES)]
    assert [{row[0] for row in rows} for rows in answers] == FIRST_ANSWERS


def test_a_percentile_is_that_of_the_portable_query_of_the_tables_page(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    used = {"disposition": "accepted", "status": 200}
    rows = [
        {**used, "label": f"of:{count:02d}", "latency_ms": number**2}
        for count in range(1, 42)
        for number in range(count)
    ]
    planes.write(lake, "acknowledgements", rows)
    (query,) = re.findall(r"SELECT label, min\(latency_ms\) AS p95_ms.*?;", TABLES.read_text("utf-8"), re.DOTALL)
    with reading.database(lake) as connection:
        portable = connection.execute(query).fetchall()
    assert sorted(portable) == sorted((label, p95) for _, label, _, _, p95, _ in ask_duckdb(lake, "slowest_labels"))


@pytest.mark.parametrize("name", reading.QUESTIONS)
def test_every_column_of_an_answer_is_explained(told: Lake, name: str) -> None:
    question = reading.QUESTIONS[name]
    own = name.replace("_", " ")
    assert question.about[0].isupper()
    assert not question.about.lower().startswith((own, f"the {own}"))
    with reading.database(told, question.tables) as connection:
        values = reading.parameters(name, planes.ARGUMENTS.get(name))
        found = reading.answer(connection, told, name, values).description
    assert [column[0] for column in found] == list(question.columns)
    assert all(question.columns.values())


@pytest.mark.parametrize("ended", ["cancelled", "timeout"])
def test_a_label_of_a_request_that_was_cancelled_is_not_blamed(tmp_path: Path, ended: str) -> None:
    lake = Lake(path=str(tmp_path))
    request = {"correlation_id": "c-1", "decided_at": planes.at(5), "completed_by": ended, "requested": ["a:b"]}
    planes.write(lake, "outcomes", [{**request, "missing": ["a:b"], "status": 499 if ended == "cancelled" else 408}])
    late = {"correlation_id": "c-1", "label": "a:b", "disposition": "late", "status": 200, "received_at": planes.at(6)}
    planes.write(lake, "acknowledgements", [late])
    blamed = ended == "timeout"
    assert [row[1:] for row in ask_duckdb(lake, "missing_labels")] == [("a", "a:b", 1, 1, 1.0)] * blamed
    assert ask_duckdb(lake, "unused_acknowledgements") == [("late", "a:b", 1, 1, int(blamed), planes.at(6))]


def test_the_negative_acknowledgements_are_those_that_are_not_2xx(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    own = {"correlation_id": "c-1", "label": "a:b", "disposition": "accepted", "received_at": planes.at(2)}
    planes.write(lake, "acknowledgements", [{**own, "status": status} for status in (200, 299, 302, 409)])
    outcome = {"correlation_id": "c-1", "started_at": planes.at(1), "decided_at": planes.at(5), "status": 302}
    planes.write(lake, "outcomes", [{**outcome, "id": "r-1", "completed_by": "acknowledgements"}])
    found = [("a:b", status, 1, planes.at(2), "c-1") for status in (302, 409)]
    assert ask_duckdb(lake, "negative_acknowledgements") == found
    assert [row[-1] for row in ask_duckdb(lake, "unconfirmed_requests")] == [["a:b 302", "a:b 409"]]


def test_no_table_is_without_a_question() -> None:
    assert {table for question in reading.QUESTIONS.values() for table in question.tables} == ALL_TABLES.keys()


def test_the_story_of_a_message_goes_without_the_jobs_that_never_ran(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    planes.write(lake, "messages", [planes.message(7, 1)])
    assert ask_duckdb(lake, "message_story", "orders/7") == [
        (planes.at(1), 1, "stored", "orders", "new", None, "messages-0-107")
    ]


@pytest.mark.parametrize(
    ("name", "job"), [("queue_depths", "queues"), ("unfinished_samples", "settle"), ("message_story", "persist")]
)
def test_a_table_that_does_not_exist_names_the_job_that_writes_it(tmp_path: Path, name: str, job: str) -> None:
    with pytest.raises(StartError, match=rf"does not exist at .*; start the {job} job, or correct lake\.path\."):
        ask_duckdb(Lake(path=str(tmp_path)), name, planes.ARGUMENTS.get(name))


@pytest.mark.parametrize("text", ["orders", "orders/", "/7", "orders/seven", "orders/-1"])
def test_a_message_is_named_by_its_publisher_and_its_number(text: str) -> None:
    with pytest.raises(InputError, match=r"as CLIENT/SEQ, such as orders/7\."):
        reading.parameters("message_story", text)


@pytest.mark.parametrize("text", [planes.TRACE, planes.TRACE[3:35], planes.TRACE[3:35].upper()])
def test_a_trace_is_named_by_its_id_or_by_the_whole_header(text: str) -> None:
    assert reading.parameters("trace", text) == {"trace_id": planes.TRACE[3:35]}


@pytest.mark.parametrize("text", ["", "c-1", "0" * 32, planes.TRACE[:-1], "%" * 32])
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="32 hexadecimal digits"):
        reading.parameters("trace", text)


def test_a_publisher_may_have_slashes_in_its_name() -> None:
    assert reading.parameters("message_story", "plant/1/7") == {"client": "plant/1", "seq": 7}
