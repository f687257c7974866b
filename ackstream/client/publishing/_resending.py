"""Which messages a publisher sends again, and when: those that it keeps, at its logon, and unanswered ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

from ackstream.protocol.dispositions import DUPLICATE
from ackstream.protocol.intervals import Interval
from ackstream.protocol.messages import CONFLATION_MS, MAX_NUMBER

Takeovers: TypeAlias = Sequence[tuple[str, int]]
"""Those of the answer to a logon (``CommandAck``)."""

RENUMBERED = "renumbered"
"""The reason of a message that is sent under a new number: another store has used its own."""


class Logon(NamedTuple):
    """The consequences of a logon: the messages to send again now, and the runs of numbers that will never be sent."""

    resent: list[int]
    holes: list[Interval]


def last_own(session: str, takeovers: Takeovers) -> int:
    """Return up to which number those of a store that took over with ``session`` are its own: before the next store."""
    sessions = [name for name, _ in takeovers]
    if session in sessions[:-1]:
        return takeovers[sessions.index(session) + 1][1]
    # of a session from before all takeovers that are remembered it is only known that others have followed it
    forgotten = session and sessions[:-1] and session != sessions[-1]
    return 0 if forgotten else MAX_NUMBER


MAX_TIMEOUT_MS = 60_000
"""However long answers take, the estimate is no longer."""

MAX_PAUSE_MS = 300_000
"""A silent service gets the next repetition after this time at the latest, or after the timeout if it is longer."""

MAX_BURST = 1_024
"""The most messages that are sent again at a time."""


class Retransmission:
    """When an unanswered message is sent again. Pure; times are milliseconds of any clock that only goes forward.

    Source: seed004, two seconds without an acknowledgement (``PUB_ACK_TIME``), without limit (brokers.md 3.1 S4). Here
    an answer takes a batch, and acknowledgements are cumulative, so:

    - there is one timer, that of the oldest message: it begins when Kafka has stored the message, or when the last
      acknowledgement arrived, if that is later;
    - it is longer where answers usually take longer: the estimate is that of TCP (RFC 6298), which begins with three
      times as long as the answer to the logon took; the interval of merged acks comes on top;
    - a silent service gets the oldest message alone again, each time after twice as long (RFC 6298, 5.5). Only if it
      answers that, and is silent about the next ones, they were lost, and twice as many are sent with each timeout. An
      answer to messages that were sent once, or a copy called a duplicate (as in RFC 3522), shows that it is late.
    """

    def __init__(self, ack_timeout_ms: int, conflation_ms: int | None = None) -> None:
        """Wait for ``ack_timeout_ms`` at least, and as long as the service holds merged acks back, besides."""
        self._shortest = ack_timeout_ms
        self._held_back = CONFLATION_MS if conflation_ms is None else conflation_ms
        self._mean: float | None = None
        self._deviation = 0.0
        self._answered = 0
        self.repeated: dict[int, int] = {}
        """Unanswered messages that were sent again, and when first: which copy will be answered is unknown."""
        self._burst = 1
        # how long the last answer took, if it was to the originals
        self._perhaps: int | None = None
        # doubled with each repetition since the last answer
        self._factor = 1

    @property
    def timeout_ms(self) -> int:
        """How long the oldest message waits for an answer."""
        expected = 0.0 if self._mean is None else self._mean + 4 * self._deviation
        return max(self._shortest, min(round(expected), MAX_TIMEOUT_MS) + self._held_back)

    def measure(self, duration_ms: int) -> None:
        if self._mean is None:
            self._mean, self._deviation = duration_ms, duration_ms / 2
        else:
            self._deviation += (abs(self._mean - duration_ms) - self._deviation) / 4
            self._mean += (duration_ms - self._mean) / 8

    def due(self, sent: Mapping[int, int], now: int) -> list[int]:
        """Return those of ``sent`` (all unanswered, ascending, with when each was sent last) to send again now."""
        oldest = next(iter(sent.values()), None)
        timeout = self.timeout_ms
        pause = max(timeout, min(timeout * self._factor, MAX_PAUSE_MS))
        if oldest is None or now < max(oldest, self._answered) + pause:
            return []
        if pause < MAX_PAUSE_MS:
            self._factor *= 2
        again = list(islice(sent, self._burst))
        for seq in again:
            self.repeated.setdefault(seq, sent[seq])
        return again

    def answered(self, sent: Mapping[int, int], now: int) -> None:
        """Note that messages were acknowledged or refused; ``sent`` is when each was sent last."""
        if not sent:
            return
        self._answered, self._factor, self._perhaps = now, 1, None
        once = [at for seq, at in sent.items() if seq not in self.repeated]
        firsts = [self.repeated.pop(seq) for seq in sent if seq in self.repeated]
        if once:
            self.measure(now - once[0])
            self._burst = 1
            return
        self._perhaps = now - firsts[0]
        if not self.repeated:
            self._burst = min(2 * self._burst, MAX_BURST)

    def note(self, reason: str | None) -> None:
        """Take into account why an answer came: that to a duplicate shows that the original was not lost."""
        if reason == DUPLICATE:
            if self._perhaps is not None:
                self.measure(self._perhaps)
            self._perhaps, self._burst = None, 1
