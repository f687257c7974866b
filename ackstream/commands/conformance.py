"""``ackstream conformance``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import Annotated

import typer

from ackstream import conformance


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("conformance")(_conformance)


def _conformance(
    paths: Annotated[
        list[Path], typer.Argument(help="Case files (JSON Lines), or directories of them.", metavar="PATH…")
    ],
) -> None:
    """Run protocol cases through the library; exit 1 where one fails or its kind is unknown."""
    raise typer.Exit(conformance.main(paths))
