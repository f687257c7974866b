from __future__ import annotations

from concurrent.futures import Future
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.core.storage import WITHDRAWN, KeptMessage, PublishStore
from ackstream.client.errors import (
    FlushTimeout,
    GapError,
    NotEntitledError,
    RefusedError,
    WindowError,
    WouldBlockError,
)
from ackstream.client.options import PublisherOptions
from ackstream.client.publishing._unacknowledged import UnacknowledgedMessages
from ackstream.client.publishing.publications import FailedMessage, Open, Receipt
from ackstream.protocol.messages import CONFLATION_MS, CommandAck


def _options(**given: Any) -> PublisherOptions:
    return PublisherOptions("localhost:9092", name="p1", **given)


class World:
    """A publisher's messages, with a clock; ``earlier`` ones are kept from an earlier run."""

    def __init__(self, *, earlier: int = 0, log_on: bool = True, **options: Any) -> None:
        self.now = 0
        self.store = PublishStore()
        for seq in range(1, earlier + 1):
            self.store.add(seq, KeptMessage(b"m%d" % seq, []))
        self.failed: list[FailedMessage] = []
        self.receipts: list[Receipt] = []
        self.messages = UnacknowledgedMessages(
            self.store,
            _options(on_receipt=self.receipts.append, on_failed_write=self.failed.append, **options),
            clock=lambda: self.now,
        )
        self.sent = self.messages.logged_on(0).resent if log_on else []

    def add(self, size: int = 0) -> Future[Receipt] | None:
        """Publish a message; ``None`` if the window is full."""
        future: Future[Receipt] = Future()
        message = KeptMessage(b"m%d" % (self.store.last + 1) + b"x" * size, [])
        return future if self.messages.add([(message, Open(future, "context"))]) else None

    def ack(self, seq: int | None, reason: str | None = None, status: str | None = None) -> list[int]:
        status = status or ("failure" if reason else "success")
        return self.messages.acknowledged(CommandAck(ack_type="persisted", seq=seq, reason=reason, status=status))  # type: ignore[arg-type]

    @property
    def returned(self) -> list[tuple[int, str, bytes | None]]:
        return [(message.seq, message.reason, message.value) for message in self.failed]


def test_an_ack_drops_all_messages_up_to_its_number() -> None:
    world = World()
    futures = [world.add() for _ in range(3)]
    world.ack(2)
    assert world.store.numbers() == [3]
    world.ack(1)
    assert len(world.store) == 1
    assert [future and future.done() for future in futures] == [True, True, False]
    assert [(receipt.seq, receipt.first, receipt.context) for receipt in world.receipts] == [
        (1, 1, "context"),
        (2, 2, "context"),
    ]


@pytest.mark.parametrize(
    ("options", "again_ms"), [({}, 2_000), ({"ack_timeout": 7.0}, 7_000), ({"ack_timeout": 0.1}, CONFLATION_MS)]
)
def test_an_unanswered_message_is_sent_again_after_two_seconds_by_default(
    options: dict[str, float], again_ms: int
) -> None:
    world = World(**options)
    world.add()
    world.messages.accepted(1)
    found = []
    for world.now in (again_ms - 1, again_ms):
        found.append(world.messages.overdue())
    assert found == [[], [1]]


def test_windowed_receipts_are_for_the_last_message_of_an_ack() -> None:
    world = World(windowed=True)
    for _ in range(3):
        world.add()
    world.ack(3)
    assert [(receipt.seq, receipt.first) for receipt in world.receipts] == [(3, 1)]


def test_a_refused_message_is_returned_before_it_is_dropped_and_never_sent_again() -> None:
    kept: list[tuple[int, bytes | None, int]] = []
    store = PublishStore()

    def failed(message: FailedMessage) -> None:
        kept.append((message.seq, message.value, len(store)))

    messages = UnacknowledgedMessages(store, _options(on_failed_write=failed))
    messages.logged_on(0)
    futures: list[Future[Receipt]] = [Future(), Future()]
    for number, future in enumerate(futures, 1):
        assert messages.add([(KeptMessage(b"%d" % number, []), Open(future, None))]) == range(number, number + 1)
    messages.acknowledged(CommandAck(ack_type="persisted", status="failure", seq=1, reason="not entitled"))
    assert kept == [(1, b"1", 2)]
    assert store.numbers() == [2]
    with pytest.raises(NotEntitledError):
        futures[0].result(0)
    assert not futures[1].done()


@pytest.mark.parametrize("reason", ["duplicate", "not entitled"])
def test_two_reasons_return_the_message_whatever_the_status_is(reason: str) -> None:
    world = World()
    world.add()
    world.ack(1, reason, "success")
    assert world.returned == [(1, reason, b"m1")]


def test_a_refused_message_that_is_not_kept_is_returned_without_a_copy() -> None:
    world = World()
    world.add()
    world.ack(9, "bad topic")
    assert world.returned == [(9, "bad topic", None)]


def test_an_ack_without_a_number_is_ignored() -> None:
    world = World()
    world.add()
    assert world.ack(None) == []
    assert world.store.numbers() == [1]


def test_the_logon_decides_what_is_sent_again_in_order() -> None:
    world = World(earlier=5, log_on=False)
    assert world.messages.logged_on(3) == ([4, 5], [])
    assert len(world.store) == 2


def test_a_service_that_lacks_dropped_messages_is_refused_if_gaps_are_errors() -> None:
    world = World(earlier=11, log_on=False, error_on_gap=True)
    world.store.drop(10)
    with pytest.raises(GapError, match="8 to 10 are missing") as caught:
        world.messages.logged_on(7)
    assert list(caught.value.missing) == [8, 9, 10]
    assert world.store.numbers() == [11]


def test_a_service_that_lacks_dropped_messages_is_accepted_otherwise() -> None:
    world = World(earlier=11, log_on=False)
    world.store.drop(10)
    assert world.messages.logged_on(7) == ([11], [])


def test_numbers_continue_after_those_of_the_service() -> None:
    world = World(log_on=False)
    world.messages.logged_on(41)
    assert world.store.last + 1 == 42


def test_new_numbers_begin_behind_everything_the_service_has_received() -> None:
    world = World(log_on=False)
    assert world.messages.logged_on(4, 10) == ([], [(5, 10)])
    assert (world.store.last, world.store.discarded) == (10, 10)


def test_numbers_of_no_message_are_holes_also_between_those_that_are_kept() -> None:
    world = World(log_on=False)
    for seq in (5, 6, 9):
        world.store.add(seq, KeptMessage(b"x", []))
    assert world.messages.logged_on(4, 12) == ([5, 6, 9], [(7, 8), (10, 12)])
    assert world.store.last == 12


def test_with_stage_accepted_holes_hold_no_receipt_up() -> None:
    world = World(log_on=False, stage="accepted")
    world.store.add(5, KeptMessage(b"x", []))
    assert world.messages.logged_on(0, 1000) == ([5], [(6, 1000)])
    world.messages.accepted(5)
    future = world.add()
    world.messages.accepted(1001)
    assert future is not None
    assert future.result(0).seq == 1001
    assert len(world.store) == 0


@pytest.mark.parametrize(("window", "ack_timeout"), [(0, 2.0), (-1, 2.0), (10, 0.0)])
def test_a_window_that_could_send_nothing_is_refused(window: int, ack_timeout: float) -> None:
    with pytest.raises(WindowError, match=r"1 (ms )?or more"):
        World(window=window, ack_timeout=ack_timeout)


def test_without_kafka_ack_timeout_only_the_window_is_checked() -> None:
    World(stage="accepted", ack_timeout=0.0)


def test_a_full_window_blocks_until_there_is_room() -> None:
    world = World(window=2)
    world.add()
    world.add()
    assert world.add() is None
    with pytest.raises(WouldBlockError, match="acknowledgements of 2 messages, from number 1 on"):
        world.messages.wait_for_room(timeout=0)
    world.ack(1)
    world.messages.wait_for_room()
    assert world.add() is not None


def test_messages_of_an_earlier_run_are_sent_as_the_window_has_room_and_before_new_ones() -> None:
    world = World(earlier=4, window=2)
    assert world.sent == [1, 2]
    assert world.add() is None
    assert world.ack(1) == [3]
    assert world.add() is None
    assert world.ack(3) == [4]
    assert world.add() is not None


def test_an_ack_for_messages_that_only_the_earlier_run_has_sent_opens_the_window() -> None:
    world = World(earlier=4, window=1)
    assert world.ack(4) == []
    assert len(world.store) == 0
    assert [receipt.seq for receipt in world.receipts] == [1, 2, 3, 4]
    assert world.add() is not None
    assert world.add() is None


def test_an_unanswered_message_is_sent_again_and_again() -> None:
    world = World()
    world.add()
    world.messages.accepted(1)
    world.now = 10
    world.add()
    world.messages.accepted(2)
    seen = []
    for world.now in (1999, 2000, 2010, 5999, 6000):
        seen.append(world.messages.overdue())
    # acks are cumulative: an answer to the oldest is one to all that the service has
    assert seen == [[], [1], [], [], [1]]
    world.ack(2)
    world.now = 9000
    assert world.messages.overdue() == []


def test_the_timer_begins_when_kafka_has_stored_the_message() -> None:
    world = World()
    world.add()
    world.now = 1500
    world.messages.accepted(1)
    world.now = 3499
    assert world.messages.overdue() == []
    world.now = 3500
    assert world.messages.overdue() == [1]


def test_where_answers_take_long_nothing_is_sent_again_before() -> None:
    world = World()
    world.messages.timer.measure(3000)
    world.add()
    world.messages.accepted(1)
    world.now = 9999
    assert world.messages.overdue() == []
    world.now = 10000
    assert world.messages.overdue() == [1]


def test_a_message_that_kafka_still_has_to_store_is_not_sent_again() -> None:
    world = World(ack_timeout=2.0)
    world.add()
    world.now = 2000
    assert world.messages.overdue() == []
    world.messages.rejected(1)
    assert world.messages.overdue() == [1]
    assert world.messages.overdue() == []


def test_with_stage_accepted_kafka_acknowledges_in_order() -> None:
    world = World(stage="accepted")
    futures = [world.add() for _ in range(3)]
    for seq in (2, 1, 3):
        world.messages.accepted(seq)
        assert world.store.numbers() == {2: [1, 2, 3], 1: [3], 3: []}[seq]
    assert all(future and future.done() for future in futures)
    world.now = 10**9
    assert world.messages.overdue() == []


def test_a_future_cannot_be_cancelled_and_harms_nobody() -> None:
    world = World()
    future = world.add()
    assert future is not None
    assert not future.cancel()
    world.ack(1)
    assert future.result(0).seq == 1


def test_the_window_is_bounded_in_bytes_but_a_larger_message_goes_alone() -> None:
    world = World(window_bytes=100)
    assert world.add(size=500) is not None
    assert world.add() is None
    world.ack(1)
    assert world.add(size=60) is not None
    assert world.add(size=60) is None
    assert world.add(size=10) is not None
    world.ack(3)
    assert world.add(size=60) is not None


def test_messages_of_an_earlier_run_are_weighed_too() -> None:
    world = World(earlier=4, window_bytes=5)
    assert world.sent == [1, 2]
    assert world.ack(1) == [3]


TOO_LARGE = RefusedError.of("message too large", "Message 1")


def test_a_message_that_kafka_refuses_for_good_fails_and_its_number_is_withdrawn() -> None:
    world = World(ack_timeout=2.0)
    first, second = world.add(), world.add()
    assert first is not None
    assert second is not None
    world.messages.rejected(1, TOO_LARGE)
    assert first.exception(0) is TOO_LARGE
    assert world.returned == [(1, "message too large", b"m1")]
    # the number is sent without the message, until the service answers
    assert world.messages.overdue() == [1]
    assert world.messages.resend(1) == WITHDRAWN
    world.ack(1, "withdrawn")
    world.ack(2)
    assert second.result(0).seq == 2
    assert [receipt.seq for receipt in world.receipts] == [2]
    assert len(world.returned) == 1
    statistics = world.messages.statistics
    assert (statistics.failed, statistics.acknowledged, statistics.unpersisted) == (1, 1, 0)


def test_a_withdrawal_that_kafka_refuses_too_is_not_sent_without_a_pause() -> None:
    world = World(stage="accepted")
    world.add()
    world.messages.rejected(1, TOO_LARGE)
    assert world.messages.overdue() == [1]
    world.messages.rejected(1, TOO_LARGE)
    assert world.messages.overdue() == []
    world.now = 5000
    assert world.messages.overdue() == [1]
    world.messages.accepted(1)
    assert (len(world.store), world.receipts) == (0, [])


def test_a_message_that_was_stored_before_it_was_refused_is_reported_as_a_duplicate() -> None:
    world = World()
    world.add()
    world.messages.rejected(1, TOO_LARGE)
    world.ack(1, "duplicate")
    assert world.returned == [(1, "message too large", b"m1"), (1, "duplicate", None)]


def test_a_refusal_of_a_message_that_was_acknowledged_meanwhile_is_ignored() -> None:
    world = World()
    future = world.add()
    world.ack(1)
    world.messages.rejected(1, TOO_LARGE)
    assert future is not None
    assert future.result(0).seq == 1
    assert (world.store.numbers(), world.messages.overdue()) == ([], [])


def test_acks_that_are_repeated_after_a_crash_are_applied_once() -> None:
    world = World()
    for _ in range(3):
        world.add()
    for _ in range(2):
        world.ack(1)
        world.ack(2, "not entitled")
        world.ack(3)
    assert world.returned == [(2, "not entitled", b"m2")]
    assert world.messages.statistics.failed == 1


def test_a_flush_to_kafka_waits_for_what_the_window_holds_back() -> None:
    world = World(earlier=3, window=1)
    with pytest.raises(FlushTimeout):
        world.messages.flush("accepted", 0)
    for seq in (1, 2, 3):
        with pytest.raises(FlushTimeout):
            world.messages.flush("accepted", 0)
        world.messages.accepted(seq)
        world.ack(seq) if seq < 3 else None
    world.messages.flush("accepted", 0)
    with pytest.raises(FlushTimeout):
        world.messages.flush("persisted", 0)


def test_a_flush_to_kafka_waits_for_a_message_that_is_about_to_be_sent() -> None:
    world = World()
    world.add()
    with pytest.raises(FlushTimeout):
        world.messages.flush("accepted", 0)


@given(size=st.integers(1, 10), acks=st.lists(st.integers(0, 30), max_size=30))
def test_every_message_is_sent_once_in_order_and_never_more_than_the_window(size: int, acks: list[int]) -> None:
    world = World(earlier=30, window=size)
    sent, done = list(world.sent), 0
    for ack in [*acks, *range(1, 31)]:
        done = max(done, min(ack, sent[-1]))
        sent += world.ack(min(ack, sent[-1]))
        assert sent == list(range(1, len(sent) + 1))
        assert len(sent) - done <= size
    assert sent == list(range(1, 31))


@given(
    sizes=st.lists(st.integers(0, 40), max_size=20),
    window=st.integers(1, 8),
    window_bytes=st.integers(1, 100),
    earlier=st.integers(0, 3),
)
def test_messages_that_are_added_together_get_what_they_get_one_by_one(
    sizes: list[int], window: int, window_bytes: int, earlier: int
) -> None:
    kept = [KeptMessage(b"x" * size, []) for size in sizes]
    together, single = (World(earlier=earlier, window=window, window_bytes=window_bytes) for _ in range(2))
    numbers = together.messages.add([(message, Open(Future(), None)) for message in kept])
    each = (single.messages.add([(message, Open(Future(), None))]) for message in kept)
    assert [*numbers] == [number for one in takewhile(len, each) for number in one]
    assert together.store.numbers()[earlier:] == [*numbers]
    assert together.messages.statistics.published == len(numbers)


KEPT = [1, 2, 3]
"""Of a store that took over with the session ``own``."""


@pytest.mark.parametrize(
    ("takeovers", "last", "begin", "renumbered", "kept", "holes"),
    [
        pytest.param([("own", 0)], 1, 0, [], [2, 3], [], id="nobody else"),
        pytest.param(
            [("own", 0), ("its", 1), ("next", 3)], 3, 0, [2, 3], [4, 5], [], id="another has used two numbers"
        ),
        pytest.param([("own", 0), ("its", 1), ("next", 1)], 1, 0, [2, 3], [4, 5], [(2, 3)], id="another has used none"),
        pytest.param([("own", 0), ("its", 3), ("next", 9)], 9, 0, [], [], [], id="another came after all"),
        pytest.param(
            [("own", 0), ("its", 1), ("next", 3)], 1, 3, [2, 3], [4, 5], [(2, 3)], id="all are to be sent again"
        ),
        pytest.param([("old", 0), ("its", 1), ("own", 1)], 1, 0, [], [2, 3], [], id="another before"),
        pytest.param([("its", 1), ("next", 3)], 3, 0, [1, 2, 3], [4, 5, 6], [], id="so many that it is forgotten"),
        pytest.param([("next", 0)], 1, 0, [], [2, 3], [], id="the service has forgotten all"),
        pytest.param([], 1, 0, [], [2, 3], [], id="the service is an earlier release"),
    ],
)
def test_kept_messages_get_new_numbers_where_another_store_has_used_theirs(
    takeovers: list[tuple[str, int]],
    last: int,
    begin: int,
    renumbered: list[int],
    kept: list[int],
    holes: list[tuple[int, int]],
) -> None:
    world = World(earlier=3, log_on=False)
    world.store.take_over("own", {})
    found = world.messages.logged_on(last, begin, takeovers)
    assert world.returned == [(seq, "renumbered", b"m%d" % seq) for seq in renumbered]
    assert (found.resent, found.holes) == (kept, holes)
    assert [message.value for seq in kept if (message := world.store.get(seq))] == [
        b"m%d" % seq for seq in KEPT[-len(kept) :]
    ][: len(kept)]
    assert world.store.session == (takeovers[-1][0] if takeovers else "own")


def test_a_file_that_knows_no_session_keeps_its_numbers_and_knows_whose_they_are_from_then_on() -> None:
    world = World(earlier=2, log_on=False)
    assert world.messages.logged_on(0, 0, [("its", 0), ("next", 1)]).resent == [1, 2]
    assert world.store.session == "next"


def test_a_refusal_of_the_message_that_another_store_has_under_a_number_is_not_taken_for_one_of_ours() -> None:
    world = World(earlier=2, log_on=False)
    world.store.take_over("own", {})
    for seq in (1, 2):
        world.ack(seq, "not entitled")
    assert world.returned == []
    assert world.messages.logged_on(2, 0, [("own", 0), ("its", 1), ("next", 2)]).resent == [3]
    assert world.returned == [(1, "not entitled", b"m1"), (2, "renumbered", b"m2")]


def test_a_number_that_was_withdrawn_is_not_reported_again_when_it_is_renumbered() -> None:
    world = World(earlier=1, log_on=False)
    world.store.take_over("own", {})
    world.store.withdraw(1)
    assert world.messages.logged_on(1, 0, [("own", 0), ("its", 0), ("next", 1)]).resent == [2]
    assert (world.returned, world.store.get(2)) == ([], WITHDRAWN)
