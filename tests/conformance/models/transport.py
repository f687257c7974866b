"""Transport acknowledgements: the consumer's library has the messages, whatever the application does with them.

Rules: brokers.md S15, S16; the timers are those of the document ``solace-guaranteed-messaging-acks``. A reader of the
kind ``protocol`` acknowledges so too, each sample at once.
"""

from __future__ import annotations

from ackstream.errors import InconsistentQosError
from ackstream.protocol.intervals import Intervals

RETRANSMIT_MS = 2_000
_ALL = 100


class TransportAcks:
    """The cumulative acknowledgements of one flow, and its protection against copies."""

    def __init__(
        self,
        *,
        window: int = 255,
        threshold_percent: int = 60,
        ack_ms: int = 1_000,
        max_unacknowledged: int | None = None,
        start: int = 1,
    ) -> None:
        """Begin a flow.

        :param window: messages on their way at a time
        :param max_unacknowledged: cap of the queue when the flow was bound; where it is smaller it counts instead
        :param start: the first expected message
        :raises InconsistentQosError: a value is out of its range
        """
        if window < 1 or ack_ms < 0 or not 1 <= threshold_percent <= _ALL:
            raise InconsistentQosError(
                f"A window of {window} messages, {threshold_percent} % of it and {ack_ms} ms: at least 1, 1 to 100, and"
                " at least 0 are needed."
            )
        base = window if max_unacknowledged is None else min(window, max_unacknowledged)
        self.threshold = max(1, base * threshold_percent // _ALL)
        self.received = Intervals(start=start)
        self._ack_ms = ack_ms
        self._waiting = 0
        self._waiting_since: int | None = None

    def receive(self, message: int, now: int) -> bool:
        """Take a message off the wire; return ``False`` for a copy, which the application must not see."""
        new = bool(self.received.add(message))
        # a copy says that the sender does not have our acknowledgement
        self._waiting += 1
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        return new

    @property
    def deadline(self) -> int | None:
        """When :meth:`due` must be asked again."""
        return None if self._waiting_since is None else self._waiting_since + self._ack_ms

    def due(self, now: int) -> int | None:
        """Return the message up to which all are acknowledged now, or ``None``."""
        deadline = self.deadline
        if self._waiting < self.threshold and (deadline is None or now < deadline):
            return None
        self._waiting, self._waiting_since = 0, None
        return self.received.watermark if self.received.watermark >= self.received.start else None


class Retransmissions:
    """The sender's side: what has no transport acknowledgement after two seconds is sent again, for ever."""

    def __init__(self, timeout_ms: int = RETRANSMIT_MS) -> None:
        self._timeout_ms = timeout_ms
        self._sent: dict[int, int] = {}

    def sent(self, message: int, now: int) -> None:
        """Note that a message went out."""
        self._sent[message] = now

    def acknowledge(self, up_to: int) -> None:
        """Take a cumulative acknowledgement."""
        self._sent = {message: at for message, at in self._sent.items() if message > up_to}

    @property
    def deadline(self) -> int | None:
        """When :meth:`due` must be asked again."""
        return min(self._sent.values()) + self._timeout_ms if self._sent else None

    def due(self, now: int) -> list[int]:
        """Return the messages to send again now, in their order; they count as sent."""
        late = sorted(message for message, at in self._sent.items() if now - at >= self._timeout_ms)
        self._sent |= dict.fromkeys(late, now)
        return late
