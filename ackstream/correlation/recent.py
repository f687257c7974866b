"""The memory of decided requests: hashes of their correlation-ids, each with the end of its memory.

A decided request is remembered until its *deadline* plus ``recent_memory``, not until its decision plus
``recent_memory``: the deadline is known from the request alone, so what a later record meets does not depend on where
batches are cut. Ends are rounded up to buckets; a bucket is one sorted array of 64-bit hashes, kept as bytes, so that a
million remembered requests cost 8 MB and no work an entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

BUCKETS = 8
MINIMUM_BUCKET_MS = 1000


class Recent:
    """Remembers 64-bit hashes until an end each (epoch milliseconds, event time)."""

    def __init__(self, memory_ms: int, buckets: Iterable[tuple[int, bytes]] = ()) -> None:
        """Start with ``buckets`` as :meth:`dump` gave them."""
        self._memory_ms = memory_ms
        self._bucket_ms = max(MINIMUM_BUCKET_MS, memory_ms // BUCKETS)
        self._buckets: dict[int, bytes] = dict(buckets)
        self._fresh: dict[int, int] = {}

    def end(self, deadline: int) -> int:
        """Return until when a request with this deadline claims its correlation-id (inclusive)."""
        return ((deadline + self._memory_ms) // self._bucket_ms + 1) * self._bucket_ms

    def look_up(self, hashes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[int, int]:
        """Return ``{hash: end}`` for those of ``hashes`` that are remembered; all of a batch are asked at once."""
        found: dict[int, int] = {}
        for end, packed in sorted(self._buckets.items()):
            known = np.frombuffer(packed, dtype=np.int64)
            places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            for value in hashes[known[places] == hashes].tolist():
                found[value] = end
        return found

    def remember(self, value: int, deadline: int) -> int:
        """Remember a decided request; return its end."""
        end = self._fresh[value] = self.end(deadline)
        return end

    def forget(self, watermark: int) -> None:
        """Drop what ended before the watermark: no record that old can come any more."""
        self._buckets = {end: packed for end, packed in self._buckets.items() if end >= watermark}

    def dump(self) -> list[tuple[int, bytes]]:
        """Return the buckets, fresh entries merged in, in order of their ends."""
        by_end: dict[int, list[int]] = {}
        for value, end in self._fresh.items():
            by_end.setdefault(end, []).append(value)
        for end, values in by_end.items():
            known = np.frombuffer(self._buckets.get(end, b""), dtype=np.int64)
            self._buckets[end] = np.union1d(known, np.array(values, dtype=np.int64)).tobytes()
        self._fresh = {}
        return sorted(self._buckets.items())
