"""The lease of a job: one run alone lives, is replaced when it is dead, and ends when it has been replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ackstream.errors import StoppedError, TakenError
from ackstream.spark import lease
from ackstream.spark.lease import CLAIM, Lease, lease_seconds, watching
from ackstream.spark.lease import LEASE_SECONDS as SECONDS
from tests.harness.lease import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    log = Log()
    monkeypatch.setattr(lease, "passing", lambda: log.time / 1000)
    return log  # type: ignore[return-value]


def _waiting(log: Any, *others: Lease) -> Callable[[float], None]:
    """Return a wait in which other runs live."""

    def wait(seconds: float) -> None:
        log.time += round(seconds * 1000)
        for other in others:
            other.sign(log)

    return wait


def _running(log: Any) -> Lease:
    own = Lease("x-lease", SECONDS)
    own.claim(log, _waiting(log))
    own.sign(log)
    return own


@pytest.mark.parametrize(("interval", "seconds"), [(0.1, 3), (1, 3), (5, 15)])
def test_a_lease_is_three_signs_of_life_and_at_least_three_seconds(interval: float, seconds: float) -> None:
    assert lease_seconds(interval) == seconds


def test_a_run_is_named_by_its_claim(log: Any) -> None:
    log.append(b"k", b"v")
    own = _running(log)
    assert (own.run, log.records[1].key) == ("1", CLAIM)
    assert [(record.key, record.value) for record in log.records[2:]] == [(b"1", b"0")]


def test_a_sign_of_life_tells_the_time_of_the_broker(log: Any) -> None:
    own = _running(log)
    log.time += 1_000
    assert own.sign(log) == log.time


def test_a_second_run_is_refused_while_the_first_lives_which_goes_on(log: Any) -> None:
    first = _running(log)
    second, began = Lease("x-lease", SECONDS), log.time
    with pytest.raises(TakenError) as refused:
        second.claim(log, _waiting(log, first))
    assert str(refused.value) == (
        "Another process (host, process 7) runs this job on the same system: it shows signs of life on the topic "
        "x-lease. Stop it first, or give this one a kafka.topic_prefix of its own."
    )
    assert log.time - began < 1_000
    first.sign(log)
    # what was refused leaves nothing to wait for
    first.end(log)
    _running(log)
    assert log.time - began < 1_000


@pytest.mark.parametrize("silent", [0, 2_000, 2_999, 3_000, 60_000, -3_000_000])
def test_a_run_that_was_killed_is_replaced_once_its_lease_has_ended(log: Any, silent: int) -> None:
    _running(log)
    log.time += silent
    began = log.time
    _running(log)
    # however far the broker's clock was set back
    assert log.time - began <= 3_000 - min(3_000, max(0, silent)) + 200


def test_a_run_that_ended_in_order_is_replaced_at_once(log: Any) -> None:
    first = _running(log)
    first.end(log)
    began = log.time
    _running(log)
    assert log.time == began


def test_a_run_that_ends_while_another_one_claims_is_replaced(log: Any) -> None:
    first = _running(log)
    second, began = Lease("x-lease", SECONDS), log.time

    def end(seconds: float) -> None:
        log.time += round(seconds * 1000)
        first.end(log)

    second.claim(log, end)
    assert log.time - began < 1_000


def test_a_run_that_is_alone_reads_no_signs(log: Any) -> None:
    own = _running(log)
    with mock.patch.object(log, "between") as read:
        for _ in range(3):
            log.time += 1_000
            own.sign(log)
    assert not read.called


def test_of_two_that_start_at_once_the_first_claim_wins(log: Any) -> None:
    first, second = Lease("x-lease", SECONDS), Lease("x-lease", SECONDS)
    first.claim(log, _waiting(log))
    with pytest.raises(TakenError):
        second.claim(log, _waiting(log, first))
    first.sign(log)


def test_a_run_that_was_paused_ends_when_it_finds_its_successor(log: Any) -> None:
    first = _running(log)
    log.time += 40_000
    second = _running(log)
    with pytest.raises(StoppedError, match=r"^Another process \(host, process 7\) runs this job"):
        first.sign(log)
    second.sign(log)


@pytest.mark.parametrize("key", [None, b"", b"clock", b"claim", b"-1", "²".encode(), b"999", b"9" * 5_000, b"\xff"])
def test_records_of_others_on_the_topic_end_nothing(log: Any, key: bytes | None) -> None:
    first = _running(log)
    log.append(key, b"4102444800000")
    first.sign(log)
    log.append(key, None)
    first.sign(log)
    first.end(log)
    log.append(key, b"4102444800000")
    _running(log)


# -- a standby ---------------------------------------------------------------------------------------------------------


def _watched(log: Any, watch: Iterator[bool], seconds: float, *running: Lease) -> float:
    """Let time pass while others run until a watch is over, for some seconds at most; return how many passed."""
    began = log.time
    while log.time < began + seconds * 1000:
        log.time += 100
        for other in running:
            other.sign(log)
        if next(watch):
            break
    return (log.time - began) / 1000


def test_a_standby_waits_while_the_run_lives_and_writes_nothing(log: Any) -> None:
    first = _running(log)
    watch = watching(log, SECONDS)
    assert _watched(log, watch, 60, first) == 60
    assert {record.key for record in log.records[1:]} == {b"0"}
    # and it takes over, at once for itself, when the run has been silent for the lease
    assert _watched(log, watch, 60) == pytest.approx(SECONDS)
    began = log.time
    _running(log)
    assert log.time == began


def test_a_standby_takes_over_from_a_run_that_has_ended_in_order(log: Any) -> None:
    first = _running(log)
    watch = watching(log, SECONDS)
    _watched(log, watch, 1, first)
    first.end(log)
    assert next(watch)


def test_a_standby_begins_to_count_silence_anew_when_it_reaches_the_broker_again(log: Any) -> None:
    first = _running(log)
    log.time += 60_000
    watch = watching(log, SECONDS)
    assert _watched(log, watch, 2) == 2
    assert _watched(log, watch, 10, first) == 10


def test_the_time_that_a_broker_takes_to_answer_is_no_silence(log: Any) -> None:
    first = _running(log)
    watch, end = watching(log, SECONDS), log.end

    def slow() -> int:
        log.time += 5_000
        return int(end())

    with mock.patch.object(log, "end", slow):
        assert not next(watch)
    assert _watched(log, watch, 10, first) == 10


def test_the_end_of_a_refused_run_does_not_make_a_standby_claim(log: Any) -> None:
    first = _running(log)
    watch = watching(log, SECONDS)
    _watched(log, watch, 1, first)
    with pytest.raises(TakenError):
        Lease("x-lease", SECONDS).claim(log, _waiting(log, first))
    assert _watched(log, watch, 1, first) == 1


def test_of_two_standbys_one_takes_over_and_the_other_one_waits_for_it(log: Any) -> None:
    first = _running(log)
    watches = [watching(log, SECONDS), watching(log, SECONDS)]
    _watched(log, watches[0], 1, first)
    _watched(log, watches[1], 1)
    second = _running(log)
    with pytest.raises(TakenError):
        Lease("x-lease", SECONDS).claim(log, _waiting(log, second))
    assert _watched(log, watching(log, SECONDS), 10, second) == 10
    second.sign(log)
