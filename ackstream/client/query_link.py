"""A query client's session with the query job: sends commands, and passes the answers to their streams."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaError

from ackstream.client.errors import CommandTimeout, StreamClosedError, TakenOverError, refused
from ackstream.client.message_stream import Message, MessageStream
from ackstream.client.samples import text
from ackstream.kafka.reader import ClientConnection
from ackstream.protocol import queries, record_headers
from ackstream.protocol.messages import decode_ack, expected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ackstream.client.message_stream import Bookmarks
    from ackstream.protocol.messages import CommandAck
    from ackstream.settings import Kafka

log = logging.getLogger(__name__)

LOGON_AGAIN_SECONDS = 5.0
_SUBSCRIBING = frozenset({"subscribe", "sow_and_subscribe"})
_CANCELLED = _SUBSCRIBING | {"sow"}
"""Commands that are cancelled when they time out: a late success must not leave a subscription behind."""


class QueryLink:
    """Sends each command as one record, and reads the partition with the answers for this client."""

    def __init__(
        self,
        kafka: Kafka,
        client: str,
        bookmarks: Bookmarks,
        *,
        timeout: float,
        heartbeat: float,
        on_ack: Callable[[CommandAck], None] | None,
    ) -> None:
        """Connect and begin to read; parameters and errors as of :class:`QueryClient`."""
        self.timeout = timeout
        self.answered_at = time.monotonic()
        self._name = client
        self._heartbeat = heartbeat
        self._bookmarks = bookmarks
        self._on_ack = on_ack
        self._token = secrets.token_hex(6)
        self._numbers = count(1)
        self._logged_on: tuple[int, int] | None = None
        self._lock = threading.Lock()
        # by cid (brokers.md 1.1 A15, A19)
        self._streams: dict[str, MessageStream] = {}
        self._ended: StreamClosedError | TakenOverError | None = None
        self._beat_at = time.monotonic() + heartbeat
        self._link = ClientConnection(kafka, client, sends="queries", addressed="query-results", linger_ms=0)
        self._link.start(f"ackstream-query-{client}", self._receive, self._step)

    def execute(
        self,
        command: str,
        requested: set[str],
        headers: Mapping[str, str],
        timeout: float | None = None,
        handler: Callable[[Message], None] | None = None,
    ) -> MessageStream:
        """Send a command and wait for its ``processed`` ack; see :class:`QueryClient`.

        :param requested: the types of acks
        :raises StreamClosedError: the client is closed, or has lost its session
        :raises TakenOverError: another client has logged on under this name
        """
        if self._ended is not None:
            raise self._ended
        cid = f"{'logon-' if command == 'logon' else ''}{self._token}-{next(self._numbers)}"
        stream = self._open(command, cid, requested, headers, handler)
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        with self._lock:
            self._streams[cid] = stream
        ack = None
        while ack is None:
            self._send(command, requested, {record_headers.CID: cid, **headers})
            # a logon is repeated: a job that starts for the first time ignores earlier commands
            pause = LOGON_AGAIN_SECONDS if command == "logon" else limit
            try:
                ack = stream.wait("processed", min(deadline - time.monotonic(), pause))
            except CommandTimeout:
                if command == "logon" and time.monotonic() < deadline:
                    continue
                self.remove(stream)
                if command in _CANCELLED:
                    self._send("unsubscribe", (), {record_headers.SUB_ID: stream.sub_id or cid})
                raise CommandTimeout(
                    f"The {command} was not processed within {limit:g} s: is the query job running "
                    "(`ackstream submit query`)?"
                ) from None
        if ack.status != "success":
            self.remove(stream)
            raise refused(ack.reason or "no reason given", f"The {command}")
        for other in self.subscriptions():
            if other.sub_id == stream.sub_id and other is not stream:
                # it has been replaced
                self.remove(other)
        return stream

    def subscriptions(self) -> list[MessageStream]:
        """Return the streams of subscriptions."""
        with self._lock:
            return [stream for stream in self._streams.values() if stream.sub_id is not None]

    def remove(self, stream: MessageStream) -> None:
        """End a stream; ignore further answers for it."""
        stream.end()
        with self._lock:
            self._streams.pop(stream.cid, None)

    def close(self) -> None:
        """Cancel the subscriptions and disconnect; may be called twice."""
        if self._link.stop.is_set():
            return
        if self._ended is None:
            # without a session its subscriptions are gone, or another client's
            self._send("unsubscribe", (), {record_headers.SUB_ID: "all"})
        self._link.close()
        self._end(StreamClosedError("The client was closed."))

    # -- sending -----------------------------------------------------------------------------------------------------

    def _open(
        self,
        command: str,
        cid: str,
        requested: set[str],
        headers: Mapping[str, str],
        handler: Callable[[Message], None] | None,
    ) -> MessageStream:
        bookmark = headers.get(record_headers.BOOKMARK)
        sub_id = headers.get(record_headers.SUB_ID, cid) if command in _SUBSCRIBING else None
        awaited = expected(command, requested, bookmark=bookmark is not None, filtered=record_headers.FILTER in headers)
        if record_headers.SEQ in headers:
            # conflated over sequence numbers, it names no command
            awaited.discard("persisted")
        kept = bookmark is not None and sub_id is not None
        if kept:
            self._bookmarks.open(str(sub_id), headers.get(record_headers.TOPIC, ""))
        ends = bookmark is not None and queries.ends(bookmark) and "completed" in awaited
        return MessageStream(
            cid,
            sub_id,
            awaited - {"persisted"} if ends else awaited,
            live=command in _SUBSCRIBING and not ends,
            bookmarks=self._bookmarks if kept else None,
            handler=handler,
        )

    def _send(self, command: str, requested: Iterable[str], headers: Mapping[str, str]) -> None:
        named = {record_headers.COMMAND: command, record_headers.ACK: ",".join(sorted(requested)), **headers}
        try:
            self._link.send(b"", [(name, value.encode()) for name, value in named.items()])
        except (KafkaError, ValueError) as error:
            log.warning("Kafka rejected the %s command; it will time out: %s", command, error)

    # -- answers: in our thread ----------------------------------------------------------------------------------------

    def _step(self, now: float) -> None:
        if self._logged_on is not None and self._ended is None and now >= self._beat_at:
            self._beat_at = now + self._heartbeat
            self._send(
                "heartbeat", {"processed"}, {record_headers.CID: f"beat-{self._token}", record_headers.OPTIONS: "beat"}
            )

    def _receive(self, record: Any) -> None:
        headers = dict(record.headers)
        command, cid, id_ = (
            text(headers.get(name)) for name in (record_headers.COMMAND, record_headers.CID, record_headers.ID)
        )
        self.answered_at = time.monotonic()
        if command == "ack":
            self._receive_ack(id_, decode_ack(record.value))
        elif command in ("sow", "publish") and (stream := self._streams.get(cid)) is not None:
            stream.add_message(id_, _message(command, record, stream.sub_id, self._bookmarks))

    def _receive_ack(self, id_: str, ack: CommandAck) -> None:
        if self._on_ack is not None:
            self._on_ack(ack)
        cid = ack.cid or ""
        if cid == f"beat-{self._token}" and ack.status != "success":
            self._end(StreamClosedError("The session has expired after missing heartbeats: create a new client."))
        elif cid.startswith("logon-"):
            self._receive_logon(id_, cid)
        with self._lock:
            subscribed = (one for one in self._streams.values() if one.sub_id == ack.sub_id and not one.over)
            stream = self._streams.get(cid) if ack.cid else next(subscribed, None)
            if stream is not None:
                stream.add_ack(id_, ack)
                if stream.over:
                    self._streams.pop(stream.cid, None)

    def _receive_logon(self, id_: str, cid: str) -> None:
        position = _position(id_)
        if cid.startswith(f"logon-{self._token}-"):
            self._logged_on = position
        elif self._logged_on is not None and position > self._logged_on:
            # not an older one whose answer is repeated
            self._end(TakenOverError(f"Another client has logged on as {self._name}; names must be unique."))

    def _end(self, error: StreamClosedError | TakenOverError) -> None:
        with self._lock:
            self._ended = self._ended or error
            streams, self._streams = list(self._streams.values()), {}
            for stream in streams:
                stream.end(error)


def _message(command: str, record: Any, sub_id: str | None, bookmarks: Bookmarks) -> Message:
    headers = dict(record.headers)
    return Message(
        command,
        text(headers.get(record_headers.TOPIC)),
        headers.get(record_headers.KEY),
        record.value,
        text(headers.get(record_headers.BOOKMARK)),
        sub_id,
        text(headers.get(record_headers.CLIENT)),
        int(text(headers.get(record_headers.TIMESTAMP))),
        tuple(
            (name[len(record_headers.APPLICATION) :], value)
            for name, value in record.headers
            if name.startswith(record_headers.APPLICATION)
        ),
        bookmarks,
    )


def _position(id_: str) -> tuple[int, int]:
    """Return the partition and the offset of the command that an answer's id names."""
    partition, _, offset = id_.partition("/")[0].partition("-")
    return int(partition), int(offset)
