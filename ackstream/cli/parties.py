"""``ackstream ack``, ``respond``: the other side of a request, played from a terminal."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import UNSET

from ackstream.cli.console.arguments import AsJson, Count, json_text, milliseconds
from ackstream.cli.console.terminal import Terminal, data, echo_json, log_warnings
from ackstream.errors import AckstreamError, InputError
from ackstream.observe.logs import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ackstream.client import Answer, Responder, Signal

Status = Annotated[
    int, typer.Option(min=100, max=599, help="The HTTP status: below 400 positive, else negative.", metavar="STATUS")
]
After = Annotated[str | None, typer.Option(help="How long to wait before each answer, such as 2s.", metavar="DURATION")]
Group = Annotated[
    str | None,
    typer.Option(help="A consumer group that shares the signals; else all of them. Not with --count.", metavar="NAME"),
]
"""The options of both commands."""

POLL_SECONDS = 0.2


def ack(
    labels: Annotated[list[str], typer.Argument(help="The labels to issue, such as fleet:done.", metavar="LABEL...")],
    *,
    status: Status = 200,
    payload: Annotated[str | None, typer.Option(help="The payload, as JSON.", metavar="JSON")] = None,
    delay: After = None,
    group: Group = None,
    count: Count = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge every command and message that requests one of the labels, and print it; Ctrl-C stops it.

    The labels are declared as this client's for as long as it runs. Example: ackstream ack fleet:done --status 204
    """
    content = UNSET if payload is None else json_text("payload", payload)

    def answer(signal: Signal) -> Answer:
        from ackstream.client import Ack

        return Ack(status, content) if signal.labels else None

    _play(labels, answer, _delayed(delay), status, group=group, count=count, as_json=as_json)


def respond(
    value: Annotated[str | None, typer.Argument(help="The value of the response, as JSON.", metavar="JSON")] = None,
    *,
    status: Status = 200,
    delay: After = None,
    group: Group = None,
    count: Count = None,
    as_json: AsJson = False,
) -> None:
    """Respond to every live command and live message that wants a response, as its device; Ctrl-C stops it.

    Example: ackstream respond '{"temperature": 21}' while another terminal runs ackstream send org.acme:lamp --live
    """
    from ackstream.protocol.ditto.labels import LIVE_RESPONSE

    content = UNSET if value is None else json_text("value", value)

    def answer(signal: Signal) -> Answer:
        from ackstream.client import Response

        return Response(status, content) if signal.response_wanted else None

    _play([LIVE_RESPONSE], answer, _delayed(delay), status, group=group, count=count, as_json=as_json)


def _delayed(delay: str | None) -> float:
    return 0.0 if delay is None else milliseconds("--delay", delay) / 1000


def _play(
    labels: list[str],
    answer: Callable[[Signal], Answer],
    delay: float,
    status: int,
    *,
    group: str | None,
    count: int | None,
    as_json: bool,
) -> None:
    """Answer signals until Ctrl-C, or until ``count`` of them are answered."""
    from ackstream.cli.console.interrupts import Interrupts
    from ackstream.client import After as Later
    from ackstream.settings import load

    if group is not None and count is not None:
        raise InputError(
            "--count does not go with --group: signals beyond the number would be read for the group, and answered by"
            " nobody. Leave one of them out."
        )
    log_warnings()
    answered = Answered(status, count, as_json=as_json)

    def handle(signal: Signal) -> Answer:
        found = None if answered.enough else answer(signal)
        if found is None:
            return None
        answered.add(signal)
        return Later(delay, found) if delay else found

    progress = Terminal(stderr=True)
    with Interrupts() as interrupts, _responder(load().kafka, handle, labels, group) as responder:
        try:
            progress.print(data(f"Answering {', '.join(labels)}. Ctrl-C stops it.", "dim"))
            # the answers that wait for their time would be lost
            while not (answered.done.wait(POLL_SECONDS) and not responder.statistics.delayed):
                responder.wait_closed(0)
        except KeyboardInterrupt:
            interrupts.ignore()


@contextmanager
def _responder(
    kafka: Any, handle: Callable[[Signal], Answer], labels: list[str], group: str | None
) -> Iterator[Responder]:
    from ackstream import client
    from ackstream.client import DittoError

    try:
        made = client.Responder(kafka, handler=handle, labels=labels, group=group)
    except DittoError as error:
        sentence = f"{error} {error.description or ''}".strip()
        raise (InputError if error.status == 400 else AckstreamError)(sentence) from None  # noqa: PLR2004 - HTTP
    with made as responder:
        yield responder


class Answered:
    """Prints the signals that are answered, and counts them up to a number."""

    def __init__(self, status: int, most: int | None, *, as_json: bool) -> None:
        self.done = threading.Event()
        self._status, self._left, self._as_json = status, most, as_json
        self._console = Terminal(soft_wrap=True)

    @property
    def enough(self) -> bool:
        """Whether no further signal is to be answered."""
        return self._left == 0

    def add(self, signal: Signal) -> None:
        """Print a signal."""
        from ackstream.cli.console.display import moment

        topic = signal.envelope.topic
        what = " ".join(filter(None, (signal.channel, topic.criterion, topic.action or topic.subject, signal.path)))
        if self._as_json:
            shown: dict[str, Any] = {
                "correlation_id": signal.correlation_id,
                "thing_id": signal.thing_id,
                "topic": str(topic),
            }
            shown |= {"path": signal.path, "value": signal.value, "labels": signal.labels}
            echo_json(shown | {"status": self._status, "at": signal.timestamp})
        else:
            labels = ", ".join(signal.labels) or "response"
            line = f"{moment(signal.timestamp)}  {signal.correlation_id}  {signal.thing_id}  {what}"
            self._console.print(data(f"{line}  {escaped(labels)} {self._status}"))
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self.done.set()
