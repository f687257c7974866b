"""Tables read without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from ackstream.errors import StartError
from ackstream.lake import reading
from ackstream.settings import Lake
from tests.lake import planes


def test_an_object_store_is_read_with_the_options_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Any, ...]] = []

    def open_table(location: str, storage_options: dict[str, str]) -> Any:
        opened.append((location, storage_options))
        return MagicMock()

    monkeypatch.setattr("deltalake.DeltaTable", open_table)
    options = {"aws_endpoint": "http://minio:9000", "aws_region": "eu-1"}
    lake = Lake(path="s3a://bucket/lake/", storage_options=options)
    reading.writer_messages(lake, "p", 1, 2)
    reading.messages_at(lake, [(1, 2, 3)])
    assert opened == [("s3a://bucket/lake/messages", options)] * 2


def test_the_tables_that_exist_are_views_and_derived_ones_may_be_read_twice(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    planes.write(lake, "things", [{"thing_id": "org:lamp"}])
    planes.write(lake, "messages", [planes.message(7, 1)])
    with reading.database(lake) as connection:
        twice = "SELECT count(*) FROM things AS a JOIN things AS b USING (thing_id) JOIN messages ON true"
        assert connection.execute(twice).fetchall() == [(1,)]
        assert reading.views(connection) == {"messages", "things"}
        # what a job has written meanwhile is not in it
        planes.write(lake, "messages", [planes.message(8, 2)])
        assert connection.execute("SELECT count(*) FROM messages").fetchall() == [(1,)]


def test_a_table_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    log = tmp_path / "messages" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("{")
    broken = pytest.raises(StartError, match=r"^The table messages at .*/messages cannot be read: ")
    with broken, reading.database(Lake(path=str(tmp_path))):
        pass


ENDS_EARLY = """
import sys
from ackstream.lake import reading
from ackstream.settings import Lake

with reading.database(Lake(path=sys.argv[1]), ["messages"]) as connection:
    assert len(connection.execute("SELECT * FROM messages LIMIT 1").fetchall()) == 1
"""


def test_a_program_that_reads_the_first_rows_of_many_files_ends_in_order(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path / "a lake"))
    for number in range(20):
        planes.write(lake, "messages", [planes.message(40_000 + number * 100 + row, number) for row in range(100)])
    for _ in range(3):
        command = [sys.executable, "-c", ENDS_EARLY, lake.path]
        ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert (ended.returncode, ended.stderr) == (0, b"")
