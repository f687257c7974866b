"""What commands share: options, how durations are read, exit codes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ackstream.errors import InputError

if TYPE_CHECKING:
    import msgspec

FAILED, WRONG_INPUT, NO_ANSWER, INTERRUPTED = 1, 2, 3, 130
"""The exit codes of all commands, beside 0; ``docs/operations.md`` has their table."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: one object per line.")]
Count = Annotated[int | None, typer.Option(min=1, help="Stop after so many; else at Ctrl-C.", metavar="N")]
Timeout = Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for the settle job.")]


def milliseconds(option: str, text: str) -> int:
    """Read a duration in the notation of the settings, such as ``10s``.

    :param option: its name, for the sentence
    :raises InputError: it is none
    """
    from ackstream.settings.base import milliseconds as read

    try:
        return read(text)
    except ValueError as error:
        raise InputError(f"{option} is {text!r}: {error}.") from None


def read_file(path: str) -> bytes:
    """Return the content of a file; ``-`` stands for standard input.

    :raises InputError: it cannot be read
    """
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"The file {path} cannot be read: {error.strerror}.") from None


def name_and_value(option: str, text: str) -> tuple[str, str]:
    """Read an argument ``NAME=VALUE``.

    :param option: its name, for the sentence
    :raises InputError: it is none
    """
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise InputError(f"{option} is {text!r}: use NAME=VALUE.")
    return name.strip(), value


def json_text(what: str, text: str) -> msgspec.Raw:
    """Return a JSON text as it was written.

    :param what: what it is, for the sentence
    :raises InputError: it is no JSON
    """
    import msgspec

    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InputError(
            f"The {what} is {text!r}, which is not JSON ({error}): put text in quotes, as in '\"on\"'."
        ) from None
    return msgspec.Raw(text.encode())
