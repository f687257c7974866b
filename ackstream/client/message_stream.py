"""The answer to a command: messages, the acknowledgements between them, and an application's progress in them.

The service keeps no read state: the client remembers what it has discarded, and the service reports from time to time
how far the log has grown, whether or not anything matched (brokers.md 1.1 A22 to A25).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackstream.client.errors import CommandTimeout, StreamClosedError
from ackstream.client.storage import StoreFile
from ackstream.protocol import queries
from ackstream.protocol.queries import BEGINNING, EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ackstream.errors import ClientError
    from ackstream.protocol.messages import AckType, CommandAck
    from ackstream.protocol.queries import Position


_VERSION = 1
_SCHEMA = """
CREATE TABLE subscriptions (sub_id TEXT PRIMARY KEY, topic TEXT NOT NULL, resume TEXT NOT NULL);
CREATE TABLE discarded (sub_id TEXT NOT NULL, bookmark TEXT NOT NULL, PRIMARY KEY (sub_id, bookmark));
"""


@dataclass(frozen=True)
class Message:
    """A message of the log, or the newest one of its key.

    :ivar command: ``sow``, a record that a query has found; ``publish``, a message of a subscription
    :ivar client: its publisher
    :ivar timestamp_ms: the broker's time of it, in epoch milliseconds
    :ivar headers: the application's own
    """

    command: str
    topic: str
    key: bytes | None
    value: bytes | None
    bookmark: str
    sub_id: str | None
    client: str
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]
    bookmarks: Bookmarks | None = field(default=None, repr=False, compare=False)

    def discard(self) -> None:
        """Mark the message as processed: a subscription that resumes does not deliver it again.

        :raises StoreError: the bookmark store cannot be written
        """
        if self.bookmarks is not None and self.sub_id is not None:
            self.bookmarks.discard(self.sub_id, self.bookmark)


class MessageStream(Iterator[Message]):
    """The answer to a command as it arrives; to be iterated over by one thread.

    The iteration of a query ends with its last record, that of a subscription with the subscription.
    """

    def __init__(
        self,
        cid: str,
        sub_id: str | None,
        awaited: set[str],
        *,
        live: bool,
        bookmarks: Bookmarks | None,
        handler: Callable[[Message], None] | None,
    ) -> None:
        """Wait for answers.

        :param cid: the command's id
        :param awaited: the types of acknowledgement after which the stream has ended
        :param live: it does not end with them
        :param bookmarks: where the application's progress is kept, if it is
        :param handler: called with each message in the thread that reads, instead of an iteration
        """
        self.cid, self.sub_id = cid, sub_id
        self.acks: list[CommandAck] = []
        self._awaited, self._live = set(awaited), live
        self._bookmarks, self._handler = bookmarks, handler
        self._messages: deque[Message] = deque()
        self._changed = threading.Condition()
        self._seen: set[str] = set()
        self._reached: Position | None = None
        self._ended = False
        self._error: ClientError | None = None

    # -- for the application -------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message; ``None`` if none arrives within ``timeout`` seconds, or the stream has ended.

        :raises ClientError: the stream has ended with that error
        """
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._ended, timeout)
            if self._messages:
                return self._messages.popleft()
            if self._error is not None:
                raise self._error
            return None

    def __next__(self) -> Message:
        message = self.receive()
        if message is None:
            raise StopIteration
        return message

    def wait(self, ack_type: AckType, timeout: float | None = None) -> CommandAck:
        """Wait for an acknowledgement, and return the last one of its type.

        :raises CommandTimeout: it has not arrived in time
        :raises ClientError: the stream has ended without it
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or any(ack.ack_type == ack_type for ack in self.acks), timeout)
            found = next((ack for ack in reversed(self.acks) if ack.ack_type == ack_type), None)
            if found is not None:
                return found
            if self._ended:
                raise self._error or StreamClosedError(f"The command {self.cid} has ended without {ack_type}.")
            raise CommandTimeout(f"No acknowledgement {ack_type} of {self.cid} within {timeout:g} s.")

    @property
    def stats(self) -> CommandAck:
        """The counts of a query or a delete: ``topic_matches``, ``matches``, ``records_returned``, ``…_deleted``."""
        return self.wait("stats")

    @property
    def over(self) -> bool:
        """Whether the stream has ended; messages that have arrived can still be received."""
        return self._ended

    # -- for the client that reads -----------------------------------------------------------------------------------

    def add_message(self, id_: str, message: Message) -> None:
        """Add a message; drop a duplicate, and one that the application has discarded."""
        if message.command == "publish":
            position = queries.parse_bookmark(message.bookmark)
            if self._reached is not None and position <= self._reached:
                return
            self._reached = position
            if self._bookmarks is not None and not self._bookmarks.received(str(self.sub_id), message.bookmark):
                return
        elif self._is_duplicate(id_):
            return
        if self._handler is not None:
            self._handler(message)
            return
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def add_ack(self, id_: str, ack: CommandAck) -> None:
        """Add an acknowledgement; drop a duplicate."""
        if self._bookmarks is not None and ack.ack_type == "persisted" and isinstance(ack.bookmark, str):
            self._bookmarks.persisted(str(self.sub_id), ack.bookmark)
        with self._changed:
            if ack.cid is None:
                # bookmarks arrive for ever: only the last one counts
                self.acks = [one for one in self.acks if one.cid is not None]
            elif self._is_duplicate(id_):
                return
            self.acks.append(ack)
            self._awaited.discard(ack.ack_type)
            if not self._awaited and not self._live:
                self._ended = True
            self._changed.notify_all()

    def end(self, error: ClientError | None = None) -> None:
        """End the stream; what has arrived can still be received."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()

    def _is_duplicate(self, id_: str) -> bool:
        known = id_ in self._seen
        self._seen.add(id_)
        return known


class SubscriptionProgress:
    """The positions that a client has received and discarded in one subscription."""

    def __init__(self, topic: str, start: Position = BEGINNING, discarded: Iterable[Position] = ()) -> None:
        """Resume a replay after ``start``; the ``discarded`` positions are later ones."""
        self.topic = topic
        self.discarded = frozenset(discarded)
        self._start = start
        self._received: set[Position] = set()
        self._persisted: Position | None = None

    def received(self, position: Position) -> bool:
        """Record a message; return whether the application gets it, which it does not if it has discarded it."""
        if position <= self._start:
            return False
        self._received.add(position)
        return position not in self.discarded

    def discard(self, position: Position) -> None:
        """Record that the application has discarded a message."""
        self.discarded |= {position}
        self._start = self._discarded_through()
        self._received = {one for one in self._received if one > self._start}
        self.discarded = frozenset(one for one in self.discarded if one > self._start)

    def persisted(self, position: Position) -> None:
        """Record how far the log has grown; an older report is ignored."""
        self._persisted = position if self._persisted is None else max(position, self._persisted)

    @property
    def resume_after(self) -> Position:
        """The position after which to resume: everything up to it was discarded, or did not match.

        With nothing outstanding, that is the last persisted bookmark if it is later than the last message; otherwise
        the older of the two.
        """
        discarded = self._discarded_through()
        if self._persisted is None:
            return discarded
        choose = max if self._first_outstanding() is None else min
        return choose(discarded, self._persisted)

    def _first_outstanding(self) -> Position | None:
        return min(self._received - self.discarded, default=None)

    def _discarded_through(self) -> Position:
        outstanding = self._first_outstanding()
        done = (one for one in self._received if outstanding is None or one < outstanding)
        return max(done, default=self._start)


class Bookmarks:
    """Bookmarks by subscription, in memory or in a file. Safe to use from several threads.

    The file survives the end of the process, even a crash: a discarded message is in it when ``discard`` returns. Every
    method raises ``StoreError`` for a file that cannot be used.
    """

    def __init__(self, client: str, path: Path | None = None) -> None:
        """Begin empty, or resume from a file, which is created if it does not exist."""
        self._lock = threading.Lock()
        self._progress: dict[str, SubscriptionProgress] = {}
        self._file: StoreFile | None = None
        if path is not None:
            lost = "delivers messages again that were discarded"
            self._file = StoreFile(path, client, what="bookmark store", version=_VERSION, schema=_SCHEMA, lost=lost)
            for sub_id, topic, resume in self._file.read("SELECT sub_id, topic, resume FROM subscriptions"):
                kept = self._file.read("SELECT bookmark FROM discarded WHERE sub_id = ?", sub_id)
                discarded = [queries.parse_bookmark(text) for (text,) in kept]
                self._progress[sub_id] = SubscriptionProgress(topic, queries.parse_bookmark(resume), discarded)

    def open(self, sub_id: str, topic: str) -> None:
        """Add a subscription; a known one keeps its topic and its progress."""
        with self._lock:
            self._progress.setdefault(sub_id, SubscriptionProgress(topic))

    def most_recent(self, sub_id: str) -> str:
        """Return the bookmark after which a subscription resumes; ``EPOCH`` for an unknown one."""
        with self._lock:
            return self._resume(sub_id) if sub_id in self._progress else EPOCH

    def received(self, sub_id: str, bookmark: str) -> bool:
        """Record a message; return whether the application gets it, which it does not if it has discarded it."""
        with self._lock:
            return self._progress[sub_id].received(queries.parse_bookmark(bookmark))

    def discard(self, sub_id: str, bookmark: str) -> None:
        """Record that the application has discarded a message; ignored for a subscription without bookmarks."""
        with self._lock:
            if sub_id in self._progress:
                before = self._progress[sub_id].discarded
                self._progress[sub_id].discard(queries.parse_bookmark(bookmark))
                self._save(sub_id, before)

    def persisted(self, sub_id: str, bookmark: str) -> None:
        """Record how far the log has grown."""
        with self._lock:
            before = self._resume(sub_id)
            self._progress[sub_id].persisted(queries.parse_bookmark(bookmark))
            if self._resume(sub_id) != before:
                self._save(sub_id, self._progress[sub_id].discarded)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()

    def _resume(self, sub_id: str) -> str:
        progress = self._progress[sub_id]
        return queries.bookmark(progress.resume_after, progress.topic)

    def _save(self, sub_id: str, before: frozenset[Position]) -> None:
        """Write what has changed.

        :param before: what the file has as discarded; everything up to the position to resume after is implied by that
        """
        if self._file is not None:
            topic, discarded = self._progress[sub_id].topic, self._progress[sub_id].discarded
            subscription = (sub_id, topic, self._resume(sub_id))
            fresh = [(sub_id, queries.bookmark(position, topic)) for position in discarded - before]
            passed = [(sub_id, queries.bookmark(position, topic)) for position in before - discarded]
            self._file.change(
                (
                    "INSERT INTO subscriptions VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET resume = excluded.resume",
                    subscription,
                ),
                *[("INSERT OR IGNORE INTO discarded VALUES (?, ?)", row) for row in fresh],
                *[("DELETE FROM discarded WHERE sub_id = ? AND bookmark = ?", row) for row in passed],
            )
