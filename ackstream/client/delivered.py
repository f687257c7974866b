"""A signal as a subscriber gets it, and what is still to be answered of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from ackstream.client.answers import Ack, Answer, failure, messages
from ackstream.client.signal import Signal
from ackstream.protocol.declarations import check_declared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.client.progress import Work
    from ackstream.client.worker import Worker
    from ackstream.protocol.envelopes import Envelope


@dataclass(frozen=True, eq=False)
class Delivered(Signal):
    """A signal that a subscriber got; it may be answered while its handler runs, and later from any thread."""

    _open: Open | None = field(default=None, repr=False)

    def answer(self, answer: Answer) -> None:
        """Send an answer.

        :raises DittoError: a label is invalid or built in, or is none that was asked of this subscriber
        :raises TypeError: it is no answer
        """
        if self._open is not None:
            self._open.send(self, answer)

    def ack(self, status: int = 200, payload: Any = UNSET, label: str | None = None) -> None:
        """Acknowledge: all of ``labels``, or one of them; with a status of 400 or more it is a nack."""
        self.answer(Ack(status, payload, label))


class Open:
    """What is still to be answered of one signal. Safe to use from several threads."""

    def __init__(self, worker: Worker, work: Work, labels: Iterable[str]) -> None:
        self._worker = worker
        self._work = work
        self._missing = set(labels)
        self._held = False
        self._lock = threading.Lock()

    def send(self, signal: Signal, answer: Answer) -> None:
        """Send an answer.

        :raises DittoError: a label is invalid, or none that was asked for
        """
        self._send(signal, messages(signal, answer))

    def finish(self, signal: Signal, ack: Ack) -> None:
        """Acknowledge what was not answered yet."""
        self._send(signal, [(0.0, message) for message in self._left(messages(signal, ack))])

    def fail(self, signal: Signal, error: Exception) -> None:
        """Send a nack for what was not answered yet."""
        self._send(signal, [(0.0, message) for message in self._left((0.0, each) for each in failure(signal, error))])

    def hold(self) -> bool:
        """Keep the signal's offset from being committed until all labels are answered; ``False``: there are none."""
        with self._lock:
            self._held = bool(self._missing)
            if self._held:
                self._worker.outbox.hold(self._work)
            return self._held

    def give_up(self) -> bool:
        """Let the offset go; tell whether it was still held."""
        with self._lock:
            held, self._held = self._held, False
            if held:
                self._worker.outbox.release(self._work)
            return held

    def _left(self, found: Iterable[tuple[float, Envelope]]) -> list[Envelope]:
        return [message for _, message in found if _label(message) is None or _label(message) in self._missing]

    def _send(self, signal: Signal, found: list[tuple[float, Envelope]]) -> None:
        labels = {label for _, message in found if (label := _label(message)) is not None}
        for label in labels:
            check_declared(label, signal.labels)
        for delay, message in found:
            self._worker.send(signal.correlation_id, message, self._work, delay)
        with self._lock:
            self._missing -= labels
            done = not self._missing
        if done:
            self.give_up()


def _label(message: Envelope) -> str | None:
    return message.topic.subject if message.topic.criterion == "acks" else None
