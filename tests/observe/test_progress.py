from __future__ import annotations

from itertools import permutations
from operator import itemgetter
from typing import Any

import pytest

from ackstream.observe.progress import KEPT, RUNS, QueueLine, QueueView, SampleProgress
from ackstream.protocol import readers
from ackstream.protocol.messages import StoredRange
from ackstream.protocol.queues import (
    Alive,
    Bind,
    Bound,
    Drain,
    Drained,
    MessageDelivered,
    SettleMessages,
    Unbind,
    Unbound,
)

NOW = 1_000_000


class Progress(SampleProgress):
    """With short words for what it takes."""

    def __init__(self) -> None:
        super().__init__(60_000)

    def store(self, first: int, last: int, refused: Any = (), client: str = "orders") -> int:
        return self.decided(StoredRange(client, first, last, 1, refused), NOW)

    def acknowledge(
        self, *runs: tuple[int, int], writer: str = "orders", start: int = 1, reported: bool = False
    ) -> int:
        intervals = tuple(readers.AckInterval(first, last, reported=reported) for first, last in runs)
        return self.report(readers.AppAck("log", writer, 1, 1, intervals, start=start), NOW)

    @property
    def reader(self) -> Any:
        (found,) = self.reader_lines(NOW, 10)
        return found


@pytest.fixture
def progress() -> Progress:
    return Progress()


def test_a_range_that_a_replayed_batch_repeats_counts_once(progress: Progress) -> None:
    assert progress.store(1, 10, ((3, 4),)) == 8
    assert progress.store(1, 10, ((3, 4),)) == 0
    assert progress.store(11, 12) == 2
    (line,) = progress.publisher_lines(NOW, 10)
    assert (line.last, line.stored, line.refused) == (12, 10, 2)


def test_a_reader_lacks_what_is_stored_and_neither_acknowledged_nor_refused(progress: Progress) -> None:
    progress.store(1, 10, ((3, 4), (10, 10)))
    progress.acknowledge((1, 2), (5, 6))
    # 7, 8 and 9
    assert progress.reader.behind == 3
    progress.acknowledge((1, 2), (5, 9))
    assert progress.reader.behind == 0


def test_a_reader_that_began_later_lacks_nothing_before(progress: Progress) -> None:
    progress.store(1, 10)
    progress.acknowledge((8, 8), start=8)
    assert progress.reader.behind == 2


def test_of_what_was_decided_before_the_feed_only_the_end_is_known(progress: Progress) -> None:
    # 1 to 99 were decided before; which of 50 to 89 were refused is unknown
    progress.acknowledge((1, 49), (90, 95))
    assert progress.reader.behind is None
    progress.store(100, 101)
    # 96 to 99 are behind everything that it has acknowledged
    assert progress.reader.behind == 6


def test_what_it_lacks_is_summed_over_the_writers_that_are_known(progress: Progress) -> None:
    progress.store(1, 3)
    progress.store(1, 5, client="parts")
    progress.acknowledge((1, 1))
    progress.acknowledge((1, 1), writer="parts")
    progress.acknowledge((1, 1), writer="unknown")
    assert (progress.reader.behind, progress.reader.writers) == (6, 3)


def test_only_what_no_earlier_report_had_counts_as_new(progress: Progress) -> None:
    assert progress.acknowledge((1, 5)) == 5
    assert progress.acknowledge((1, 5), reported=True) == 0
    assert progress.reader.acknowledged == 5


def test_a_reader_of_the_library_alone_is_known_by_its_highest_number(progress: Progress) -> None:
    progress.store(1, 10)
    assert progress.report(readers.ProtocolAck("log", "orders", 1, 6), NOW) == 0
    assert progress.report(readers.ProtocolAck("log", "orders", 1, 7), NOW) == 1
    assert (progress.reader.behind, progress.reader.acknowledged) == (3, 1)


def test_a_reader_that_has_left_is_shown_no_more(progress: Progress) -> None:
    for reader in ("a", "b"):
        progress.report(readers.ReaderStart(reader, 1, "Logger"), NOW)
    progress.report(readers.ReaderAlive("a", 1), NOW + 9)
    progress.report(readers.ReaderStop("b", 1), NOW)
    assert (progress.reader.reader, progress.reader.at, progress.reader.role) == ("a", NOW + 9, "Logger")


def test_questions_are_no_readers(progress: Progress) -> None:
    progress.report(readers.WriterStateRequest("orders"), NOW)
    progress.report(readers.ReadersRequest("me"), NOW)
    assert progress.known == {"publishers": 0, "readers": 0}


def test_what_is_kept_of_anyone_is_limited(progress: Progress) -> None:
    progress.store(1, 3 * RUNS)
    progress.acknowledge(*((2 * n, 2 * n) for n in range(1, RUNS + 2)))
    # in too many runs
    assert (progress.reader.behind, progress.reader.acknowledged) == (None, RUNS + 1)
    for number in range(KEPT + 1):
        progress.acknowledge((1, 1), writer=f"w{number}")
        progress.store(1, 1, client=f"w{number}")
    assert (progress.reader.writers, progress.known["publishers"]) == (KEPT, KEPT)


WINDOW = 60_000
WHO: dict[str, Any] = {"queue": "work", "consumer": "w1", "session": 1}


def delivered(message: str, number: int = 1, **more: Any) -> MessageDelivered:
    place = {"topic": "messages", "partition": 0, "offset": 7, "batch": 3}
    return MessageDelivered(**{**WHO, "number": number, "message": message, "count": 1, **place, **more})


def line(view: QueueView, now: int = 10_000) -> QueueLine:
    (found,) = view.lines(now)
    return found


def test_a_message_is_held_until_it_is_settled() -> None:
    view = QueueView(WINDOW)
    view.request(Bind(**WHO), 900)
    view.answer(Bound(**WHO, number=1, backlog=1, lease_ms=0, session_ms=1, max_lease_ms=1), 950)
    assert view.answer(delivered("m1"), 1_000)
    assert view.answer(delivered("m2"), 2_000)
    assert line(view) == QueueLine("work", 1, 2, 9_000, 1, 2, 0, 0, 0, 2_000)
    view.request(SettleMessages(**WHO, messages=("m1", "never")), 3_000)
    # a message may have been delivered before the window
    assert line(view) == QueueLine("work", 1, 1, 8_000, 1, 2, 0, 2, 0, 3_000)


DELIVERED, AGAIN, FAILED, SETTLED = (
    (1_000, delivered("m1")),
    (3_000, delivered("m1", count=2)),
    (2_000, SettleMessages(**WHO, messages=("m1",), outcome="failed")),
    (4_000, SettleMessages(**WHO, messages=("m1",))),
)


@pytest.mark.parametrize(
    "records", [(DELIVERED, SETTLED), (DELIVERED, FAILED, AGAIN), (DELIVERED, FAILED, AGAIN, SETTLED)]
)
def test_settlements_and_deliveries_are_read_in_any_order(records: tuple[tuple[int, Any], ...]) -> None:
    # they are on two topics, and the past of one may be read first; each topic is read in order
    lines = set()
    for order in permutations(records):
        topics = [[one for one in order if isinstance(one[1], MessageDelivered) is kind] for kind in (True, False)]
        if topics == [sorted(topic, key=itemgetter(0)) for topic in topics]:
            view = QueueView(WINDOW)
            for at, record in order:
                view.answer(record, at) if isinstance(record, MessageDelivered) else view.request(record, at)
            found = line(view)
            lines.add((found.delivered, found.settled, found.held))
    settled = sum(one in (FAILED, SETTLED) for one in records)
    assert lines == {(len(records) - settled, settled, records[-1] is AGAIN)}


def test_a_copy_of_a_delivery_counts_once_and_a_redelivery_again() -> None:
    view = QueueView(WINDOW)
    assert view.answer(delivered("m1"), 1_000)
    assert not view.answer(delivered("m1"), 1_500)
    assert view.answer(delivered("m1", consumer="w2", count=2), 4_000)
    found = line(view)
    assert (found.held, found.most, found.delivered, found.redelivered, found.oldest) == (1, 2, 2, 1, 6_000)


def test_a_lease_that_has_ended_takes_the_message_back() -> None:
    view = QueueView(WINDOW)
    view.answer(Bound(**WHO, number=1, backlog=1, lease_ms=4_000, session_ms=1, max_lease_ms=9_000), 950)
    view.answer(delivered("m1"), 1_000)
    assert line(view, 4_999).held == 1
    assert (line(view, 5_000).held, line(view, 5_000).oldest) == (0, None)


def test_work_that_goes_on_keeps_a_message_and_settles_nothing() -> None:
    view = QueueView(WINDOW)
    view.answer(Bound(**WHO, number=1, backlog=1, lease_ms=4_000, session_ms=1, max_lease_ms=9_000), 950)
    view.answer(delivered("m1"), 1_000)
    view.request(SettleMessages(**WHO, messages=("m1", "never"), outcome="working"), 3_000)
    assert (line(view, 6_999).held, line(view, 6_999).oldest, line(view, 6_999).settled) == (1, 5_999, 0)
    assert line(view, 7_000).held == 0


def test_a_consumer_that_leaves_or_is_lost_holds_nothing() -> None:
    for end in (Unbind(**WHO), Unbound(**WHO, reason="lost")):
        view = QueueView(WINDOW)
        view.request(Alive(**WHO), 900)
        view.answer(delivered("m1"), 1_000)
        view.answer(delivered("m2", consumer="w2"), 1_000)
        if isinstance(end, Unbind):
            view.request(end, 2_000)
        else:
            view.answer(end, 2_000)
        assert (line(view).held, line(view).consumers) == (1, 0)


def test_a_drained_queue_holds_nothing() -> None:
    view = QueueView(60_000)
    view.answer(delivered("m1"), 1_000)
    view.request(Drain("work", "ada", 7), 2_000)
    assert line(view).held == 1
    assert not view.answer(Drained("work", "ada", 7, 1), 3_000)
    assert (line(view).held, line(view).settled) == (0, 0)


def test_the_queue_with_most_messages_held_comes_first() -> None:
    view = QueueView(WINDOW)
    view.dead("quiet", 1_000)
    view.answer(delivered("m1"), 1_000)
    assert [(found.queue, found.held, found.dead) for found in view.lines(2_000)] == [("work", 1, 0), ("quiet", 0, 1)]
