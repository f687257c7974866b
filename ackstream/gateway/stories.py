"""The story of a request from the Delta tables, read without Spark."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from msgspec import UNSET, Raw

from ackstream.gateway.journal import Event, Happening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ackstream.settings import Lake


def stored(lake: Lake, correlation_id: str) -> list[Happening]:
    """Return what the tables tell of a request; nothing where there are none yet.

    :raises Exception: the tables cannot be read; of which kind depends on where they are
    """
    return [
        tell(row)
        for table, (columns, tell) in _TABLES.items()
        for row in _rows(lake.table(table), correlation_id, columns)
    ]


def _rows(path: str, correlation_id: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(TableNotFoundError):
        found = DeltaTable(path).to_pyarrow_table(
            columns=list(columns), filters=[("correlation_id", "=", correlation_id)]
        )
        yield from found.to_pylist()


def _request(row: dict[str, Any]) -> Happening:
    detail = " ".join(filter(None, (row["channel"], row["criterion"], row["action"], row["path"])))
    return _happening("request", row, "received_at", "value", detail=detail, thing_id=row["thing_id"])


def _acknowledgement(row: dict[str, Any]) -> Happening:
    return _happening(
        "acknowledgement",
        row,
        "received_at",
        "payload",
        label=row["label"],
        status=row["status"],
        detail=row["disposition"],
    )


def _outcome(row: dict[str, Any]) -> Happening:
    return _happening(
        "outcome",
        row,
        "decided_at",
        "reply",
        status=row["status"],
        detail=row["completed_by"],
        thing_id=row["thing_id"],
    )


def _dead_letter(row: dict[str, Any]) -> Happening:
    return _happening("dead letter", row, "received_at", None, detail=row["reason"])


def _happening(event: Event, row: dict[str, Any], time: str, content: str | None, **fields: Any) -> Happening:
    text = row[content] if content else None
    at = round(row[time].timestamp() * 1000)
    return Happening(at, event, row["id"], content=UNSET if text is None else Raw(text.encode()), **fields)


_TABLES: dict[str, tuple[tuple[str, ...], Callable[[dict[str, Any]], Happening]]] = {
    "signals": (("id", "received_at", "thing_id", "channel", "criterion", "action", "path", "value"), _request),
    "acknowledgements": (("id", "received_at", "label", "status", "disposition", "payload"), _acknowledgement),
    "outcomes": (("id", "decided_at", "thing_id", "status", "completed_by", "reply"), _outcome),
    "dead_letters": (("id", "received_at", "reason"), _dead_letter),
}
