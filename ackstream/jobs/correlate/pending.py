"""The open requests of a shard: decoded those of the batch, encoded the others, in its state or in pieces."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from ackstream.jobs.correlate.state import Pending, decode_head, decode_pending, encode
from ackstream.spark.pieces import PieceEntry
from ackstream.spark.records import Shelf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.spark.pieces import Numbers, PieceStore
    from ackstream.spark.records import Shelved

HOT_BYTES = 256 * 1024
"""The most bytes of open requests in the state of a shard, which each batch takes up as a whole."""
FEW = 2_000
"""Up to this many are decoded to find the oldest one, in 2 ms; :data:`HOT_BYTES` has about a thousand."""
TOUCHED_BYTES = 1024
"""Or this many bytes for each correlation-id of the batch: a large batch opens many that the next one closes."""


class PendingRequests:
    """Finds open requests by correlation-id and by deadline; an untouched one stays encoded."""

    def __init__(self, store: PieceStore | None = None, shelved: Shelved | None = None) -> None:
        """Continue with the result of :meth:`dump`. ``store``: for all beyond :data:`HOT_BYTES`; may be missing."""
        self._shelf = Shelf(store, shelved)
        self._open: dict[str, Pending] = {}
        self._touched = 0
        # while requests expire: the time that has passed, and those taken up meanwhile, which expire, too
        self._passed = 0
        self._opened: list[tuple[int, int, str]] = []
        self.size = 0
        """The bytes of the decoded ones, and of the records that they have received since."""

    def __len__(self) -> int:
        return len(self._open) + len(self._shelf)

    def dump(self) -> Shelved:
        """Return all of them for the state."""
        self._encode()
        return self._shelf.dump(self._limit)

    def put_aside(self) -> None:
        """Put aside the requests that were idle longest, during a batch."""
        self._encode()
        self._shelf.trim(self._limit)

    def _encode(self) -> None:
        self._shelf.add([PieceEntry(each.hash, each.deadline, encode(each)) for each in self._open.values()])
        self._open, self.size = {}, 0

    @property
    def _limit(self) -> int:
        return max(HOT_BYTES, self._touched * TOUCHED_BYTES)

    # -- one request ---------------------------------------------------------------------------------------------------

    def look_up(self, hashes: Numbers) -> None:
        """Make the requests of these hashes available: called before all else."""
        self._touched += len(hashes)
        self._shelf.look_up(hashes)

    def find(self, key: str | None, hash: int) -> Pending | None:  # noqa: A002 - a record's field
        """Return the open request with a correlation-id and its hash."""
        if key is None:
            return None
        found = self._open.get(key)
        if found is None:
            for entry in self._shelf.take(hash):
                pending = decode_pending(entry.body)
                self.add(pending)
                self.size += len(entry.body)
                if pending.correlation_id == key:
                    found = pending
        return found

    def add(self, pending: Pending) -> None:
        """Take up a request, which expires where others do."""
        self._open[pending.correlation_id] = pending
        if pending.deadline < self._passed:
            heapq.heappush(self._opened, (pending.deadline, pending.hash, pending.correlation_id))

    def remove(self, key: str) -> None:
        """Forget a request, unless it has expired."""
        self._open.pop(key, None)

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def next_deadline(self) -> int | None:
        """No request has an earlier deadline (epoch milliseconds), as of :meth:`dump`; ``None``: no request is open."""
        return self._shelf.next_time

    @property
    def oldest_start(self) -> int | None:
        """The start of the oldest open request (epoch milliseconds), as of :meth:`dump`; ``None``: none is open.

        A piece, or a state beyond :data:`FEW`, counts by its earliest deadline: the oldest, if timeouts are equal.
        """
        return min((decode_head(entry.body).started_at for entry in self._shelf.first(FEW)), default=None)

    def expired(self, watermark: int) -> Iterator[Pending]:
        """Remove and yield the requests whose deadline is before a time, by deadline and hash."""
        if any(pending.deadline < watermark for pending in self._open.values()):
            self._encode()
        self._passed = watermark
        due = self._shelf.due(watermark)
        entry = next(due, None)
        while entry is not None or self._opened:
            if entry is None or (self._opened and self._opened[0] < (entry.time, entry.hash)):
                deadline, _, key = heapq.heappop(self._opened)
                pending = self._open.get(key)
                if pending is not None and pending.deadline == deadline:
                    yield pending
            else:
                yield decode_pending(entry.body)
                entry = next(due, None)
        self._passed = 0
