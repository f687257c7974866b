"""When a broker acknowledges what a producer has sent (brokers.md 3.1 S1, S2, S6).

As soon as a third of the publish window has come, or one second after the oldest message that is not acknowledged,
or at once where the message asks for it. An ack is about all messages up to its own. Both numbers are fixed.
"""

from __future__ import annotations

WINDOW_PART = 3
WAIT_MS = 1000


class Cadence:
    """For one flow; time in milliseconds."""

    def __init__(self, window: int) -> None:
        """Begin.

        :param window: the publish window
        """
        self._share = max(1, window // WINDOW_PART)
        self._pending = 0
        self._oldest: int | None = None

    def arrived(self, now: int, *, immediately: bool = False) -> bool:
        """Note an accepted message; return whether it is acknowledged now, with all before it."""
        self._pending += 1
        if self._oldest is None:
            self._oldest = now
        return self._reset() if immediately or self._pending >= self._share else False

    def repeated(self) -> bool:
        """Note a retransmission: its sender waits, so it and what is pending are acknowledged now."""
        return self._reset()

    @property
    def deadline(self) -> int | None:
        """When :meth:`expired` has something to do next."""
        return None if self._oldest is None else self._oldest + WAIT_MS

    def expired(self, now: int) -> bool:
        """Return whether an ack is due because of the time."""
        return self.deadline is not None and self.deadline <= now and self._reset()

    def flush(self) -> bool:
        """Return whether something is pending, and take it as acknowledged."""
        return self._pending > 0 and self._reset()

    def _reset(self) -> bool:
        self._pending, self._oldest = 0, None
        return True
