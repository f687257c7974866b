"""What commands show: tables of requests, of lags and of query results, and short durations."""

from __future__ import annotations

import base64
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group
from rich.text import Text

from ackstream.cli.console.terminal import PlainTable, data
from ackstream.observe.meter import VERDICTS, sparkline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from ackstream.jobs.correlate.job import InFlight
    from ackstream.observe.feeds import JobSign, Overview
    from ackstream.observe.meter import Snapshot, Verdict
    from ackstream.observe.planes import PlanesView
    from ackstream.protocol.readers import KnownReader

STYLES: dict[Verdict, str] = {"answered": "green", "timed out": "yellow", "failed": "red"}
SHOWN, LETTERS, REASON_CHARACTERS, CONTENT_CHARACTERS = 5, 3, 50, 40
"""As many publishers, readers and queues, dead letters, and characters of these fit a terminal."""

BARS = 30
"""The latest of a trend."""

MINUTE_MS = 60_000
HOUR_MS = 3_600_000


def requests_table(snapshot: Snapshot) -> PlainTable:
    """Return one row per verdict and one for open requests; fits in 40 columns."""
    table = PlainTable("", f"last {span(snapshot.window)}", "total", "p50", "p95", right=range(1, 5))
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for how in VERDICTS:
        count = snapshot.counts[how]
        cells = f"{count.recent:,}", f"{count.total:,}", span(count.p50), span(count.p95)
        table.add_row(Text(how, style=STYLES[how]), *cells)
    table.add_row(Text("in flight", style="cyan"), f"{snapshot.in_flight:,}")
    if snapshot.oldest is not None:
        table.caption, table.caption_justify = f"oldest {span(snapshot.oldest)}", "left"
    return table


def watch_screen(watched: Overview) -> Group:
    """Return the tables of requests, jobs and all planes that have something to show, and a note."""
    now, planes = watched.now, watched.planes
    tables = [requests_table(watched.requests), _jobs_table(watched.jobs)]
    age = "nothing decided yet" if watched.newest is None else f"newest {span(_age(watched.newest, now))} ago"
    tables[0].caption = ", ".join(filter(None, (str(tables[0].caption or ""), age)))
    tables[0].caption_justify = "left"
    if planes is not None:
        tables += [_publishers_table(planes, now), _readers_table(planes, now), _queues_table(planes)]
        tables += [_destinations_table(planes), _letters_table(planes)]
    tables.append(_trends_table([*watched.trends.items(), *(planes.trends.items() if planes else ())]))
    shown: list[RenderableType] = []
    for table in tables:
        if table.row_count:
            shown += [table, Text()]
    return Group(*shown, data(watched.note, "red"))


def _age(at: int, now: int) -> int:
    """Return how old something is, in whole seconds: the clocks of two machines differ."""
    return max(0, now - at) // 1000 * 1000


def _jobs_table(jobs: Sequence[JobSign]) -> PlainTable:
    table = PlainTable("job", "", "records still to be read")
    for job in jobs:
        state = Text("alive", style="green") if job.alive else data(f"silent for {span(job.silent)}", "red")
        table.add_row(job.job, state, ", ".join(f"{lag.topic} {lag.records:,}" for lag in job.lags))
    return table


def _publishers_table(planes: PlanesView, now: int) -> PlainTable:
    table = PlainTable("publisher", "number", "stored now", "refused now", "newest", right=range(1, 5))
    for one in planes.publishers[:SHOWN]:
        refused = Text(f"{one.refused:,}", style="red" if one.refused else "")
        table.add_row(one.client, f"{one.last:,}", f"{one.stored:,}", refused, span(_age(one.at, now)))
    return table


def _readers_table(planes: PlanesView, now: int) -> PlainTable:
    table = PlainTable("reader", "role", "acknowledged", "behind", "newest", right=range(2, 5))
    for one in planes.readers[:SHOWN]:
        behind = "" if one.behind is None else f"{one.behind:,}"
        table.add_row(one.reader, one.role or "", f"{one.acknowledged:,}", behind, span(_age(one.at, now)))
    return table


def _queues_table(planes: PlanesView) -> PlainTable:
    table = PlainTable("queue", "consumers", "held", "oldest", "again", "settled", "dead", right=range(1, 7))
    for one in planes.queues[:SHOWN]:
        dead = Text(f"{one.dead:,}", style="red" if one.dead else "")
        counts = (f"{count:,}" for count in (one.redelivered, one.settled))
        table.add_row(one.queue, f"{one.consumers:,}", f"{one.held:,}", span(one.oldest), *counts, dead)
    return table


def _destinations_table(planes: PlanesView) -> PlainTable:
    table = PlainTable("further lake", "batches behind", right=[1])
    for one in planes.destinations:
        table.add_row(one.destination, "" if one.behind is None else f"{one.behind:,}")
    return table


def _letters_table(planes: PlanesView) -> PlainTable:
    table = PlainTable("dead letter", "from", "reason", "content")
    for column in table.columns:
        # a line each: the page and the topic have the rest
        column.no_wrap, column.overflow = True, "ellipsis"
    for one in planes.dead_letters[:LETTERS]:
        table.add_row(moment(one.at), one.origin, one.reason[:REASON_CHARACTERS], one.content[:CONTENT_CHARACTERS])
    return table


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


def readers_table(found: Sequence[KnownReader], now: int) -> PlainTable:
    """Return one row per reader of publishers' messages; ``now`` is in epoch milliseconds."""
    table = PlainTable("reader", "kind", "role", "silent for", "not acknowledged", right=[3, 4])
    for reader in found:
        kind = "durable" if reader.durable else "temporary" if reader.present else "gone"
        silent = span(max(0, now - reader.seen))
        table.add_row(reader.reader, kind, reader.role or "", silent, f"{reader.unacknowledged:,}")
    return table


def result_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> PlainTable:
    """Return the result of a query, formatted by the names of its columns (``_ms``, ``share``, ``status``)."""
    table = PlainTable()
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], (int, float)) for row in rows)
        heading = column.removesuffix("_ms").replace("_", " ")
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(column, value) for column, value in zip(columns, row, strict=True)))
    return table


def story(records: Sequence[Mapping[str, Any]]) -> Group:
    """Return the events of a request, each with its content, indented where it is JSON."""
    shown: list[Text] = []
    for record in records:
        words = (_cell("occurred_at", record["occurred_at"]), record["event"], record["label"], record["status"])
        shown.append(data(" ".join(str(word) for word in words if word is not None), "bold"))
        trace = record["traceparent"] and f"traceparent {record['traceparent']}"
        shown += [data(f"  {text}") for text in (record["detail"], record["id"], trace) if text]
        shown += [data(f"  {line}", "dim") for line in _indented(record["content"]).splitlines()]
    return Group(*shown)


def _indented(content: str | None) -> str:
    try:
        # numbers and texts stay as they were written
        return msgspec.json.format(content or "", indent=2)
    except (msgspec.DecodeError, UnicodeError):
        return content or ""


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if column == "share":
        return f"{value:.1%}"
    if column.endswith("_ms"):
        return span(round(value))
    if isinstance(value, (int, float)) and column != "status":
        return f"{value:,.0f}"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "milliseconds" if value.microsecond else "seconds")
    return str(value)


def span(milliseconds: int | None) -> str:
    """Format a duration briefly, such as ``12ms``, ``1.24s``, ``2m05s``, ``3h07m``; ``None`` as an empty string."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:  # noqa: PLR2004 - a second
        return f"{milliseconds}ms"
    seconds = milliseconds / 1000
    if milliseconds < MINUTE_MS:
        return f"{seconds:.3g}s" if milliseconds % 1000 else f"{seconds:g}s"
    if milliseconds < HOUR_MS:
        minutes, rest = divmod(milliseconds // 1000, 60)
        return f"{minutes}m{rest:02d}s" if rest else f"{minutes}m"
    hours, rest = divmod(milliseconds // MINUTE_MS, 60)
    return f"{hours}h{rest:02d}m" if rest else f"{hours}h"


def plain(value: Any) -> Any:
    """Return a value with texts for bytes, at any depth: as UTF-8, or else base64."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        content = bytes(value)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return base64.b64encode(content).decode()
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


def moment(at: int) -> str:
    """Format a time in epoch milliseconds: the local time of day, with the day if that is not today."""
    local = datetime.fromtimestamp(at / 1000, timezone.utc).astimezone()
    today = datetime.now(timezone.utc).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S")
