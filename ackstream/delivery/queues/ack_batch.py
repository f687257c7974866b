"""Acknowledgements of queue messages, collected on the consumer's side (brokers.md A29)."""

from __future__ import annotations

import msgspec

from ackstream.delivery.errors import InconsistentQosError
from ackstream.protocol.app_acks import Outcome


class AckBatch(msgspec.Struct, frozen=True):
    """What goes out at once: plain acknowledgements of several messages, or one message with another outcome."""

    messages: tuple[str, ...]
    outcome: Outcome = "accepted"


class AckBatches:
    """The acknowledgements of one consumer and one queue that wait to be sent."""

    def __init__(self, size: int = 1, timeout_ms: int = 1_000) -> None:
        """Begin with none.

        :param size: so many go out together
        :param timeout_ms: or those that wait so long
        :raises InconsistentQosError: a batch without a timeout might never be full
        """
        if size < 1 or timeout_ms < 0 or (size > 1 and timeout_ms == 0):
            raise InconsistentQosError(
                f"Batches of {size} after {timeout_ms} ms: at least 1, and more than 0 ms for more than 1, are needed."
            )
        self._size = size
        self._timeout_ms = timeout_ms
        self._waiting: list[str] = []
        self._since: int | None = None

    def grant(self, backlog: int) -> None:
        """Take the backlog that was granted: a batch larger than it would never be full (0: any number)."""
        if backlog:
            self._size = min(self._size, backlog)

    def add(self, message: str, now: int, outcome: Outcome = "accepted") -> AckBatch | None:
        """Add a message; return what goes out now. Other outcomes than ``accepted`` go at once, alone."""
        if outcome != "accepted":
            return AckBatch((message,), outcome)
        self._waiting.append(message)
        self._since = now if self._since is None else self._since
        return self.flush() if len(self._waiting) >= self._size else None

    @property
    def deadline(self) -> int | None:
        """When :meth:`due` must be asked again."""
        return None if self._since is None else self._since + self._timeout_ms

    def due(self, now: int) -> AckBatch | None:
        """Return what has waited long enough."""
        deadline = self.deadline
        return self.flush() if deadline is not None and now >= deadline else None

    def flush(self) -> AckBatch | None:
        """Return what waits, as on closing."""
        if not self._waiting:
            return None
        batch, self._waiting, self._since = AckBatch(tuple(self._waiting)), [], None
        return batch
