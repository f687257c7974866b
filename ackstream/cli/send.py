"""``ackstream send``: send a request from the terminal."""

from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003 - Typer reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import UNSET

from ackstream.cli.console.arguments import FAILED, AsJson, json_text, name_and_value, read_file
from ackstream.cli.console.terminal import Terminal, data, echo_json
from ackstream.errors import AckstreamError, InputError
from ackstream.observe.logs import escaped

if TYPE_CHECKING:
    from ackstream.client import Reply
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.settings import Settings

ACTIONS = ("create", "retrieve", "modify", "merge", "delete")


def send(  # noqa: PLR0913 - the options of a command line
    thing: Annotated[str | None, typer.Argument(help="The thing's id, such as org.acme:lamp.", metavar="THING")] = None,
    path: Annotated[
        str | None,
        typer.Argument(help="A path in the thing, such as /attributes/on; the payload of --message.", metavar="PATH"),
    ] = None,
    value: Annotated[
        str | None, typer.Argument(help="The JSON value to set; without it the command is a query.", metavar="VALUE")
    ] = None,
    *,
    ack: Annotated[list[str] | None, typer.Option(help="A label to wait for; repeatable.", metavar="LABEL")] = None,
    timeout: Annotated[
        str | None, typer.Option(help="How long to wait, such as 10s or 500ms.", metavar="DURATION")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Address the device itself, not its twin.")] = False,
    message: Annotated[
        str | None, typer.Option(help="Send a message with this subject instead of a command.", metavar="SUBJECT")
    ] = None,
    action: Annotated[str | None, typer.Option(help=f"The command: {', '.join(ACTIONS)}.", metavar="ACTION")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="An additional header; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    no_response: Annotated[bool, typer.Option("--no-response", help="Send without waiting for a response.")] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="A file with a Ditto Protocol message; - for standard input.", metavar="FILE"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a command or a message, wait for the reply, and print it.

    The status goes to standard error, the value to standard output; with --json all of the reply to standard output.
    Exit 0 for a status of 2xx, 1 for any other status, 3 if no reply arrived. Example: ackstream send org.acme:lamp
    /attributes/on true --ack fleet:done
    """
    from ackstream.protocol.ditto.envelopes import decode
    from ackstream.protocol.ditto.headers import read_headers
    from ackstream.protocol.errors import DittoError
    from ackstream.settings import load

    settings = load()
    try:
        if file is None:
            envelope = _from_arguments(thing, path, value, live=live, message=message, action=action)
        elif thing is not None or live or message is not None or action is not None:
            raise InputError("--file contains the whole message: omit the thing, --live, --message and --action.")
        else:
            envelope = decode(read_file(str(file)))
        envelope.headers |= read_headers(_headers(ack, timeout, header, no_response=no_response))
    except DittoError as error:
        raise InputError(f"{error.message} {error.description or ''}".strip()) from None
    except ValueError as error:
        raise InputError(str(error)) from None
    raise typer.Exit(_ask(settings, envelope, as_json=as_json))


def _from_arguments(
    thing: str | None,
    path: str | None,
    value: str | None,
    *,
    live: bool,
    message: str | None,
    action: str | None,
) -> Envelope:
    from ackstream.client import Command

    if thing is None:
        raise InputError("Name a thing, such as org.acme:lamp, or a message with --file.")
    if message is not None:
        if value is not None or live or action is not None:
            raise InputError("--message takes the thing and the payload only: omit the path, --live and --action.")
        return Command.message(thing, message, UNSET if path is None else json_text("payload", path))
    if action is not None and action not in ACTIONS:
        raise InputError(f"--action is {action!r}: use one of {', '.join(ACTIONS)}.")
    chosen: Any = action or ("retrieve" if value is None else "modify")
    path = path or "/"
    if not path.startswith("/"):
        raise InputError(f"The path is {path!r}: it must begin with a slash, such as /attributes/on.")
    content = UNSET if value is None else json_text("value", value)
    return Command.on_thing(chosen, thing, path, content, channel="live" if live else "twin")


def _headers(
    acks: list[str] | None, timeout: str | None, further: list[str] | None, *, no_response: bool
) -> dict[str, Any]:
    from ackstream.protocol.ditto.headers import REQUESTED_ACKS, RESPONSE_REQUIRED, TIMEOUT

    headers: dict[str, Any] = {}
    for text in further or ():
        name, content = name_and_value("--header", text)
        headers[name] = content
    if acks:
        headers[REQUESTED_ACKS] = [_label(label) for label in acks]
    if timeout is not None:
        headers[TIMEOUT] = timeout
    if no_response:
        headers[RESPONSE_REQUIRED] = False
    return headers


def _label(text: str) -> str:
    from ackstream.protocol.ditto.labels import parse_label
    from ackstream.protocol.errors import DittoError

    try:
        return parse_label(text)
    except DittoError:
        raise InputError(
            f"--ack is {text!r}: a label has 3 to 165 letters, digits, colons, underscores and hyphens, such as "
            f"fleet:done."
        ) from None


def _ask(settings: Settings, envelope: Envelope, *, as_json: bool) -> int:
    from ackstream.client import NoReplyExpectedError, Requester

    progress = Terminal(stderr=True)
    with Requester(settings.kafka, default_timeout=settings.correlate.default_timeout / 1000) as requester:
        started = time.monotonic()
        try:
            future = requester.send(envelope)
        except NoReplyExpectedError:
            stored = requester.publish(envelope).result()
            coordinates = f"{stored.topic}-{stored.partition}-{stored.offset}"
            progress.print(f"Sent as {stored.correlation_id} ({coordinates}); no reply requested.", soft_wrap=True)
            if as_json:
                echo_json(stored)
            return 0
        except ValueError as error:
            raise InputError(str(error)) from None
        with progress.status("Waiting for the reply"):
            reply = future.result()
        _show(progress, reply, time.monotonic() - started, as_json=as_json)
        return 0 if reply.ok else FAILED


def _show(progress: Terminal, reply: Reply, seconds: float, *, as_json: bool) -> None:
    from http.client import responses

    from rich.text import Text

    from ackstream.cli.console.display import STYLES
    from ackstream.observe.meter import verdict
    from ackstream.protocol.errors import DittoError

    phrase = responses.get(reply.status, "")
    try:
        explanation, value, missing = reply.explanation, reply.value, reply.missing
    except DittoError as error:
        raise AckstreamError(
            f"The reply to {reply.correlation_id} (status {reply.status}) cannot be read: {error.message}"
        ) from None
    if as_json:
        found = {name: getattr(reply, name) for name in ("correlation_id", "status", "completed_by")}
        echo_json(found | {"missing": missing, "explanation": explanation, "seconds": seconds, "value": value})
        return
    line = Text(f"{reply.status} {phrase}".rstrip(), style=f"bold {STYLES[verdict(reply.status, reply.completed_by)]}")
    line.append(f"  {reply.completed_by}, {seconds:.2f} s. {escaped(explanation)}", style="default not bold")
    progress.print(line, data(reply.correlation_id, "dim"), sep="\n", soft_wrap=True)
    if value is not None:
        Terminal(soft_wrap=True).print_json(data=value, indent=2)
