from __future__ import annotations

import io
import json
import sys
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ackstream.cli.demo import summary
from ackstream.cli.demo.check import Finding
from ackstream.cli.demo.traffic import Tally, fleet
from ackstream.client import NotSentError, Reply
from ackstream.settings import Lake, Settings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

DEVICES = fleet(50)
THINGS = list(DEVICES)


def reply(number: int, status: int, completed_by: str, statuses: dict[str, int] | None = None) -> Reply:
    name = THINGS[number].replace(":", "/")
    value: Any = {label: {"status": entry, "headers": {}} for label, entry in (statuses or {}).items()}
    if completed_by == "error":
        value = {"status": status, "error": "things:thing.notfound", "message": "The thing was not found. " * 10}
    kind = "errors" if completed_by == "error" else "acks"
    message = {"topic": f"{name}/things/twin/{kind}", "path": "/", "value": value, "status": status}
    return Reply(f"demo-{number}", f"r-{number}", status, completed_by, json.dumps(message).encode())


def tally() -> Tally:
    found = Tally()
    for answer in (
        reply(0, 200, "acknowledgements", {"a:b": 200}),
        reply(1, 200, "acknowledgements", {"a:b": 200}),
        # nothing came at all: no good example
        reply(8, 424, "timeout", {"a:b": 408, "c:d": 408}),
        reply(4, 424, "timeout", {"a:b": 200, "c:d": 408}),
        reply(11, 404, "error"),
    ):
        future: Future[Reply] = Future()
        future.set_result(answer)
        found.opened(answer.correlation_id)
        found.ended(answer.correlation_id, future)
    lost: Future[Reply] = Future()
    lost.set_exception(NotSentError("Kafka did not take it.", "demo-12"))
    found.opened("demo-12")
    found.ended("demo-12", lost)
    return found


def shown(width: int = 80) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=width), file


def test_a_tally_counts_each_command_once():
    found = tally()
    assert len(found.sent) == 6
    assert len(found.replies) == 5
    assert len(found.failures) == 1
    snapshot = found.snapshot()
    assert [snapshot.counts[how].total for how in ("answered", "timed out", "failed")] == [2, 2, 1]


def test_there_is_one_sample_of_each_kind():
    found = summary.samples(tally().replies.values())
    assert [(name, sample.correlation_id) for name, sample in found] == [
        ("200", "demo-0"), ("424, with a label that timed out", "demo-4"), ("the error 404", "demo-11")
    ]  # fmt: skip


def test_the_summary_has_numbers_shares_and_whole_replies():
    console, file = shown()
    summary.show(console, tally(), DEVICES)
    rows = [line.split() for line in file.getvalue().splitlines()]
    assert [row[:3] for row in rows if row[:1] == ["answered"]] == [["answered", "2", "33.3%"]]
    assert [row[:4] for row in rows if row[:2] == ["timed", "out"]] == [["timed", "out", "2", "33.3%"]]
    assert ["without", "a", "reply", "1", "16.7%"] in rows
    assert ["sent", "6"] in rows
    # a long text is wrapped, not cut
    assert " ".join(file.getvalue().split()).count("The thing was not found.") >= 10
    assert all(len(line) <= 80 for line in file.getvalue().splitlines())


def test_what_differs_is_shown():
    console, file = shown()
    findings = [Finding("all is sent", []), Finding("all is there", ["signals: lacks c-1"])]
    summary.show_findings(console, findings, caught_up=False)
    assert "yes  all is sent\nNO   all is there\n     signals: lacks c-1\n" in file.getvalue()
    assert "The jobs did not catch up in time" in file.getvalue()


def test_commands_are_shown_as_they_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program, python = tmp_path / "bin" / "ackstream", tmp_path / "bin" / "python"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", "/nowhere")
    assert summary.invocation() == "bin/python -m ackstream"
    program.parent.mkdir()
    program.touch(0o700)
    assert summary.invocation() == "bin/ackstream"
    monkeypatch.setenv("PATH", str(program.parent))
    assert summary.invocation() == "ackstream"


def test_the_tables_are_listed_with_their_rows():
    console, file = shown()
    summary.show_tables(console, Settings(lake=Lake(path="somewhere")), {"signals": 2_000, "outcomes": 0})
    assert "Delta tables in somewhere" in file.getvalue()
    assert ["signals", "2,000", "One", "row", "per", "request."] in [
        line.split() for line in file.getvalue().splitlines()
    ]
