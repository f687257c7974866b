"""Whether a process works, and whether it does its work at the moment: decided from signs that its parts give."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pulse(NamedTuple):
    """A sign that is expected again and again.

    :ivar limit: seconds without one, after which something is wrong
    :ivar vital: the process does not work without it, once it has begun
    :ivar last: the time of the last one; ``None``: there was none yet
    """

    limit: float
    vital: bool
    last: float | None = None


class Report(NamedTuple):
    """What is wrong: one sentence for each."""

    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def answer(self) -> tuple[int, bytes]:
        """Return the status and the JSON body of the answer to a probe."""
        status, found = (200, "ok") if self.ok else (503, "failing")
        return status, json.dumps({"status": found, "problems": self.problems}).encode()


class Health:
    """The signs of life of a process; for any thread. Times are monotonic seconds.

    A process is *live* unless a vital sign has been missing for too long after the first one: a start may take long. It
    is *ready* while all signs that are expected come.
    """

    def __init__(self) -> None:
        self._pulses: dict[str, Pulse] = {}
        self._lock = threading.Lock()

    def expect(self, name: str, limit: float, *, vital: bool = False) -> None:
        """Expect a sign at least so often.

        :param name: the beginning of a sentence, such as ``Kafka``
        """
        with self._lock:
            self._pulses[name] = Pulse(limit, vital)

    def beat(self, name: str, now: float) -> None:
        """Take a sign; one that nobody expects is ignored."""
        with self._lock:
            if (pulse := self._pulses.get(name)) is not None:
                self._pulses[name] = pulse._replace(last=now)

    def forget(self, name: str) -> None:
        """Expect a sign no more: its part has ended in order."""
        with self._lock:
            self._pulses.pop(name, None)

    @contextmanager
    def expecting(self, name: str, limit: float, *, vital: bool = False) -> Iterator[None]:
        """Expect a sign at least so often, for the time of the block."""
        self.expect(name, limit, vital=vital)
        try:
            yield
        finally:
            self.forget(name)

    def live(self, now: float) -> Report:
        """Return why the process has to be started again, if so."""
        vital = [(name, pulse) for name, pulse in self._found() if pulse.vital and pulse.last is not None]
        return Report(tuple(_late(name, pulse, now) for name, pulse in vital if _is_late(pulse, now)))

    def ready(self, now: float) -> Report:
        """Return why the process does not do its work at the moment, if so."""
        pulses = self._found()
        if not pulses:
            return Report(("It is starting.",))
        return Report(tuple(_late(name, pulse, now) for name, pulse in pulses if _is_late(pulse, now)))

    def _found(self) -> list[tuple[str, Pulse]]:
        with self._lock:
            return sorted(self._pulses.items())


def _is_late(pulse: Pulse, now: float) -> bool:
    return pulse.last is None or now - pulse.last > pulse.limit


def _late(name: str, pulse: Pulse, now: float) -> str:
    if pulse.last is None:
        return f"{name}: no sign yet."
    return f"{name}: no sign for {now - pulse.last:.0f} s."


HEALTH = Health()
"""That of this process."""
