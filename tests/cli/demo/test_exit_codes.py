from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from ackstream.cli.demo import run as runs
from ackstream.cli.main import app
from ackstream.errors import LocalError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ending(monkeypatch: pytest.MonkeyPatch, end: Any) -> list[Any]:
    asked: list[Any] = []

    def demo(_settings: Any, _console: Any, number: int, rate: float) -> bool:
        asked.append((number, rate))
        if isinstance(end, BaseException):
            raise end
        return bool(end)

    monkeypatch.setattr(runs, "demo", demo)
    return asked


@pytest.mark.parametrize(("good", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_tells_whether_it_adds_up(monkeypatch: pytest.MonkeyPatch, *, good: bool, code: int):
    asked = ending(monkeypatch, good)
    assert CliRunner().invoke(app, ["demo"]).exit_code == code
    assert asked == [(2_000, 50)]


def test_the_number_and_the_rate_may_be_chosen(monkeypatch: pytest.MonkeyPatch):
    asked = ending(monkeypatch, end=True)
    CliRunner().invoke(app, ["demo", "--commands", "10", "--rate", "5"])
    assert asked == [(10, 5)]


def test_ctrl_c_is_a_sentence_and_the_code_of_shells(monkeypatch: pytest.MonkeyPatch):
    ending(monkeypatch, KeyboardInterrupt())
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 130
    assert result.stdout == "Stopped; nothing is left running.\n"


def test_what_is_missing_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    ending(monkeypatch, LocalError("No Java was found."))
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert result.stderr == "No Java was found.\n"
