"""A query client's session, without I/O: the subscriptions to resume once it was lost, and how far it reads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ackstream.client.core.lifetime import AGAIN_SECONDS
from ackstream.client.errors import StreamClosedError
from ackstream.client.queries.message_stream import MessageStream
from ackstream.kafka.reader import POLL_MS
from ackstream.protocol import queries, record_headers
from ackstream.protocol.messages import expected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ackstream.client.queries.bookmarks import Bookmarks
    from ackstream.client.queries.message_stream import LogMessage
    from ackstream.kafka.reader import TopicReader
    from ackstream.protocol.messages import CommandAck


SUBSCRIBING = frozenset({"subscribe", "sow_and_subscribe"})


class QuerySession:
    """Whether the session is lost, since when it was silent, and which subscriptions are ``unresumed`` in this one."""

    def __init__(self, heartbeat: float) -> None:
        """Begin with a heartbeat each ``heartbeat`` seconds."""
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
    own = {
        record_headers.CID: stream.cid,
        record_headers.SUB_ID: str(stream.sub_id),
        record_headers.OPTIONS: "replace",
    }
    return own | headers


class BackPressure:
    """Pauses the reader of the answers, in its thread, and lets it read again the messages that had no room."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self._paused = False

    def steer(self, streams: Sequence[MessageStream]) -> None:
        """Read again the messages that a stream had no room for; pause while only full streams are waited for."""
        behind = [stream for stream in streams if stream.behind is not None]
        ready = [stream for stream in behind if stream.has_room]
        for stream in ready:
            self._go_back(stream)
        pause = bool(behind) and not ready and not any(stream.waiting for stream in streams)
        if pause != self._paused:
            consumer, self._paused = self._reader.consumer, pause
            (consumer.pause if pause else consumer.resume)(*consumer.assignment())

    def _go_back(self, stream: MessageStream) -> None:
        """Read from the first message on that a stream had no room for."""
        number, offset = stream.behind or (0, 0)
        consumer = self._reader.consumer
        partition = next((one for one in consumer.assignment() if one.partition == number), None)
        if partition is not None and (consumer.position(partition, timeout_ms=POLL_MS) or 0) <= offset:
            return
        if partition is None or consumer.beginning_offsets([partition])[partition] > offset:
            remedy = "subscribe again after the last bookmark, and receive faster"
            stream.end(StreamClosedError(f"Kafka has deleted answers that were not received in time: {remedy}."))
        else:
            consumer.seek(partition, offset)
