from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackstream.client.publishing._acks import MAX_BURST, MAX_PAUSE_MS, MAX_TIMEOUT_MS, Retransmission
from ackstream.protocol.dispositions import DUPLICATE


@pytest.mark.parametrize(
    ("durations", "timeout"),
    [([], 2_000), ([100], 2_000), ([1_000], 4_000), ([3_000], 10_000), ([3_000] * 30, 4_002), ([90_000], 61_000)],
)
def test_the_timer_is_two_seconds_or_longer_where_answers_take_longer(durations: list[int], timeout: int) -> None:
    timer = Retransmission(2_000)
    for duration in durations:
        timer.measure(duration)
    assert timer.timeout_ms == pytest.approx(timeout, abs=10)


@pytest.mark.parametrize(("conflation", "timeout"), [(0, 3_000), (250, 3_250), (20_000, 23_000)])
def test_the_timer_allows_for_the_interval_of_merged_acks(conflation: int, timeout: int) -> None:
    timer = Retransmission(2_000, conflation)
    timer.measure(1_000)
    assert timer.timeout_ms == timeout


def test_a_longer_timer_than_the_longest_estimate_is_kept() -> None:
    timer = Retransmission(2 * MAX_TIMEOUT_MS)
    assert timer.timeout_ms == 2 * MAX_TIMEOUT_MS


def test_every_answer_starts_the_timer_anew() -> None:
    timer = Retransmission(2_000)
    timer.answered({1: 0}, 1_900)
    assert timer.due({2: 0}, 3_899) == []
    assert timer.due({2: 0}, 60_000) == [2]


def _play(timer: Retransmission, sent: dict[int, int], times: range) -> list[tuple[int, list[int]]]:
    """Return when which messages are sent again while nothing is answered."""
    found = []
    for now in times:
        if again := timer.due(sent, now):
            sent.update(dict.fromkeys(again, now))
            found.append((now, again))
    return found


def test_a_silent_service_gets_the_oldest_message_alone() -> None:
    copies = _play(Retransmission(2_000), dict.fromkeys(range(1, 1_001), 0), range(0, 600_001, 100))
    assert [again for _, again in copies] == [[1]] * 8


def test_a_silent_service_gets_it_ever_more_rarely_until_it_answers() -> None:
    timer, sent = Retransmission(2_000), {1: 0}
    copies = _play(timer, sent, range(0, 3_600_001, 1_000))
    times = [at // 1_000 for at, _ in copies]
    assert times[:8] == [2, 6, 14, 30, 62, 126, 254, 510]
    assert {after - before for before, after in pairwise(times[7:])} == {MAX_PAUSE_MS // 1_000}
    timer.answered(sent, 3_600_000)
    assert timer.due({2: 3_600_000}, 3_602_000) == [2]


def test_a_pause_is_never_shorter_than_the_timeout() -> None:
    copies = _play(Retransmission(2 * MAX_PAUSE_MS), {1: 0}, range(0, 4 * MAX_PAUSE_MS + 1, 1_000))
    assert [at for at, _ in copies] == [2 * MAX_PAUSE_MS, 4 * MAX_PAUSE_MS]


@pytest.mark.parametrize(("latency", "copies"), [(50_000, 0), (90_000, 1), (300_000, 2)])
def test_a_service_that_is_late_for_long_gets_one_message_again_not_the_window(latency: int, copies: int) -> None:
    """As long as it answers messages that were sent once, none was lost."""
    timer, now = Retransmission(2_000), 0
    timer.measure(25_000)
    resent = []
    for window in range(14):
        sent = dict.fromkeys(range(1_000 * window, 1_000 * (window + 1)), now)
        found = _play(timer, sent, range(now, now + latency, 1_000))
        now += latency
        timer.answered(sent, now)
        resent.append([len(again) for _, again in found])
    assert resent[1:] == [[1] * copies] * 13


def test_messages_that_were_lost_follow_in_ever_larger_numbers() -> None:
    timer, sent = Retransmission(2_000), dict.fromkeys(range(1, 1_001), 0)
    now, bursts = 0, []
    while sent:
        now += 2_000
        again = timer.due(sent, now)
        bursts.append(len(again))
        # the service has none of the others
        timer.answered({seq: sent.pop(seq) for seq in again}, now)
    assert bursts == [1, 2, 4, 8, 16, 32, 64, 128, 256, 489]


def test_an_answer_that_nothing_was_sent_again_for_ends_that() -> None:
    timer = Retransmission(2_000)
    assert timer.due({1: 0, 2: 0, 3: 0}, 2_000) == [1]
    timer.answered({1: 2_000, 2: 0}, 2_500)
    timer.answered({3: 0}, 2_600)
    assert timer.due({4: 2_700, 5: 2_700}, 60_000) == [4]


def test_the_time_to_an_answer_is_not_taken_from_a_message_that_was_sent_twice() -> None:
    timer = Retransmission(2_000)
    timer.due({1: 0}, 50_000)
    timer.answered({1: 50_000}, 50_001)
    assert timer.timeout_ms == 2_000


@given(durations=st.lists(st.integers(0, 10**9), max_size=50), shortest=st.integers(1, 10**6))
def test_the_timer_is_never_shorter_than_what_was_asked_for(durations: list[int], shortest: int) -> None:
    timer = Retransmission(shortest)
    for duration in durations:
        timer.measure(duration)
        assert shortest <= timer.timeout_ms <= max(shortest, MAX_TIMEOUT_MS + 1_000)


def test_a_service_that_always_answers_too_late_gets_no_more_than_that_at_a_time() -> None:
    timer = Retransmission(2_000)
    # one message after the other, so that no answer tells how long answers take
    for number in range(100):
        sent, now = {number: 10_000 * number}, 10_000 * number + 5_000
        assert timer.due(sent, now) == [number]
        timer.answered(sent, now + 1)
    assert len(timer.due(dict.fromkeys(range(10_000), 0), 10**7)) == MAX_BURST


@pytest.mark.parametrize("latency", [5_000, 50_000])
def test_copies_that_the_service_calls_duplicates_tell_how_long_answers_take(latency: int) -> None:
    """Who publishes one message at a time has each one repeated until then: no answer is to one that was sent once."""
    timer, now, resent = Retransmission(2_000), 0, []
    for number in range(12):
        sent = {number: now}
        resent.append(len(_play(timer, sent, range(now, now + latency, 500))))
        now += latency
        timer.answered(sent, now)
        for _ in range(resent[-1]):
            timer.note(DUPLICATE)
    assert resent[0] > 0
    assert resent[1:] == [0] * 11
    window = dict.fromkeys(range(100, 1_100), now)
    assert _play(timer, window, range(now, now + latency, 500)) == []


def test_a_service_that_takes_longer_than_the_longest_estimate_gets_one_copy_of_each_message() -> None:
    timer, now = Retransmission(2_000), 0
    for number in range(12):
        sent = {number: now}
        copies = _play(timer, sent, range(now, now + 90_000, 1_000))
        now += 90_000
        timer.answered(sent, now)
        for _ in copies:
            timer.note(DUPLICATE)
    window = dict.fromkeys(range(100, 1_100), now)
    assert [again for _, again in _play(timer, window, range(now, now + 90_000, 1_000))] == [[100]]


def test_messages_that_were_lost_follow_although_another_one_was_repeated_for_nothing() -> None:
    timer = Retransmission(2_000)
    timer.due({1: 0}, 2_000)
    timer.answered({1: 2_000}, 2_001)
    timer.note(DUPLICATE)
    timer.note(None)
    sent, now, bursts = dict.fromkeys(range(2, 33), 2_001), 2_001, []
    while sent:
        now += 100_000
        again = timer.due(sent, now)
        bursts.append(len(again))
        timer.answered({seq: sent.pop(seq) for seq in again}, now)
    assert bursts == [1, 2, 4, 8, 16]
