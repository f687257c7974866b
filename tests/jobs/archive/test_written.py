from __future__ import annotations

import pyarrow as pa
import pytest

from ackstream.jobs.archive.job import BatchSpan, Written


def span(first: int, last: int, query: str | None = "q") -> BatchSpan:
    return BatchSpan(query, first, last, 0, {})


def rows(*ids: str, batch: int = 5, query: str = "q") -> pa.Table:
    return pa.table({"query_id": [query] * len(ids), "batch_id": [batch] * len(ids), "id": list(ids)})


def written(*ids: str, batch: int = 5) -> Written:
    """Return the memory of an archive that has written these rows."""
    made = Written()
    made.found("q", batch - 1)
    made.add(rows(*ids, batch=batch), span(batch, batch))
    return made


def test_later_batches_are_decided_and_all_their_rows_are_new() -> None:
    made = written("a")
    assert made.decides(span(6, 8))
    assert not made.reaches(span(6, 8))
    assert made.fresh(rows("a", batch=6), [span(6, 6)]) == rows("a", batch=6)


def test_rows_of_the_newest_batch_are_recognised_by_their_ids() -> None:
    made = written("a", "b")
    assert made.decides(span(5, 6))
    both = pa.concat_tables([rows("b", "c"), rows("a", "b", batch=6)])
    assert made.fresh(both, [span(5, 6)]) == pa.concat_tables([rows("c"), rows("a", "b", batch=6)])


def test_rows_of_another_query_are_not_taken_for_copies() -> None:
    made = written("a")
    made.found("other", 4)
    both = pa.concat_tables([rows("a"), rows("a", query="other")])
    assert made.fresh(both, [span(5, 5), span(5, 5, "other")]) == rows("a", query="other")


def test_the_newest_batch_is_remembered_part_by_part_and_forgotten_with_the_next() -> None:
    made = written("a")
    made.add(rows("b"), span(5, 5))
    assert made.fresh(rows("a", "b", "c"), [span(5, 5)]) == rows("c")
    made.add(rows("a", batch=7), span(6, 7))
    assert not made.decides(span(5, 7))
    assert made.fresh(rows("a", "b", batch=7), [span(7, 7)]) == rows("b", batch=7)


@pytest.mark.parametrize(("first", "last"), [(4, 4), (4, 6), (0, 5)])
def test_earlier_batches_need_a_look_at_the_table(first: int, last: int) -> None:
    assert not written("a").decides(span(first, last))


def test_a_batch_that_was_found_in_the_table_needs_a_look_at_it() -> None:
    made = Written()
    made.found("q", 5)
    assert not made.decides(span(5, 5))
    assert made.decides(span(6, 6))
    made = written("a")
    made.found("q", 5)
    assert not made.decides(span(5, 5))


def test_malformed_records_always_need_a_look_at_the_table() -> None:
    assert written("a").reaches(span(0, 0, None))
    assert not written("a").decides(span(0, 0, None))
