"""The answers to the signals of one message, until it is known what becomes of the message.

Source of the rules: Eclipse Ditto, ``ResponseCollectorActor`` (ditto.md 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.protocol.settlement import Answer, Settlement, settle

if TYPE_CHECKING:
    from ackstream.connectivity.replies import Failure

IDLE_SECONDS = 100.0
"""So long after the last news the wait is given up."""


class Collector:
    """Collects the answers of one message. Time is seconds of any clock that only goes forward."""

    def __init__(self, now: float) -> None:
        """Begin to wait; how many answers there will be is not known yet."""
        self._expected: int | None = None
        self._answers: list[Answer] = []
        self._failure: int | None = None
        self._missing = False
        self._news_at = now

    def expect(self, number: int, now: float) -> None:
        """Say how many answers there will be."""
        self._expected = number
        self._news_at = now

    def receive(self, answer: Answer | Failure | None, now: float) -> None:
        """Take an answer, an error that came instead, or ``None``: this one will never come."""
        if isinstance(answer, Answer):
            self._answers.append(answer)
        elif answer is None:
            self._missing = True
        elif self._failure is None:
            self._failure = answer.status
        self._news_at = now

    def settlement(self, now: float) -> Settlement | None:
        """Return what becomes of the message; ``None`` as long as that is open."""
        if self._failure is not None:
            return settle(self._expected or 0, error_status=self._failure)
        arrived = self._expected is not None and len(self._answers) >= self._expected
        if arrived and not self._missing:
            return settle(self._expected, self._answers)
        if self._missing or now - self._news_at >= IDLE_SECONDS:
            return settle(self._expected, self._answers, complete=False)
        return None
