"""Tables read without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

from ackstream.lake import reading
from ackstream.settings import Lake

if TYPE_CHECKING:
    import pytest


def test_an_object_store_is_read_with_the_options_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Any, ...]] = []

    def open_table(location: str, storage_options: dict[str, str]) -> Any:
        opened.append((location, storage_options))
        return MagicMock()

    monkeypatch.setattr(reading, "DeltaTable", open_table)
    options = {"aws_endpoint": "http://minio:9000", "aws_region": "eu-1"}
    lake = Lake(path="s3a://bucket/lake/", storage_options=options)
    reading.writer_messages(lake, "p", 1, 2)
    reading.request_rows(lake, "outcomes", ["status"], "x")
    assert opened == [("s3a://bucket/lake/messages", options), ("s3a://bucket/lake/outcomes", options)]
