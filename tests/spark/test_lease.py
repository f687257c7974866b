"""The lease of a job: one run alone lives, is replaced when it is dead, and ends when it has been replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ackstream.errors import StartError, StoppedError
from ackstream.spark import lease
from ackstream.spark.lease import CLAIM, Lease
from tests.harness.lease import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = lease.LEASE_SECONDS


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
    with pytest.raises(StartError) as refused:
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
    with pytest.raises(StartError):
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
