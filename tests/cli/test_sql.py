"""Questions of one's own to the tables, without Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from ackstream.cli.tables import SHOWN
from ackstream.lake.schemas import ALL_TABLES
from ackstream.settings import Lake
from tests.cli import commands
from tests.lake import planes

README = Path(__file__).parent.parent.parent / "README.md"
TABLES = Path(__file__).parent.parent.parent / "docs/reference/tables.md"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(path=str(tmp_path_factory.mktemp("lake")))
    planes.fill(lake)
    record = {"topic": "orders", "offset": 17, "requested_acks": ["bank:paid", "store:packed"], "timeout_ms": 10_000}
    row = {"correlation_id": "o-1", "id": "r-7", "received_at": planes.at(20), "value": '{"article":\n7}'}
    planes.write(lake, "signals", [record | row])
    return lake


@pytest.fixture(autouse=True)
def _here(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("ACKSTREAM_LAKE_PATH", lake.path)


run = partial(commands.run, "sql")


QUERY = "SELECT client, seq, value, received_at FROM messages WHERE seq < 3 ORDER BY seq"


def test_a_query_is_answered_as_a_table_as_json_lines_or_as_csv() -> None:
    lines = run(QUERY).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["client", "seq", "value", "received_at"],
        ["orders", "1", "1234", "2026-11-18", "11:00:01"],
        ["orders", "2", "1234", "2026-11-18", "11:00:02"],
    ]
    first, _ = [json.loads(line) for line in run(QUERY, "--json").stdout.splitlines()]
    assert first == {"client": "orders", "seq": 1, "value": "1234", "received_at": "2026-11-18T11:00:01Z"}
    assert run(QUERY, "--csv").stdout.splitlines()[:2] == [
        "client,seq,value,received_at",
        "orders,1,1234,2026-11-18T11:00:01Z",
    ]


def test_numbers_are_printed_as_they_are_whatever_their_column_is_called() -> None:
    query = "SELECT 0.8634::DOUBLE AS share, 258.5::DOUBLE AS p50_ms, 1234567.0::DOUBLE AS n, 2026 AS year, 2 / 3 AS q"
    assert run(query).stdout.splitlines()[1].split() == ["0.8634", "258.5", "1234567", "2026", "0.666667"]
    (row,) = run("SELECT label, p50_ms FROM slowest_labels ORDER BY p50_ms LIMIT 1").stdout.splitlines()[1:]
    assert row.split()[-1].isdigit()


def test_the_names_of_columns_are_printed_as_sql_takes_them() -> None:
    names = ["offset", "AT", "Order", "decided_at", "count(*)", "day", "1st", 'x"y']
    asked = ", ".join('1 AS "{}"'.format(name.replace('"', '""')) for name in names)
    (headings, _) = run(f"SELECT {asked}").stdout.splitlines()
    assert headings.split() == ['"offset"', '"AT"', '"Order"', "decided_at", '"count(*)"', "day", '"1st"', '"x""y"']
    assert run(f"SELECT {', '.join(headings.split())} FROM (SELECT {asked})").exit_code == 0
    described = [line.split()[0] for line in run("DESCRIBE queue_events").stdout.splitlines()]
    assert {'"offset"', '"at"', "partition", "column_name"} <= set(described)
    assert [json.loads(line)["column_name"] for line in run("DESCRIBE queue_events", "--json").stdout.splitlines()] == [
        name.strip('"') for name in described[1:]
    ]


def test_a_query_comes_from_a_file_or_from_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "query.sql"
    file.write_text(QUERY, "utf-8")
    answers = [run(QUERY), run("-f", str(file)), run("--file", "-", stdin=QUERY), run(stdin=QUERY)]
    assert len({answer.stdout for answer in answers}) == 1


def test_every_table_is_a_view_and_all_are_listed_with_what_they_are() -> None:
    lines = [json.loads(line) for line in run("--json", stdin="").stdout.splitlines()]
    assert [line["table"] for line in lines] == list(ALL_TABLES)
    assert {line["table"]: line["rows"] for line in lines}["messages"] == 4
    assert all(line["rows"] > 0 and line["about"] for line in lines)


def test_several_statements_are_answered_one_after_the_other() -> None:
    lines = run("SELECT 1 AS one; SELECT 'b;c' AS two", "--json").stdout.splitlines()
    assert lines == ['{"one":1}', '{"two":"b;c"}']


def test_a_statement_that_answers_nothing_is_silent() -> None:
    result = run("SET threads = 1; CREATE TABLE own AS SELECT 1 AS one; SELECT one FROM own WHERE one > 1", "--csv")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "one")
    assert run("SET threads = 1").stdout == ""
    assert run("SELECT 1 WHERE false").stdout == "No rows match.\n"


def test_ctrl_c_ends_a_query_that_computes() -> None:
    endless = "SET threads = 1; SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    result = run(endless)
    timer.join()
    assert result.exit_code == 130
    assert result.stderr == ""


def test_bytes_are_text_or_base64_and_lists_stay_lists() -> None:
    (line,) = run("SELECT DISTINCT value FROM dead_letters", "--json").stdout.splitlines()
    assert json.loads(line) == {"value": "/w=="}
    (line,) = run("SELECT missing, NULL AS nothing FROM outcomes WHERE id = 'r-1'", "--json").stdout.splitlines()
    assert json.loads(line) == {"missing": ["c:d"], "nothing": None}
    lines = run("SELECT missing, NULL AS nothing FROM outcomes WHERE id = 'r-1'", "--csv").stdout.splitlines()
    assert lines == ["missing,nothing", '"[""c:d""]",']


def test_a_lake_without_tables_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKSTREAM_LAKE_PATH", "elsewhere")
    result = run("--json", stdin="")
    assert result.stderr.startswith(f"{tmp_path / 'elsewhere'} has no tables: start the jobs, or name another lake")
    assert {json.loads(line)["rows"] for line in result.stdout.splitlines()} == {None}


def test_what_others_wrote_controls_no_terminal() -> None:
    evil = "SELECT chr(27) || '[2J' AS evil"
    for format_ in ([], ["--json"], ["--csv"]):
        assert "\x1b" not in run(evil, *format_).stdout


def test_a_long_answer_is_cut_in_the_table_alone() -> None:
    result = run(f"SELECT * FROM range({SHOWN + 1})")
    assert len(result.stdout.splitlines()) == SHOWN + 1
    assert result.stderr == "These are the first 1,000 rows; --csv and --json print all.\n"
    assert len(run(f"SELECT * FROM range({SHOWN + 1})", "--csv").stdout.splitlines()) == SHOWN + 2


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["SELECT * FROM message"], 2, "Catalog Error: Table with name message does not exist"),
        # variables of the program are no tables
        (["SELECT * FROM lake"], 2, "Catalog Error: Table with name lake does not exist"),
        (["SELEC 1"], 2, "Parser Error: "),
        (["SELECT at FROM queue_events"], 2, "Parser Error: "),
        (["SELECT 1", "--csv", "--json"], 2, "--csv and --json exclude each other: choose one."),
        (["SELECT 1 AS x, 2 AS x", "--json"], 2, "Several columns are named x: give them names of their own with AS."),
        (["SELECT 1", "-f", "x.sql"], 2, "The SQL is given twice: leave out the argument or --file."),
        (["-f", "absent.sql"], 2, "The file absent.sql cannot be read: No such file or directory."),
    ],
)
def test_a_query_that_cannot_be_answered_is_a_sentence(arguments: list[str], code: int, sentence: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith(sentence)


def test_a_table_that_does_not_exist_yet_names_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKSTREAM_LAKE_PATH", str(tmp_path / "empty"))
    # the second one has the name of a function of this program
    for name, table, job in (
        ("queue_events", "queue_events", "queues"),
        ("outcomes", "outcomes", "archive"),
        ("Deliveries", "deliveries", "settle"),
        ("delivery_attempts", "queue_events", "queues"),
    ):
        result = run(f"SELECT * FROM {name}")
        assert result.exit_code == 1
        assert result.stderr.startswith(f"The table {table} does not exist at {tmp_path}")
        assert f"start the {job} job" in result.stderr


def test_a_story_has_the_terms_of_its_request_and_a_line_for_each_content() -> None:
    lines = commands.run("outcomes", "story", "o-1").stdout.splitlines()
    assert [line.split("  ")[-1] for line in lines] == [
        "2026-11-18 11:00:20 request", "orders-0-17, labels bank:paid store:packed, timeout 10000 ms", "r-7",
        '{"article": 7}',
    ]  # fmt: skip


def test_the_query_of_the_readme_is_answered() -> None:
    (query,) = re.findall(r"```sql\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    result = run(stdin=query)
    assert result.exit_code == 0, result.stderr
    assert [line.split() for line in result.stdout.splitlines()] == [["label", "orders"], ["c:d", "1"]]


def test_the_queries_of_the_tables_page_are_answered() -> None:
    (queries,) = re.findall(r"```sql\n(.*?)```", TABLES.read_text("utf-8"), re.DOTALL)
    result = run(stdin=queries)
    assert result.exit_code == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        "completed_by",
        "acknowledgements",
        "error",
        "timeout",
        "label",
        "c:d",
        "a:b",
        "correlation_id",
        "c-2",
    ]
