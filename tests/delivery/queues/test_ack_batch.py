from __future__ import annotations

import pytest

from ackstream.delivery.errors import InconsistentQosError
from ackstream.delivery.queues.ack_batch import AckBatch, AckBatches


def test_acknowledgements_go_together_when_the_batch_is_full() -> None:
    batches = AckBatches(3)
    assert [batches.add(message, 0) for message in "abcd"] == [None, None, AckBatch(("a", "b", "c")), None]


def test_or_when_the_oldest_has_waited_long_enough() -> None:
    batches = AckBatches(10, 1_000)
    for at, message in enumerate("abcd"):
        batches.add(message, at * 10)
    assert (batches.deadline, batches.due(999)) == (1_000, None)
    assert batches.due(1_000) == AckBatch(("a", "b", "c", "d"))
    assert (batches.deadline, batches.due(5_000)) == (None, None)


def test_another_outcome_goes_at_once_alone() -> None:
    batches = AckBatches(10)
    batches.add("a", 0)
    assert batches.add("b", 1, "failed") == AckBatch(("b",), "failed")
    assert batches.flush() == AckBatch(("a",))
    assert batches.flush() is None


@pytest.mark.parametrize(("granted", "size"), [(2, 2), (9, 3), (0, 3)])
def test_a_batch_is_never_larger_than_the_granted_backlog(granted: int, size: int) -> None:
    batches = AckBatches(3)
    batches.grant(granted)
    sent = [batches.add(str(number), 0) for number in range(size)]
    assert [entry is not None for entry in sent] == [False] * (size - 1) + [True]


@pytest.mark.parametrize(("size", "timeout"), [(0, 1_000), (2, 0), (2, -1)])
def test_a_batch_that_might_never_go_is_refused(size: int, timeout: int) -> None:
    with pytest.raises(InconsistentQosError, match="more than 0 ms for more than 1"):
        AckBatches(size, timeout)
