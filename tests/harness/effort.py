"""What may not take long, whatever somebody sends: told from what would take for ever, on a machine of any speed."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

PIECE_SECONDS = 0.012
"""What :func:`_piece` takes of a processor that has nothing else to do."""
SLACK = 8
"""A busy machine has cold caches; what these tests look for takes tens and thousands of times as long."""


@contextmanager
def soon(seconds: float) -> Iterator[None]:
    """Fail if the block takes much longer; it is no measurement.

    :param seconds: of processor time of this thread, on a quiet machine
    """
    pace = _piece()
    # what all tests together have in memory is not looked through at the expense of this one
    gc.disable()
    try:
        began = time.thread_time()
        yield
        taken = time.thread_time() - began
    finally:
        gc.enable()
    pace = max(pace, _piece(), PIECE_SECONDS) / PIECE_SECONDS
    assert taken < seconds * pace * SLACK, f"{taken:.2f} s, at {pace:.1f} times the usual pace"


def _piece() -> float:
    began = time.thread_time()
    total = 0
    for number in range(300_000):
        total += number & 7
    return time.thread_time() - began
