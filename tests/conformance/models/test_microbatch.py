from __future__ import annotations

from tests.conformance.models.microbatch import BatchAcks


def test_a_batch_is_acknowledged_when_the_next_one_starts() -> None:
    batches: BatchAcks[int] = BatchAcks()
    batches.read(0, [1, 2, 3])
    batches.commit(0)
    assert batches.unacknowledged == [1, 2, 3]
    assert batches.start(1) == [1, 2, 3]
    assert (batches.unacknowledged, batches.start(2)) == ([], [])


def test_a_batch_that_was_not_committed_comes_again() -> None:
    batches: BatchAcks[int] = BatchAcks()
    batches.read(0, [1, 2])
    assert batches.start(0) == []
    batches.read(0, [1, 2])
    batches.commit(7)
    assert batches.start(1) == []
    assert batches.unacknowledged == [1, 2]
