"""The bookmark store: what an application has done with of its subscriptions, in memory or in an SQLite file."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from ackstream.client.storage import StoreFile
from ackstream.protocol import queries
from ackstream.protocol.queries import BEGINNING, EPOCH, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


_VERSION = 1
_SCHEMA = """
CREATE TABLE subscriptions (sub_id TEXT PRIMARY KEY, topic TEXT NOT NULL, resume TEXT NOT NULL);
CREATE TABLE discarded (sub_id TEXT NOT NULL, bookmark TEXT NOT NULL, PRIMARY KEY (sub_id, bookmark));
"""


class MemoryBookmarks:
    """Bookmarks by subscription, gone with the process. Safe to use from several threads."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._topics: dict[str, str] = {}
        self._progress: dict[str, SubscriptionProgress[Position]] = {}

    def open(self, sub_id: str, topic: str) -> None:
        """Know a subscription; one that is known keeps its topic."""
        with self._lock:
            if sub_id not in self._topics:
                self._topics[sub_id] = topic
                self._progress[sub_id] = SubscriptionProgress(BEGINNING)

    def most_recent(self, sub_id: str) -> str:
        """Return the bookmark after which a subscription goes on, ``EPOCH`` where nothing is known of it."""
        with self._lock:
            return self._resume(sub_id) if sub_id in self._topics else EPOCH

    def received(self, sub_id: str, bookmark: str) -> bool:
        """Note a message; return whether the application gets it: not what it has done with."""
        with self._lock:
            return self._progress[sub_id].received(queries.parse_bookmark(bookmark))

    def discard(self, sub_id: str, bookmark: str) -> None:
        """Note that the application has done with a message; of a subscription without bookmarks nothing is kept.

        :raises StoreError: it cannot be kept
        """
        with self._lock:
            if sub_id not in self._progress:
                return
            self._progress[sub_id].discard(queries.parse_bookmark(bookmark))
            self._keep(sub_id, bookmark)

    def persisted(self, sub_id: str, bookmark: str) -> None:
        """Note how far the log is.

        :raises StoreError: it cannot be kept
        """
        with self._lock:
            before = self._resume(sub_id)
            self._progress[sub_id].persisted(queries.parse_bookmark(bookmark))
            if self._resume(sub_id) != before:
                self._keep(sub_id, None)

    def close(self) -> None:
        """Do nothing."""

    def _resume(self, sub_id: str) -> str:
        return queries.bookmark(self._progress[sub_id].resume_after, self._topics[sub_id])

    def _keep(self, sub_id: str, discarded: str | None) -> None:
        """Do nothing: memory keeps it."""


class SqliteBookmarks(MemoryBookmarks):
    """Bookmarks in an SQLite file: they survive the end of the process, however it comes; see ``store_file``.

    What was done with is in the file when ``discard`` returns.
    """

    def __init__(self, path: Path, client: str) -> None:
        """Open a file, or create it.

        :raises StoreError: it is damaged, of another client, in use, or cannot be written
        """
        super().__init__()
        lost = "brings messages again that were done with"
        self._file = StoreFile(path, client, what="bookmark store", version=_VERSION, schema=_SCHEMA, lost=lost)
        for sub_id, topic, resume in self._file.read("SELECT sub_id, topic, resume FROM subscriptions"):
            self._topics[sub_id] = topic
            self._progress[sub_id] = SubscriptionProgress(
                _position(resume), map(queries.parse_bookmark, self._discarded(sub_id))
            )

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _discarded(self, sub_id: str) -> list[str]:
        return [text for (text,) in self._file.read("SELECT bookmark FROM discarded WHERE sub_id = ?", sub_id)]

    def _keep(self, sub_id: str, discarded: str | None) -> None:
        resume = self._resume(sub_id)
        start = _position(resume)
        known = self._discarded(sub_id) + ([] if discarded is None else [discarded])
        # with nothing before it open, what lies behind the point to go on from is said by that point
        passed = [text for text in known if queries.parse_bookmark(text) <= start]
        fresh = () if discarded is None or discarded in passed else (discarded,)
        self._file.change(
            (
                "INSERT INTO subscriptions VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET resume = excluded.resume",
                (sub_id, self._topics[sub_id], resume),
            ),
            *[("INSERT OR IGNORE INTO discarded VALUES (?, ?)", (sub_id, text)) for text in fresh],
            *[("DELETE FROM discarded WHERE sub_id = ? AND bookmark = ?", (sub_id, text)) for text in passed],
        )


def _position(resume: str) -> Position:
    return BEGINNING if resume == EPOCH else queries.parse_bookmark(resume)


# -- Replaying a log from a bookmark, and where a subscription that was interrupted goes on (brokers.md 1.1 A22 to A25).
# The server keeps no read state: the client remembers what it has done with, and the server tells it from time to time
# how far the log has got, whether or not anything matched.


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


class SubscriptionProgress(Generic[Place]):
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
