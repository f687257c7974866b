"""The open requests of a shard: those that were touched last in its state, the others beside the checkpoint."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from ackstream.jobs.correlate.state import Pending, decode_head, decode_pending, encode
from ackstream.spark.pieces import PieceEntry, Pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np

    from ackstream.jobs.correlate.state import ShardState
    from ackstream.spark.pieces import PieceStore

HOT_BYTES = 256 * 1024
"""The most bytes of open requests in the state of a shard, which each batch takes up as a whole."""
FEW = 2_000
"""Up to this many are decoded to find the oldest one, in 2 ms; :data:`HOT_BYTES` has about a thousand."""
TOUCHED_BYTES = 1024
"""Or this many bytes for each correlation-id of the batch: a large batch opens many that the next one closes."""


class PendingRequests:
    """Finds open requests by correlation-id and by deadline; an untouched one stays encoded."""

    def __init__(self, store: PieceStore | None = None) -> None:
        """Start empty. ``store``: for more than :data:`HOT_BYTES`; ``None``: all are in the state."""
        self._store = store
        self._hot: dict[str, Pending | bytes] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._aside = Pieces(store)
        self._touched = 0

    def __len__(self) -> int:
        return len(self._hot) + len(self._aside)

    def load(self, state: ShardState) -> None:
        """Restore what :meth:`dump` has put into a state."""
        self._hot = dict(state.open)
        self._deadlines = state.deadlines
        self._aside = Pieces(self._store, state.pieces)

    def dump(self, state: ShardState) -> None:
        """Put all of them into a state that has none."""
        hot = {key: value if isinstance(value, bytes) else encode(value) for key, value in self._hot.items()}
        size = sum(map(len, hot.values()))
        if self._store is not None and size > max(HOT_BYTES, self._touched * TOUCHED_BYTES):
            self._put_aside(hot, size - HOT_BYTES // 2)
        if len(self._deadlines) > 2 * len(hot):
            # most are of requests that were decided in time
            self._deadlines = sorted(entry for entry in self._deadlines if entry[1] in hot)
        state.open, state.deadlines, state.pieces = hot, self._deadlines, self._aside.dump()

    def _put_aside(self, hot: dict[str, bytes], size: int) -> None:
        """Take the given number of bytes out of the state, from the requests that were idle longest."""
        entries = []
        for key, body in list(hot.items()):
            if size <= 0:
                break
            size -= len(body)
            head = decode_head(body)
            entries.append(PieceEntry(head.hash, head.deadline, body))
            del hot[key], self._hot[key]
        self._aside.add(entries)
        self._deadlines = sorted(entry for entry in self._deadlines if entry[1] in hot)

    # -- one request ---------------------------------------------------------------------------------------------------

    def recall(self, hashes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Make the requests of these hashes available: called once per batch, before all else."""
        self._touched += len(hashes)
        self._take_back(self._aside.recall(hashes))

    def find(self, key: str | None) -> Pending | None:
        """Return the open request with a correlation-id."""
        if key is None:
            return None
        found = self._hot.get(key)
        if isinstance(found, bytes):
            # behind all that was touched before
            del self._hot[key]
            found = self._hot[key] = decode_pending(found)
        return found

    def add(self, pending: Pending) -> None:
        """Open a request."""
        self._hot[pending.correlation_id] = pending
        heapq.heappush(self._deadlines, (pending.deadline, pending.correlation_id))

    def remove(self, key: str) -> None:
        """Forget a request, which was found or added in this batch."""
        del self._hot[key]

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def next_deadline(self) -> int | None:
        """No open request has an earlier deadline (epoch milliseconds); ``None``: no request is open."""
        found = [self._aside.next_time, self._deadlines[0][0] if self._deadlines else None]
        return min((time for time in found if time is not None), default=None)

    @property
    def oldest_start(self) -> int | None:
        """The start of the oldest open request (epoch milliseconds); ``None``: no request is open.

        A piece put aside, and a state of more than :data:`FEW`, counts by the request with its earliest deadline: the
        oldest, if timeouts are equal. Unequal ones would need the whole piece.
        """
        bodies = [value for value in self._hot.values() if isinstance(value, bytes)]
        if len(bodies) > FEW:
            while self._deadlines[0][1] not in self._hot:
                heapq.heappop(self._deadlines)
            first = self._hot[self._deadlines[0][1]]
            bodies = [first] if isinstance(first, bytes) else []
        bodies += [entry.body for entry in self._aside.first()]
        starts = [value.started_at for value in self._hot.values() if not isinstance(value, bytes)]
        return min([*starts, *(decode_head(body).started_at for body in bodies)], default=None)

    def expired(self, watermark: int) -> Iterator[Pending]:
        """Yield the requests whose deadline is before a time, in its order; the caller removes each of them."""
        self._take_back(self._aside.due(watermark))
        while self._deadlines and self._deadlines[0][0] < watermark:
            deadline, key = heapq.heappop(self._deadlines)
            pending = self.find(key)
            # the heap still has the entries of requests that were decided in time
            if pending is not None and pending.deadline == deadline:
                yield pending

    def _take_back(self, entries: Iterable[PieceEntry]) -> None:
        for entry in entries:
            key = decode_head(entry.body).correlation_id
            self._hot[key] = entry.body
            heapq.heappush(self._deadlines, (entry.time, key))
