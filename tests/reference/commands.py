"""The pages ``docs/reference/commands*.md``: the commands with their arguments and options, as Typer has them."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from ackstream.cli.main import app, options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import typer

_HEAD = """# Commands

This page is for all users of the command line. Other pages describe the commands that
[operate](commands-operate.md) the system, [send and confirm](commands-send.md), or [show](commands-show.md) data.
[Operations](../operate/operations.md#the-command-line) describes output and completion.

The default of an option is in brackets.

"""
_OPERATE = """# Commands that operate the system

This page is for operators. See also: [all commands and exit codes](commands.md),
[send and confirm](commands-send.md), [show](commands-show.md).
"""
_SEND = """# Commands that send and confirm

This page is for developers who test their programs from a terminal. See also:
[all commands and exit codes](commands.md), [operate](commands-operate.md), [show](commands-show.md).
"""
_SHOW = """# Commands that show data

This page is for operators and analysts. See also: [all commands and exit codes](commands.md),
[operate](commands-operate.md), [send and confirm](commands-send.md).
"""
_PAGES = {
    "commands-operate.md": (_OPERATE, "start, configure, maintain and secure the system", ()),
    "commands-send.md": (
        _SEND,
        "send, acknowledge and receive",
        ("send", "ack", "respond", "publish", "read", "consume"),
    ),
    "commands-show.md": (
        _SHOW,
        "show requests, topics, readers and tables",
        ("watch", "inflight", "outcomes", "sql", "readers list", "topics"),
    ),
}
"""The head of each page, its purpose and its commands; the first one has all commands that no other page names."""
_HOMES = {command: page for page, (*_, commands) in _PAGES.items() for command in commands}
_SHARED = 3
"""An option that this number of commands of a page have is described once."""


def first_page() -> str:
    """Return the list of the commands."""
    rows = [f"- {purpose}: {_links(page)}\n" for page, (_, purpose, _) in _PAGES.items()]
    before = ["Options before the command:\n\n", *_lines(options)]
    return "".join([_HEAD, f"{app.info.epilog}\n\n", *before, "\nCommands by purpose:\n\n", *rows])


def _links(page: str) -> str:
    names = [name for name, _ in found(app) if _home(name) == page]
    return ", ".join(f"[{name}]({page}#ackstream-{name.replace(' ', '-')})" for name in names)


def _role(name: str) -> str:
    commands = {command: one for command, one in found(app) if _home(command) == name}
    counts = Counter(line for callback in commands.values() for line in _lines(callback))
    shared = [line for line, count in counts.items() if count >= _SHARED]
    several = f"\n## Common options\n\n{''.join(shared)}"
    return "".join([_PAGES[name][0], several, *(_command(*command, shared) for command in commands.items())])


PAGES = {"commands.md": first_page, **{name: partial(_role, name) for name in _PAGES}}


def _home(command: str) -> str:
    return _HOMES.get(command, "commands-operate.md")


def found(program: typer.Typer) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Give each command by its name."""
    for known in program.registered_commands:
        assert known.callback is not None
        yield known.name or known.callback.__name__, known.callback
    for group in program.registered_groups:
        assert group.typer_instance is not None
        for name, callback in found(group.typer_instance):
            yield f"{group.name} {name}", callback


def _command(name: str, callback: Callable[..., Any], shared: list[str]) -> str:
    lines = list(_lines(callback))
    own = "".join(line for line in lines if line not in shared)
    also = ", ".join(line.removeprefix("- ").partition(": ")[0] for line in lines if line in shared)
    about = re.sub(r"Example: (.*)", r"Example: `\1`", _about(callback))
    parts = about, own.strip(), f"Common options: {also}." if also else ""
    return f"\n## ackstream {name}\n\n" + "\n\n".join(filter(None, parts)) + "\n"


def _about(callback: Callable[..., Any]) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(callback) or "").split("\n\n"))


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
