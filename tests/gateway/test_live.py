"""The story of a request, read from Delta tables with the columns of ours."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ackstream.gateway.journal import stored
from ackstream.lake.schemas import TABLES
from ackstream.settings import Lake

if TYPE_CHECKING:
    from pathlib import Path

TIMES = {"received_at", "decided_at"}
ROWS: dict[str, dict[str, Any]] = {
    "signals": {"thing_id": "a:b", "channel": "twin", "criterion": "commands", "action": "modify", "path": "/x",
                "value": "5", "received_at": 100},
    "acknowledgements": {"label": "my-ack", "status": 200, "disposition": "accepted", "payload": None,
                         "received_at": 110},
    "outcomes": {"thing_id": "a:b", "status": 200, "completed_by": "acknowledgements", "reply": '{"topic":"t"}',
                 "decided_at": 120},
    "dead_letters": {"reason": "a copy", "received_at": 130},
}  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    for table, row in ROWS.items():
        assert row.keys() <= {field.name for field in TABLES[table].schema.fields}
        columns = {
            name: [datetime.fromtimestamp(value / 1000, timezone.utc)] * 2 if name in TIMES else [value] * 2
            for name, value in row.items()
        }
        batch = pa.table({"correlation_id": ["c-1", "other"], "id": ["i-1", "i-2"], **columns})
        if table == "acknowledgements":
            batch = batch.set_column(
                batch.schema.get_field_index("payload"), "payload", pa.array([None] * 2, pa.string())
            )
        write_deltalake(str(tmp_path / table), batch)
    return Lake(path=str(tmp_path))


def test_all_tables_tell_of_a_request(lake: Lake) -> None:
    story = stored(lake, "c-1")
    assert [(line.at, line.event, line.id, line.label, line.status, line.detail) for line in story] == [
        (100, "request", "i-1", None, None, "twin commands modify /x"),
        (110, "acknowledgement", "i-1", "my-ack", 200, "accepted"),
        (120, "outcome", "i-1", None, 200, "acknowledgements"),
        (130, "dead letter", "i-1", None, None, "a copy"),
    ]
    assert story[0].thing_id == "a:b"


def test_of_an_unknown_request_nothing_is_told(lake: Lake) -> None:
    assert stored(lake, "nobody's") == []


def test_before_the_tables_are_made_nothing_is_told(tmp_path: Path) -> None:
    assert stored(Lake(path=str(tmp_path / "nothing")), "c-1") == []
