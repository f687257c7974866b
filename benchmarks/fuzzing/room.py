"""Shared by the rooms under fuzz: each feeds its pure operator as its job does, and accounts for every record."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ackstream.kafka.clients import MAX_RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fuzzing.garbage import Garbage

LAG_MS = 2_000
"""How far the watermark stays behind: a broker's clock may be set back by half of it."""
FAR = 4_000_000_000_000
"""A time after all others, in epoch milliseconds."""


class Room:
    """Shared by all rooms: the clock, offsets, and the account.

    :ivar counts: how many records ended how
    :ivar wrong: the violations: a record without an end, or with two; output that Kafka or Arrow would refuse
    """

    name = ""
    share = 0.1
    """The share of all records."""
    record_bytes = MAX_RECORD_BYTES
    """The limit of the topics."""

    def __init__(self, garbage: Garbage) -> None:
        self.garbage, self.chance = garbage, garbage.chance
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.now = 1_700_000_000_000
        self._offsets: Counter[Any] = Counter()

    def make(self) -> Any:
        """Return the next record."""
        raise NotImplementedError

    def feed(self, records: Sequence[Any]) -> None:
        """Process records as a batch; keep nothing if it raises."""
        raise NotImplementedError

    def finish(self) -> None:
        """Let all time pass, and complete the account."""

    def time(self) -> int:
        """Return the timestamp of the next record; a broker's clock is set back at times."""
        self.now += self.chance.randrange(4)
        return self.now - (self.chance.randrange(LAG_MS // 2) if self.garbage.one_in(50) else 0)

    def place(self, *names: Any, partition: int | None = None) -> tuple[int, int]:
        """Return the partition and the offset of the next record of a topic."""
        if partition is None:
            partition = self.chance.randrange(4)
        key = (*names, partition)
        self._offsets[key] += 1
        return partition, self._offsets[key]

    def expect(self, condition: object, what: str, record: object = "") -> None:
        """Note a violation."""
        if not condition:
            self.wrong.append(f"{self.name}: {what} {str(record)[:500]}")

    def check_sent(self, *parts: bytes | str | None) -> None:
        """Check that the parts of a Kafka record are text that can be written, and fit one record."""
        data = [part.encode() if isinstance(part, str) else part or b"" for part in parts]
        self.expect(sum(map(len, data)) <= self.record_bytes, "a record is too large:", [entry[:100] for entry in data])
