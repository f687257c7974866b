"""``docs/reference/commands.md``: the commands with their arguments and options, as Typer has them."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from ackstream.cli.main import app, options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import typer

_HEAD = """# Commands

The help of each command, made by `python -m tests.reference`; defaults are in brackets. Output and completion:
[operations](../operate/operations.md#the-command-line).
"""
_SHARED = 3
"""An option of so many commands is described once."""


def page() -> str:
    """Return the page."""
    commands = dict(found(app))
    counts = Counter(line for callback in commands.values() for line in _lines(callback))
    shared = {line for line, count in counts.items() if count >= _SHARED}
    before = f"\n{app.info.epilog}\n\nBefore the command:\n\n{''.join(_lines(options))}"
    several = f"\nOf several commands:\n\n{''.join(line for line in counts if line in shared)}"
    return "".join([_HEAD, before, several, *(_command(name, one, shared) for name, one in commands.items())])


def found(program: typer.Typer) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Give each command by its name."""
    for known in program.registered_commands:
        assert known.callback is not None
        yield known.name or known.callback.__name__, known.callback
    for group in program.registered_groups:
        assert group.typer_instance is not None
        for name, callback in found(group.typer_instance):
            yield f"{group.name} {name}", callback


def _command(name: str, callback: Callable[..., Any], shared: set[str]) -> str:
    about = "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(callback) or "").split("\n\n"))
    lines = list(_lines(callback))
    own = "".join(line for line in lines if line not in shared)
    also = ", ".join(line.removeprefix("- ").partition(": ")[0] for line in lines if line in shared)
    parts = re.sub(r"Example: (.*)", r"Example: `\1`", about), own.strip(), f"Also {also}." if also else ""
    return f"\n## ackstream {name}\n\n" + "\n\n".join(filter(None, parts)) + "\n"


def _lines(callback: Callable[..., Any]) -> Iterator[str]:
    for shown, info, default, choices in parameters(callback):
        required = default is inspect.Parameter.empty
        name = f"[{shown}]" if isinstance(info, ArgumentInfo) and not required else shown
        given = "" if required or default in (None, False) else f" (`{default}`)"
        yield f"- `{name}`{given}: {info.help}{f' One of {choices}.' if choices else ''}\n"


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
