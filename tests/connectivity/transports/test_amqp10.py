"""What of AMQP 1.0 is decided without a broker."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from proton import (
    UNDESCRIBED,
    Array,
    Data,
    Delivery,
    Described,
    Message,
    byte,
    char,
    float32,
    int32,
    symbol,
    timestamp,
    ulong,
)

from ackstream.connectivity.transports import amqp10, amqp10_link, brokers
from ackstream.connectivity.transports.amqp10 import MAX_LINKS, Amqp10Publisher, Amqp10Source, refusal, settle
from ackstream.connectivity.transports.amqp10_link import (
    Link,
    condition_text,
    external_message,
    proton_message,
    received_message,
)
from ackstream.connectivity.transports.brokers import DELIVERY_SECONDS
from ackstream.connectivity.transports.transport import OutgoingMessage, Published
from ackstream.errors import StartError
from ackstream.settings.security import Tls
from tests.prose import each

HEADERS = {"content-type": "text/plain", "correlation-id": "mine", "reply-to": "answers", "subject": "s", "device": "7"}


class Delivered:
    """Keeps how a delivery is settled."""

    def __init__(self) -> None:
        self.local = SimpleNamespace(failed=False)
        self.state: Any = None
        self.settled = False

    def update(self, state: Any) -> None:
        self.state = state

    def settle(self) -> None:
        assert self.state is not None
        self.settled = True


@each("settlement", "transport-amqp10-")
def test_prose_settlement_of_a_delivery(given_: dict[str, Any], expect: dict[str, Any]) -> None:
    delivery = Delivered()
    settle(delivery, given_["settlement"])
    name = {Delivery.ACCEPTED: "ACCEPTED", Delivery.REJECTED: "REJECTED", Delivery.MODIFIED: "MODIFIED"}[delivery.state]
    assert name + ("_FAILED" if delivery.local.failed else "") == expect["action"]
    assert delivery.settled


def test_what_nobody_has_taken_does_not_count_as_a_delivery_that_failed() -> None:
    taken, untaken = Delivered(), Delivered()
    source: Any = Amqp10Source.__new__(Amqp10Source)
    source._arrived = deque([(untaken, None, False)])
    source._unsettled, source._link = {taken: None, untaken: None}, SimpleNamespace(close=lambda: None)
    source._disconnect()
    assert (taken.state, taken.local.failed, untaken.state, untaken.local.failed) == (
        Delivery.MODIFIED, True, Delivery.RELEASED, False
    )  # fmt: skip
    assert untaken.settled


@pytest.mark.parametrize("payload", [b'{"a": 1}', b"", b"\xff\x00"])
def test_a_message_is_the_same_on_the_other_side(payload: bytes) -> None:
    sent = proton_message(OutgoingMessage("out", HEADERS, payload))
    assert sent.durable
    received = Message()
    received.decode(sent.encode())
    found = external_message(received, "out")
    assert found.headers == HEADERS | {"amqp.address": "out"}
    assert found.payload == payload


def test_a_message_without_properties_has_no_headers() -> None:
    received = Message()
    received.decode(Message(body="1").encode())
    assert external_message(received, "in").headers == {"amqp.address": "in"}


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (memoryview(b"x"), b"x"),
        ({"a": [1, "b"]}, b'{"a":[1,"b"]}'),
        (21.5, b"21.5"),
        (None, b""),
        # as JMS clients send a MapMessage
        ({"n": int32(1), "f": float32(1.5), "on": True, "no": None}, b'{"n":1,"f":1.5,"on":true,"no":null}'),
        ({ulong(1): symbol("s"), "at": timestamp(5)}, b'{"1":"s","at":5}'),
        (Array(UNDESCRIBED, Data.INT, 1, 2), b"[1,2]"),
        (Described(symbol("kind"), [byte(1), char("c"), b"x"]), b'[1,"c","eA=="]'),
    ],
)
def test_other_bodies_are_json(body: Any, payload: bytes) -> None:
    received = Message()
    received.decode(Message(body=body).encode())
    assert external_message(received, "in").payload == payload


def test_properties_of_other_types_are_texts() -> None:
    properties = {"Count": 3, "int": int32(4), "float": float32(1.5), "raw": b"x", "on": True}
    received = Message()
    received.decode(Message(body="1", correlation_id=7, properties=properties).encode())
    assert external_message(received, "in").headers == {
        "count": "3",
        "int": "4",
        "float": "1.5",
        "raw": "x",
        "on": "true",
        "correlation-id": "7",
        "amqp.address": "in",
    }


def test_a_reason_of_the_broker_is_a_text() -> None:
    assert condition_text(SimpleNamespace(name="amqp:not-found", description="no node")) == "amqp:not-found: no node"
    assert condition_text(None) == "no reason given"


UNREADABLE = {
    "no AMQP": b"not amqp",
    "a text that is no UTF-8": Message(body="ab").encode().replace(b"ab", b"\xff\xff"),
    # {[1]: 2}: Python has no such dictionary
    "a key that is a list": bytes.fromhex("005377 c10a02 c0040154010000 5402".replace(" ", "")),
}


@pytest.mark.parametrize("encoded", UNREADABLE.values(), ids=UNREADABLE)
def test_a_message_that_cannot_be_read_is_its_bytes_and_the_reason(encoded: bytes) -> None:
    message, delivered = received_message(encoded, "in")
    assert (message.payload, message.headers, delivered) == (encoded, {"amqp.address": "in"}, 0)
    assert message.unreadable


def test_it_is_known_how_often_a_message_was_delivered_before() -> None:
    message, delivered = received_message(Message(body="1", delivery_count=2).encode(), "in")
    assert (message.payload, message.unreadable, delivered) == (b"1", "", 2)
    assert received_message(b"", "in")[0].payload == b""


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("amqp:not-found", 400),
        ("amqp:unauthorized-access", 400),
        ("amqp:link:message-size-exceeded", 400),
        ("amqp:resource-limit-exceeded", 503),
        ("amqp:internal-error", 503),
        (None, 503),
    ],
)
def test_only_a_rejection_that_a_retry_does_not_change_is_final(name: str | None, status: int) -> None:
    result = refusal(None if name is None else SimpleNamespace(name=name, description="why"))
    assert (result.status, result.away) == (status, status == 503)


class Sender:
    """A link that is granted credit at once; it keeps what is sent."""

    def __init__(self, address: str, sent: list[tuple[str, str]]) -> None:
        self.source = SimpleNamespace(address=address)
        self.credit = 10
        self.closed = False
        self._sent = sent
        self._tags = 0

    def delivery_tag(self) -> str:
        self._tags += 1
        return str(self._tags)

    def delivery(self, tag: str) -> None:
        self._sent.append((self.source.address, tag))

    def stream(self, encoded: bytes) -> None: ...

    def advance(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class Broker:
    """Plays the broker of the target's links."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.senders: dict[str, Sender] = {}
        self.results: list[int] = []
        self.publisher: Any = Amqp10Publisher.__new__(Amqp10Publisher)
        self.publisher._links, self.publisher._attached = {}, 0
        self.publisher._link = SimpleNamespace(connection=None, container=self)
        self.names: set[str] = set()

    def create_sender(self, _connection: Any, _target: str, address: str, *, name: str, options: Any) -> Sender:
        # the link before may not be detached yet
        assert name not in self.names
        assert options
        self.names.add(name)
        self.senders[address] = Sender(address, self.sent)
        return self.senders[address]

    def publish(self, address: str, **headers: str) -> None:
        message = OutgoingMessage(address, headers, b"1")
        self.publisher._send(message, lambda result: self.results.append(result.status))

    def accept(self, address: str, tag: str) -> None:
        self.publisher._confirm(self.event(self.senders[address], tag), Published(200))

    def grant(self, address: str) -> None:
        self.publisher._sendable(self.event(self.senders[address]))

    def close_link(self, address: str, name: str) -> None:
        self.publisher._link_closed(self.event(self.senders[address], condition=name))

    @property
    def busy(self) -> bool:
        """Whether messages are not confirmed."""
        return not all(each.idle for each in self.publisher._unconfirmed())

    @staticmethod
    def event(sender: Sender, tag: str = "", condition: str = "amqp:resource-deleted") -> Any:
        sender_link: Any = sender
        sender_link.remote_condition = SimpleNamespace(name=condition, description="")
        return SimpleNamespace(link=sender_link, delivery=SimpleNamespace(tag=tag))


def test_what_is_kept_of_addresses_is_limited() -> None:
    broker = Broker()
    for number in range(MAX_LINKS + 50):
        broker.publish(f"events/{number}")
        broker.accept(f"events/{number}", "1")
    assert len(broker.publisher._links) == MAX_LINKS
    assert broker.senders["events/0"].closed
    assert not broker.senders["events/50"].closed
    assert set(broker.results) == {200}
    assert not broker.busy


def test_a_link_with_messages_that_are_not_confirmed_is_kept() -> None:
    broker = Broker()
    broker.publish("first")
    for number in range(MAX_LINKS + 50):
        broker.publish(f"events/{number}")
        broker.accept(f"events/{number}", "1")
    assert not broker.senders["first"].closed
    assert broker.busy
    broker.accept("first", "1")
    assert not broker.busy


def test_after_a_message_that_amqp_cannot_carry_the_next_one_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    def encoded(message: OutgoingMessage) -> Any:
        if "bad" in message.headers:
            raise ValueError
        return SimpleNamespace(encode=lambda: b"")

    monkeypatch.setattr(amqp10, "proton_message", encoded)
    broker = Broker()
    broker.publish("out", bad="x")
    broker.publish("out")
    # no delivery was begun for the first one
    assert broker.sent == [("out", "1")]
    broker.accept("out", "1")
    assert broker.results == [400, 200]
    assert not broker.busy


def test_the_end_of_a_link_ends_its_messages_and_not_those_of_the_next_one() -> None:
    broker = Broker()
    broker.publish("out")
    ended = broker.senders["out"]
    broker.publisher._link_closed(broker.event(ended))
    broker.publish("out")
    broker.publisher._link_closed(broker.event(ended))
    broker.publisher._confirm(broker.event(ended, "1"), Published(200))
    assert broker.results == [503]
    broker.accept("out", "1")
    assert broker.results == [503, 200]


TOO_LARGE = "amqp:link:message-size-exceeded"


def test_of_messages_on_a_link_only_the_one_for_which_the_broker_closes_it_is_refused() -> None:
    broker = Broker()
    broker.publish("out")
    broker.accept("out", "1")
    for _ in range(3):
        broker.publish("out")
    broker.senders["out"].credit = 0
    broker.publish("out")
    broker.close_link("out", TOO_LARGE)
    # on the next link each of them is alone, until the broker closes it again
    assert broker.results == [200]
    broker.grant("out")
    assert broker.sent[4:] == [("out", "1")]
    broker.accept("out", "1")
    assert broker.sent[5:] == [("out", "2")]
    broker.close_link("out", TOO_LARGE)
    assert broker.results == [200, 200, 400]
    broker.grant("out")
    for tag in ("1", "2"):
        broker.accept("out", tag)
    assert broker.results == [200, 200, 400, 200, 200]
    assert not broker.busy


@pytest.mark.parametrize(("name", "status"), [("amqp:not-found", 400), (TOO_LARGE, 503), ("amqp:detach-forced", 503)])
def test_messages_that_were_not_sent_are_refused_for_their_address_only(name: str, status: int) -> None:
    broker = Broker()
    broker.publish("out")
    broker.accept("out", "1")
    broker.senders["out"].credit = 0
    broker.publish("out")
    broker.close_link("out", name)
    assert broker.results == [200, status]


def test_an_address_that_the_broker_takes_nothing_for_fails_and_holds_back_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, now = Broker(), [0.0]
    for module in (amqp10, brokers):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    broker.publish("stuck")
    broker.publish("stuck")
    stuck = broker.senders["stuck"]
    now[0] = DELIVERY_SECONDS
    broker.publish("out")
    broker.publisher._look()
    assert broker.results == []
    now[0] += 1.0
    broker.publisher._look()
    assert broker.results == [503, 503]
    assert stuck.closed
    # it has taken it after all, and another attempt has a link of its own
    broker.publisher._confirm(broker.event(stuck, "1"), Published(200))
    broker.publish("stuck")
    broker.accept("stuck", "1")
    broker.accept("out", "1")
    assert broker.results == [503, 503, 200, 200]


class Container:
    """Plays what exchanges data: it needs some turns until both sides have closed."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.timeout = 0.0

    def process(self) -> bool:
        self.turns -= 1
        return self.turns > 0


def test_a_link_that_failed_is_closed_until_both_sides_have_closed() -> None:
    link = Link.__new__(Link)
    container = Container(5)
    closed: list[bool] = []
    link.container, link.connection = container, SimpleNamespace(close=lambda: closed.append(True))
    # a queue that does not exist
    link.reason = "amqp:not-found"
    link.close()
    assert (closed, container.turns) == ([True], 0)


def test_without_trusted_authorities_a_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = SimpleNamespace(cafile=None, capath=None)
    monkeypatch.setattr("ssl.get_default_verify_paths", lambda: paths)
    with pytest.raises(StartError, match="SSL_CERT_FILE"):
        amqp10_link._domain(Tls())
