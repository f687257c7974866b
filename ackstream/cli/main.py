"""The ``ackstream`` command. Each command imports its modules when it runs, so that help and version are fast."""

from __future__ import annotations

import os
import sys
from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from ackstream import __version__
from ackstream.cli import administration, messages, monitoring, programs, requests, tables
from ackstream.cli.terminal import FAILED, INTERRUPTED, NO_ANSWER, WRONG_INPUT, Terminal, echo, load, show_error
from ackstream.errors import (
    AckstreamError,
    BadParameterError,
    InconsistentQosError,
    InputError,
    SettingsError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def exit_code(error: AckstreamError) -> int:
    """Return the exit code of a command that ends with an error."""
    if isinstance(error, (InputError, SettingsError, BadParameterError, InconsistentQosError)):
        return WRONG_INPUT
    return NO_ANSWER if isinstance(error, (UnreachableError, TimeoutError)) else FAILED


class Commands(TyperGroup):
    """Prints a product error as its sentence, in red on standard error, without a stack trace."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; end with the exit code of its error."""
        from ackstream.local.process import keep_private

        keep_private()
        sys.excepthook = show_error
        try:
            return super().invoke(ctx)
        except AckstreamError as error:
            Terminal(stderr=True, soft_wrap=True).print(Text(str(error), style="red"))
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    # brackets are brackets
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    help="Durable acknowledgements for commands over Kafka.",
    epilog="Exit codes: 0 done; 1 failed, or a negative answer; 2 a wrong option, argument or setting; 3 no answer "
    "from Kafka or a job; 130 Ctrl-C.",
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        echo(f"ackstream {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    settings: Annotated[
        Path | None,
        typer.Option(
            help="The settings file, in place of conf/ackstream.toml in the working directory.",
            envvar="ACKSTREAM_CONF",
            metavar="FILE",
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options of all commands."""
    if settings is not None:
        # that of the processes which a command starts, too
        os.environ["ACKSTREAM_CONF"] = str(settings)


@app.command()
def demo(
    commands: Annotated[int, typer.Option(min=1, help="Number of commands to send.", metavar="N")] = 2_000,
    rate: Annotated[
        float, typer.Option(min=1, max=2_000, help="Commands per second, up to 2000.", metavar="RATE")
    ] = 50,
    *,
    secure: Annotated[bool, typer.Option("--secure", help="With TLS, and a login and ACLs for each party.")] = False,
) -> None:
    """Send commands to simulated devices and show how they end; exit 1 if the counts do not add up.

    Kafka is started unless `ackstream up` has already done so. All data is kept in the directory `demo` of the local
    data. Nothing keeps running afterwards; the Delta tables stay.
    """
    from ackstream.cli.demo import demo as run

    console = Terminal()
    try:
        good = run(load(), console, commands, rate, secure=secure)
    except KeyboardInterrupt:
        console.print("Stopped; nothing is left running.")
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(0 if good else FAILED)


def conformance(
    paths: Annotated[
        list[Path], typer.Argument(help="Case files (JSON Lines), or directories of them.", metavar="PATH")
    ],
) -> None:
    """Run Ditto Protocol cases against the library; exit 1 if one fails or its kind is unknown."""
    from ackstream.local.installation import shared_with_tests

    raise typer.Exit(shared_with_tests("conformance/runner.py").main(paths))


NAMES = {"print_settings": "settings", "print_jars": "jars", "run_together": "run"}
"""Commands with another name than their function."""
COMMANDS: tuple[Callable[..., None], ...] = (
    *(administration.up, administration.down, administration.status),
    *(administration.print_settings, administration.print_jars),
    *(programs.run_together, programs.submit, programs.gateway, programs.connect, programs.route),
    *(requests.send, requests.ack, requests.respond),
    *(messages.publish, messages.read, messages.consume),
    *(monitoring.watch, monitoring.inflight),
    *(tables.outcomes, tables.sql, tables.maintain, tables.migrate),
    *(administration.topics, administration.acls, administration.password, conformance),
)
"""In the order of the help text."""
for command in COMMANDS:
    app.command(NAMES.get(command.__name__))(command)
app.add_typer(messages.readers, name="readers")
