"""The answers to commands: messages with the acknowledgements between them, and which of them a session resumes."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from ackstream.client.core.arguments import check_callables
from ackstream.client.core.connection import OfOneProcess
from ackstream.client.core.lifetime import AGAIN_SECONDS, call_handler
from ackstream.client.errors import CommandTimeout, StreamClosedError
from ackstream.client.queries.bookmarks import Bookmarks, LogMessage
from ackstream.protocol import queries, record_headers
from ackstream.protocol.messages import AckType, CommandAck, expected
from ackstream.protocol.queries import Position

SUBSCRIBING = frozenset({"subscribe", "sow_and_subscribe"})

MAX_BUFFERED_BYTES = 32_000_000
"""Maximum bytes of messages in a stream that the application has not received; further ones wait in Kafka."""

Location = tuple[int, int]
"""Partition and offset of a record with an answer."""


class MessageStream(OfOneProcess, Iterator[LogMessage]):
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
        check_callables(handler=handler)
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
        """Whether it has taken all messages that had arrived for it."""
        return self._taken == self._offered

    @property
    def reached(self) -> Position | None:
        """The position in the log up to which it has received everything, once it has caught up, if known."""
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
        """Continue with the answers to another command, which subscribes to the messages after :attr:`reached`."""
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
        """Add an acknowledgement; drop a duplicate, and a bookmark after messages that were not taken."""
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


def stream_of(
    command: str,
    cid: str,
    requested: set[str],
    headers: Mapping[str, str],
    bookmarks: Bookmarks | None,
    handler: Callable[[LogMessage], None] | None,
) -> MessageStream:
    """Return the stream for the answer to a command; ``bookmarks`` keep the progress of a named subscription."""
    bookmark = headers.get(record_headers.BOOKMARK)
    sub_id = headers.get(record_headers.SUB_ID, cid) if command in SUBSCRIBING else None
    awaited = expected(command, requested, bookmark=bookmark is not None, filtered=record_headers.FILTER in headers)
    if record_headers.SEQ in headers:
        # conflated over sequence numbers, it names no command
        awaited.discard("persisted")
    # without a name of its own a subscription cannot be resumed
    if bookmark is None or sub_id is None or record_headers.SUB_ID not in headers:
        bookmarks = None
    if bookmarks is not None:
        bookmarks.open(str(sub_id), headers.get(record_headers.TOPIC, ""))
    ends = bookmark is not None and queries.ends(bookmark) and "completed" in awaited
    if ends:
        awaited.discard("persisted")
    live = command in SUBSCRIBING and not ends
    stream = MessageStream(cid, sub_id, awaited, live=live, bookmarks=bookmarks, handler=handler)
    stream.request, stream.requested = dict(headers), frozenset(requested)
    return stream


def resumption(stream: MessageStream) -> dict[str, str]:
    """Return the headers of a subscription after the position that a stream has reached, if it has one."""
    kept = (record_headers.TOPIC, record_headers.FILTER, record_headers.BOOKMARK)
    headers = {name: stream.request[name] for name in kept if name in stream.request}
    if stream.reached is not None:
        headers[record_headers.BOOKMARK] = queries.bookmark(stream.reached, headers[record_headers.TOPIC])
    own = {record_headers.CID: stream.cid, record_headers.SUB_ID: str(stream.sub_id)}
    return own | headers | {record_headers.OPTIONS: "replace"}


class QuerySession:
    """The state of a session: whether it is lost, its last answer, and its ``unresumed`` subscriptions."""

    def __init__(self, heartbeat: float) -> None:
        self.lost = False
        self.unresumed: list[MessageStream] = []
        self.answered_at = time.monotonic()
        self._heartbeat = heartbeat

    @property
    def pause(self) -> float:
        """Seconds until the next heartbeat, or the next attempt to begin again."""
        if self.lost:
            return AGAIN_SECONDS
        # a subscription that waits for its application must not cost the session
        return min(AGAIN_SECONDS, self._heartbeat) if self.unresumed else self._heartbeat

    @property
    def silent(self) -> bool:
        """Whether the service has answered nothing for two heartbeats."""
        return time.monotonic() - self.answered_at > 2 * self._heartbeat

    def receive(self, ack: CommandAck, subscriptions: list[MessageStream]) -> None:
        """Note the answer to a heartbeat: the session is lost, or its streams have everything up to a position."""
        if ack.status != "success":
            self.lost = True
        elif isinstance(ack.bookmark, str):
            # a release that does not name the position names none
            position, unresumed = queries.parse_bookmark(ack.bookmark), self.unresumed
            for stream in subscriptions:
                if stream not in unresumed:
                    stream.reach(position)

    def begin_again(self, subscriptions: list[MessageStream]) -> None:
        """Note a new session, after the end of one that had these subscriptions."""
        self.lost = False
        # one that ends needs no session: Kafka has all its answers
        self.unresumed = [one for one in subscriptions if one.live and one.begun]

    def ready(self, subscriptions: list[MessageStream]) -> list[MessageStream]:
        """Return the streams to subscribe for again now: those that have taken all messages of the earlier session.

        That session's answers to a query are in any order: no position shows which of them are missing.
        """
        # one that is about to be replaced must not be sent behind its successor
        newest = {stream.sub_id: stream for stream in subscriptions}
        self.unresumed = [stream for stream in self.unresumed if not stream.over]
        return [one for one in self.unresumed if one.caught_up and newest.get(one.sub_id) is one]
