"""Replaying a log from a bookmark, and where a subscription that was interrupted goes on (brokers.md 1.1 A22 to A25).

The server keeps no read state: the client remembers what it has done with, and the server tells it from time to time
how far the log has got, whether or not anything matched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Verdict: TypeAlias = Literal["deliver", "skip"]


class Ordered(Protocol):
    """What has an order."""

    def __lt__(self, other: Any, /) -> bool: ...
    def __le__(self, other: Any, /) -> bool: ...
    def __gt__(self, other: Any, /) -> bool: ...


Place = TypeVar("Place", bound=Ordered)


class Replay:
    """One subscription's way through the log: first what was there, then what is new.

    Positions are per partition, because Kafka has no order over several: the replay is over when every partition has
    reached the end it had when the subscription came.
    """

    def __init__(
        self, after: Mapping[int, int], ends: Mapping[int, int], stop: Mapping[int, int] | None = None
    ) -> None:
        """Begin.

        :param after: the position after which each partition is delivered
        :param ends: the last position of each partition when the subscription came
        :param stop: the last position that is wanted; ``None``: all that will ever come
        """
        self._reached = dict(after)
        self._goals = dict(ends if stop is None else stop)
        self._stop = stop
        self._completed = False

    @property
    def over(self) -> bool:
        """Whether nothing will be delivered any more."""
        return self._completed and self._stop is not None

    def take(self, partition: int, position: int) -> Verdict:
        """Say what is done with the message at a position; positions of a partition rise."""
        if position <= self._reached.get(partition, 0):
            return "skip"
        self._reached[partition] = position
        beyond = self._stop is not None and position > self._stop.get(partition, 0)
        return "skip" if beyond else "deliver"

    def completes(self) -> bool:
        """Tell, once, that the replay has reached its end."""
        if self._completed or any(self._reached.get(part, 0) < goal for part, goal in self._goals.items()):
            return False
        self._completed = True
        return True


class Progress(Generic[Place]):
    """What a client has received and done with of one subscription: the bookmark store.

    Places are in one order, such as the positions of a log.
    """

    def __init__(self, start: Place, discarded: Iterable[Place] = ()) -> None:
        """Go on.

        :param start: the place after which a replay begins
        :param discarded: what was done with behind it
        """
        self._start = start
        self._discarded = set(discarded)
        self._received: set[Place] = set()
        self._persisted: Place | None = None

    def received(self, place: Place) -> bool:
        """Note a message; return whether the application gets it: what it has done with is not shown again."""
        if place <= self._start:
            return False
        self._received.add(place)
        return place not in self._discarded

    def discard(self, place: Place) -> None:
        """Note that the application has done with a message."""
        if place > self._start:
            self._discarded.add(place)
        self._start = self._point()
        self._received = {one for one in self._received if one > self._start}
        self._discarded = {one for one in self._discarded if one > self._start}

    def persisted(self, place: Place) -> None:
        """Note how far the log had got; it does not go back."""
        self._persisted = place if self._persisted is None else max(place, self._persisted)

    @property
    def resume_after(self) -> Place:
        """The place after which to go on: everything up to it was done with, or did not concern this client.

        With nothing outstanding that is the last persisted bookmark, if it is later than the last message; otherwise
        the older of the two.
        """
        point = self._point()
        if self._persisted is None:
            return point
        return max(point, self._persisted) if self._outstanding() is None else min(point, self._persisted)

    def _outstanding(self) -> Place | None:
        return min((one for one in self._received if one not in self._discarded), default=None)

    def _point(self) -> Place:
        outstanding = self._outstanding()
        done = (one for one in self._received if outstanding is None or one < outstanding)
        return max(done, default=self._start)
