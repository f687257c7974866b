"""The way of a client's commands to the query job, and of the answers back to the streams that wait for them."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaError

from ackstream.client.command_session import CommandSession
from ackstream.client.errors import TakenOverError, refused
from ackstream.client.message_stream import CommandTimeout, Message, MessageStream, StreamClosedError
from ackstream.kafka import clients
from ackstream.kafka.partitions import PartitionAssignment
from ackstream.kafka.reader import POLL_MS, TopicReader
from ackstream.protocol import queries
from ackstream.protocol.messages import decode_ack, expected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ackstream.client.bookmarks import MemoryBookmarks
    from ackstream.client.command_session import CommandOutcome, Send
    from ackstream.protocol.messages import CommandAck
    from ackstream.settings import Kafka

log = logging.getLogger(__name__)

DELIVERY_SECONDS = 120.0
LOGON_AGAIN_SECONDS = 5.0
_CLOSE_SECONDS = 5.0
_LIVE = frozenset({"subscribe", "sow_and_subscribe"})
_APPLICATION = "header-"


class QueryLink:
    """Sends commands, one record each, and reads the partition in which the answers for this client are."""

    def __init__(
        self,
        kafka: Kafka,
        client: str,
        bookmarks: MemoryBookmarks,
        *,
        timeout: float,
        heartbeat: float,
        on_ack: Callable[[CommandAck], None] | None,
    ) -> None:
        """Connect, and begin to read.

        :param timeout: seconds that a command waits for ``processed``
        :param heartbeat: seconds between two signs of life
        :raises UnreachableError: no broker, or a topic is missing
        """
        self.timeout = timeout
        self.heard_at = time.monotonic()
        self._kafka = kafka
        self._name = client.encode()
        self._topic = kafka.topic("queries")
        self._heartbeat = heartbeat
        self._bookmarks = bookmarks
        self._on_ack = on_ack
        self._token = secrets.token_hex(6)
        self._numbers = count(1)
        self._logged_on: tuple[int, int] | None = None
        self._changed = threading.Condition()
        self._session = CommandSession()
        self._outcomes: dict[str | None, CommandOutcome] = {}
        self._streams: dict[str, MessageStream] = {}
        self._closing = threading.Event()
        self._ended: StreamClosedError | TakenOverError | None = None
        self._beat_at = time.monotonic() + heartbeat
        self._connect()
        self._thread = threading.Thread(target=self._run, name="ackstream-query-client", daemon=True)
        self._thread.start()

    def execute(
        self,
        command: str,
        asked: set[str],
        said: Mapping[str, str],
        timeout: float | None = None,
        handler: Callable[[Message], None] | None = None,
    ) -> MessageStream:
        """Send a command and wait for its ``processed``.

        :param said: the record headers
        :raises RefusedError: with the reason
        :raises CommandTimeout: it was not processed in time; what it may leave behind is taken back
        :raises StreamClosedError: the client is closed, or has lost its session
        :raises TakenOverError: another client has logged on with the name
        """
        if self._ended is not None:
            raise self._ended
        cid = f"{'logon-' if command == 'logon' else ''}{self._token}-{next(self._numbers)}"
        stream = self._open(command, cid, asked, said, handler)
        limit = self.timeout if timeout is None else timeout
        with self._changed:
            self._streams[cid] = stream
            self._session.sent(command, cid, _now(), max(1, round(limit * 1000)))
        self._send(command, asked, {"cid": cid, **said})
        with self._changed:
            while not self._changed.wait_for(
                lambda: cid in self._outcomes or cid not in self._streams,
                LOGON_AGAIN_SECONDS if command == "logon" else None,
            ):
                # a job that starts for the first time takes no commands from before
                self._send(command, asked, {"cid": cid, **said})
            outcome = self._outcomes.pop(cid, None)
        if outcome is None:
            raise self._ended or StreamClosedError(f"The {command} was given up.")
        if outcome.timed_out or outcome.reason is not None:
            self.forget(stream)
        if outcome.timed_out:
            raise CommandTimeout(
                f"The {command} was not processed within {limit:g} s: is the job running that carries commands out "
                "(`ackstream submit query`)?"
            )
        if outcome.reason is not None:
            raise refused(outcome.reason, f"The {command}")
        for other in self.live() if stream.sub_id is not None else ():
            if other.sub_id == stream.sub_id and other is not stream:
                # it has been replaced
                self.forget(other)
        return stream

    def live(self) -> list[MessageStream]:
        """Return the subscriptions."""
        with self._changed:
            return [stream for stream in self._streams.values() if stream.sub_id is not None]

    def forget(self, stream: MessageStream) -> None:
        """Take nothing more for a stream."""
        stream.end()
        with self._changed:
            self._streams.pop(stream.cid, None)

    def close(self) -> None:
        """Give up the subscriptions and disconnect; may be called twice."""
        if self._closing.is_set():
            return
        if self._ended is None:
            # with the session, what it has subscribed to is gone, or another's
            self._send("unsubscribe", (), {"sub_id": "all"})
        self._closing.set()
        clients.close_producer(self._producer, _CLOSE_SECONDS)
        self._thread.join()
        self._reader.consumer.close(autocommit=False, timeout_ms=1_000)
        self._end(StreamClosedError("The client was closed."))

    # -- sending -----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        results = self._kafka.topic("query-results")
        consumer = clients.connect_consumer(self._kafka, None, auto_offset_reset="earliest")
        try:
            clients.check_topics(consumer, self._kafka, self._topic, results)
            try:
                self._places = PartitionAssignment(consumer, self._name, addressed=(results,))
            except KafkaError as error:
                raise clients.unreachable(self._kafka) from error
            self._producer = clients.connect_producer(
                self._kafka, self._topic, delivery_timeout=DELIVERY_SECONDS, linger_ms=0
            )
        except BaseException:
            consumer.close(autocommit=False)
            raise
        self._reader = TopicReader(consumer, self._closing)

    def _open(
        self,
        command: str,
        cid: str,
        asked: set[str],
        said: Mapping[str, str],
        handler: Callable[[Message], None] | None,
    ) -> MessageStream:
        bookmark = said.get("bookmark")
        sub_id = said.get("sub_id", cid) if command in _LIVE else None
        awaited = expected(command, asked, bookmark=bookmark is not None, filtered="filter" in said)
        if "seq" in said:
            # merged over sequence numbers, it names no command
            awaited.discard("persisted")
        kept = bookmark is not None and sub_id is not None
        if kept:
            self._bookmarks.open(str(sub_id), said.get("topic", ""))
        ends = bookmark is not None and queries.ends(bookmark) and "completed" in awaited
        return MessageStream(
            cid,
            sub_id,
            awaited - {"persisted"} if ends else awaited,
            live=command in _LIVE and not ends,
            bookmarks=self._bookmarks if kept else None,
            handler=handler,
        )

    def _send(self, command: str, asked: Iterable[str], said: Mapping[str, str]) -> None:
        headers = {"command": command, "ack": ",".join(sorted(asked)), **said}
        encoded = [(name, text.encode()) for name, text in headers.items()]
        try:
            self._producer.send(self._topic, b"", self._name, encoded)
        except (KafkaError, ValueError) as error:
            log.warning("The %s was not sent, and is waited for in vain: %s", command, error)

    # -- answers: in our thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            for record in self._reader.read(POLL_MS):
                if record.key == self._name:
                    try:
                        self._take(record)
                    except Exception:
                        # whatever stands in a record or a handler does, the next one is taken
                        log.exception("A record of %s was left out (offset %s).", record.topic, record.offset)
            self._turn()

    def _turn(self) -> None:
        with self._changed:
            outcomes, sends = self._session.expire(_now())
            self._decide(outcomes, sends)
        if self._logged_on is not None and self._ended is None and time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + self._heartbeat
            self._send("heartbeat", {"processed"}, {"cid": f"beat-{self._token}", "options": "beat"})
        try:
            self._places.update()
        except KafkaError as error:
            log.warning("Asking for partitions failed and is tried again: %s", error)

    def _take(self, record: Any) -> None:
        said = dict(record.headers)
        command, cid, id_ = (_text(said.get(name)) for name in ("command", "cid", "id"))
        self.heard_at = time.monotonic()
        if command == "ack":
            self._take_ack(id_, decode_ack(record.value))
        elif command in ("sow", "publish") and (stream := self._streams.get(cid)) is not None:
            stream.take(id_, _message(command, record, stream.sub_id, self._bookmarks))

    def _take_ack(self, id_: str, ack: CommandAck) -> None:
        if self._on_ack is not None:
            self._on_ack(ack)
        cid = ack.cid or ""
        if cid == f"beat-{self._token}" and ack.status != "success":
            self._end(StreamClosedError("The service had not heard of the client for too long: begin a new one."))
        elif cid.startswith("logon-"):
            self._take_logon(id_, cid)
        with self._changed:
            stream = self._streams.get(cid) if ack.cid else self._subscription(ack.sub_id)
            if stream is not None:
                stream.told(id_, ack)
            outcome, sends = self._session.answered(ack)
            self._decide([] if outcome is None else [outcome], sends)
            if stream is not None and stream.over:
                self._streams.pop(stream.cid, None)

    def _take_logon(self, id_: str, cid: str) -> None:
        place = _place(id_)
        if cid.startswith(f"logon-{self._token}-"):
            self._logged_on = place
        elif self._logged_on is not None and place > self._logged_on:
            # not an older one that is told again
            name = self._name.decode()
            self._end(TakenOverError(f"Another client has logged on as {name}: names are for one."))

    def _decide(self, outcomes: list[CommandOutcome], sends: list[Send]) -> None:
        for outcome in outcomes:
            self._outcomes[outcome.cid] = outcome
        if outcomes:
            self._changed.notify_all()
        for send in sends:
            stream = self._streams.get(send.cid or "")
            sub_id = None if stream is None else stream.sub_id
            self._send(send.command, (), {"sub_id": sub_id or str(send.cid)})

    def _subscription(self, sub_id: str | None) -> MessageStream | None:
        return next((one for one in self._streams.values() if one.sub_id == sub_id and not one.over), None)

    def _end(self, error: StreamClosedError | TakenOverError) -> None:
        with self._changed:
            self._ended = self._ended or error
            streams, self._streams = list(self._streams.values()), {}
            for stream in streams:
                stream.end(error)
            self._changed.notify_all()


def _message(command: str, record: Any, sub_id: str | None, bookmarks: MemoryBookmarks) -> Message:
    said = dict(record.headers)
    return Message(
        command,
        _text(said.get("topic")),
        said.get("key"),
        record.value,
        _text(said.get("bookmark")),
        sub_id,
        _text(said.get("client")),
        int(_text(said.get("timestamp"))),
        tuple((name[len(_APPLICATION) :], value) for name, value in record.headers if name.startswith(_APPLICATION)),
        bookmarks,
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _place(id_: str) -> tuple[int, int]:
    """Return where the command stands that an answer is named after."""
    partition, _, offset = id_.partition("/")[0].partition("-")
    return int(partition), int(offset)


def _now() -> int:
    return time.monotonic_ns() // 1_000_000
