"""The operator's terminal: options and arguments in, tables and JSON out, exit codes, Ctrl-C.

Any client chooses the correlation-ids, reasons and replies that commands print. They are data, never markup, and the
characters that control a terminal (escape sequences, the other direction of writing) are printed as JSON escapes.
"""

from __future__ import annotations

import base64
import csv
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ackstream.errors import InputError
from ackstream.observe.logs import CONTROLS, configure, escaped, log_failure

if TYPE_CHECKING:
    from typing_extensions import Self

    from ackstream.settings import Settings

FAILED, WRONG_INPUT, NO_ANSWER, INTERRUPTED = 1, 2, 3, 130
"""The exit codes of all commands, besides 0; ``docs/operate/operations.md`` lists them."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Count = Annotated[int | None, typer.Option(min=1, help="Stop after N; without it at Ctrl-C.", metavar="N")]
Timeout = Annotated[str, typer.Option(metavar="DURATION", help="Time to wait for the answer of the job.")]
Headers = Annotated[
    list[str] | None, typer.Option("--header", "-H", help="Further header; repeatable.", metavar="NAME=VALUE")
]

MILLION = 1_000_000
UNLIMITED = MILLION
"""Characters of a line where the output is no terminal."""
MINUTE_MS, HOUR_MS = 60_000, 3_600_000

# -- arguments ---------------------------------------------------------------------------------------------------------


def load() -> Settings:
    """Read the settings; help and version do without them."""
    from ackstream.settings import load as read

    return read()


def spare_proxies() -> None:
    """Let connections to this machine ignore the proxy of the environment, here and in processes that are started."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    hosts = ",".join(dict.fromkeys([*filter(None, given.split(",")), "localhost", "127.0.0.1", "::1"]))
    os.environ |= {"no_proxy": hosts, "NO_PROXY": hosts}


def milliseconds(option: str, text: str) -> int:
    """Read the duration of an option, in the notation of the settings, such as ``10s``; else raise an input error."""
    from ackstream.settings.base import milliseconds as read

    try:
        return read(text)
    except ValueError as error:
        raise InputError(f"{option} is {text!r}: {error}.") from None


def read_file(path: str) -> bytes:
    """Return the content of a file, ``-`` for standard input; raise an input error if it cannot be read."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"The file {path} cannot be read: {error.strerror}.") from None


def name_and_value(option: str, text: str, remedy: str = "use NAME=VALUE") -> tuple[str, str]:
    """Read the value ``NAME=VALUE`` of an option; without a name or an equals sign raise an input error."""
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise InputError(f"{option} is {text!r}: {remedy}.")
    return name.strip(), value


def json_text(name: str, text: str) -> msgspec.Raw:
    """Return a JSON text unchanged; raise an input error, with a name such as ``payload``, if it is not JSON."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InputError(
            f"The {name} is {text!r}, which is not JSON ({error}): put text in quotes, as in '\"on\"'."
        ) from None
    return msgspec.Raw(text.encode())


# -- output ------------------------------------------------------------------------------------------------------------


def escaped_lines(text: str) -> str:
    """Escape a text of several lines; its line breaks stay."""
    return "\n".join(map(escaped, text.split("\n")))


def data(value: object, style: str = "") -> Text:
    """Return a value from outside as a text without markup, in one line."""
    return Text(escaped(str(value)), style=style)


class Terminal(Console):
    """A console that prints markup literally, and no control characters except its own."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False, file: IO[str] | None = None) -> None:
        """Print to standard output, standard error or a file; ``soft_wrap`` leaves long lines to the terminal."""
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, file=file, markup=False, emoji=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            # programs read whole lines
            self.width = UNLIMITED

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render anything; tables and live displays of Rich pass through here, too."""
        for segment in super().render(renderable, options):
            if segment.control or not CONTROLS.search(segment.text.replace("\n", "")):
                yield segment
            else:
                yield Segment(escaped_lines(segment.text), segment.style)


class PlainTable(Table):
    """A table without borders, whose cells are data."""

    def __init__(self, *headings: str, right: Sequence[int] = ()) -> None:
        """Begin with these headings; the numbered columns are aligned to the right."""
        super().__init__(box=None, pad_edge=False)
        for number, heading in enumerate(headings):
            # other commands need the whole id
            self.add_column(data(heading), justify="right" if number in right else "left", overflow="fold")

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row; a cell that is a text is data."""
        super().add_row(*(data(cell) if isinstance(cell, str) else cell for cell in cells), **options)

    def cut_lines(self) -> PlainTable:
        """Print one line per row, and cut cells that are too long."""
        for column in self.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        return self


def result_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], headings: Sequence[str] | None = None
) -> PlainTable:
    """Return the result of a query, formatted by the names of its columns; with headings, as the tables have it."""
    table = PlainTable()
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], (int, float)) for row in rows)
        heading = headings[number] if headings else column.removesuffix("_ms").replace("_", " ")
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell("" if headings else column, value) for column, value in zip(columns, row, strict=True)))
    return table


def cell(column: str, value: Any) -> str:
    """Format a value of a column; without its name numbers are plain, with six significant digits or more."""
    if column == "share" and value is not None:
        return f"{value:.1%}"
    if column.endswith("_ms"):
        return span(None if value is None else round(value))
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < MILLION else f"{value:.0f}"
    if isinstance(value, int) and column not in ("", "status"):
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "milliseconds" if value.microsecond else "seconds")
    return "" if value is None else str(value)


def span(milliseconds: int | None) -> str:
    """Format a duration briefly, such as ``12ms``, ``1.24s``, ``2m05s``, ``3h07m``; ``None`` as an empty string."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:  # noqa: PLR2004 - a second
        return f"{milliseconds}ms"
    if milliseconds < MINUTE_MS:
        return f"{milliseconds / 1000:.3g}s" if milliseconds % 1000 else f"{milliseconds // 1000}s"
    if milliseconds < HOUR_MS:
        minutes, rest = divmod(milliseconds // 1000, 60)
        return f"{minutes}m{rest:02d}s" if rest else f"{minutes}m"
    hours, rest = divmod(milliseconds // MINUTE_MS, 60)
    return f"{hours}h{rest:02d}m" if rest else f"{hours}h"


def moment(at: int) -> str:
    """Format a time in epoch milliseconds: the local time of day, with the day if that is not today."""
    local = datetime.fromtimestamp(at / 1000, timezone.utc).astimezone()
    today = datetime.now(timezone.utc).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S")


def plain(value: Any) -> Any:
    """Return a value with texts for bytes, at any depth: UTF-8, or else base64."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        content = bytes(value)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return base64.b64encode(content).decode()
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


def echo(text: str, *, err: bool = False) -> None:
    """Print a text of one or several lines."""
    typer.echo(escaped_lines(text), err=err)


def echo_json(*values: object) -> None:
    """Print each value as JSON in one line; escaped characters do not change its meaning."""
    for value in values:
        typer.echo(escaped(msgspec.json.encode(value).decode()))


def echo_csv(cells: Sequence[Any]) -> None:
    """Print a line of CSV: lists as JSON, times as in JSON; control characters are printed as JSON escapes."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(_csv_cell, cells))
    typer.echo(line.getvalue())


def _csv_cell(value: Any) -> Any:
    if isinstance(value, (list, dict, date, bool)):
        value = msgspec.json.encode(value).decode()
        # a time, in JSON's quotes
        value = value.strip('"') if value.startswith('"') else value
    return "" if value is None else escaped(value) if isinstance(value, str) else value


def show_failure(text: str) -> None:
    """Print why a command fails, in red, or log it."""
    if not log_failure(text):
        Terminal(stderr=True, soft_wrap=True).print(Text(text, style="red"))


def show_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error of the program with its stack; for ``sys.excepthook``."""
    echo("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"), err=True)


def log_warnings() -> None:
    """Write the warnings of clients to standard error."""
    from ackstream.settings import Log  # help needs no settings

    configure(Log(level="warning"))
    for handler in logging.getLogger().handlers:
        # the error that ends a client ends the command, which prints it
        handler.addFilter(
            lambda record: record.name != "ackstream.client.core.lifetime" or record.levelno < logging.ERROR
        )


# -- signals -----------------------------------------------------------------------------------------------------------

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns SIGINT, SIGTERM and SIGHUP into ``KeyboardInterrupt`` for a block; for the main thread."""

    def __init__(self) -> None:
        self.seen = False
        self._ignored = False
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def listen(self) -> None:
        """Handle the signals; call again after a library has replaced the handlers, as PySpark does."""
        for number, before in self._before.items():
            # nohup ignores SIGHUP, which stays ignored
            if before is not signal.SIG_IGN:
                signal.signal(number, self._take)

    def check(self) -> None:
        """Raise again for a signal whose exception was lost: Python only prints an exception in a destructor."""
        if self.seen and not self._ignored:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignore further signals, so that the cleanup is not interrupted."""
        self._ignored = True

    def _take(self, _number: int, _frame: object) -> None:
        self.seen = True
        self.check()
