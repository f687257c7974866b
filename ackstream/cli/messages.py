"""``ackstream publish``, ``read``, ``consume``, ``readers``: publishers' messages from a terminal."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec.structs import asdict

from ackstream.cli import terminal
from ackstream.errors import InputError

if TYPE_CHECKING:
    from ackstream.client import Message, Receipt
    from ackstream.protocol.readers import KnownReader

POLL_SECONDS = 0.5

Name = Annotated[str, typer.Option(help="Client name; a newer client of this name replaces this one.", metavar="NAME")]
Outcome = Literal["accepted", "failed", "rejected"]


def publish(
    value: Annotated[
        str | None, typer.Argument(help="Message; without it each line of standard input.", metavar="VALUE")
    ] = None,
    *,
    topic: Annotated[str | None, typer.Option(help="Topic of the messages.", metavar="TOPIC")] = None,
    key: Annotated[str | None, typer.Option(help="Key of the messages.", metavar="KEY")] = None,
    header: terminal.Headers = None,
    name: Name = "terminal",
    stage: Annotated[
        Literal["persisted", "accepted"],
        typer.Option(help="Wait until it is in the tables, or in Kafka.", metavar="STAGE"),
    ] = "persisted",
    timeout: Annotated[str, typer.Option(help="Time to wait for each receipt.", metavar="DURATION")] = "60s",
    as_json: terminal.AsJson = False,
) -> None:
    """Publish messages, and print the receipt of each: CLIENT/SEQ, stage, and time from sending to acknowledgement.

    Example: ackstream publish '{"price": 7}' --topic orders --name desk
    """
    from ackstream import client

    seconds = terminal.milliseconds("--timeout", timeout) / 1000
    own = [(each, text.encode()) for each, text in (terminal.name_and_value("--header", text) for text in header or ())]
    if value is None and sys.stdin.isatty():
        raise InputError("There is no message: write it as the argument, or one a line to standard input.")
    values = (line.rstrip(b"\r\n") for line in sys.stdin.buffer) if value is None else [value.encode()]
    terminal.log_warnings()
    with client.Publisher(terminal.load().kafka, name=name, stage=stage, logon_timeout=seconds) as publisher:
        options: dict[str, Any] = {"topic": topic, "key": None if key is None else key.encode(), "headers": own}
        receipts = _Receipts(name, seconds, as_json=as_json)
        for each in values:
            since = time.monotonic()
            seq, future = publisher.next_seq, publisher.publish(each, ack_immediately=value is not None, **options)
            receipts.add(seq, since, future)
        receipts.finish()
    if receipts.refused:
        raise typer.Exit(1)


class _Receipts:
    """Prints the receipts of messages, in the order of the messages; times are of the monotonic clock, in seconds."""

    def __init__(self, name: str, seconds: float, *, as_json: bool) -> None:
        self.refused = 0
        self._name, self._seconds, self._as_json = name, seconds, as_json
        self._open: deque[tuple[int, float, Future[Receipt]]] = deque()
        self._ends: dict[int, float] = {}

    def add(self, seq: int, since: float, future: Future[Receipt]) -> None:
        """Wait for one more; print those that have arrived."""
        # its line is printed later: after the next line of the input was read
        future.add_done_callback(lambda _: self._ends.setdefault(seq, time.monotonic()))
        self._open.append((seq, since, future))
        while self._open and self._open[0][-1].done():
            self._print(*self._open.popleft())

    def finish(self) -> None:
        """Print the others as they arrive; raise if one does not arrive in time."""
        while self._open:
            self._print(*self._open.popleft())

    def _print(self, seq: int, since: float, future: Future[Receipt]) -> None:
        from ackstream.client import AcknowledgementTimeout, RefusedError

        message = f"{self._name}/{seq}"
        try:
            receipt = future.result(self._seconds)
        except RefusedError as error:
            self.refused += 1
            refusal = {"message": message, "stage": "refused", "reason": error.reason}
            terminal.echo_json(refusal) if self._as_json else terminal.echo(f"{message} {error}")
            return
        except FutureTimeout:
            raise AcknowledgementTimeout(
                f"{self._name}/{seq} was not acknowledged within {self._seconds:g} s; it may be stored already or "
                "later: is persist running?"
            ) from None
        # a thread that waits for a future may continue before the callbacks
        took = self._ends.pop(seq, time.monotonic()) - since
        if self._as_json:
            shown = {"message": message, "stage": receipt.stage, "duplicate": receipt.duplicate}
            terminal.echo_json({**shown, "seconds": round(took, 3)})
        else:
            terminal.echo(f"{message} {receipt.stage} after {took:.2f} s")


def read(
    *,
    name: Name = "terminal",
    topic: Annotated[
        list[str] | None, typer.Option(help="Topic pattern, * for any characters; repeatable.", metavar="TOPIC")
    ] = None,
    publisher: Annotated[
        list[str] | None, typer.Option(help="Publisher name pattern; repeatable.", metavar="NAME")
    ] = None,
    role: Annotated[str | None, typer.Option(help="Required role of the reader.", metavar="ROLE")] = None,
    durable: Annotated[
        bool, typer.Option("--durable", help="Keep messages while it is away, until `readers forget`.")
    ] = False,
    count: terminal.Count = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Print publishers' messages from now on, and acknowledge each.

    With --durable it continues after the last acknowledged message. Example: ackstream read --topic 'orders*'
    """
    from ackstream import client
    from ackstream.client.reading.samples import usable_lake

    settings = terminal.load()

    def printed(reader: Any, show: Callable[[Message], None]) -> bool:
        with reader.loan(1, POLL_SECONDS) as samples:
            for sample in samples:
                show(sample)
        return bool(samples)

    made = client.SampleReader(
        settings.kafka,
        name=name,
        topics=topic or ("*",),
        writers=publisher or ("*",),
        role=role,
        durable=durable,
        lake=usable_lake(settings.lake) if durable else None,
    )
    _print_all(made, printed, f"Reading as {name}.", count, as_json=as_json)


def _queues(incomplete: str) -> list[str]:
    from ackstream.errors import AckstreamError

    try:
        return [queue.name for queue in terminal.load().queues if queue.name.startswith(incomplete)]
    except AckstreamError:
        return []


Queue = Annotated[str, typer.Argument(help="Queue of the settings.", metavar="QUEUE", autocompletion=_queues)]


def consume(
    queue: Queue,
    *,
    name: Name = "terminal",
    outcome: Annotated[Outcome, typer.Option(help="How each message is settled.", metavar="OUTCOME")] = "accepted",
    count: terminal.Count = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Print the messages of a work queue, and settle each.

    A failed message is delivered again, a rejected one becomes a dead letter. Example: ackstream consume work --count 1
    """
    from ackstream import client
    from ackstream.client.reading.samples import usable_lake

    settings = terminal.load()

    def printed(consumer: Any, show: Callable[[Message], None]) -> bool:
        message = consumer.receive(POLL_SECONDS)
        if message is None:
            return False
        show(message)
        message.settle(outcome)
        return True

    declared, lake = {outcome} - {"accepted"}, usable_lake(settings.lake)
    # with --count, no message is delivered that is not printed
    made = client.QueueConsumer(
        settings.kafka, queue=queue, name=name, outcomes=declared, lake=lake, backlog=1 if count else None
    )
    _print_all(made, printed, f"Consuming {queue} as {name}.", count, as_json=as_json)


def drain(
    queue: Queue,
    timeout: terminal.Timeout = "60s",
) -> None:
    """Empty a work queue: its messages become dead letters, as rejected ones do; later messages stay.

    Consumers that hold some may still work on them. Then: ackstream redrive "queue = 'orders' AND reason = 'drained'"
    """
    from ackstream.client import drain_queue

    console, seconds = terminal.Terminal(), terminal.milliseconds("--timeout", timeout) / 1000
    with console.status(terminal.data(f"Waiting for the queues job to drain {queue}")):
        number = drain_queue(terminal.load().kafka, queue=queue, timeout=seconds)
    console.print(terminal.data(f"The queue {queue} is drained; messages given up: {number:,}."))


def _print_all(
    client: Any,
    printed: Callable[[Any, Callable[[Message], None]], bool],
    begun: str,
    count: int | None,
    *,
    as_json: bool,
) -> None:
    show = partial(_show, terminal.Terminal(soft_wrap=True), as_json=as_json)
    terminal.log_warnings()
    left = sys.maxsize if count is None else count
    with terminal.Interrupts() as interrupts, client:
        try:
            terminal.Terminal(stderr=True).print(terminal.data(f"{begun} Ctrl-C stops it.", "dim"))
            while left:
                left -= printed(client, show)
        except KeyboardInterrupt:
            interrupts.ignore()


def _show(console: terminal.Terminal, message: Any, *, as_json: bool) -> None:
    if not as_json:
        console.print(*_line(message), sep="  ")
        return
    names = ("publisher", "seq", "topic", "key", "value", "headers")
    delivery = {"delivery": message.count} if hasattr(message, "count") else {}
    terminal.echo_json(
        {**{name: terminal.plain(getattr(message, name)) for name in names}, "at": message.timestamp_ms, **delivery}
    )


def _line(message: Any) -> Iterable[Any]:
    yield terminal.data(terminal.moment(message.timestamp_ms), "dim")
    yield terminal.data(f"{message.publisher}/{message.seq}", "bold")
    if message.topic:
        yield terminal.data(message.topic)
    if message.key:
        yield terminal.data(terminal.plain(message.key))
    if getattr(message, "redelivered", False):
        yield terminal.data(f"delivery {message.count}", "yellow")
    yield terminal.data("" if message.value is None else terminal.plain(message.value))


readers = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Readers of publishers' messages.")


@readers.command()
def forget(
    name: Annotated[str, typer.Argument(help="Name of the reader.", metavar="NAME")],
    timeout: terminal.Timeout = "60s",
) -> None:
    """Remove a durable reader that will not return: writers stop waiting for it.

    A running reader ends with an error. Acknowledgements for its required roles still count.
    """
    from ackstream.client import delete_durable_subscription

    console, seconds = terminal.Terminal(), terminal.milliseconds("--timeout", timeout) / 1000
    with console.status(terminal.data(f"Waiting for the settle job to remove {name}")):
        delete_durable_subscription(terminal.load().kafka, name=name, timeout=seconds)
    console.print(terminal.data(f"The reader {name} is removed."))


@readers.command("list")
def list_readers(timeout: terminal.Timeout = "60s", *, as_json: terminal.AsJson = False) -> None:
    """Show the readers, the longest silent first, and the number of messages kept for each."""
    from ackstream.client import known_readers

    seconds = terminal.milliseconds("--timeout", timeout) / 1000
    with terminal.Terminal(stderr=True).status("Waiting for the settle job"):
        found = known_readers(terminal.load().kafka, timeout=seconds)
    if as_json:
        terminal.echo_json(*map(asdict, found))
        return
    terminal.Terminal().print(readers_table(found, time.time_ns() // 1_000_000))


def readers_table(found: Sequence[KnownReader], now: int) -> terminal.PlainTable:
    """Return one row per reader of publishers' messages; ``now`` is in epoch milliseconds."""
    table = terminal.PlainTable("reader", "kind", "role", "silent for", "not acknowledged", right=[3, 4])
    for reader in found:
        kind = "durable" if reader.durable else "temporary" if reader.present else "gone"
        silent = terminal.span(max(0, now - reader.seen))
        table.add_row(reader.reader, kind, reader.role or "", silent, f"{reader.unacknowledged:,}")
    return table
