"""The command ``ackstream`` in this process, and its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.testing import CliRunner

from ackstream.cli.main import app

if TYPE_CHECKING:
    from click.testing import Result


def run(*arguments: str, stdin: str | bytes | None = None, **environment: str) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin, env=environment)


def rows(result: Result) -> list[list[str]]:
    return [line.split() for line in result.stdout.splitlines()]
