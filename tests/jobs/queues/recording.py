"""A queue that keeps its events, for tests and scenarios."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.jobs.queues.queue import Queue
from ackstream.jobs.queues.records import Arrival
from ackstream.protocol.queues import Bind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.jobs.queues.records import Event
    from ackstream.jobs.queues.state import QueuedMessage
    from ackstream.settings.jobs import QueueSettings


class NamedArrival(Arrival, frozen=True):
    """A message that a test has named."""

    name: str = ""

    @property
    def id(self) -> str:
        return self.name


class RecordingQueue(Queue):
    """The queue, with its events in ``events`` and its messages as its items; an application gets them at once."""

    def __init__(self, rules: QueueSettings) -> None:
        self.events: list[Event] = []
        super().__init__(rules, self.events.append)

    @property
    def exits(self) -> list[Event]:
        return [event for event in self.events if event.event == "left"]

    def put(self, name: str, now: int, **options: Any) -> None:
        self.enqueue(NamedArrival(now, "t", 0, 0, 0, name=name, **options))

    def join(self, consumer: str, now: int, **options: Any) -> None:
        self.bind(Bind("q", consumer, 1, **options), now)

    def dispatch(self, now: int) -> None:
        before = len(self.events)
        super().dispatch(now)
        self._hand_out_since(before, now)

    def _hand_out_since(self, before: int, now: int) -> None:
        for event in self.events[before:]:
            if event.event == "delivered":
                self.receive(str(event.consumer), event.message, now)
                self.hand_out(str(event.consumer), event.message, now)

    def dispatched(self, now: int) -> list[Event]:
        """Dispatch; return the deliveries."""
        before = len(self.events)
        self.dispatch(now)
        return [event for event in self.events[before:] if event.event == "delivered"]

    def deliver(self, message: str, consumer: str, now: int) -> Event | None:
        """Deliver one message to one consumer if it is waiting and the consumer has room."""
        self.advance(now)
        found, taker = self.messages.get(message), self.consumers.get(consumer)
        if found is None or taker is None or found.holders or found.not_before or not taker.has_room:
            return None
        before = len(self.events)
        self._deliver(found, taker, now)
        self._hand_out_since(before, now)
        return next(event for event in self.events[before:] if event.event == "delivered")

    def __iter__(self) -> Iterator[str]:
        return iter(self.messages)

    def __contains__(self, message: str) -> bool:
        return message in self.messages

    def __getitem__(self, message: str) -> QueuedMessage:
        return self.messages[message]
