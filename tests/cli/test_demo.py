from __future__ import annotations

import contextlib
import io
import json
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ackstream.cli.main import _reason
from ackstream.client import NotSentError, Reply
from ackstream.errors import LocalError
from ackstream.settings import Lake, Settings
from tests.demo.course import invocation
from tests.demo.fleet import Finding, Sent, fleet, show, show_findings


def _refuse() -> None:
    raise ConnectionRefusedError


@pytest.mark.parametrize(
    ("first", "told"),
    [(LocalError("the reason"), LocalError), (ValueError("no sentence"), ConnectionRefusedError)],
    ids=["a sentence", "no sentence"],
)
def test_what_fails_while_everything_is_taken_down_does_not_hide_a_sentence(
    first: Exception, told: type[Exception]
) -> None:
    with pytest.raises(ConnectionRefusedError) as raised, contextlib.ExitStack() as stack:  # noqa: PT012 - a stack fails
        stack.callback(_refuse)
        raise first
    assert isinstance(_reason(raised.value), told)


# -- the summary -------------------------------------------------------------------------------------------------------

DEVICES = fleet(50)
THINGS = list(DEVICES)


def reply(number: int, status: int, completed_by: str) -> Reply:
    name = THINGS[number].replace(":", "/")
    value: Any = {"status": status, "error": "things:thing.notfound", "message": "The thing was not found."}
    value = value if completed_by == "error" else {"a:b": {"status": status, "headers": {}}}
    kind = "errors" if completed_by == "error" else "acks"
    message = {"topic": f"{name}/things/twin/{kind}", "path": "/", "value": value, "status": status}
    return Reply(f"demo-{number}", f"r-{number}", status, completed_by, json.dumps(message).encode())


def sent() -> dict[str, Sent]:
    found = {}
    for answer in (
        reply(0, 200, "acknowledgements"),
        reply(1, 200, "acknowledgements"),
        reply(8, 424, "timeout"),
        reply(4, 424, "timeout"),
        reply(11, 404, "error"),
    ):
        future: Future[Reply] = Future()
        future.set_result(answer)
        found[answer.correlation_id] = Sent(future, 20)
    lost: Future[Reply] = Future()
    lost.set_exception(NotSentError("Kafka did not take it.", "demo-12"))
    return found | {"demo-12": Sent(lost)}


def shown(width: int = 80) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=width), file


def test_the_summary_has_numbers_shares_habits_and_rows() -> None:
    console, file = shown()
    show(console, Settings(lake=Lake(path="somewhere")), sent(), DEVICES, {"signals": 2_000, "outcomes": 0})
    rows = [line.split() for line in file.getvalue().splitlines()]
    assert [row[:4] for row in rows if row[:1] == ["answered"]] == [["answered", "2", "33.3%", "20ms"]]
    assert [row[:4] for row in rows if row[:2] == ["timed", "out"]] == [["timed", "out", "2", "33.3%"]]
    assert ["without", "a", "reply", "1", "16.7%"] in rows
    assert ["sent", "6"] in rows
    assert [row[-3:] for row in rows if row[:1] == ["gone"]] == [["1", "failed", "404"]]
    assert "Delta tables in somewhere" in file.getvalue()
    assert ["signals", "2,000", "One", "row", "per", "request."] in rows
    assert all(len(line) <= 80 for line in file.getvalue().splitlines())


def test_a_check_that_fails_names_some_ids() -> None:
    console, file = shown()
    findings = [Finding("all is sent", []), Finding("all is there", [f"c-{number}" for number in range(1_000)])]
    show_findings(console, findings, caught_up=False)
    assert "yes  all is sent\nNO   all is there\n     1,000 differ: c-0, c-1, c-2, c-3, c-4\n" in file.getvalue()
    assert "The jobs did not catch up in time" in file.getvalue()


def test_commands_are_shown_as_they_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program, python = tmp_path / "bin" / "ackstream", tmp_path / "bin" / "python"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", "/nowhere")
    assert invocation() == "bin/python -m ackstream"
    program.parent.mkdir()
    program.touch(0o700)
    assert invocation() == "bin/ackstream"
    monkeypatch.setenv("PATH", str(program.parent))
    assert invocation() == "ackstream"
