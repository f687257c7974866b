"""``ackstream send``, ``ack``, ``respond``: both sides of a request, played from a terminal."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import UNSET
from rich.text import Text

from ackstream.cli import terminal
from ackstream.errors import AckstreamError, InputError
from ackstream.observe.logs import escaped
from ackstream.protocol.ditto.topics import THING_ACTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.client import Answer, Reply, Signal
    from ackstream.protocol.ditto.envelopes import Envelope
    from ackstream.settings import Settings

Status = Annotated[int, typer.Option(min=100, max=599, help="HTTP status; 200 to 299 is positive.", metavar="STATUS")]
After = Annotated[str | None, typer.Option(help="Delay of each answer, such as 2s.", metavar="DURATION")]
Group = Annotated[
    str | None, typer.Option(help="Consumer group that shares the signals; not with --count.", metavar="NAME")
]

POLL_SECONDS = 0.2


def send(  # noqa: PLR0913 - the options of a command line
    thing: Annotated[
        str | None, typer.Argument(help="Id of the thing, such as org.acme:lamp.", metavar="THING")
    ] = None,
    path: Annotated[
        str | None,
        typer.Argument(help="Path in the thing, such as /attributes/on; payload of --message.", metavar="PATH"),
    ] = None,
    value: Annotated[
        str | None, typer.Argument(help="JSON value to set; without it the command is a query.", metavar="VALUE")
    ] = None,
    *,
    ack: Annotated[list[str] | None, typer.Option(help="Label to wait for; repeatable.", metavar="LABEL")] = None,
    timeout: Annotated[str | None, typer.Option(help="Timeout, such as 10s or 500ms.", metavar="DURATION")] = None,
    live: Annotated[bool, typer.Option("--live", help="Address the device, not its twin.")] = False,
    message: Annotated[str | None, typer.Option(help="Send a message with this subject.", metavar="SUBJECT")] = None,
    action: Annotated[str | None, typer.Option(help=f"One of {', '.join(THING_ACTIONS)}.", metavar="ACTION")] = None,
    header: terminal.Headers = None,
    no_response: Annotated[bool, typer.Option("--no-response", help="Do not wait for a response.")] = False,
    progress: Annotated[bool, typer.Option("--progress", help="Print acknowledgements as they come.")] = False,
    topic: Annotated[str | None, typer.Option(help="Send a record to this topic (real name).", metavar="TOPIC")] = None,
    key: Annotated[str | None, typer.Option(help="Key of the record.", metavar="KEY")] = None,
    value_file: Annotated[
        Path | None, typer.Option(help="File with its value; - for standard input.", metavar="FILE")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="File with a Ditto Protocol message; - for standard input.", metavar="FILE"),
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Send a command, a message or a record of any kind, and print the reply.

    The status goes to standard error, the value (with --json the reply) to standard output.
    Example: ackstream send org.acme:lamp /attributes/on true --ack fleet:done
    """
    from ackstream.protocol.ditto import headers
    from ackstream.protocol.ditto.envelopes import decode
    from ackstream.protocol.errors import DittoError

    settings = terminal.load()
    given: dict[str, Any] = dict(terminal.name_and_value("--header", text) for text in header or ())
    if {topic, key, value_file} != {None}:
        if topic is None or live or no_response or {thing, message, action, file} != {None}:
            raise InputError(
                "--topic and --key are those of a record; the value is --value-file FILE, or - for standard input: "
                "name its topic, and omit the thing, --file, --live, --message, --action and --no-response."
            )
        record = _record(topic, key, value_file, ack or [], timeout)
        record |= {"correlation_id": given.pop(headers.CORRELATION_ID, None), "headers": given}
        raise typer.Exit(_ask(settings, record, progress=progress, as_json=as_json))
    if ack:
        given[headers.REQUESTED_ACKS] = [_label(label) for label in ack]
    if timeout is not None:
        given[headers.TIMEOUT] = timeout
    if no_response:
        given[headers.RESPONSE_REQUIRED] = False
    try:
        if file is None:
            envelope = _from_arguments(thing, path, value, live=live, message=message, action=action)
        elif thing is not None or live or message is not None or action is not None:
            raise InputError("--file contains the whole message: omit the thing, --live, --message and --action.")
        else:
            envelope = decode(terminal.read_file(str(file)))
        envelope.headers |= headers.read_headers(given)
    except DittoError as error:
        raise InputError(f"{error.message} {error.description or ''}".strip()) from None
    except ValueError as error:
        raise InputError(str(error)) from None
    raise typer.Exit(_ask(settings, envelope, progress=progress, as_json=as_json))


def _from_arguments(
    thing: str | None, path: str | None, value: str | None, *, live: bool, message: str | None, action: str | None
) -> Envelope:
    from ackstream.client import Command

    if thing is None:
        raise InputError("Name a thing, such as org.acme:lamp, or a message with --file.")
    if message is not None:
        if value is not None or live or action is not None:
            raise InputError("--message takes the thing and the payload only: omit the path, --live and --action.")
        return Command.message(thing, message, UNSET if path is None else terminal.json_text("payload", path))
    if action is not None and action not in THING_ACTIONS:
        raise InputError(f"--action is {action!r}: use one of {', '.join(THING_ACTIONS)}.")
    chosen: Any = action or ("retrieve" if value is None else "modify")
    path = path or "/"
    if not path.startswith("/"):
        raise InputError(f"The path is {path!r}: it must begin with a slash, such as /attributes/on.")
    content = UNSET if value is None else terminal.json_text("value", value)
    return Command.on_thing(chosen, thing, path, content, channel="live" if live else "twin")


def _record(
    topic: str, key: str | None, value_file: Path | None, labels: list[str], timeout: str | None
) -> dict[str, Any]:
    """Return arguments of ``Requester.send_record``."""
    if not labels:
        raise InputError("A record has to request an acknowledgement: name its label with --ack.")
    return {
        "topic": topic,
        "key": None if key is None else key.encode("utf-8", "surrogateescape"),
        "value": None if value_file is None else terminal.read_file(str(value_file)),
        "acks": [_label(label) for label in labels],
        "timeout": None if timeout is None else terminal.milliseconds("--timeout", timeout) / 1000,
    }


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


def _ask(settings: Settings, asks: Envelope | dict[str, Any], *, progress: bool, as_json: bool) -> int:
    """Send a command, or a record by its arguments; print its updates and the reply, and return the exit code."""
    from ackstream.client import NoReplyExpectedError, Requester

    console = terminal.Terminal(stderr=True)
    with Requester(settings.kafka, default_timeout=settings.correlate.default_timeout / 1000) as requester:
        started = time.monotonic()
        updates: Iterable[Reply] = ()
        try:
            if progress:
                updates = requester.stream_record(**asks) if isinstance(asks, dict) else requester.stream(asks)
                future = updates.reply
            else:
                future = requester.send_record(**asks) if isinstance(asks, dict) else requester.send(asks)
        except NoReplyExpectedError:
            stored = requester.publish(asks).result()  # type: ignore[arg-type]  # a record has a reply
            coordinates = f"{stored.topic}-{stored.partition}-{stored.offset}"
            console.print(f"Sent as {stored.correlation_id} ({coordinates}); no reply requested.", soft_wrap=True)
            if as_json:
                terminal.echo_json(stored)
            return 0
        except ValueError as error:
            raise InputError(str(error)) from None
        with console.status("Waiting for the reply"):
            for update in updates:
                if update.is_update:
                    _show(console, update, time.monotonic() - started, as_json=as_json)
            reply = future.result()
        _show(console, reply, time.monotonic() - started, as_json=as_json)
        return 0 if reply.ok else terminal.FAILED


def _show(console: terminal.Terminal, reply: Reply, seconds: float, *, as_json: bool) -> None:
    from http.client import responses

    from ackstream.cli.monitoring import STYLES
    from ackstream.observe.outcomes import verdict
    from ackstream.protocol.errors import DittoError

    phrase = responses.get(reply.status, "")
    try:
        explanation, value, missing, acks = reply.explanation, reply.value, reply.missing, reply.acks
    except DittoError as error:
        raise AckstreamError(
            f"The reply to {reply.correlation_id} (status {reply.status}) cannot be read: {error.message}"
        ) from None
    if as_json:
        found = {name: getattr(reply, name) for name in ("correlation_id", "status", "completed_by")}
        terminal.echo_json(found | {"missing": missing, "explanation": explanation, "seconds": seconds, "value": value})
        return
    if reply.is_update:
        labels = ", ".join(f"{label} {ack.status}" for label, ack in acks.items())
        console.print(terminal.data(f"{labels}  {seconds:.2f} s", "dim"), soft_wrap=True)
        return
    line = Text(f"{reply.status} {phrase}".rstrip(), style=f"bold {STYLES[verdict(reply.status, reply.completed_by)]}")
    line.append(f"  {reply.completed_by}, {seconds:.2f} s. {escaped(explanation)}", style="default not bold")
    console.print(line, terminal.data(reply.correlation_id, "dim"), sep="\n", soft_wrap=True)
    if value is not None:
        terminal.Terminal(soft_wrap=True).print_json(data=value, indent=2)


def ack(
    labels: Annotated[list[str], typer.Argument(help="Labels to issue, such as fleet:done.", metavar="LABEL...")],
    *,
    status: Status = 200,
    payload: Annotated[str | None, typer.Option(help="Payload as JSON.", metavar="JSON")] = None,
    delay: After = None,
    group: Group = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Acknowledge records of this topic (real name); repeatable.", metavar="TOPIC"),
    ] = None,
    count: terminal.Count = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Acknowledge and print all commands, messages and records that request one of the labels.

    Declares the labels while it runs. Example: ackstream ack fleet:done --status 204
    """
    from ackstream.client import Ack

    answer = Ack(status, UNSET if payload is None else terminal.json_text("payload", payload))
    options = {"labels": labels, "topics": topic or (), "group": group}
    _play(lambda signal: answer if signal.labels else None, options, status, delay, count, as_json=as_json)


def respond(
    value: Annotated[str | None, typer.Argument(help="Value of the response as JSON.", metavar="JSON")] = None,
    *,
    status: Status = 200,
    delay: After = None,
    group: Group = None,
    count: terminal.Count = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Respond as the device to live commands and messages that want a response.

    Answers `ackstream send org.acme:lamp --live` of another terminal. Example: ackstream respond '{"temperature": 21}'
    """
    from ackstream.client import Response
    from ackstream.protocol.ditto.labels import LIVE_RESPONSE

    answer = Response(status, UNSET if value is None else terminal.json_text("value", value))
    options = {"labels": [LIVE_RESPONSE], "group": group}
    _play(lambda signal: answer if signal.response_wanted else None, options, status, delay, count, as_json=as_json)


def _play(
    choose: Callable[[Signal], Answer],
    options: dict[str, Any],
    status: int,
    delay: str | None,
    count: int | None,
    *,
    as_json: bool,
) -> None:
    """Answer signals as a ``Responder`` with options, and print them, until Ctrl-C or until there were ``count``."""
    from ackstream import client

    seconds = 0.0 if delay is None else terminal.milliseconds("--delay", delay) / 1000
    if options["group"] is not None and count is not None:
        raise InputError(
            "--count does not go with --group: the group would read further signals without answering them. "
            "Leave one of them out."
        )
    left, done = sys.maxsize if count is None else count, threading.Event()
    console = terminal.Terminal(soft_wrap=True)

    def handle(signal: Signal) -> Answer:
        nonlocal left
        answer = choose(signal) if left else None
        if answer is None:
            return None
        _print(console, signal, status, as_json=as_json)
        left -= 1
        if not left:
            done.set()
        return client.After(seconds, answer) if seconds else answer

    terminal.log_warnings()
    with terminal.Interrupts() as interrupts:
        try:
            responder = client.Responder(terminal.load().kafka, handler=handle, **options)
        except client.DittoError as error:
            sentence = f"{error} {error.description or ''}".strip()
            raise (InputError if error.status == 400 else AckstreamError)(sentence) from None  # noqa: PLR2004 - HTTP
        with responder:
            try:
                terminal.Terminal(stderr=True).print(
                    terminal.data(f"Answering {', '.join(options['labels'])}. Ctrl-C stops it.", "dim")
                )
                # answers that are delayed are sent before the end
                while not (done.wait(POLL_SECONDS) and not responder.statistics.delayed):
                    responder.wait_closed(0)
            except KeyboardInterrupt:
                interrupts.ignore()


def _print(console: terminal.Terminal, signal: Signal, status: int, *, as_json: bool) -> None:
    from ackstream.client import RecordSignal

    topic, is_record = signal.envelope.topic, isinstance(signal, RecordSignal)
    if as_json:
        known = {name: getattr(signal, name) for name in ("correlation_id", "thing_id")}
        wanted = {name: getattr(signal, name) for name in ("path", "value", "labels")}
        named = signal.topic if is_record else str(topic)
        terminal.echo_json({**known, "topic": named, **wanted, "status": status, "at": signal.timestamp})
        return
    asked = " ".join(filter(None, (signal.channel, topic.criterion, topic.action or topic.subject, signal.path)))
    about = f"{signal.topic}-{signal.partition}-{signal.offset}" if is_record else f"{signal.thing_id}  {asked}"
    labels = ", ".join(signal.labels) or "response"
    line = f"{terminal.moment(signal.timestamp)}  {signal.correlation_id}  {about}"
    console.print(terminal.data(f"{line}  {escaped(labels)} {status}"))
