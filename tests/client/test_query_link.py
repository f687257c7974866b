from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ackstream.client import query_link
from ackstream.client.errors import BadFilterError, CommandTimeout
from ackstream.client.message_stream import Bookmarks
from ackstream.client.query_link import QueryLink
from ackstream.protocol.messages import CommandAck, encode_ack
from ackstream.settings import Kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Connection:
    """Answers each command with the ack that the test has for it, if any."""

    def __init__(self, _kafka: Kafka, _client: str, **_topics: Any) -> None:
        self.acks: dict[str, dict[str, Any]] = {}
        self.sent: list[tuple[str, str]] = []
        self.stop = threading.Event()
        self._handle: Callable[[Any], None] | None = None

    def start(self, _name: str, handle: Callable[[Any], None], _after_poll: Callable[[float], None]) -> None:
        self._handle = handle

    def send(self, _value: bytes, headers: list[tuple[str, bytes]]) -> None:
        named = {name: value.decode() for name, value in headers}
        self.sent.append((named["command"], named.get("sub_id", "")))
        answer = self.acks.get(named["command"])
        if answer is not None:
            ack = CommandAck(ack_type="processed", cid=named["cid"], **answer)
            record = SimpleNamespace(headers=[("command", b"ack"), ("id", b"0-1/a")], value=encode_ack(ack))
            assert self._handle is not None
            self._handle(record)

    def close(self) -> None:
        """Do nothing."""


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
