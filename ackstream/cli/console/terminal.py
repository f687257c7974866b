"""The operator's terminal: everything that commands print goes through here, and what others wrote is data in it.

Correlation-ids, reasons and replies are chosen by anyone who may send a request. They are never markup, and the
characters by which a terminal is controlled (escape sequences, the other direction of writing) are shown as JSON
escapes.
"""

from __future__ import annotations

import csv
import io
import logging
import traceback
from datetime import date
from typing import IO, TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ackstream.observe.logs import CONTROLS, configure, escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from rich.console import ConsoleOptions, RenderableType

_LINE_BREAK = "\n"


def escaped_lines(text: str) -> str:
    """Escape a text of several lines: its line breaks stay."""
    return _LINE_BREAK.join(map(escaped, text.split(_LINE_BREAK)))


def data(value: object, style: str = "") -> Text:
    """Return what others wrote as a text without markup, in one line."""
    return Text(escaped(str(value)), style=style)


class Terminal(Console):
    """A console that prints markup as it is written, and no control characters but its own."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False, file: IO[str] | None = None) -> None:
        """Print to standard output, standard error or a file; ``soft_wrap`` leaves long lines to the terminal."""
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, file=file, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render anything; what a library prints inside, such as a table or a live display, comes through here, too."""
        for segment in super().render(renderable, options):
            if segment.control or not CONTROLS.search(segment.text.replace(_LINE_BREAK, "")):
                yield segment
            else:
                yield Segment(escaped_lines(segment.text), segment.style)


class PlainTable(Table):
    """A table without borders, whose cells are data."""

    def __init__(self, *headings: str, right: Sequence[int] = ()) -> None:
        """Begin with these headings; the numbered columns are aligned to the right."""
        super().__init__(box=None, pad_edge=False)
        for number, heading in enumerate(headings):
            # what is cut could be given to no other command
            self.add_column(data(heading), justify="right" if number in right else "left", overflow="fold")

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row; a cell that is a text is data."""
        super().add_row(*(data(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text as it is, in as many lines as it has."""
    typer.echo(escaped_lines(text), err=err)


def echo_json(value: object) -> None:
    """Print a value as JSON in one line, which means the same with its characters escaped."""
    typer.echo(escaped(msgspec.json.encode(value).decode()))


def echo_csv(cells: Sequence[Any]) -> None:
    """Print a line of CSV: lists as JSON, times as in JSON; control characters are shown as JSON escapes."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(_csv_cell, cells))
    typer.echo(line.getvalue())


def _csv_cell(cell: Any) -> Any:
    if isinstance(cell, (list, dict, date, bool)):
        cell = msgspec.json.encode(cell).decode()
        # a time, in JSON's quotes
        cell = cell.strip('"') if cell.startswith('"') else cell
    return "" if cell is None else escaped(cell) if isinstance(cell, str) else cell


def show_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error of the program with its stack; for ``sys.excepthook``."""
    echo("".join(traceback.format_exception(kind, error, trace)).rstrip(_LINE_BREAK), err=True)


def log_warnings() -> None:
    """Write what clients warn of to standard error."""
    from ackstream.settings import Log  # help needs no settings

    configure(Log(level="warning"))
    for handler in logging.getLogger().handlers:
        # the error that ends a client ends the command, which prints it
        handler.addFilter(
            lambda record: record.name != "ackstream.client.core.lifetime" or record.levelno < logging.ERROR
        )
