"""What all planes do, for a terminal: the feeds of requests and of the other planes together."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from kafka.errors import KafkaError

from ackstream.kafka.clients import Closing
from ackstream.observe.meter import LedgerFeed, Meter, epoch_milliseconds
from ackstream.observe.plane_feed import PlaneFeed
from ackstream.observe.planes import Planes

if TYPE_CHECKING:
    from ackstream.observe.meter import Snapshot, Verdict
    from ackstream.observe.plane_feed import JobSign
    from ackstream.observe.planes import PlanesView
    from ackstream.settings import Settings


class Watched(NamedTuple):
    """What is shown at one moment; times are in epoch milliseconds."""

    now: int
    requests: Snapshot
    trends: dict[Verdict, list[int]]
    newest: int | None
    jobs: list[JobSign]
    planes: PlanesView | None
    note: str


class Watching(Closing):
    """The feeds of requests and of all planes, and what they have shown."""

    def __init__(self, settings: Settings, window: int) -> None:
        """Connect.

        :param window: milliseconds of recent counts
        :raises AckstreamError: the broker is unavailable, or there is no ledger
        """
        self._meter, self._planes = Meter(window), Planes(window)
        self._jobs: list[JobSign] = []
        self._note = ""
        since = epoch_milliseconds() - max(window, settings.correlate.default_timeout)
        with ExitStack() as stack:
            self._ledger = stack.enter_context(LedgerFeed(settings, since))
            self._topics = stack.enter_context(PlaneFeed(settings, since))
            self._connected = stack.pop_all()

    def close(self) -> None:
        """Disconnect."""
        self._connected.close()

    def read_to_end(self) -> None:
        """Read everything that is there.

        :raises KafkaError: the broker is unavailable
        """
        self._ledger.read_to_end(self._meter)
        self._topics.read_to_end(self._planes)
        self._jobs, self._note = self._topics.signs(), self._ledger.warning()

    def follow(self, seconds: float) -> None:
        """Read what comes in so many seconds; note it if Kafka does not respond."""
        try:
            self._jobs, self._note = self._topics.signs(), self._ledger.warning()
        except KafkaError as error:
            self._note = f"Kafka does not respond: {error}"
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for record in self._ledger.records():
                self._meter.take(record.value, record.timestamp)
            self._topics.give(self._planes)

    def now(self) -> Watched:
        """Return what is to be shown."""
        now, meter = epoch_milliseconds(), self._meter
        found = meter.snapshot(now), meter.trends(now), meter.newest
        return Watched(now, *found, self._jobs, self._planes.view(now), self._note)
