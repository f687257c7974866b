from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition

from ackstream.client import message_stream, query_link
from ackstream.client.bookmarks import Bookmarks
from ackstream.client.errors import BadFilterError, CommandTimeout, StreamClosedError, TakenOverError
from ackstream.client.lifetime import Lifetime
from ackstream.client.message_stream import MessageStream
from ackstream.client.query_client import QueryClient
from ackstream.client.query_link import QueryLink
from ackstream.errors import InconsistentQosError
from ackstream.protocol.messages import CommandAck, encode_ack
from ackstream.protocol.queries import Position, bookmark
from ackstream.settings import Kafka
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Connection:
    """Answers each command with the ack that the test has for it, if any."""

    def __init__(self, _kafka: Kafka, _client: str, **_topics: Any) -> None:
        self.acks: dict[str, dict[str, Any]] = {}
        self.sent: list[tuple[str, str]] = []
        self.stop = threading.Event()
        self._handle: Callable[[Any], None] | None = None

    def start(
        self, _name: str, handle: Callable[[Any], None], _after_poll: Callable[[float], None], guard: Any
    ) -> None:
        assert guard
        self._handle = handle

    def send(self, _value: bytes, headers: list[tuple[str, bytes]]) -> None:
        named = {name: value.decode() for name, value in headers}
        self.sent.append((named["command"], named.get("sub_id", "")))
        answer = self.acks.get(named["command"])
        if answer is not None:
            ack = CommandAck(ack_type="processed", cid=named["cid"], **answer)
            record = _record(len(self.sent), [("command", b"ack"), ("id", b"0-1/a")], encode_ack(ack))
            assert self._handle is not None
            self._handle(record)

    def close(self) -> None:
        self.stop.set()


def _record(offset: int, headers: list[tuple[str, bytes]], value: bytes | None) -> Any:
    return SimpleNamespace(partition=0, offset=offset, headers=headers, value=value)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueryLink]:
    monkeypatch.setattr(query_link, "ClientConnection", Connection)
    link = QueryLink(Kafka(), "q1", Bookmarks("p1"), timeout=0.05, heartbeat=60, on_ack=None)
    yield link
    link.close()


def test_a_processed_command_returns_its_stream(link: QueryLink) -> None:
    link._link.acks["subscribe"] = {}  # type: ignore[attr-defined]
    stream = link.execute("subscribe", {"processed"}, {"topic": "t"})
    assert link.subscriptions() == [stream]


def test_a_refused_command_raises_its_reason(link: QueryLink) -> None:
    link._link.acks["sow"] = {"status": "failure", "reason": "bad filter"}  # type: ignore[attr-defined]
    with pytest.raises(BadFilterError):
        link.execute("sow", {"processed"}, {"topic": "t"})
    assert link._streams == {}


@pytest.mark.parametrize(
    ("command", "cancelled"), [("subscribe", True), ("sow_and_subscribe", True), ("sow", True), ("flush", False)]
)
def test_a_command_that_times_out_leaves_no_subscription_behind(
    link: QueryLink, command: str, *, cancelled: bool
) -> None:
    with pytest.raises(CommandTimeout, match=f"The {command} was not processed within 0.05 s"):
        link.execute(command, {"processed"}, {"topic": "t", "sub_id": "s1"})
    sent = [name for name, _ in link._link.sent]  # type: ignore[attr-defined]
    assert sent == ([command, "unsubscribe"] if cancelled else [command])
    assert link._streams == {}


def test_an_unanswered_logon_is_sent_again(link: QueryLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_link, "LOGON_AGAIN_SECONDS", 0.01)
    with pytest.raises(CommandTimeout):
        link.execute("logon", {"processed"}, {})
    assert link._link.sent.count(("logon", "")) > 1  # type: ignore[attr-defined]


def test_a_client_whose_name_is_taken_ends_and_learns_it(link: QueryLink) -> None:
    errors: list[Exception] = []
    link.life = Lifetime(link._end, errors.append)
    link._link.acks["subscribe"] = {}  # type: ignore[attr-defined]
    stream = link.execute("subscribe", {"processed"}, {"topic": "t"})
    own, other = (
        encode_ack(CommandAck(ack_type="processed", cid=cid)) for cid in (f"logon-{link._token}-1", "logon-x-1")
    )
    link._receive(_record(100, [("command", b"ack"), ("id", b"0-1/1")], own))
    link._receive(_record(101, [("command", b"ack"), ("id", b"0-2/1")], other))
    assert isinstance(errors[0], TakenOverError)
    with pytest.raises(TakenOverError):
        stream.receive(0)
    with pytest.raises(TakenOverError):
        link.execute("sow", {"processed"}, {"topic": "t"})


def test_a_handler_of_acks_that_raises_does_not_lose_the_ack(link: QueryLink) -> None:
    def handle(_ack: CommandAck) -> None:
        raise ValueError("a bug of the application")

    link._on_ack = handle
    link._link.acks["sow"] = {}  # type: ignore[attr-defined]
    assert link.execute("sow", {"processed"}, {"topic": "t"}).acks


def test_a_session_is_kept_while_a_handler_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_link, "ClientConnection", Connection)
    link = QueryLink(Kafka(), "q1", Bookmarks("p1"), timeout=0.05, heartbeat=0.001, on_ack=None)
    link._logged_on = (0, 0)
    # nobody reads, as while a handler is called
    eventually(lambda: link._link.sent.count(("heartbeat", "")) > 2, "heartbeats")  # type: ignore[attr-defined]
    link.close()


@pytest.mark.parametrize(("named", "kept"), [(True, 1), (False, 0)])
def test_only_the_progress_of_a_subscription_with_a_name_is_kept(link: QueryLink, *, named: bool, kept: int) -> None:
    link._link.acks["subscribe"] = {}  # type: ignore[attr-defined]
    headers = {"topic": "t", "bookmark": "EPOCH"} | ({"sub_id": "mine"} if named else {})
    link.execute("subscribe", {"processed"}, headers)
    assert len(link._bookmarks._progress) == kept


# -- back-pressure


class Log:
    """The partition of the answers, and the consumer that reads it."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records
        self.at = self.beginning = 0
        self.paused = False

    def assignment(self) -> set[Any]:
        return {PARTITION}

    def position(self, _partition: Any, timeout_ms: int) -> int:
        assert timeout_ms
        return self.at

    def beginning_offsets(self, _partitions: Any) -> dict[Any, int]:
        return {PARTITION: self.beginning}

    def seek(self, _partition: Any, offset: int) -> None:
        assert offset < self.at
        self.at = offset

    def pause(self, *_partitions: Any) -> None:
        self.paused = True

    def resume(self, *_partitions: Any) -> None:
        self.paused = False

    def poll(self, link: QueryLink, number: int) -> None:
        """Read up to a number of records, as the thread of the client does."""
        if not self.paused:
            records = self.records[self.at : self.at + number]
            self.at += len(records)
            for record in records:
                link._receive(record)
        link._steer(0)


PARTITION = TopicPartition("query-results", 0)


def _message(offset: int, cid: str, number: int) -> Any:
    headers = {
        "command": b"publish", "cid": cid.encode(), "id": b"0-1/x", "timestamp": b"0",
        "bookmark": bookmark(Position(1, 0, number), "t").encode(),
    }  # fmt: skip
    return _record(offset, list(headers.items()), b"%d" % number)


def _playing(link: QueryLink, streams: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Log, dict[str, MessageStream]]:
    """Return a log whose messages belong to the subscriptions named by its letters, and these."""
    monkeypatch.setattr(message_stream, "MAX_BUFFERED_BYTES", 4_000)
    made = {
        cid: MessageStream(cid, cid, set(), live=True, bookmarks=None, handler=None) for cid in sorted(set(streams))
    }
    link._streams = dict(made)
    log = Log([_message(offset, cid, offset) for offset, cid in enumerate(streams)])
    link._link.consumer = log
    return log, made


@given(
    streams=st.text("ab", min_size=1, max_size=60),
    steps=st.lists(st.one_of(st.integers(1, 20), st.tuples(st.sampled_from("ab"), st.integers(1, 9)))),
)
def test_every_stream_gets_all_its_messages_in_order_and_holds_few(
    streams: str, steps: list[int | tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_link, "ClientConnection", Connection)
        link = QueryLink(Kafka(), "q1", Bookmarks("p1"), timeout=0.05, heartbeat=60, on_ack=None)
        log, made = _playing(link, streams, patch)
        got: dict[str, list[bytes | None]] = {cid: [] for cid in made}

        def receive(cid: str) -> bool:
            message = made[cid].receive(0)
            got[cid] += [] if message is None else [message.value]
            return message is not None

        for step in steps:
            if isinstance(step, int):
                log.poll(link, step)
            elif step[0] in made:
                for _ in range(step[1]):
                    receive(step[0])
            assert all(stream._bytes < 6_000 for stream in made.values())
        for _ in range(10 * len(streams)):
            log.poll(link, 7)
            for cid in made:
                receive(cid)
        link.close()
    assert got == {cid: [b"%d" % offset for offset, other in enumerate(streams) if other == cid] for cid in made}


def test_nothing_is_read_while_only_a_full_stream_is_left(link: QueryLink, monkeypatch: pytest.MonkeyPatch) -> None:
    log, made = _playing(link, "a" * 20 + "b", monkeypatch)
    log.poll(link, 10)
    assert (log.paused, log.at) == (True, 10)
    with made["b"]._changed:
        made["b"].waiting = 1
    log.poll(link, 0)
    log.poll(link, 20)
    assert not log.paused
    assert made["b"].receive(0) is not None, "another subscription does not wait behind the full one"


def test_answers_that_kafka_deleted_before_there_was_room_end_the_stream_with_an_error(
    link: QueryLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, made = _playing(link, "a" * 20, monkeypatch)
    log.poll(link, 20)
    log.beginning = 15
    got = [made["a"].receive(0) for _ in range(4)]
    assert None not in got
    log.poll(link, 20)
    with pytest.raises(StreamClosedError, match="not received in time"):
        made["a"].receive(0)


@pytest.mark.parametrize(("keys", "sent"), [(["a", "b"], b"a,b"), ("ab", b"ab")])
def test_keys_select_their_records_and_no_others(link: QueryLink, keys: list[str] | str, sent: bytes) -> None:
    client = object.__new__(QueryClient)
    client._link, headers = link, []
    link._link.send = lambda _value, given: headers.append(dict(given))  # type: ignore[method-assign]
    with pytest.raises(CommandTimeout):
        client.sow("orders", keys=keys)
    assert headers[0]["sow_keys"] == sent
    with pytest.raises(InconsistentQosError, match="contains a comma"):
        client.sow_delete("orders", keys=["a,b"])


@pytest.mark.parametrize("name", ["", "n" * 256])
def test_a_name_that_the_service_would_not_answer_is_refused(name: str) -> None:
    with pytest.raises(InconsistentQosError, match="1 to 255"):
        QueryClient(client=name)
