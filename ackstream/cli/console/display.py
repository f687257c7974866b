"""What commands show: tables of requests, of lags and of query results, and short durations."""

from __future__ import annotations

import base64
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group
from rich.text import Text

from ackstream.cli.console.terminal import PlainTable, data
from ackstream.gateway.meter import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackstream.gateway.meter import Lag, Snapshot, Verdict
    from ackstream.jobs.correlate.inflight import InFlight
    from ackstream.protocol.readers import KnownReader

STYLES: dict[Verdict, str] = {"answered": "green", "timed out": "yellow", "failed": "red"}
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


def requests_table(snapshot: Snapshot) -> PlainTable:
    """Return one row per verdict and one for open requests; fits in 40 columns."""
    table = PlainTable("", f"last {span(snapshot.window)}", "total", "p50", "p95", right=range(1, 5))
    for column in table.columns:
        column.no_wrap = True
    for how in VERDICTS:
        count = snapshot.counts[how]
        cells = f"{count.recent:,}", f"{count.total:,}", span(count.p50), span(count.p95)
        table.add_row(Text(how, style=STYLES[how]), *cells)
    table.add_row(Text("in flight", style="cyan"), f"{snapshot.in_flight:,}")
    if snapshot.oldest is not None:
        table.caption, table.caption_justify = f"oldest {span(snapshot.oldest)}", "left"
    return table


def watch_screen(snapshot: Snapshot, lags: Sequence[Lag], note: str = "") -> Group:
    """Return the table of requests, one of lags with a row per topic and the group that reads it, and a note."""
    table = PlainTable("topic", "lag", "read by", right=[1])
    for lag in lags:
        behind = Text("unknown", style="dim") if lag.records is None else Text(f"{lag.records:,}")
        table.add_row(lag.topic, behind, lag.group)
    return Group(requests_table(snapshot), Text(), table, data(note, "red"))


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
        shown += [data(f"  {text}") for text in (record["detail"], record["id"]) if text]
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
