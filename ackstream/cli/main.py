"""The ``ackstream`` command; each module in ``GROUPS`` adds its commands."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from ackstream.cli import local, send, services, tables, watch
from ackstream.errors import AckstreamError, SettingsError

GROUPS = (services, local, send, watch, tables)
"""In the order of the help text."""


class Commands(TyperGroup):
    """Prints a product error as its sentence, in red on standard error, without a stack trace."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit 2 for a wrong setting or option, 1 for any other product error."""
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
