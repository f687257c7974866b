from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition

from ackstream.client.core.lifetime import Lifetime
from ackstream.client.errors import BadFilterError, CommandTimeout, RefusedError, StreamClosedError, TakenOverError
from ackstream.client.options import QueryOptions
from ackstream.client.queries import _query_link as query_link
from ackstream.client.queries import message_stream
from ackstream.client.queries._query_link import QueryLink
from ackstream.client.queries.bookmarks import Bookmarks
from ackstream.client.queries.message_stream import MessageStream
from ackstream.client.queries.query_client import QueryClient
from ackstream.errors import BadParameterError
from ackstream.protocol.messages import CommandAck, encode_ack
from ackstream.protocol.queries import Position, bookmark, end
from tests.client.connections import FakeConnection
from tests.harness.waiting import PATIENCE_SECONDS, eventually


class Connection:
    """Answers each command with the ack that the test has for it, if any."""

    def __init__(self) -> None:
        self.acks: dict[str, dict[str, Any]] = {}
        self.sent: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
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
        self.headers.append(named)
        answer = self.acks.get(named["command"])
        if answer is not None:
            ack = CommandAck(ack_type="processed", cid=named["cid"], **answer)
            record = _record(len(self.sent), [("command", b"ack"), ("id", b"0-%d/a" % len(self.sent))], encode_ack(ack))
            assert self._handle is not None
            self._handle(record)

    def close(self) -> None:
        self.stop.set()


def _record(offset: int, headers: list[tuple[str, bytes]], value: bytes | None) -> Any:
    return SimpleNamespace(partition=0, offset=offset, headers=headers, value=value)


def _connect(**options: Any) -> QueryLink:
    given = {"timeout": 0.05, "heartbeat": 60.0} | options
    brokers = FakeConnection(link=Connection())
    return QueryLink(brokers, QueryOptions(brokers, name="q1", **given), Bookmarks("p1"))


@pytest.fixture
def link() -> Iterator[QueryLink]:
    link = _connect()
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
    monkeypatch.setattr(query_link, "AGAIN_SECONDS", 0.01)
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


def test_a_session_is_kept_while_a_handler_takes_its_time() -> None:
    link = _connect(timeout=0.05, heartbeat=0.001)
    link._logon.begin((0, 0), 1.0)
    # nobody reads, as while a handler is called
    eventually(lambda: link._link.sent.count(("heartbeat", "")) > 2, "heartbeats")  # type: ignore[attr-defined]
    link.close()


def _expire(link: QueryLink, offset: int) -> None:
    """Answer a heartbeat of a session that is over."""
    ack = CommandAck(ack_type="processed", status="failure", cid=f"beat-{link._token}", reason="logon required")
    link._receive(_record(offset, [("command", b"ack"), ("id", b"0-%d/1" % offset)], encode_ack(ack)))


def _arrive(
    link: QueryLink, cid: str, offset: int, repeated: int | None = None, *, command: bytes = b"publish"
) -> None:
    position = Position(3, 0, offset if repeated is None else repeated)
    headers = [
        ("command", command),
        ("cid", cid.encode()),
        ("bookmark", bookmark(position, "t").encode()),
    ]
    headers += [("topic", b"t"), ("client", b"p"), ("timestamp", b"1")]
    link._receive(_record(offset, headers, b"x"))


def test_a_lost_session_is_begun_again_and_subscriptions_go_on_after_what_they_have_received() -> None:
    states: list[str] = []
    link = _connect(timeout=5, heartbeat=60, on_connection=states.append)
    connection: Any = link._link
    connection.acks |= {"logon": {}, "subscribe": {}}
    link.log_on({"options": "heartbeat=60000ms"})
    streams = {
        "named": link.execute("subscribe", {"processed"}, {"topic": "t", "bookmark": "EPOCH", "sub_id": "mine"}),
        "new": link.execute("subscribe", {"processed"}, {"topic": "t", "filter": "/a > 1"}),
        "quiet": link.execute("subscribe", {"processed"}, {"topic": "t", "bookmark": "EPOCH"}),
    }
    before = {name: stream.cid for name, stream in streams.items()}
    _arrive(link, streams["named"].cid, 10)
    _arrive(link, streams["new"].cid, 11)
    _expire(link, 12)
    eventually(lambda: states[-1:] == ["resubscribed"], "the subscriptions")
    assert states == ["connected", "disconnected", "connected", "resubscribed"]
    assert [sent["options"] for sent in connection.headers if sent["command"] == "logon"] == ["heartbeat=60000ms"] * 2
    again = [sent for sent in connection.headers if sent.get("options") == "replace"]
    assert [(sent.get("bookmark"), sent.get("filter"), sent["sub_id"]) for sent in again] == [
        (bookmark(Position(3, 0, 10), "t"), None, "mine"),
        (bookmark(Position(3, 0, 11), "t"), "/a > 1", before["new"]),
        ("EPOCH", None, before["quiet"]),
    ]
    # what the service repeats is dropped, what follows is received
    _arrive(link, streams["named"].cid, 20)
    _arrive(link, streams["named"].cid, 21, repeated=10)
    _arrive(link, streams["named"].cid, 22)
    assert streams["named"].cid != before["named"]
    assert len(list(iter(lambda: streams["named"].receive(0), None))) == 3
    link.close()
    assert states[-1] == "resubscribed"


def test_a_subscription_that_is_refused_afterwards_ends_with_the_reason() -> None:
    link = _connect(timeout=5, heartbeat=60)
    connection: Any = link._link
    connection.acks |= {"logon": {}, "subscribe": {}}
    link.log_on({})
    stream = link.execute("subscribe", {"processed"}, {"topic": "t"})
    connection.acks["subscribe"] = {"status": "failure", "reason": "bad filter"}
    _expire(link, 12)
    with pytest.raises(BadFilterError):
        stream.receive(5)
    link.close()


def _bookmark(link: QueryLink, stream: MessageStream, offset: int, batch: int) -> None:
    """Report the log's position."""
    ack = CommandAck(ack_type="persisted", sub_id=stream.sub_id, bookmark=bookmark(end(batch), "t"))
    link._receive(_record(offset, [("command", b"ack"), ("id", b"0-%d/1" % offset)], encode_ack(ack)))


def _complete(link: QueryLink, stream: MessageStream, offset: int, batch: int) -> None:
    ack = CommandAck(ack_type="completed", cid=stream.cid, bookmark=bookmark(end(batch), "t"))
    link._receive(_record(offset, [("command", b"ack"), ("id", b"0-%d/1" % offset)], encode_ack(ack)))


def _losing(
    monkeypatch: pytest.MonkeyPatch,
    on_error: Callable[[Exception], None] | None = None,
    timeout: float = 5,
    heartbeat: float = 60,
) -> tuple[QueryLink, Any, list[str]]:
    """Return a client that has logged on, its connection, and the states that it reports."""
    for module in (query_link, message_stream):
        monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    states: list[str] = []
    link = _connect(
        timeout=timeout,
        heartbeat=heartbeat,
        on_error=on_error,
        on_connection=states.append,
    )
    connection: Any = link._link
    connection.acks |= {"logon": {}, "subscribe": {}, "sow_and_subscribe": {}}
    link.log_on({})
    return link, connection, states


def _resumed(connection: Any) -> list[str | None]:
    return [sent.get("bookmark") for sent in connection.headers if sent.get("options") == "replace"]


def test_a_subscription_that_ends_needs_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """AMPS-24: all its answers are in Kafka; one that is resumed would have no end."""
    link, connection, states = _losing(monkeypatch)
    first, last = (bookmark(Position(3, 0, offset), "t") for offset in (10, 20))
    stream = link.execute("subscribe", {"processed", "completed"}, {"topic": "t", "bookmark": f"[{first}:{last}]"})
    _arrive(link, stream.cid, 10)
    _expire(link, 12)
    eventually(lambda: states[-1:] == ["resubscribed"], "the session")
    assert _resumed(connection) == []
    _arrive(link, stream.cid, 20)
    _complete(link, stream, 21, 3)
    assert len(list(stream)) == 2
    link.close()


def test_a_subscription_that_received_nothing_goes_on_where_the_log_was(monkeypatch: pytest.MonkeyPatch) -> None:
    link, connection, states = _losing(monkeypatch)
    new = link.execute("subscribe", {"processed", "persisted"}, {"topic": "t", "bookmark": "NOW"})
    both = link.execute("sow_and_subscribe", {"processed", "completed"}, {"topic": "t"})
    _bookmark(link, new, 10, 4)
    _bookmark(link, new, 11, 6)
    _complete(link, both, 12, 5)
    _expire(link, 13)
    eventually(lambda: states[-1:] == ["resubscribed"], "the subscriptions")
    assert _resumed(connection) == [bookmark(end(6), "t"), bookmark(end(5), "t")]
    link.close()


def _answer(link: QueryLink, offset: int, cid: str, **fields: Any) -> None:
    """Answer a command with ``processed``."""
    ack = CommandAck(ack_type="processed", cid=cid, **fields)
    link._receive(_record(offset, [("command", b"ack"), ("id", b"0-%d/1" % offset)], encode_ack(ack)))


def _answer_beat(link: QueryLink, offset: int, batch: int) -> None:
    _answer(link, offset, f"beat-{link._token}", bookmark=bookmark(end(batch), ""))


def _asked(connection: Any, command: str) -> list[dict[str, str]]:
    return [sent for sent in connection.headers if sent["command"] == command]


def test_a_heartbeat_says_how_far_a_quiet_subscription_is(monkeypatch: pytest.MonkeyPatch) -> None:
    link, connection, states = _losing(monkeypatch)
    quiet = link.execute("subscribe", {"processed", "completed"}, {"topic": "t", "bookmark": "NOW"})
    busy = link.execute("subscribe", {"processed", "persisted"}, {"topic": "t", "bookmark": "EPOCH", "sub_id": "mine"})
    _complete(link, quiet, 10, 4)
    _answer_beat(link, 11, 7)
    _bookmark(link, busy, 12, 8)
    _expire(link, 13)
    eventually(lambda: states[-1:] == ["resubscribed"], "the subscriptions")
    assert _resumed(connection) == [bookmark(end(7), "t"), bookmark(end(8), "t")]
    assert [sent["ack"] for sent in _asked(connection, "subscribe")[-2:]] == ["processed", "persisted,processed"]
    link.close()


def test_a_heartbeat_says_nothing_about_a_subscription_that_was_not_resumed_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_stream, "MAX_BUFFERED_BYTES", 750)
    link, connection, states = _losing(monkeypatch)
    stream = link.execute("subscribe", {"processed"}, {"topic": "t", "bookmark": "EPOCH"})
    for offset in (10, 11, 12):
        _arrive(link, stream.cid, offset)
    _expire(link, 13)
    eventually(lambda: states[-2:] == ["disconnected", "connected"], "the session")
    # what lies between was for nobody
    _answer_beat(link, 14, 9)
    assert [stream.receive(0) is not None for _ in range(2)] == [True, True]
    _arrive(link, stream.cid, 12)
    eventually(lambda: states[-1:] == ["resubscribed"], "the subscription")
    assert _resumed(connection) == [bookmark(Position(3, 0, 12), "t")]
    link.close()


def test_a_report_that_names_no_command_is_about_the_last_subscription_of_the_name_that_has_begun(
    link: QueryLink,
) -> None:
    made = [MessageStream(cid, "mine", set(), live=True, bookmarks=None, handler=None) for cid in ("old", "new")]
    link._streams = {stream.cid: stream for stream in made}
    _answer(link, 1, "old")
    _bookmark(link, made[0], 2, 4)
    _answer(link, 3, "new")
    _bookmark(link, made[1], 4, 6)
    assert [stream.reached for stream in made] == [end(4), end(6)]


def _in_background(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(act())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_a_command_waits_until_the_subscriptions_of_a_lost_session_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service would carry it out, and it would be taken for one of the earlier session: its answers were lost."""
    link, connection, states = _losing(monkeypatch)
    link.execute("subscribe", {"processed"}, {"topic": "t", "bookmark": "EPOCH"})
    del connection.acks["logon"]
    _expire(link, 100)
    eventually(lambda: len(_asked(connection, "logon")) > 1, "another logon")
    thread, results = _in_background(
        lambda: link.execute("sow_and_subscribe", {"processed", "completed"}, {"topic": "t"})
    )
    thread.join(0.05)
    assert _asked(connection, "sow_and_subscribe") == []
    _answer(link, 101, _asked(connection, "logon")[-1]["cid"])
    thread.join(PATIENCE_SECONDS)
    eventually(lambda: states[-1:] == ["resubscribed"], "the subscription")
    names = [name for name, _ in connection.sent if "subscribe" in name]
    assert names == ["subscribe", "subscribe", "sow_and_subscribe"]
    for offset, position in enumerate((900, 5, 400), 102):
        _arrive(link, results[0].cid, offset, position, command=b"sow")
    assert len(list(iter(lambda: results[0].receive(0), None))) == 3
    link.close()


def test_a_command_does_not_wait_for_a_session_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    link, connection, _ = _losing(monkeypatch, timeout=PATIENCE_SECONDS)
    connection.acks.clear()
    _expire(link, 100)
    eventually(lambda: len(_asked(connection, "logon")) > 1, "another logon")
    with pytest.raises(CommandTimeout, match=r"not processed within 0\.01 s"):
        link.execute("sow", {"processed"}, {"topic": "t"}, 0.01)
    assert _asked(connection, "sow") == []
    link.close()


def test_a_subscription_that_was_never_processed_is_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sent it learns that it timed out, or why it was refused."""
    link, connection, states = _losing(monkeypatch, timeout=PATIENCE_SECONDS)
    del connection.acks["subscribe"]
    thread, results = _in_background(lambda: link.execute("subscribe", {"processed"}, {"topic": "t"}, 0.3))
    eventually(lambda: _asked(connection, "subscribe"), "the command")
    _expire(link, 100)
    eventually(lambda: states[-1:] == ["resubscribed"], "the session")
    thread.join(PATIENCE_SECONDS)
    assert isinstance(results[0], CommandTimeout)
    assert _resumed(connection) == []
    link.close()


@pytest.mark.parametrize("taken", [False, True])
def test_what_is_cancelled_while_it_is_resumed_leaves_no_subscription_behind(
    monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    link, connection, _ = _losing(monkeypatch, timeout=PATIENCE_SECONDS)
    stream = link.execute("subscribe", {"processed"}, {"topic": "t", "bookmark": "EPOCH", "sub_id": "mine"})
    del connection.acks["subscribe"]
    _expire(link, 100)
    eventually(lambda: _resumed(connection), "the subscription")
    if taken:
        other = MessageStream("other", "mine", set(), live=True, bookmarks=None, handler=None)
        link._streams = {**link._streams, "other": other}
    link.remove(stream)
    eventually(lambda: link._session.unresumed == [], "the end")
    assert [sent["sub_id"] for sent in _asked(connection, "unsubscribe")] == ["mine"] * (not taken)
    link.close()


def test_a_subscription_is_not_resumed_behind_the_one_that_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_stream, "MAX_BUFFERED_BYTES", 250)
    link, connection, states = _losing(monkeypatch, timeout=PATIENCE_SECONDS)
    headers = {"topic": "t", "bookmark": "EPOCH", "sub_id": "mine"}
    old = link.execute("subscribe", {"processed"}, headers)
    _arrive(link, old.cid, 10)
    _arrive(link, old.cid, 11)
    _expire(link, 12)
    eventually(lambda: states[-2:] == ["disconnected", "connected"], "the session")
    del connection.acks["subscribe"]
    thread, results = _in_background(lambda: link.execute("subscribe", {"processed"}, headers | {"options": "replace"}))
    eventually(lambda: len(_asked(connection, "subscribe")) == 2, "the successor")
    # now the earlier one could go on
    assert old.receive(0) is not None
    _arrive(link, old.cid, 11)
    assert old.caught_up
    link._await(link._send_again())
    assert len(_asked(connection, "subscribe")) == 2
    _answer(link, 200, _asked(connection, "subscribe")[-1]["cid"])
    thread.join(PATIENCE_SECONDS)
    assert link.subscriptions() == results
    eventually(lambda: states[-1:] == ["resubscribed"], "the end")
    assert len(_asked(connection, "subscribe")) == 2
    link.close()


def test_a_subscription_that_waits_for_its_application_does_not_cost_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_stream, "MAX_BUFFERED_BYTES", 250)
    link, connection, states = _losing(monkeypatch, heartbeat=0.02)
    for module in (query_link, message_stream):
        monkeypatch.setattr(module, "AGAIN_SECONDS", PATIENCE_SECONDS)
    stream = link.execute("subscribe", {"processed"}, {"topic": "t", "bookmark": "EPOCH"})
    _arrive(link, stream.cid, 10)
    _arrive(link, stream.cid, 11)
    link._session.unresumed = [stream]
    before = len(_asked(connection, "heartbeat"))
    eventually(lambda: len(_asked(connection, "heartbeat")) > before + 2, "heartbeats")
    assert "resubscribed" not in states
    link.close()


def test_a_query_that_the_application_has_not_received_yet_is_read_before_its_subscription_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its records may be in any order: after the highest position, those below that were not taken would be lost."""
    monkeypatch.setattr(message_stream, "MAX_BUFFERED_BYTES", 750)
    link, connection, states = _losing(monkeypatch)
    stream = link.execute("sow_and_subscribe", {"processed"}, {"topic": "t", "order_by": "/price"})
    for offset, position in ((10, 9), (11, 2), (12, 1)):
        _arrive(link, stream.cid, offset, position, command=b"sow")
    _expire(link, 13)
    eventually(lambda: states[-2:] == ["disconnected", "connected"], "the session")
    assert stream.receive(0) is not None
    assert stream.receive(0) is not None
    assert (_resumed(connection), stream.caught_up) == ([], False)
    # the client reads again what the stream had no room for
    _arrive(link, stream.cid, 12, 1, command=b"sow")
    assert stream.receive(0) is not None
    eventually(lambda: states[-1:] == ["resubscribed"], "the subscription")
    assert _resumed(connection) == [bookmark(Position(3, 0, 9), "t")]
    link.close()


def test_all_subscriptions_are_sent_before_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    link, connection, _ = _losing(monkeypatch)
    for _ in range(3):
        link.execute("subscribe", {"processed"}, {"topic": "t", "bookmark": "EPOCH"})
    # from now on the service answers the logon alone
    del connection.acks["subscribe"]
    _expire(link, 12)
    eventually(lambda: len(_resumed(connection)) == 3, "the subscriptions")
    link.close()


@pytest.mark.parametrize(
    ("command", "reason"),
    [("logon", "internal error"), ("subscribe", "internal error"), ("subscribe", "too many subscriptions")],
)
def test_what_the_service_fails_to_do_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, command: str, reason: str
) -> None:
    link, connection, states = _losing(monkeypatch)
    stream = link.execute("subscribe", {"processed"}, {"topic": "t"})
    connection.acks[command] = {"status": "failure", "reason": reason}
    before = connection.sent.count((command, stream.sub_id if command == "subscribe" else ""))
    _expire(link, 12)
    eventually(lambda: len([name for name, _ in connection.sent if name == command]) > before + 2, "repetitions")
    assert link.life.error is None
    connection.acks[command] = {}
    eventually(lambda: states[-1:] == ["resubscribed"], "the subscription")
    assert not stream.over
    link.close()


@pytest.mark.parametrize("reason", ["not entitled", "invalid options"])
def test_a_client_that_may_not_log_on_any_more_ends(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    errors: list[Exception] = []
    link, connection, _ = _losing(monkeypatch, errors.append)
    connection.acks["logon"] = {"status": "failure", "reason": reason}
    _expire(link, 12)
    eventually(lambda: errors, "the error")
    assert isinstance(errors[0], RefusedError)
    link.close()


def test_a_client_without_a_session_closes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    link, connection, _ = _losing(monkeypatch, timeout=PATIENCE_SECONDS)
    for module in (query_link, message_stream):
        monkeypatch.setattr(module, "AGAIN_SECONDS", PATIENCE_SECONDS)
    connection.acks.clear()
    _expire(link, 12)
    eventually(lambda: connection.sent.count(("logon", "")) == 2, "another logon")
    link.close()
    assert "ackstream-query-q1-alive" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(StreamClosedError):
        link.execute("sow", {"processed"}, {"topic": "t"})


def test_a_service_that_is_silent_is_reported_and_that_it_answers_again() -> None:
    states: list[str] = []
    link = _connect(timeout=5, heartbeat=0.02, on_connection=states.append)
    connection: Any = link._link
    connection.acks["logon"] = {}
    link.log_on({})
    eventually(lambda: states[-1:] == ["disconnected"], "the report")
    connection.acks["heartbeat"] = {}
    eventually(lambda: states[-1:] == ["connected"], "the report")
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
    monkeypatch.setattr(message_stream, "MAX_BUFFERED_BYTES", 2_000)
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
        link = _connect()
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
    with pytest.raises(BadParameterError, match="contains a comma"):
        client.sow_delete("orders", keys=["a,b"])


def test_the_most_recent_message_of_a_subscription_without_a_name_is_not_known() -> None:
    with pytest.raises(BadParameterError, match="bookmark is MOST_RECENT: give sub_id"):
        object.__new__(QueryClient).subscribe("orders", bookmark="MOST_RECENT")


@pytest.mark.parametrize("name", ["", "n" * 256])
def test_a_name_that_the_service_would_not_answer_is_refused(name: str) -> None:
    with pytest.raises(BadParameterError, match="1 to 255"):
        QueryClient("localhost:9092", name=name)


@pytest.mark.parametrize("mark", [None, "EPOCH"])
def test_every_subscription_is_told_the_position_of_the_log(link: QueryLink, mark: str | None) -> None:
    """So one that receives nothing can be resumed, too; reports of it are for those that asked for a bookmark."""
    client = object.__new__(QueryClient)
    client._link, client._bookmarks = link, link._bookmarks
    connection: Any = link._link
    connection.acks["subscribe"] = {}
    client.subscribe("orders", bookmark=mark, sub_id="mine")
    (sent,) = connection.headers
    assert sent["bookmark"] == (mark or "NOW")
    assert sent["ack"] == ("completed,persisted,processed" if mark else "completed,processed")
    assert len(link._bookmarks._progress) == (mark is not None)
