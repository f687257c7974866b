"""Ctrl-C at any time: one is enough, and the cleanup that follows is not interrupted."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ackstream.kafka.clients import Closing

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer signals until the end of the block, which should be short; for the main thread."""
    seen: list[int] = []
    before = {number: signal.signal(number, lambda found, _frame: seen.append(found)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for found in seen:
            signal.raise_signal(found)


class Interrupts(Closing):
    """Turns SIGINT, SIGTERM and SIGHUP into ``KeyboardInterrupt`` until it is closed; for the main thread."""

    def __init__(self) -> None:
        self.seen = False
        self._deaf = False
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self.listen()

    def close(self) -> None:
        """Restore the handlers."""
        for number, before in self._before.items():
            signal.signal(number, before)

    def listen(self) -> None:
        """Handle the signals; call again after a library has replaced the handlers, as PySpark does."""
        for number, before in self._before.items():
            # those that nohup ignores stay ignored
            if before is not signal.SIG_IGN:
                signal.signal(number, self._take)

    def check(self) -> None:
        """Raise for a signal whose exception was lost, as an exception in a destructor is only printed.

        :raises KeyboardInterrupt: a signal was received
        """
        if self.seen and not self._deaf:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignore further signals, so that the cleanup is not interrupted."""
        self._deaf = True

    def _take(self, _number: int, _frame: object) -> None:
        self.seen = True
        if not self._deaf:
            raise KeyboardInterrupt
