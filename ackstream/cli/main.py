"""The ``ackstream`` command. A group of commands is a module of ``ackstream.cli``, named in ``GROUPS``."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from ackstream.cli import local, send, services, tables, watch
from ackstream.cli.demo import command
from ackstream.errors import AckstreamError, SettingsError

GROUPS = (command, local, send, watch, services, tables)
"""The order of the help."""


class Commands(TyperGroup):
    """Prints an error of the product as its sentence, in red on standard error, and no stack trace."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit 2 for a wrong setting, as for a wrong option, and 1 for everything else."""
        try:
            return super().invoke(ctx)
        except AckstreamError as error:
            Console(stderr=True, soft_wrap=True).print(Text(str(error), style="red"))
            raise typer.Exit(2 if isinstance(error, SettingsError) else 1) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="Durable acknowledgements for commands over Kafka.",
)
for group in GROUPS:
    group.register(app)
