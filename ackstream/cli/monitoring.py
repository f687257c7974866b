"""``ackstream watch``, ``inflight``, ``topics``: the activity of all planes, the open requests, and the topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from ackstream.cli.terminal import AsJson, PlainTable, Terminal, data, echo, echo_json, load, milliseconds, moment, span
from ackstream.errors import AckstreamError
from ackstream.local import machine

if TYPE_CHECKING:
    from ackstream.jobs.correlate.job import InFlight
    from ackstream.observe.feeds import JobSign, Overview
    from ackstream.observe.outcomes import Verdict
    from ackstream.observe.planes import PlanesView
    from ackstream.settings import Kafka

REFRESH_SECONDS = 1.0
SHOWN_REQUESTS = 20
"""The open requests in a table, unless ``--limit`` has another number."""

SHOWN, LETTERS, REASON_CHARACTERS, CONTENT_CHARACTERS = 5, 3, 50, 40
"""The number of publishers, readers and queues, of dead letters, and of characters of a letter that fit a terminal."""

BARS = 30
"""The latest minutes of a trend."""

_LEVELS = "▁▂▃▄▅▆▇█"

STYLES: dict[Verdict, str] = {"answered": "green", "timed out": "yellow", "failed": "red"}


def watch(
    window: Annotated[str, typer.Option(help="Period of the recent counts.", metavar="DURATION")] = "60s",
    *,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; default without a terminal.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show all planes live: requests, jobs, publishers, readers, queues, dead letters, and their trends.

    Latency is from request to reply, by the broker's clock. Counts begin one window (at least the default timeout)
    before now. Example: ackstream watch --once --json
    """
    from kafka.errors import AuthorizationError, KafkaError

    from ackstream.kafka.clients import failure
    from ackstream.observe.feeds import Watching

    span_ms = milliseconds("--window", window)
    settings = load()
    console = Terminal()
    with Watching(settings, span_ms) as watching:
        try:
            watching.read_to_end()
            if as_json or once or not console.is_terminal:
                watched = watching.now()
                if as_json:
                    shown = watched._asdict()
                    shown["warning"] = shown.pop("note")
                    echo_json(shown)
                else:
                    console.print(watch_screen(watched))
                return
        except AuthorizationError as error:
            raise failure(settings.kafka, error) from None
        except KafkaError as error:
            raise AckstreamError(f"Kafka at {settings.kafka.bootstrap} is no longer available: {error}.") from None
        try:
            with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
                while True:
                    live.update(watch_screen(watching.now()), refresh=True)
                    watching.follow(REFRESH_SECONDS)
        except KeyboardInterrupt:
            raise typer.Exit from None


def inflight(
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Maximum, oldest first; default {SHOWN_REQUESTS}, with --json all.", metavar="N"),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the open requests in the checkpoint of correlate, which need not run."""
    from ackstream.jobs.correlate.job import inflight as read
    from ackstream.observe.outcomes import epoch_milliseconds
    from ackstream.spark.session import quiet_session

    settings = load()
    with quiet_session(settings, "inflight") as spark:
        found: list[Any] = read(spark, settings)
    now = epoch_milliseconds()
    if as_json:
        echo_json(*found[:limit])
        return
    shown = found[: limit or SHOWN_REQUESTS]
    Terminal().print(inflight_table(shown, now) if found else "No request is open in the checkpoint.")
    if len(found) > len(shown):
        echo(f"{len(found) - len(shown):,} more are open; --limit {len(found)} shows all.")


def _requests_table(watched: Overview) -> PlainTable:
    """Return one row per verdict and one for open requests; fits in 40 columns."""
    snapshot = watched.requests
    table = PlainTable("", f"last {span(snapshot.window)}", "total", "p50", "p95", right=range(1, 5)).cut_lines()
    for how, style in STYLES.items():
        count = snapshot.counts[how]
        cells = f"{count.recent:,}", f"{count.total:,}", span(count.p50), span(count.p95)
        table.add_row(Text(how, style=style), *cells)
    table.add_row(Text("in flight", style="cyan"), f"{snapshot.in_flight:,}")
    age = "nothing decided yet" if watched.newest is None else f"newest {_age(watched.newest, watched.now)} ago"
    table.caption = age if snapshot.oldest is None else f"oldest {span(snapshot.oldest)}, {age}"
    table.caption_justify = "left"
    return table


def watch_screen(watched: Overview) -> Group:
    """Return the tables of requests, jobs and all planes that have something to show, and a note."""
    planes = watched.planes
    tables = [_requests_table(watched), _jobs_table(watched.jobs)]
    tables += _plane_tables(planes, watched.now) if planes else []
    tables.append(_trends_table([*watched.trends.items(), *(planes.trends.items() if planes else ())]))
    shown: list[RenderableType] = []
    for table in tables:
        if table.row_count:
            shown += [table, Text()]
    return Group(*shown, data(watched.note, "red"))


def _age(at: int, now: int) -> str:
    """Format the age in whole seconds: the clocks of two machines differ."""
    return span(max(0, now - at) // 1000 * 1000)


def _alarm(count: int) -> Text:
    return Text(f"{count:,}", style="red" if count else "")


def _behind(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _jobs_table(jobs: Sequence[JobSign]) -> PlainTable:
    table = PlainTable("job", "", "records still to be read")
    for job in jobs:
        state = Text("alive", style="green") if job.alive else data(f"silent for {span(job.silent)}", "red")
        table.add_row(job.job, state, ", ".join(f"{lag.topic} {lag.records:,}" for lag in job.lags))
    return table


def _plane_tables(planes: PlanesView, now: int) -> list[PlainTable]:
    publishers = PlainTable("publisher", "number", "stored now", "refused now", "newest", right=range(1, 5))
    for publisher in planes.publishers[:SHOWN]:
        counts = f"{publisher.last:,}", f"{publisher.stored:,}", _alarm(publisher.refused)
        publishers.add_row(publisher.client, *counts, _age(publisher.at, now))
    readers = PlainTable("reader", "role", "acknowledged", "behind", "newest", right=range(2, 5))
    for reader in planes.readers[:SHOWN]:
        acknowledged, behind = f"{reader.acknowledged:,}", _behind(reader.behind)
        readers.add_row(reader.reader, reader.role or "", acknowledged, behind, _age(reader.at, now))
    queues = PlainTable("queue", "consumers", "held", "oldest", "again", "settled", "dead", right=range(1, 7))
    for queue in planes.queues[:SHOWN]:
        held = f"{queue.consumers:,}", f"{queue.held:,}", span(queue.oldest)
        queues.add_row(queue.queue, *held, f"{queue.redelivered:,}", f"{queue.settled:,}", _alarm(queue.dead))
    lakes = PlainTable("further lake", "batches behind", right=[1])
    for lake in planes.destinations:
        lakes.add_row(lake.destination, _behind(lake.behind))
    # one line each: the page and the topic have the rest
    letters = PlainTable("dead letter", "from", "reason", "content").cut_lines()
    for letter in planes.dead_letters[:LETTERS]:
        texts = letter.reason[:REASON_CHARACTERS], letter.content[:CONTENT_CHARACTERS]
        letters.add_row(moment(letter.at), letter.origin, *texts)
    return [publishers, readers, queues, lakes, letters]


def sparkline(counts: Sequence[int]) -> str:
    """Draw counts as a line of bars, relative to the highest; nothing is a blank."""
    highest = max(counts, default=0)
    return "".join(" " if not count else _LEVELS[(count * len(_LEVELS) - 1) // highest] for count in counts)


def _trends_table(trends: Sequence[tuple[str, list[int]]]) -> PlainTable:
    table = PlainTable("last ten minutes", "", "", right=[1])
    for name, counts in trends:
        if any(counts):
            table.add_row(name, f"{sum(counts):,}", Text(sparkline(counts[-BARS:]), style="cyan"))
    return table


def inflight_table(found: Sequence[InFlight], now: int) -> PlainTable:
    """Return one row per open request; ``now`` is in epoch milliseconds."""
    table = PlainTable("correlation-id", "age", "left", "thing", "missing")
    for entry in found:
        left = entry.deadline - now
        table.add_row(
            entry.correlation_id,
            span(max(0, now - entry.started_at)),
            span(left) if left >= 0 else Text(f"-{span(-left)}", style="red"),
            entry.thing_id or "",
            ", ".join(entry.missing) or "the response",
        )
    return table


def topics(
    *,
    asyncapi: Annotated[bool, typer.Option("--asyncapi", help="Print the AsyncAPI document, with schemas.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics with their writers, readers and contents."""
    from ackstream.kafka.parties import readers, writers

    settings = load()
    document = of_settings(msgspec.json.decode(machine.installed("docs/asyncapi.json").read_bytes()), settings.kafka)
    if asyncapi:
        echo_json(document)
        return
    table = PlainTable("topic", "written by", "read by", "contents")
    known = document["channels"].items()
    rows = [(one["address"], ", ".join(writers(name)), ", ".join(readers(name)), one["summary"]) for name, one in known]
    further = (*settings.correlate.request_topics, *settings.correlate.ack_topics)
    rows += [(pattern, "applications", "correlate", "Requests or acknowledgements of any kind.") for pattern in further]
    for row in rows:
        if as_json:
            echo_json(dict(zip(("topic", "written_by", "read_by", "about"), row, strict=True)))
        else:
            table.add_row(*row)
    if not as_json:
        Terminal().print(table)


def of_settings(document: dict[str, Any], kafka: Kafka) -> dict[str, Any]:
    """Fill in the brokers of an AsyncAPI document, and the names and properties of its topics; return it."""
    from ackstream.kafka.topics import MAX_BYTES, TOPICS

    protocol = "kafka" if kafka.security.protocol == "PLAINTEXT" else "kafka-secure"
    document["servers"] = {
        f"kafka-{number}": {"host": host.strip(), "protocol": protocol, "description": "Of `kafka.bootstrap`."}
        for number, host in enumerate(kafka.bootstrap.split(","), 1)
    }
    for name, channel in document["channels"].items():
        config: dict[str, Any] = dict(TOPICS[name].config(kafka.replication))
        config[MAX_BYTES] = int(config[MAX_BYTES])
        if TOPICS[name].compacted:
            config["cleanup.policy"] = [config["cleanup.policy"]]
        channel["address"] = kafka.topic(name)
        channel["bindings"]["kafka"] |= {
            "topic": kafka.topic(name),
            "partitions": TOPICS[name].partitions or kafka.partitions,
            "replicas": kafka.replication,
            "topicConfiguration": config,
        }
    return document
