"""The answer to a command: messages, and the acknowledgements between them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackstream.client.errors import CommandTimeout, StreamClosedError
from ackstream.protocol import queries

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.client.bookmarks import Bookmarks
    from ackstream.errors import ClientError
    from ackstream.protocol.messages import AckType, CommandAck
    from ackstream.protocol.queries import Position

PUBLISH = "publish"


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
        self._awaited = set(awaited)
        self._live = live
        self._bookmarks = bookmarks
        self._handler = handler
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
        if message.command == PUBLISH:
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
