"""Ctrl-C at any time: one is enough, and what then cleans up is not interrupted."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let signals wait until the end of the block, which should be short; for the main thread."""
    seen: list[int] = []
    before = {number: signal.signal(number, lambda found, _frame: seen.append(found)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for found in seen:
            signal.raise_signal(found)


class Interrupts:
    """Turns SIGINT, SIGTERM and SIGHUP into ``KeyboardInterrupt``. A context manager, for the main thread."""

    def __init__(self) -> None:
        """Change nothing yet."""
        self.seen = False
        self._deaf = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def listen(self) -> None:
        """Take the signals over; again after a library has taken them (PySpark does, when a session starts)."""
        for number in SIGNALS:
            signal.signal(number, self._take)

    def check(self) -> None:
        """Raise what was seen and got lost: an exception in a destructor is only printed.

        :raises KeyboardInterrupt: a signal has come
        """
        if self.seen and not self._deaf:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Let the cleaning up be done in peace."""
        self._deaf = True

    def _take(self, _number: int, _frame: object) -> None:
        self.seen = True
        if not self._deaf:
            raise KeyboardInterrupt
