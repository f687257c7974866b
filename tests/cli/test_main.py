from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from ackstream.cli.main import Commands, app
from ackstream.errors import LocalError, SettingsError, StartError


@pytest.mark.parametrize(
    ("error", "code"),
    [(SettingsError("One setting."), 2), (LocalError("No [Java] here."), 1), (StartError("Not like this. " * 20), 1)],
)
def test_an_error_of_the_product_is_its_sentence_and_an_exit_code(error: Exception, code: int):
    failing = typer.Typer(cls=Commands)

    @failing.command()
    def first() -> None:
        raise error

    failing.command("second")(lambda: None)
    result = CliRunner().invoke(failing, ["first"])
    assert result.exit_code == code
    assert result.stderr == f"{error}\n"
    assert result.stdout == ""


def test_an_error_of_the_program_is_not_hidden():
    failing = typer.Typer(cls=Commands)

    @failing.command()
    def first() -> None:
        raise ZeroDivisionError

    failing.command("second")(lambda: None)
    assert isinstance(CliRunner().invoke(failing, ["first"]).exception, ZeroDivisionError)


def test_without_a_command_the_help_is_shown():
    result = CliRunner().invoke(app, [])
    assert "Usage" in result.output
    for command in ("up", "down", "status", "jars", "submit", "conformance"):
        assert f" {command} " in result.output
