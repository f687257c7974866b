"""The answer to a command: messages, and the acknowledgements between them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ackstream.client.core.lifetime import call_handler
from ackstream.client.core.messages import Message, text
from ackstream.client.errors import CommandTimeout, StreamClosedError
from ackstream.protocol import queries, record_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.client.queries.bookmarks import Bookmarks
    from ackstream.protocol.messages import AckType, CommandAck
    from ackstream.protocol.queries import Position


MAX_BUFFERED_BYTES = 32_000_000
"""Of messages in a stream that the application has not received; further ones wait in Kafka."""

Location = tuple[int, int]
"""Partition and offset of a record with an answer."""


@dataclass(frozen=True)
class LogMessage(Message):
    """A message of the log, or the newest one of its key.

    :ivar command: ``sow``, a record that a query has found; ``publish``, a message of a subscription
    :ivar bookmark: its place in the log, after which a subscription can begin
    :ivar sub_id: the subscription that it belongs to; ``None`` in the answer to a query
    :ivar omitted: bytes of value and headers left out, for Kafka's limit; the table ``messages`` has them
    """

    command: str
    bookmark: str
    sub_id: str | None
    bookmarks: Bookmarks | None = field(default=None, repr=False, compare=False)
    omitted: int = 0

    def discard(self) -> None:
        """Mark the message as processed: no resumed subscription repeats it; ``StoreError`` if the file fails."""
        if self.bookmarks is not None and self.sub_id is not None:
            self.bookmarks.discard(self.sub_id, self.bookmark)


def read_message(command: str, record: Any, sub_id: str | None, bookmarks: Bookmarks) -> LogMessage:
    """Return the message in a record of ``query-results``."""
    headers = dict(record.headers)
    return LogMessage(
        text(headers.get(record_headers.CLIENT)),
        text(headers.get(record_headers.TOPIC)),
        headers.get(record_headers.KEY),
        record.value,
        {
            name.removeprefix(record_headers.APPLICATION): value
            for name, value in record.headers
            if name.startswith(record_headers.APPLICATION)
        },
        int(text(headers.get(record_headers.TIMESTAMP))),
        command,
        text(headers.get(record_headers.BOOKMARK)),
        sub_id,
        bookmarks,
        int(headers.get(record_headers.OMITTED) or b"0"),
    )


class MessageStream(Iterator[LogMessage]):
    """The answer to a command as it arrives; to be iterated over by one thread.

    The iteration of a query ends with its last record, that of a subscription with the subscription. It holds a limited
    number of bytes: while it is full, further messages are not taken, and the client reads them again later.

    ``request`` are the headers of the command, ``requested`` its types of acknowledgement, with which a ``live`` stream
    does not end; ``begun``: the service has carried it out. ``position`` is the last message taken, ``behind`` where
    the first one is that was not (none after it is taken before it), ``waiting`` how many threads wait for an answer.
    """

    def __init__(
        self,
        cid: str,
        sub_id: str | None,
        awaited: set[str],
        *,
        live: bool,
        bookmarks: Bookmarks | None,
        handler: Callable[[LogMessage], None] | None,
    ) -> None:
        """Wait for answers until all ``awaited`` types have come; a ``handler`` replaces the iteration."""
        self.cid, self.sub_id = cid, sub_id
        self.request: dict[str, str] = {}
        self.requested: frozenset[str] = frozenset()
        self.begun = False
        self.position: Position | None = None
        self.acks: list[CommandAck] = []
        self.live = live
        self._awaited = set(awaited)
        self._bookmarks, self._handler = bookmarks, handler
        self._messages: deque[LogMessage] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self.behind: Location | None = None
        self.waiting = 0
        # by partition: the offset after the last answer that was taken, and that was there
        self._taken: dict[int, int] = {}
        self._offered: dict[int, int] = {}
        self._seen: set[str] = set()
        self._reached: Position | None = None
        # the log's position by the last bookmark that names no command, and by ``completed`` and heartbeats
        self._marked: Position | None = None
        self._passed: Position | None = None
        self._group = self._group_reached = 0
        self._ended = False
        self._error: Exception | None = None

    # -- for the application -------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> LogMessage | None:
        """Return the next message; ``None`` after ``timeout`` seconds or at the stream's end, whose error is raised."""
        with self._changed:
            self._wait_for(lambda: self._messages or self.over, timeout)
            if self._messages:
                message = self._messages.popleft()
                self._bytes -= message.size
                return message
            if self._error is not None:
                raise self._error
            return None

    def __next__(self) -> LogMessage:
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
            self._wait_for(lambda: self._ended or any(ack.ack_type == ack_type for ack in self.acks), timeout)
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
        return self._ended and self.caught_up

    @property
    def caught_up(self) -> bool:
        """Whether it has taken all messages that were there for it."""
        return self._taken == self._offered

    @property
    def reached(self) -> Position | None:
        """The position in the log up to which it has been given everything, once it has caught up, if it knows."""
        return _latest(self.position, self._marked, self._passed)

    @property
    def has_room(self) -> bool:
        """Whether it takes messages again."""
        return self._bytes <= MAX_BUFFERED_BYTES // 2

    def _wait_for(self, condition: Callable[[], object], timeout: float | None) -> None:
        self.waiting += 1
        try:
            self._changed.wait_for(condition, timeout)
        finally:
            self.waiting -= 1

    # -- for the client that reads -----------------------------------------------------------------------------------

    def begin_again(self, cid: str) -> None:
        """Go on with the answers to another command, which subscribes to the messages after :attr:`reached`."""
        with self._changed:
            self.cid = cid
            self.acks = [ack for ack in self.acks if ack.ack_type != "processed"]

    def begin_group(self, at: Location) -> None:
        """Begin the records of a query; a replayed batch begins them again, and repeats them in the same order."""
        with self._changed:
            if self._take(at):
                self._group = 0

    def add_message(self, at: Location, message: LogMessage) -> None:
        """Add a message; drop a duplicate, and one that the application has discarded."""
        with self._changed:
            if not self._take(at) or self._is_repeated(message):
                return
            position = queries.parse_bookmark(message.bookmark)
            self.position = position if self.position is None else max(position, self.position)
            if self._handler is None:
                self._messages.append(message)
                self._bytes += message.size
                self._changed.notify_all()
                return
        call_handler(self._handler, message)

    def reach(self, position: Position) -> None:
        """Note that everything up to a position of the log was there for it."""
        with self._changed:
            self._passed = _latest(self._passed, position)

    def _take(self, at: Location) -> bool:
        """Return whether to take an answer: not one that was taken, and none before that where the stream is behind."""
        partition, offset = at
        if offset < self._taken.get(partition, 0):
            return False
        self._offered[partition] = max(offset + 1, self._offered.get(partition, 0))
        if self.behind not in (None, at):
            return False
        if self._bytes >= MAX_BUFFERED_BYTES:
            self.behind = at
            return False
        self.behind = None
        self._taken[partition] = offset + 1
        if self.over:
            self._changed.notify_all()
        return True

    def _is_repeated(self, message: LogMessage) -> bool:
        if message.command != "publish":
            self._group += 1
            repeated = self._group <= self._group_reached
            self._group_reached = max(self._group, self._group_reached)
            return repeated
        position = queries.parse_bookmark(message.bookmark)
        if self._reached is not None and position <= self._reached:
            return True
        self._reached = position
        return self._bookmarks is not None and not self._bookmarks.received(str(self.sub_id), message.bookmark)

    def add_ack(self, id_: str, ack: CommandAck) -> None:
        """Add an acknowledgement; drop a duplicate, and a bookmark behind messages that were not taken."""
        begins = False
        with self._changed:
            if ack.cid is not None:
                if id_ in self._seen:
                    return
                self._seen.add(id_)
                self.begun |= ack.ack_type == "processed" and ack.status == "success"
                if ack.ack_type == "completed" and isinstance(ack.bookmark, str):
                    self._passed = _latest(self._passed, queries.parse_bookmark(ack.bookmark))
                    begins = self.live and self.behind is None
            elif not self._is_news(ack):
                return
            self.acks.append(ack)
            self._awaited.discard(ack.ack_type)
            if not self._awaited and not self.live:
                self._ended = True
            self._changed.notify_all()
            if begins and self._bookmarks is not None:
                # where a subscription from now on begins
                self._bookmarks.persisted(str(self.sub_id), str(ack.bookmark))

    def _is_news(self, ack: CommandAck) -> bool:
        """Return whether a bookmark, which names no command, is later than all before it; keep only the last one."""
        if isinstance(ack.bookmark, str):
            position = queries.parse_bookmark(ack.bookmark)
            if self.behind is not None or (self._marked is not None and position <= self._marked):
                return False
            self._marked = position
            if self._bookmarks is not None:
                self._bookmarks.persisted(str(self.sub_id), ack.bookmark)
        self.acks = [one for one in self.acks if one.cid is not None]
        return True

    def end(self, error: Exception | None = None) -> None:
        """End the stream; messages that it has taken can still be received."""
        with self._changed:
            if not self.over:
                self._ended, self._error = True, error
            self.behind, self._offered = None, dict(self._taken)
            self._changed.notify_all()


def _latest(*positions: Position | None) -> Position | None:
    return max((position for position in positions if position is not None), default=None)
