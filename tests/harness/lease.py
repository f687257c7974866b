"""A lease topic as a list: what a run writes on it, and the broker's time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Log:
    """A lease topic; ``time`` is the broker's, in milliseconds."""

    def __init__(self) -> None:
        self.time = 1_000_000
        self.records: list[Any] = []

    def append(self, key: bytes | None, value: bytes | None) -> tuple[int, int]:
        headers = [("owner", b"host, process 7")]
        record = SimpleNamespace(offset=len(self.records), key=key, value=value, timestamp=self.time, headers=headers)
        self.records.append(record)
        return record.offset, record.timestamp

    def send(self, key: bytes, value: bytes | None) -> None:
        self.append(key, value)

    def since(self, time_ms: int) -> int | None:
        return next((record.offset for record in self.records if record.timestamp >= time_ms), None)

    def end(self) -> int:
        return len(self.records)

    def between(self, first: int, end: int) -> list[Any]:
        return self.records[first:end]
