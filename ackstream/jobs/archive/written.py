"""What a table has of correlate's queries already, as far as an archive remembers it, so that it rarely has to read.

Batches of a query only grow, and the only one that correlate may write again is its newest. So its rows are recognised
by their ids, if this archive has written all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ackstream.lake.schemas import KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from ackstream.jobs.archive.projection import BatchSpan


class Written:
    """The newest batch of each query in one table, and the ids of its rows if they are all known."""

    def __init__(self) -> None:
        """Start without memory."""
        self._newest: dict[str, int] = {}
        self._ids: dict[str, list[pa.ChunkedArray]] = {}

    def knows(self, query_id: str) -> bool:
        """Return whether the newest batch of a query is known."""
        return query_id in self._newest

    def found(self, query_id: str, newest: int) -> None:
        """Remember the newest batch of a query that the table has, of whose rows nothing is known."""
        self._newest[query_id] = max(newest, self._newest.get(query_id, -1))
        self._ids.pop(query_id, None)

    def reaches(self, span: BatchSpan) -> bool:
        """Return whether the table may have rows of the span's batches; malformed records have no batch."""
        return span.query_id is None or span.first_batch <= self._newest[span.query_id]

    def decides(self, span: BatchSpan) -> bool:
        """Return whether the rows of the span that the table has are known."""
        if span.query_id is None or not self.reaches(span):
            return span.query_id is not None
        return span.first_batch == self._newest[span.query_id] and span.query_id in self._ids

    def fresh(self, rows: pa.Table, spans: Iterable[BatchSpan]) -> pa.Table:
        """Return rows without those that the table has; the spans are decided."""
        for span in spans:
            if span.query_id is not None and self.reaches(span):
                for ids in self._ids[span.query_id]:
                    known = pc.and_(_of_batch(rows, span.query_id, span.first_batch), pc.is_in(rows["id"], ids))
                    rows = rows.filter(pc.invert(known))
        return rows

    def add(self, rows: pa.Table, span: BatchSpan) -> None:
        """Remember a span whose rows have been written; the span is decided."""
        if span.query_id is None:
            return
        newest = self._newest[span.query_id]
        keys = rows.select(KEY)
        ids = keys.filter(_of_batch(keys, span.query_id, span.last_batch))["id"]
        before = self._ids[span.query_id] if span.last_batch == newest else []
        self._ids[span.query_id] = [*before, ids]
        self._newest[span.query_id] = span.last_batch


def _of_batch(rows: pa.Table, query_id: str, batch_id: int) -> pa.ChunkedArray:
    return pc.and_(pc.equal(rows["query_id"], query_id), pc.equal(rows["batch_id"], batch_id))
