"""Open requests that nothing concerns for long: beside the checkpoint, and back when something does."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from ackstream.jobs.correlate import pending, shard
from ackstream.jobs.correlate.pending import PendingRequests
from ackstream.jobs.correlate.state import ShardState, decode_pending, decode_state, open_requests
from tests.harness.pieces import MemoryPieces
from tests.jobs.correlate.shards import Log, Run

BODY_BYTES = 400
"""About what an open request takes in the tests' states."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryPieces:
    monkeypatch.setattr(pending, "HOT_BYTES", 20 * BODY_BYTES)
    monkeypatch.setattr(pending, "TOUCHED_BYTES", 0)
    return MemoryPieces(keep=3)


def _state(run: Run) -> ShardState:
    assert run.state is not None
    return decode_state(*run.state)


def _open(run: Run) -> list[str]:
    """The ids of the open requests that are in the state itself."""
    return [decode_pending(entry.body).correlation_id for entry in _state(run).open.entries]


def test_a_state_keeps_what_was_touched_last(store: MemoryPieces) -> None:
    log, run = Log(), Run(store=store)
    for number in range(200):
        run.feed(log.command(1000 + number, f"id-{number}", requested_acks=["a-ack"], timeout="60s"))
    state = _state(run)
    assert _open(run) == [f"id-{number}" for number in range(200 - len(state.open.entries), 200)]
    assert sum(len(entry.body) for entry in state.open.entries) <= pending.HOT_BYTES
    assert len(state.open.entries) + sum(reference.live for reference in state.open.pieces.named) == 200
    # few pieces, each written rarely, and none kept for longer than a state may name it
    assert len(state.open.pieces.named) <= 5
    assert len(store.found) <= len(state.open.pieces.named) + store.keep + 1
    assert run.next_timeout == 61_000


def test_a_request_that_is_acknowledged_in_part_stays_longer_than_those_that_nothing_concerns(
    store: MemoryPieces,
) -> None:
    log, run = Log(), Run(store=store)
    numbers = itertools.count()

    def open_one() -> None:
        run.feed(log.command(1000, f"id-{next(numbers)}", requested_acks=["a-ack", "b-ack"], timeout="60s"))

    open_one()
    while not _state(run).open.pieces.named:
        open_one()
    first, second = _open(run)[:2]
    for _ in range(10):
        open_one()
    run.feed(log.ack(2000, "a-ack", correlation_id=first))
    while second in _open(run):
        open_one()
    assert first in _open(run)


def test_an_acknowledgement_brings_its_request_back(store: MemoryPieces) -> None:
    log, run = Log(), Run(store=store)
    ids = [f"id-{number}" for number in range(100)]
    run.feed(*(log.command(1000, key, requested_acks=["a-ack", "b-ack"], timeout="60s") for key in ids))
    assert ids[0] not in _open(run)
    run.feed(log.ack(2000, "a-ack", correlation_id=ids[0]))
    assert ids[0] in _open(run)
    run.feed(log.ack(2001, "b-ack", correlation_id=ids[0]))
    assert [reply["headers"]["correlation-id"] for reply in run.replies()] == ids[:1]
    assert len(open_requests(_state(run), store)) == 99


def test_each_times_out_at_its_deadline_wherever_it_is(store: MemoryPieces) -> None:
    log, run = Log(), Run(store=store)
    for number in range(100):
        seconds = 10 + number % 7
        run.feed(log.command(1000, f"id-{number}", requested_acks=["a-ack"], timeout=f"{seconds}s"))
    for second in range(10, 17):
        assert run.next_timeout == 1000 * (second + 1)
        run.feed(watermark=1000 * (second + 1) + 1)
        expected = sum(10 + number % 7 <= second for number in range(100))
        assert len(run.replies()) == expected
    assert {reply["status"] for reply in run.replies()} == {408}
    assert run.next_timeout is None


@pytest.mark.parametrize("hot", [0, 10**9])
def test_a_request_with_the_hash_of_another_expires_with_its_batch_wherever_it_is(
    store: MemoryPieces, monkeypatch: pytest.MonkeyPatch, hot: int
) -> None:
    monkeypatch.setattr(pending, "HOT_BYTES", hot)
    # all is put aside again in the middle of the batch
    monkeypatch.setattr(shard, "BUDGET", 1)
    log, run = Log(), Run(store=store, recent_memory="1s")
    uses = [("p", 0, 1), ("q", 1, 5), ("p", 10_000, 60)]
    first, other, again = (
        replace(log.command(at, key, requested_acks=["a-ack"], timeout=f"{timeout}s"), hash=7)
        for key, at, timeout in uses
    )
    run.feed(first, other)
    run.feed(again, log.ack(10_001, "b-ack", correlation_id="z"), watermark=50_000)
    assert [reply["headers"]["correlation-id"] for reply in run.replies()] == ["p", "q"]


def test_a_large_batch_keeps_what_the_next_one_may_close(store: MemoryPieces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "TOUCHED_BYTES", 2 * BODY_BYTES)
    log, run = Log(), Run(store=store)
    run.feed(*(log.command(1000, f"id-{number}", requested_acks=["a-ack"]) for number in range(100)))
    assert (len(_open(run)), store.found) == (100, {})
    # a small one does not carry them on
    run.feed(log.ack(1001, "a-ack", correlation_id="id-7"))
    assert len(_open(run)) < 20
    assert len(open_requests(_state(run), store)) == 99


def test_when_all_is_decided_nothing_is_left(store: MemoryPieces) -> None:
    log, run = Log(), Run(store=store, recent_memory="1s")
    ids = [f"id-{number}" for number in range(100)]
    run.feed(*(log.command(1000, key, requested_acks=["a-ack"], timeout="60s") for key in ids))
    assert store.found
    run.feed(*(log.ack(2000, "a-ack", correlation_id=key) for key in ids))
    assert len(run.replies()) == 100
    # the pieces stay as long as the state before could be read again
    assert _state(run).open.pieces.named == []
    for _ in range(store.keep + 2):
        run.feed(watermark=200_000)
    assert (run.state, store.found) == (None, {})


def _oldest(run: Run) -> int | None:
    return PendingRequests(run.store, _state(run).open).oldest_start


def test_the_oldest_one_is_known_wherever_it_is(store: MemoryPieces) -> None:
    log, run = Log(), Run(store=store)
    ids = [f"id-{number}" for number in range(100)]
    for number, key in enumerate(ids):
        run.feed(log.command(1000 + number, key, requested_acks=["a-ack"], timeout="60s"))
    assert _state(run).open.pieces.named
    for number, key in enumerate(ids):
        assert _oldest(run) == 1000 + number
        run.feed(log.ack(2000, "a-ack", correlation_id=key))
    assert _oldest(run) is None


def test_of_unequal_timeouts_put_aside_the_one_that_ends_first_counts(store: MemoryPieces) -> None:
    log, run = Log(), Run(store=store)
    run.feed(log.command(1000, "long", requested_acks=["a-ack"], timeout="600s"))
    assert _oldest(run) == 1000
    ids = [f"id-{number}" for number in range(100)]
    run.feed(*(log.command(2000, key, requested_acks=["a-ack"], timeout="60s") for key in ids))
    assert "long" not in _open(run)
    assert _oldest(run) == 2000
    run.feed(watermark=70_000)
    assert _oldest(run) == 1000


def test_a_state_with_pieces_is_refused_where_they_cannot_be(store: MemoryPieces) -> None:
    log, run = Log(), Run(store=store)
    run.feed(*(log.command(1000, f"id-{number}", requested_acks=["a-ack"]) for number in range(100)))
    run.store = None
    with pytest.raises(ValueError, match="has pieces beside its checkpoint"):
        run.feed()


def test_of_many_in_the_state_the_one_that_ends_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    log, run = Log(), Run()
    for number, timeout in enumerate(("600s", "60s", "1s", "90s")):
        run.feed(log.command(1000 + number, f"id-{number}", requested_acks=["a-ack"], timeout=timeout))
    run.feed(log.ack(1500, "a-ack", correlation_id="id-2"))
    assert _oldest(run) == 1000
    monkeypatch.setattr(pending, "FEW", 2)
    assert _oldest(run) == 1001
