"""``docs/reference/commands.md``: the commands with their arguments and options, as Typer has them."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from ackstream.cli.main import app, options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import typer

_HEAD = """# Commands

The command `ackstream`, made by `python -m tests.reference` of its own help: `ackstream --help` lists the commands,
`ackstream COMMAND --help` has what stands here. What they have in common, and which exit code means what in detail:
[operations](../operate/operations.md#the-command-line).
"""


def page() -> str:
    """Return the page."""
    exits = f"\n{app.info.epilog}\n\n## Before the command\n"
    commands = [_command(f"ackstream {name}", callback) for name, callback in found(app)]
    return "".join([_HEAD, exits, _table(options), *commands])


def found(program: typer.Typer) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Give each command by its name."""
    for known in program.registered_commands:
        assert known.callback is not None
        yield known.name or known.callback.__name__, known.callback
    for group in program.registered_groups:
        assert group.typer_instance is not None
        for name, callback in found(group.typer_instance):
            yield f"{group.name} {name}", callback


def _command(name: str, callback: Callable[..., Any]) -> str:
    about = "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(callback) or "").split("\n\n"))
    arguments = [each for each in parameters(callback) if isinstance(each[1], ArgumentInfo)]
    usage = " ".join(
        [name, *(shown if given is inspect.Parameter.empty else f"[{shown}]" for shown, _, given, _ in arguments)]
    )
    # stars and brackets are those of a shell
    plain = re.sub(r"([*<])", r"\\\1", about)
    return f"\n## {name}\n\n```\n{usage}\n```\n\n{plain}\n{_table(callback)}"


def _table(callback: Callable[..., Any]) -> str:
    rows = []
    for shown, info, default, choices in parameters(callback):
        about = " ".join(filter(None, (info.help, f"One of {choices}." if choices else ""))).replace("|", "\\|")
        given = "" if default in (None, False, inspect.Parameter.empty) else f"`{default}`"
        rows.append(f"| `{shown}` | {about} | {given} |\n")
    return "".join(["\n| argument or option | meaning | default |\n| --- | --- | --- |\n", *rows]) if rows else ""


def parameters(callback: Callable[..., Any]) -> Iterator[tuple[str, Any, Any, str]]:
    """Give each parameter of a command: how it is written, what Typer knows of it, its default, its choices."""
    hints = get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, info = get_args(hints[name])[:2]
        choices = ", ".join(map(str, _choices(kind)))
        yield _written(name, info, kind), info, parameter.default, choices


def _written(name: str, info: Any, kind: Any) -> str:
    metavar = info.metavar or name.rpartition("_")[2].upper()
    if isinstance(info, ArgumentInfo):
        return metavar
    assert isinstance(info, OptionInfo)
    # where the default stands in the signature, Typer has the first name in its place
    names = [text for text in (info.default, *(info.param_decls or ())) if str(text).startswith("-")]
    declared = names or [f"--{name.replace('_', '-')}"]
    return ", ".join(declared) + ("" if kind is bool else f" {metavar}")


def _choices(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return next(filter(None, map(_choices, get_args(kind))), ())
