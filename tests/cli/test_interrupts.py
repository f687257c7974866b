from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from ackstream.cli.terminal import SIGNALS, Interrupts
from ackstream.spark.session import uninterrupted


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Let no signal be ignored, as SIGHUP is where the tests run by nohup."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts(number: signal.Signals):
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert interrupts.seen
    assert signal.getsignal(number) is before


def test_an_interrupt_that_got_lost_is_found_again():
    with Interrupts() as interrupts:
        interrupts.check()
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            interrupts.check()
            interrupts.listen()
            os.kill(os.getpid(), signal.SIGHUP)
            interrupts.check()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_cleaning_up_is_not_interrupted():
    with Interrupts() as interrupts:
        interrupts.ignore()
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.check()
        assert interrupts.seen


def test_a_library_that_took_the_signals_does_not_keep_them():
    with Interrupts() as interrupts:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupts.listen()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("number", SIGNALS)
def test_what_must_not_be_interrupted_is_finished_first(number: signal.Signals):
    finished = []

    def work() -> None:
        with uninterrupted():
            os.kill(os.getpid(), number)
            finished.append("yes")

    with Interrupts(), pytest.raises(KeyboardInterrupt):
        work()
    assert finished
