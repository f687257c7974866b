"""A time that stands still until the test moves it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ackstream.errors import BadParameterError

if TYPE_CHECKING:
    from collections.abc import Callable


class VirtualTime(ABC):
    """Base of the systems in memory.

    :ivar now: the time in epoch milliseconds
    """

    def __init__(self, start_ms: int = 0) -> None:
        self.now = start_ms

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due meanwhile happens, each at its time.

        :raises BadParameterError: a negative number of seconds
        """
        if seconds < 0:
            raise BadParameterError(f"The number of seconds is {seconds}: time does not go back.")
        until = self.now + round(seconds * 1000)
        while (due := self._due()) is not None and due <= until:
            self._step(due)
        self._step(until)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Let time pass until a condition holds, or until nothing is left that time would change."""
        while not done() and (due := self._due()) is not None:
            self._step(due)

    @abstractmethod
    def _due(self) -> int | None:
        """Return the next time at which something happens, not before now; ``None``: never."""

    @abstractmethod
    def _step(self, now: int) -> None:
        """Move the time to ``now``, and let happen what is due."""
