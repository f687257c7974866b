"""A query client's connection with the query job; a second thread sends heartbeats, and begins a lost session again."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

from kafka.errors import KafkaError

from ackstream.client.core.connection import Connection
from ackstream.client.core.lifetime import AGAIN_SECONDS, Lifetime, Session, call_handler
from ackstream.client.core.messages import text
from ackstream.client.errors import CommandTimeout, RefusedError, StreamClosedError, TakenOverError
from ackstream.client.options import QueryOptions
from ackstream.client.queries.bookmarks import Bookmarks, LogMessage, read_message
from ackstream.client.queries.message_stream import SUBSCRIBING, MessageStream, QuerySession, resumption, stream_of
from ackstream.kafka.reader import POLL_MS
from ackstream.protocol import queries, record_headers
from ackstream.protocol.messages import CommandAck, decode_ack

log = logging.getLogger(__name__)

_CANCELLED = SUBSCRIBING | {"sow"}
"""Commands that are cancelled when they time out: a late success must not leave a subscription behind."""


class QueryLink:
    """Sends each command as one record, and reads the partition with the answers for this client.

    :ivar order: held while a command is sent, and from a new logon until the subscriptions of the session before are
        sent: a stream that is open then belongs to the session before, and all answers of that have been read
    """

    def __init__(self, connection: Connection, options: QueryOptions, bookmarks: Bookmarks) -> None:
        """Connect and begin to read; parameters and errors as of ``QueryClient``."""
        self.timeout = options.timeout
        self.life = Lifetime(self._end, options.on_error, options.on_connection, f"The query client {options.name}")
        self.name = name = options.name
        self.order = threading.RLock()
        self._bookmarks = bookmarks
        self._on_ack = options.on_ack
        self._token = secrets.token_hex(6)
        self._beat = f"beat-{self._token}"
        self._numbers = count(1)
        self._logon: Session[tuple[int, int]] = Session()
        self._options: Mapping[str, str] = {}
        self._lock = threading.Lock()
        # by cid (brokers.md 1.1 A15, A19)
        self._streams: dict[str, MessageStream] = {}
        # by partition: the offset after the last answer that was read
        self._read: dict[int, int] = {}
        self._link = connection.link(name, sends="queries", addressed="query-results")
        self._paused = False
        self._session = QuerySession(options.heartbeat)
        # set when there is something to do before the next heartbeat
        self._wake = threading.Event()
        self._link.start(f"ackstream-query-{name}", self._receive, self._steer, guard=self.life.guard)
        # heartbeats continue while a handler of the application works
        self._beating = self.life.thread(self._keep_session, f"ackstream-query-{name}-alive")
        self._beating.start()

    def log_on(self, options: Mapping[str, str]) -> CommandAck:
        """Begin a session, and again whenever it is lost: then every subscription resumes where it was in the log."""
        self._options = options
        answer = self.execute("logon", {"processed"}, options).wait("processed")
        self.life.enter("connected")
        return answer

    def execute(
        self,
        command: str,
        requested: set[str],
        headers: Mapping[str, str],
        timeout: float | None = None,
        handler: Callable[[LogMessage], None] | None = None,
        *,
        progress: bool = True,
    ) -> MessageStream:
        """Send a command, and wait for ``processed``; keep ``progress`` if it has a bookmark and a name."""
        cid = f"{'logon-' if command == 'logon' else ''}{self._token}-{next(self._numbers)}"
        named = {record_headers.CID: cid, **headers}
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        if not self.order.acquire(timeout=max(0.0, limit)):
            raise _late(command, limit)
        try:
            if self.life.error is not None:
                raise self.life.error
            stream = stream_of(command, cid, requested, headers, self._bookmarks if progress else None, handler)
            self._add(stream)
            self.send(command, requested, named)
        finally:
            self.order.release()
        ack = None
        while ack is None:
            # a logon is repeated: a job that starts for the first time ignores earlier commands
            pause = AGAIN_SECONDS if command == "logon" else limit
            try:
                ack = stream.wait("processed", max(0.0, min(deadline - time.monotonic(), pause)))
            except CommandTimeout:
                if command == "logon" and time.monotonic() < deadline:
                    self.send(command, requested, named)
                    continue
                self.remove(stream)
                if command in _CANCELLED:
                    self.send("unsubscribe", (), {record_headers.SUB_ID: stream.sub_id or cid})
                raise _late(command, limit) from None
        if ack.status != "success":
            self.remove(stream)
            raise RefusedError.of(ack.reason or "no reason given", f"The {command}", ack.detail)
        for other in self.subscriptions():
            if other.sub_id == stream.sub_id and other is not stream:
                # it has been replaced
                self.remove(other)
        return stream

    def subscriptions(self) -> list[MessageStream]:
        with self._lock:
            return [stream for stream in self._streams.values() if stream.sub_id is not None]

    def _add(self, stream: MessageStream) -> None:
        with self._lock:
            if self._link.stop.is_set():
                raise StreamClosedError("The client was closed.")
            self._streams[stream.cid] = stream

    def remove(self, stream: MessageStream) -> None:
        """End a stream; ignore further answers for it."""
        stream.end()
        with self._lock:
            self._streams.pop(stream.cid, None)

    @property
    def closed(self) -> bool:
        return self._link.stop.is_set() or self.life.error is not None

    def close(self) -> None:
        if self._link.stop.is_set():
            return
        if self.life.error is None:
            # without a session its subscriptions are gone, or another client's
            self.send("unsubscribe", (), {record_headers.SUB_ID: "all"})
        self._link.stop.set()
        self._wake.set()
        # first of all: a thread may wait for an answer
        self._end(StreamClosedError("The client was closed."))
        self._beating.join()
        self._link.close()
        self.life.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, command: str, requested: Iterable[str], headers: Mapping[str, str]) -> None:
        """Send a command without waiting for its answer; a rejection by Kafka is logged."""
        named = {record_headers.COMMAND: command, record_headers.ACK: ",".join(sorted(requested)), **headers}
        try:
            self._link.send(b"", [(name, value.encode()) for name, value in named.items()])
        except (KafkaError, ValueError) as error:
            log.warning("Kafka rejected the %s command; it will time out: %s", command, error)

    # -- the session: in the second thread -----------------------------------------------------------------------------

    def _keep_session(self) -> None:
        """Send heartbeats until the client is closed or has ended; begin a lost session again."""
        while not self.closed:
            self._wake.wait(self._session.pause)
            self._wake.clear()
            if self._logon.position is None or self.closed:
                continue
            if self._session.lost:
                self.life.enter("disconnected")
                self._begin_again()
                continue
            if self._session.unresumed:
                self._await(self._send_again())
            self.life.look(time.monotonic(), away=self._session.silent)
            self.send("heartbeat", {"processed"}, {record_headers.CID: self._beat, record_headers.OPTIONS: "beat"})

    def _begin_again(self) -> None:
        """Log on after the loss of the session, and resume the subscriptions; failures are retried."""
        with self.order:
            try:
                self.execute("logon", {"processed"}, self._options).wait("processed")
            except (CommandTimeout, RefusedError, StreamClosedError, TakenOverError) as error:
                if isinstance(error, RefusedError) and error.reason not in queries.TEMPORARY:
                    raise
                log.warning("The session could not be begun again yet: %s", error)
                return
            # refusals of earlier heartbeats, and all answers of the earlier session, have been read before its answer
            self._session.begin_again(self.subscriptions())
            sent = self._send_again()
        self.life.enter("connected")
        self._await(sent)

    def _send_again(self) -> list[MessageStream]:
        """Subscribe again for the streams that are ready for it; the others follow later."""
        with self.order:
            ready = self._session.ready(self.subscriptions())
            for stream in ready:
                with self._lock:
                    self._streams.pop(stream.cid, None)
                    stream.begin_again(f"{self._token}-{next(self._numbers)}")
                    self._streams[stream.cid] = stream
                self.send("subscribe", {"processed"} | ({"persisted"} & stream.requested), resumption(stream))
        return ready

    def _await(self, sent: list[MessageStream]) -> None:
        deadline = time.monotonic() + self.timeout
        done: list[MessageStream] = []
        for stream in sent:
            try:
                ack = stream.wait("processed", max(0.0, deadline - time.monotonic()))
            except StreamClosedError:
                self._cancel(stream)
            except (CommandTimeout, TakenOverError) as error:
                log.warning("The subscriptions could not be resumed yet: %s", error)
                self._session.lost = True
                return
            else:
                if ack.reason in queries.TEMPORARY:
                    continue
                if ack.status != "success":
                    stream.end(RefusedError.of(ack.reason or "no reason given", "The subscription", ack.detail))
            done.append(stream)
        self._session.unresumed = [stream for stream in self._session.unresumed if stream not in done]
        if not self._session.unresumed:
            self.life.enter("resubscribed")

    def _cancel(self, stream: MessageStream) -> None:
        """Unsubscribe a stream that was sent again, and that the application had cancelled meanwhile."""
        with self.order:
            self.remove(stream)
            if all(other.sub_id != stream.sub_id for other in self.subscriptions()):
                self.send("unsubscribe", (), {record_headers.SUB_ID: str(stream.sub_id)})

    # -- answers: in our thread ----------------------------------------------------------------------------------------

    def _steer(self, _now: float) -> None:
        """Read again the messages that a stream had no room for; pause while only full streams are waited for."""
        with self._lock:
            self._streams = {cid: stream for cid, stream in self._streams.items() if not stream.over}
            streams = list(self._streams.values())
        behind = [stream for stream in streams if stream.behind is not None]
        ready = [stream for stream in behind if stream.has_room]
        for stream in ready:
            self._go_back(stream)
        pause = bool(behind) and not ready and not any(stream.waiting for stream in streams)
        if pause != self._paused:
            consumer, self._paused = self._link.consumer, pause
            (consumer.pause if pause else consumer.resume)(*consumer.assignment())

    def _go_back(self, stream: MessageStream) -> None:
        number, offset = stream.behind or (0, 0)
        consumer = self._link.consumer
        partition = next((one for one in consumer.assignment() if one.partition == number), None)
        if partition is not None and (consumer.position(partition, timeout_ms=POLL_MS) or 0) <= offset:
            return
        if partition is None or consumer.beginning_offsets([partition])[partition] > offset:
            remedy = "subscribe again after the last bookmark, and receive faster"
            stream.end(StreamClosedError(f"Kafka has deleted answers that were not received in time: {remedy}."))
        else:
            consumer.seek(partition, offset)

    def _receive(self, record: Any) -> None:
        headers = dict(record.headers)
        command, cid, id_ = (
            text(headers.get(name)) for name in (record_headers.COMMAND, record_headers.CID, record_headers.ID)
        )
        self._session.answered_at = time.monotonic()
        again = record.offset < self._read.get(record.partition, 0)
        self._read[record.partition] = max(record.offset + 1, self._read.get(record.partition, 0))
        if command == "ack":
            self._receive_ack(id_, decode_ack(record.value), again=again)
        elif (stream := self._streams.get(cid)) is not None:
            at = (record.partition, record.offset)
            if command == "group_begin":
                stream.begin_group(at)
            elif command in ("sow", "publish"):
                stream.add_message(at, read_message(command, record, stream.sub_id, self._bookmarks))

    def _receive_ack(self, id_: str, ack: CommandAck, *, again: bool) -> None:
        cid = ack.cid or ""
        if not again:
            call_handler(self._on_ack, ack)
            if cid == self._beat:
                self._session.receive(ack, self.subscriptions())
                if self._session.lost:
                    log.warning("The session of %s has expired after missing heartbeats; it is begun again.", self.name)
                    self._wake.set()
            elif cid.startswith("logon-"):
                self._receive_logon(id_, cid)
        with self._lock:
            # a name may be that of a subscription and of the one that replaces it
            subscribed = (one for one in reversed(self._streams.values()) if one.sub_id == ack.sub_id and one.begun)
            stream = self._streams.get(cid) if ack.cid else next(subscribed, None)
        if stream is not None:
            stream.add_ack(id_, ack)

    def _receive_logon(self, id_: str, cid: str) -> None:
        # of the record of the logon, which the id of its answer names
        partition, _, offset = id_.partition("/")[0].partition("-")
        position = int(partition), int(offset)
        if cid.startswith(f"logon-{self._token}-"):
            self._logon.begin(position, AGAIN_SECONDS)
        elif self._logon.is_over(position):
            self.life.fail(TakenOverError(f"Another client has logged on as {self.name}; names must be unique."))

    def _end(self, error: Exception) -> None:
        with self._lock:
            streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.end(error)


def _late(command: str, limit: float) -> CommandTimeout:
    return CommandTimeout(
        f"The {command} was not processed within {limit:g} s: is the query job running (`ackstream submit query`)?"
    )
