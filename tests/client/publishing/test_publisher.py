"""The publisher beside a connection that the test plays: what Kafka does, and what the service answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, TopicAuthorizationFailedError
from kafka.future import Future as KafkaFuture

from ackstream.client.core import connection, lifetime
from ackstream.client.core.storage import StoreFile
from ackstream.client.errors import (
    FlushTimeout,
    LogonTimeout,
    MessageTooLargeError,
    NotEntitledError,
    PublisherClosedError,
    StoreError,
    TakenOverError,
    ThreadDiedError,
    WouldBlockError,
)
from ackstream.client.publishing import _publisher_link as publisher_link
from ackstream.client.publishing.publisher import Publisher
from ackstream.errors import BadParameterError
from ackstream.protocol.messages import CommandAck, encode_ack
from ackstream.settings import Kafka
from tests.harness.waiting import eventually

SECONDS = 10
NOW_MS = 1_700_000_000_000


class Stored(KafkaFuture):
    """What the producer returns."""

    def get(self, timeout: float | None = None) -> Any:  # noqa: ARG002
        if self.exception is not None:
            raise self.exception
        return self.value


class Connection:
    """Kafka and the service: stores what ``kafka`` does not refuse, and answers logons."""

    now_ms = NOW_MS
    first_retries = 0

    def __init__(self, name: str, stop: threading.Event) -> None:
        self.name, self.stop = name.encode(), stop
        self.sent: list[tuple[dict[str, str], bytes]] = []
        self.kafka: Callable[[dict[str, str], bytes], Exception | None] = lambda _headers, _value: None
        self.watermark, self.highest = 0, None
        self.takeovers: list[tuple[str | None, str, int]] = []
        self.retries = 0
        self.silent = False
        self.pending: list[Stored] | None = None
        self.flushed = self.away = False
        self._answers: list[Any] = []
        self._ready = threading.Condition()
        self.broken: Exception | None = None

    def send(self, value: bytes, headers: list[tuple[str, bytes]]) -> Stored:
        named = {name: text.decode() for name, text in headers}
        future = Stored()
        error = self.kafka(named, value)
        if error is None and named.get("command") is None and self.pending is not None:
            self.pending.append(future)
        elif error is None:
            future.success(SimpleNamespace(timestamp=self.now_ms))
        else:
            future.failure(error)
        with self._ready:
            self.sent.append((named, value))
            self._ready.notify_all()
        if named.get("command") == "logon" and not self.silent:
            self.retries -= 1
            fields: dict[str, Any] = {"seq": self.watermark, "highest": self.highest, "bookmark": 7}
            if not self.takeovers or self.takeovers[-1][0] != named.get("publisher-store"):
                self.takeovers.append((named.get("publisher-store"), named["publisher-session"], self.watermark))
            fields["takeovers"] = tuple(one[1:] for one in self.takeovers)
            if self.retries >= 0:
                fields = {"status": "retry", "reason": "not processed"}
            self.answer(CommandAck(ack_type="processed", cid=named["cid"], **fields))
        return future

    def answer(self, *acks: CommandAck) -> None:
        with self._ready:
            self._answers += [SimpleNamespace(topic="publisher-acks", offset=0, value=encode_ack(ack)) for ack in acks]
            self._ready.notify_all()

    def read(self) -> list[Any]:
        with self._ready:
            self._ready.wait_for(lambda: self._answers or self.broken, 0.01)
            found, self._answers = self._answers, []
            if self.broken is not None:
                raise self.broken
            return found

    def wait_for(self, command: str | None, count: int = 1) -> list[dict[str, str]]:
        def found() -> list[dict[str, str]]:
            return [headers for headers, _ in self.sent if headers.get("command") == command]

        with self._ready:
            assert self._ready.wait_for(lambda: len(found()) >= count, SECONDS), self.sent
            return found()

    def flush(self, _timeout: float = 0.0) -> bool:
        self.flushed = True
        for future in () if self.away else self.pending or ():
            future.success(SimpleNamespace(timestamp=self.now_ms))
        return True

    def close(self) -> None:
        self.flush()


class Brokers(connection.Connection):
    """Makes a connection for each publisher; Kafka and the service remember what the one before has left."""

    def __init__(self, kind: type[Connection] = Connection) -> None:
        super().__init__(Kafka())
        self.made: list[Connection] = []
        self._kind = kind

    def link(self, name: str, stop: threading.Event | None = None, **_: Any) -> Any:
        assert stop is not None
        link = self._kind(name, stop)
        if self.made:
            previous = self.made[-1]
            link.kafka, link.watermark, link.highest = previous.kafka, previous.watermark, previous.highest
            link.takeovers, link.silent = previous.takeovers, previous.silent
        link.retries = Connection.first_retries
        self.made.append(link)
        return link

    def __getitem__(self, number: int) -> Connection:
        return self.made[number]

    def __len__(self) -> int:
        return len(self.made)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    monkeypatch.setattr(Connection, "now_ms", NOW_MS)
    return Brokers()


def persisted(seq: int, reason: str | None = None, **fields: Any) -> CommandAck:
    status: Any = "success" if reason is None else "failure"
    return CommandAck(ack_type="persisted", status=status, seq=seq, reason=reason, **fields)


def test_every_record_names_the_session(connections):
    with Publisher(connections, name="p1") as publisher:
        publisher.publish(b"x")
        (logon,), (message,) = connections[0].wait_for("logon"), connections[0].wait_for(None)
    assert logon["publisher-session"] == message["publisher-session"] == logon["cid"]
    with Publisher(connections, name="p1"):
        assert connections[1].wait_for("logon")[0]["cid"] != logon["cid"]


def test_what_a_store_keeps_is_sent_under_new_numbers_after_another_publisher_of_the_name(connections, tmp_path):
    failed = []
    own = {"name": "p1", "store": tmp_path / "p1", "on_failed_write": failed.append}
    with Publisher(connections, **own) as publisher:
        publisher.publish(b"order 1")
    with Publisher(connections, name="p1"):
        connections[1].watermark = 1
    with Publisher(connections, **own):
        (again,) = connections[2].wait_for(None)
    assert [(one.seq, one.reason, one.value) for one in failed] == [(1, "renumbered", b"order 1")]
    assert again["seq"] == "2"
    # the numbers belong to the present session of the store
    with Publisher(connections, **own):
        assert [headers["seq"] for headers in connections[3].wait_for(None)] == ["2"]


def test_acks_of_a_single_message_reach_the_handler_with_its_command_id(connections):
    acks = []
    with Publisher(connections, name="p1", window=30, conflation_ms=250, on_ack=acks.append) as publisher:
        future = publisher.publish(b"x", acks=["received", "processed"], cid="order 7")
        (logon,), (message,) = connections[0].wait_for("logon"), connections[0].wait_for(None)
        assert (logon["publish-window"], logon["ack-conflation"]) == ("30", "250ms")
        assert (message["ack"], message["cid"]) == ("received,processed,persisted", "order 7")
        arrival = [CommandAck(ack_type=kind, cid=message["cid"]) for kind in ("received", "processed")]
        connections[0].answer(*arrival, persisted(1))
        assert future.result(SECONDS).seq == 1
    assert [(ack.ack_type, ack.cid) for ack in acks[1:]] == [
        ("received", "order 7"), ("processed", "order 7"), ("persisted", None),
    ]  # fmt: skip


def test_acks_are_asked_for_again_after_a_restart(connections, tmp_path):
    with Publisher(connections, name="p1", store=tmp_path / "p1") as publisher:
        publisher.publish(b"x", acks=["completed"], ack_immediately=True)
    with Publisher(connections, name="p1", store=tmp_path / "p1"):
        (again,) = connections[1].wait_for(None)
    assert (again["ack"], again["cid"], again["ack-immediately"]) == ("completed,persisted", "1", "true")


def test_who_waits_for_one_message_asks_for_its_ack_at_once(connections):
    with Publisher(connections, name="p1") as publisher:
        waiting = threading.Thread(target=publisher.publish_await_acknowledgement, args=(b"x", SECONDS))
        waiting.start()
        (message,) = connections[0].wait_for(None)
        assert message["ack-immediately"] == "true"
        connections[0].answer(persisted(1))
        waiting.join(SECONDS)


def test_a_message_of_a_topic_without_a_log_is_acknowledged_alone(connections):
    with Publisher(connections, name="p1") as publisher:
        future = publisher.publish(b"x", topic="fast")
        connections[0].answer(persisted(1, cid="1"))
        assert future.result(SECONDS).seq == 1


def test_the_connection_is_reported_when_the_service_stops_answering_and_when_it_answers_again(connections):
    states = []
    with Publisher(connections, name="p1", ack_timeout=0.01, conflation_ms=0, on_connection=states.append) as publisher:
        future = publisher.publish(b"x")
        connections[0].wait_for(None, 2)
        eventually(lambda: states == ["connected", "disconnected"], "the report")
        connections[0].answer(persisted(1))
        future.result(SECONDS)
        eventually(lambda: states == ["connected", "disconnected", "connected"], "the report")


def test_the_connection_is_reported_when_kafka_does_not_take_a_message(connections):
    states = []
    with Publisher(connections, name="p1", stage="accepted", on_connection=states.append) as publisher:
        connections[0].kafka = lambda _headers, _value: KafkaTimeoutError("away")
        publisher.publish(b"x")
        eventually(lambda: states == ["connected", "disconnected"], "the report")
        connections[0].kafka = lambda _headers, _value: None
        eventually(lambda: states == ["connected", "disconnected", "connected"], "the report")


def test_a_publish_that_waits_for_room_ends_in_time_and_says_in_the_log_that_it_waits(connections, monkeypatch, caplog):
    monkeypatch.setattr(lifetime, "LASTING_SECONDS", 0.01)
    with Publisher(connections, name="p1", window=1) as publisher:
        publisher.publish(b"1")
        for publish in (publisher.publish, publisher.publish_await_acknowledgement):
            with pytest.raises(WouldBlockError, match="The publisher p1 waits for acknowledgements of 1 messages"):
                publish(b"2", timeout=0.05)
        (late,) = publisher.publish_many([b"3"], timeout=0.05)
        assert isinstance(late.exception(0), WouldBlockError)
        assert publisher.next_seq == 2
        assert caplog.text.count("The publisher p1 waits for acknowledgements of 1 messages, from number 1 on") == 3
        connections[0].answer(persisted(1))
        assert publisher.publish_many([b"4"], timeout=SECONDS)[0].running()


def test_a_logon_that_could_not_be_processed_is_repeated(connections, monkeypatch):
    monkeypatch.setattr(publisher_link, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(Connection, "first_retries", 2)
    with Publisher(connections, name="p1"):
        assert len(connections[0].wait_for("logon", 3)) == 3


def test_a_logon_is_not_repeated_for_longer_than_it_may_take(connections, monkeypatch):
    monkeypatch.setattr(publisher_link, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(Connection, "first_retries", 10**9)
    with pytest.raises(LogonTimeout):
        Publisher(connections, name="p1", logon_timeout=0.1)
    assert len(connections) == 1


@pytest.mark.parametrize("arguments", [{"key": "order-7"}, {"headers": [("seq", b"1")]}, {"ttl_ms": "1s"}])
def test_a_wrong_argument_takes_no_number_and_poisons_no_store(connections, tmp_path, arguments):
    for run in (1, 2):
        with Publisher(connections, name="p1", store=tmp_path / "p1", stage="accepted") as publisher:
            begin = publisher.next_seq
            with pytest.raises(BadParameterError):
                publisher.publish(b"x", **arguments)
            assert (publisher.next_seq, publisher.unpersisted_count) == (begin, 0)
            assert publisher.publish(b"%d" % run).result(SECONDS).seq == begin
    assert len(connections) == 2


def test_waiting_with_asyncio_and_giving_up_harms_nobody(connections):
    async def give_up(publisher: Publisher) -> None:
        await asyncio.wait_for(asyncio.wrap_future(publisher.publish(b"1")), 0.01)

    with Publisher(connections, name="p1") as publisher:
        with pytest.raises(asyncio.TimeoutError):
            asyncio.run(give_up(publisher))
        second = publisher.publish(b"2")
        connections[0].answer(persisted(2))
        assert second.result(SECONDS).seq == 2
        assert publisher.alive


@pytest.mark.parametrize(
    ("error", "kind"),
    [(MessageSizeTooLargeError(), MessageTooLargeError), (TopicAuthorizationFailedError(), NotEntitledError)],
)
def test_a_message_that_kafka_refuses_for_good_fails_and_holds_nothing_up(connections, error, kind):
    failed = []
    with Publisher(connections, name="p1", on_failed_write=failed.append) as publisher:
        connections[0].kafka = lambda _headers, value: error if value == b"bad" else None
        bad, good = publisher.publish(b"bad"), publisher.publish(b"good")
        with pytest.raises(kind):
            bad.result(SECONDS)
        (withdrawal,) = connections[0].wait_for("withdraw")
        assert (withdrawal["first"], withdrawal["seq"], withdrawal["ack"]) == ("1", "1", "persisted")
        connections[0].answer(persisted(1, "withdrawn"), persisted(2))
        assert good.result(SECONDS).seq == 2
        assert publisher.unpersisted_count == 0
    assert [(item.seq, item.value) for item in failed] == [(1, b"bad")]


def test_a_message_that_the_client_library_cannot_send_fails(connections, monkeypatch):
    with Publisher(connections, name="p1") as publisher:
        send = connections[0].send

        def broken(value: bytes, headers: list[tuple[str, bytes]]) -> Stored:
            if value == b"bad":
                raise AssertionError("a bug")
            return send(value, headers)

        monkeypatch.setattr(connections[0], "send", broken)
        with pytest.raises(Exception, match="AssertionError: a bug"):
            publisher.publish(b"bad").result(SECONDS)
        connections[0].wait_for("withdraw")


@pytest.mark.parametrize("place", ["before it is sent", "while it is sent"])
def test_a_message_whose_publish_is_interrupted_is_sent_nevertheless(connections, monkeypatch, place):
    with Publisher(connections, name="p1", stage="accepted") as publisher:
        interrupts = [KeyboardInterrupt()]

        def interrupted(*arguments: Any) -> Any:
            if interrupts:
                raise interrupts.pop()
            return run(*arguments)

        owner, name = (publisher._link, "send") if place == "before it is sent" else (connections[0], "send")
        run = getattr(owner, name)
        monkeypatch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            publisher.publish_many([b"1", b"2"])
        publisher.publish_flush(SECONDS)
        assert {value for headers, value in connections[0].sent if "command" not in headers} == {b"1", b"2"}


@pytest.mark.parametrize("place", ["BEGIN", "INSERT", "UPDATE", "COMMIT", "the lists"])
def test_a_publish_that_is_interrupted_while_it_is_kept_holds_up_none_behind_it(connections, tmp_path, place):
    class Interrupted:
        def __init__(self, database: Any) -> None:
            self.database, self.interrupts = database, [KeyboardInterrupt()]

        def execute(self, statement: str, *values: Any) -> Any:
            found = self.database.execute(statement, *values)
            if statement.startswith(place) and self.interrupts:
                raise self.interrupts.pop()
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self.database, name)

    class Opened(dict[int, Any]):
        def __setitem__(self, number: int, opened: Any) -> None:
            if number == 2 and place == "the lists" and interrupts:
                raise interrupts.pop()
            super().__setitem__(number, opened)

    interrupts = [KeyboardInterrupt()]
    with Publisher(connections, name="p1", store=tmp_path / "p1") as publisher:
        publisher._store._file._database = Interrupted(publisher._store._file._database)
        publisher._unacknowledged._open = Opened()
        with pytest.raises(KeyboardInterrupt):
            publisher.publish_many([b"1", b"2"])
        future = publisher.publish(b"3")
        kept = place in ("COMMIT", "the lists")
        numbers = ["1", "2", "3"] if kept else ["1"]
        connections[0].wait_for(None, len(numbers))
        sent = {headers["seq"]: value for headers, value in connections[0].sent if "command" not in headers}
        assert sent == ({"1": b"1", "2": b"2", "3": b"3"} if kept else {"1": b"3"})
        connections[0].answer(persisted(int(numbers[-1])))
        assert future.result(SECONDS).seq == int(numbers[-1])
        publisher.publish_flush(SECONDS)
        assert publisher.statistics.published == len(numbers)


def test_a_message_that_kafka_did_not_take_in_time_is_sent_again(connections):
    errors = [KafkaTimeoutError("120 s")]
    with Publisher(connections, name="p1", stage="accepted") as publisher:
        connections[0].kafka = lambda _headers, _value: errors.pop() if errors else None
        publisher.publish(b"x").result(SECONDS)
        assert len(connections[0].wait_for(None, 2)) == 2


def test_a_later_publisher_of_the_name_ends_this_one_visibly(connections):
    errors = []
    with Publisher(connections, name="p1", on_error=errors.append) as publisher:
        future = publisher.publish(b"x")
        connections[0].answer(CommandAck(ack_type="processed", cid="logon-other", bookmark=9))
        with pytest.raises(TakenOverError):
            future.result(SECONDS)
        with pytest.raises(TakenOverError):
            publisher.wait_closed(SECONDS)
        with pytest.raises(TakenOverError):
            publisher.publish(b"y")
        assert not publisher.alive
    assert [type(error) for error in errors] == [TakenOverError]


def test_a_publisher_whose_session_is_over_ends_even_if_it_never_saw_the_other_logon(connections):
    with Publisher(connections, name="p1") as publisher:
        (logon,) = connections[0].wait_for("logon")
        over = CommandAck(ack_type="processed", status="failure", cid=logon["cid"], reason="session over")
        connections[0].answer(over)
        with pytest.raises(TakenOverError):
            publisher.wait_closed(SECONDS)


def test_an_ack_of_another_session_is_about_other_messages(connections):
    with Publisher(connections, name="p1") as publisher:
        future = publisher.publish(b"x")
        (logon,) = connections[0].wait_for("logon")
        connections[0].answer(persisted(1, session="logon-other"), persisted(1, "not entitled", session=logon["cid"]))
        with pytest.raises(NotEntitledError):
            future.result(SECONDS)


def test_an_older_logon_that_is_answered_again_ends_nobody(connections):
    with Publisher(connections, name="p1") as publisher:
        connections[0].answer(CommandAck(ack_type="processed", cid="logon-older", bookmark=6), persisted(1))
        assert publisher.publish(b"x").result(SECONDS).seq == 1


def test_a_thread_that_dies_ends_the_publisher_visibly(connections):
    errors = []
    publisher = Publisher(connections, name="p1", on_error=errors.append)
    future = publisher.publish(b"x")
    connections[0].broken = TypeError("a bug")
    with pytest.raises(ThreadDiedError, match="a bug"):
        future.result(SECONDS)
    with pytest.raises(ThreadDiedError):
        publisher.wait_closed(SECONDS)
    publisher.close()
    assert len(errors) == 1


def test_a_store_that_is_damaged_while_kafka_confirms_ends_the_publisher_visibly(connections, tmp_path, monkeypatch):
    publisher = Publisher(connections, name="p1", store=tmp_path / "p1", stage="accepted")
    monkeypatch.setattr(publisher._store, "drop", lambda _seq: (_ for _ in ()).throw(StoreError("it is damaged")))
    with pytest.raises(StoreError, match="damaged"):
        publisher.publish(b"x").result(SECONDS)
    with pytest.raises(StoreError, match="damaged"):
        publisher.wait_closed(SECONDS)
    publisher.close()


def test_a_full_disk_fails_what_is_published_and_nothing_else(connections, tmp_path):
    with Publisher(connections, name="p1", store=tmp_path / "p1") as publisher:
        first = publisher.publish(b"1")
        publisher._store._file.read("PRAGMA max_page_count = 1")
        with pytest.raises(StoreError, match="free disk space"):
            publisher.publish(b"x" * 100_000)
        connections[0].answer(persisted(1))
        assert first.result(SECONDS).seq == 1
        publisher._store._file.read("PRAGMA max_page_count = 1000")
        assert publisher.next_seq == 2
        second = publisher.publish(b"2")
        connections[0].answer(persisted(2))
        assert second.result(SECONDS).seq == 2


def test_each_message_carries_its_trace_and_one_that_is_not_sent_ends_its_own(connections, monkeypatch):
    traced = []

    def trace(_kind, topic, attributes, future, _describe):
        traced.append((topic, attributes["messaging.client.id"], future))
        return [("traceparent", b"%d" % len(traced))]

    monkeypatch.setattr("ackstream.client.publishing.publisher.trace_sending", trace)
    with Publisher(connections, name="p1") as publisher:
        publisher.publish(b"x", headers=[("own", b"h")])
        publisher.publish_many([b"y", b"z"])
        with pytest.raises(BadParameterError):
            publisher.publish("no bytes")
        with pytest.raises(BadParameterError):
            publisher.publish_many([b"v", "no bytes"])
        sent = connections[0].wait_for(None, 3)
    assert [(headers.get("own"), headers["traceparent"]) for headers in sent] == [("h", "1"), (None, "2"), (None, "3")]
    assert {(topic, name) for topic, name, _ in traced} == {("messages", "p1")}
    assert [future.cancelled() for *_, future in traced[3:]] == [True, True, True]


def test_what_kafka_has_not_stored_at_the_end_is_an_error_a_line_in_the_log_and_reported(connections, caplog):
    failed = []
    publisher = Publisher(connections, name="p1", on_failed_write=failed.append)
    stored = publisher.publish(b"1")
    connections[0].pending, connections[0].away = [], True
    publisher.publish(b"2", topic="orders", context="mine")
    with pytest.raises(FlushTimeout, match=r"1 messages within .* s, from number 2 on; they are lost"):
        publisher.close(0.1)
    assert [(one.seq, one.reason, one.value, one.context) for one in failed] == [(2, "closed", b"2", "mine")]
    assert "Kafka did not store 1 messages" in caplog.text
    assert isinstance(stored.exception(SECONDS), PublisherClosedError), "Kafka has it"
    publisher.close()


def test_what_kafka_refuses_for_a_moment_is_sent_again_before_the_end(connections):
    failed = []
    publisher = Publisher(connections, name="p1", on_failed_write=failed.append)
    refusals = [KafkaTimeoutError("no metadata")] * 5
    connections[0].kafka = lambda _headers, _value: refusals.pop() if refusals else None
    publisher.publish(b"1")
    publisher.close(SECONDS)
    assert (failed, refusals) == ([], [])


def test_what_kafka_has_not_stored_is_in_the_store_for_the_next_run(connections, tmp_path, caplog):
    with Publisher(connections, name="p1", store=tmp_path / "p1") as publisher:
        connections[0].pending, connections[0].away = [], True
        publisher.publish(b"1")
    assert "the next publisher with this store sends them" in caplog.text
    with Publisher(connections, name="p1", store=tmp_path / "p1"):
        assert connections[1].wait_for(None)[0]["seq"] == "1"


def test_the_error_of_the_block_is_not_hidden_by_that_of_its_end(connections):
    def work() -> None:
        with Publisher(connections, name="p1") as publisher:
            connections[0].pending, connections[0].away = [], True
            publisher.publish(b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_handlers_that_raise_harm_nobody(connections):
    def handler(_: object) -> None:
        raise ValueError("a bug of the application")

    with Publisher(connections, name="p1", on_ack=handler, on_receipt=handler, on_failed_write=handler) as publisher:
        futures = [publisher.publish(b"x") for _ in range(2)]
        connections[0].answer(persisted(1, "not entitled"), persisted(2))
        assert futures[1].result(SECONDS).seq == 2
        assert publisher.alive


def test_closing_sends_what_is_buffered_before_futures_fail(connections):
    with Publisher(connections, name="p1", stage="accepted") as publisher:
        connections[0].pending = []
        future = publisher.publish(b"x")
        assert not future.done()
    assert future.result(0).stage == "accepted"
    with pytest.raises(PublisherClosedError):
        publisher.publish(b"y")
    assert publisher.wait_closed(0)


def test_closing_fails_what_the_service_has_not_acknowledged(connections):
    with Publisher(connections, name="p1") as publisher:
        future = publisher.publish(b"x")
    assert isinstance(future.exception(0), PublisherClosedError)
    assert connections[0].flushed


def test_at_stage_accepted_no_number_is_used_twice_even_if_the_file_has_lost_its_end(connections, tmp_path):
    store, sent = tmp_path / "p1", set()
    for second, number in enumerate("abc"):
        Connection.now_ms = NOW_MS + 1000 * second
        with Publisher(connections, name="p1", store=store, stage="accepted") as publisher:
            for _ in range(3):
                receipt = publisher.publish(number.encode()).result(SECONDS)
                assert receipt.seq not in sent
                sent.add(receipt.seq)
        if second == 0:
            older = store.read_bytes()
        # power was lost: the file is as it was
        store.write_bytes(older)


def test_at_stage_accepted_kept_messages_keep_their_numbers(connections, tmp_path):
    with Publisher(connections, name="p1", store=tmp_path / "p1", stage="accepted") as publisher:
        connections[0].kafka = lambda _headers, _value: KafkaTimeoutError("away")
        publisher.publish(b"x")
        kept = publisher.next_seq - 1
    Connection.now_ms = NOW_MS + 1000
    connections[0].kafka = lambda _headers, _value: None
    with Publisher(connections, name="p1", store=tmp_path / "p1", stage="accepted") as publisher:
        begin = Connection.now_ms * 1_000_000
        assert connections[1].wait_for(None)[0]["seq"] == str(kept)
        (hole,) = connections[1].wait_for("withdraw")
        assert (hole["first"], hole["seq"]) == (str(kept + 1), str(begin))
        assert publisher.publish(b"y").result(SECONDS).seq == begin + 1


def test_at_stage_accepted_kept_messages_get_new_numbers_where_another_store_may_have_used_theirs(
    connections, tmp_path, caplog
):
    failed: list[Any] = []

    def start(second: int, **options: Any) -> Publisher:
        Connection.now_ms = NOW_MS + 1000 * second
        return Publisher(connections, name="p1", stage="accepted", on_failed_write=failed.append, **options)

    def keep(second: int) -> int:
        with start(second, store=tmp_path / "p1") as publisher:
            connections.made[-1].kafka = lambda _headers, _value: KafkaTimeoutError("away")
            publisher.publish(b"kept")
            publisher.close(0.1)
        connections.made[-1].kafka = lambda _headers, _value: None
        return publisher.next_seq - 1

    kept = keep(0)
    with start(1) as terminal:
        terminal.publish(b"terminal").result(SECONDS)
    with start(2, store=tmp_path / "p1") as publisher:
        publisher.publish_flush(SECONDS)
    again = (NOW_MS + 2000) * 1_000_000 + 1
    assert [headers["seq"] for headers in connections[2].wait_for(None)] == [str(again)]
    assert [(one.seq, one.reason, one.value) for one in failed] == [(kept, "renumbered", b"kept")]
    # from now on its numbers are its own
    kept = keep(3)
    with start(4, store=tmp_path / "p1") as publisher:
        publisher.publish_flush(SECONDS)
    assert [headers["seq"] for headers in connections[4].wait_for(None)] == [str(kept)]
    kept = keep(5)
    connections.made[-1].silent = True
    with start(6, store=tmp_path / "p1", logon_timeout=0.1) as publisher:
        publisher.publish_flush(SECONDS)
    assert [headers["seq"] for headers in connections[6].wait_for(None)] == [str((NOW_MS + 6000) * 1_000_000 + 1)]
    assert [one.seq for one in failed[1:]] == [kept]
    assert "was not answered within 0.1 s" in caplog.text


def test_holes_are_withdrawn_before_anything_is_sent(connections, tmp_path):
    with Publisher(connections, name="p1", store=tmp_path / "p1") as publisher:
        for number in range(3):
            publisher.publish(b"%d" % number)
    connections[-1].highest = 9
    with Publisher(connections, name="p1", store=tmp_path / "p1") as publisher:
        assert publisher.next_seq == 10
        publisher.publish(b"new")
        sent = [headers for headers, _ in connections[1].sent]
    kinds = [(headers.get("command"), headers.get("first"), headers.get("seq")) for headers in sent]
    assert kinds == [
        ("logon", "1", None), ("withdraw", "4", "9"), (None, None, "1"), (None, None, "2"), (None, None, "3"),
        (None, None, "10"),
    ]  # fmt: skip


def test_at_stage_accepted_a_flush_to_the_tables_asks_the_service(connections):
    with Publisher(connections, name="p1", stage="accepted") as publisher:
        publisher.publish(b"x").result(SECONDS)
        with pytest.raises(FlushTimeout):
            publisher.publish_flush(0.05, stage="persisted")
        flushing = threading.Thread(target=publisher.publish_flush, args=(SECONDS, "persisted"))
        flushing.start()
        commands = connections[0].wait_for("flush", 2)
        assert flushing.is_alive()
        connections[0].answer(CommandAck(ack_type="persisted", cid=commands[1]["cid"]))
        flushing.join(SECONDS)
        assert not flushing.is_alive()


def test_who_waits_for_the_tables_does_not_wait_for_the_interval_of_merged_acks(connections):
    with Publisher(connections, name="p1", conflation_ms=60_000) as publisher:
        publisher.publish_flush(SECONDS)
        assert [headers.get("command") for headers, _ in connections[0].sent] == ["logon"], "nothing to wait for"
        publisher.publish(b"x")
        flushing = threading.Thread(target=publisher.publish_flush, args=(SECONDS,))
        flushing.start()
        (command,) = connections[0].wait_for("flush")
        # the acks decide, not the answer to this
        connections[0].answer(CommandAck(ack_type="persisted", cid=command["cid"]))
        assert flushing.is_alive()
        connections[0].answer(CommandAck(ack_type="persisted", first=1, seq=1))
        flushing.join(SECONDS)
        assert not flushing.is_alive()


def test_who_waits_for_the_tables_asks_again_for_what_was_sent_meanwhile(connections, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(publisher_link, "HURRY_SECONDS", 0.01)
    with Publisher(connections, name="p1", store=tmp_path / "p1", window=4, conflation_ms=60_000) as publisher:
        for _ in range(4):
            publisher.publish(b"x")
    # an earlier run's: the last two have no room at first
    with Publisher(
        connections, name="p1", store=tmp_path / "p1", window=2, conflation_ms=60_000, ack_timeout=60
    ) as publisher:
        flushing = threading.Thread(target=publisher.publish_flush, args=(SECONDS,))
        flushing.start()
        connection = connections[-1]
        connection.wait_for("flush")
        connection.answer(CommandAck(ack_type="persisted", first=1, seq=2))
        connection.wait_for(None, 4)
        assert len(connection.wait_for("flush", 2)) <= 3, "and not again while nothing is sent"
        connection.answer(CommandAck(ack_type="persisted", first=3, seq=4))
        flushing.join(SECONDS)
        assert not flushing.is_alive()


def test_waiting_for_the_tables_ends_in_time(connections):
    with Publisher(connections, name="p1") as publisher:
        publisher.publish(b"x")
        with pytest.raises(FlushTimeout, match=r"1 messages were not acknowledged within 0\.02 s"):
            publisher.publish_flush(0.02)
        assert len(connections[0].wait_for("flush")) == 1


def test_acks_of_what_another_session_kept_are_not_needed_to_start(connections, tmp_path: Path):
    with Publisher(connections, name="p1", store=tmp_path / "p1") as publisher:
        publisher.publish(b"x")
    connections[-1].watermark = 1
    with Publisher(connections, name="p1", store=tmp_path / "p1") as publisher:
        assert (publisher.unpersisted_count, publisher.next_seq) == (0, 2)


def test_many_messages_are_published_as_the_window_has_room(connections):
    with Publisher(connections, name="p1", window=3, conflation_ms=0) as publisher:
        (connection,) = connections

        def acknowledge() -> None:
            for number in range(3, 9, 3):
                connection.wait_for(None, number)
                connection.answer(persisted(number))

        acking = threading.Thread(target=acknowledge)
        acking.start()
        futures = publisher.publish_many((b"%d" % number for number in range(8)), topic="orders")
        acking.join()
        connection.answer(persisted(8))
        assert [future.result(SECONDS).seq for future in futures] == [*range(1, 9)]
    sent = [value for headers, value in connection.sent if headers.get("command") is None]
    assert sent == [b"%d" % number for number in range(8)]


def test_messages_that_are_published_together_are_one_change_of_the_file(connections, tmp_path: Path, monkeypatch):
    changes: list[int] = []
    change = StoreFile.change
    monkeypatch.setattr(
        StoreFile, "change", lambda self, *made, **how: changes.append(len(made)) or change(self, *made, **how)
    )
    with Publisher(connections, name="p1", store=tmp_path / "p1", stage="accepted") as publisher:
        changes.clear()
        futures = publisher.publish_many([b"x"] * 50)
        assert changes[0] == 51
        for future in futures:
            future.result(SECONDS)
    assert connections


def test_where_publishing_many_messages_stops_their_futures_have_the_reason(connections):
    with Publisher(connections, name="p1", window=2, block=False) as publisher:
        assert publisher.publish_many([]) == []
        with pytest.raises(BadParameterError):
            publisher.publish_many([b"1", "2"])  # type: ignore[list-item]
        assert publisher.unpersisted_count == 0
        futures = publisher.publish_many([b"1", b"2", b"3", b"4"])
        assert [future.done() for future in futures] == [False, False, True, True]
        for future in futures[2:]:
            with pytest.raises(WouldBlockError):
                future.result(0)
        connections[0].answer(persisted(2))
        assert futures[1].result(SECONDS).seq == 2
    with pytest.raises(PublisherClosedError):
        publisher.publish_many([b"5"])[0].result(0)
