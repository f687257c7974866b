from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from ackstream.client.core import labels, messages
from ackstream.client.core.labels import REDECLARE_SECONDS, BrokerTime, Declaration, Declarer, Labels
from ackstream.client.core.messages import Answers, LabelAcks
from ackstream.client.reading.samples import Sample
from ackstream.errors import UnreachableError
from ackstream.kafka.clients import Closing
from ackstream.protocol.ditto.envelopes import Envelope, encode
from ackstream.protocol.ditto.labels import Declarations, LabelsTakenError
from ackstream.protocol.errors import DittoError, label_not_unique, thing_not_found
from ackstream.settings import Kafka
from tests.client.connections import FakeConnection

WANTED = frozenset({"a-a"})


class FakeDeclarer(Closing):
    """Answers what the test says: ``None`` is silence."""

    answers: list[Any]

    def __init__(self, _kafka: Kafka) -> None:
        """There is nothing to connect to."""

    def declare(self, wanted: frozenset[str], *, group: str | None) -> Declaration:
        answer, declaration = self.answers.pop(0), Declaration(wanted, group)
        if isinstance(answer, Exception):
            declaration.future.set_exception(answer)
        elif answer is not None:
            declaration.granted = True
            declaration.future.set_result(None)
        return declaration

    def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.setattr(labels, "Declarer", FakeDeclarer)
    monkeypatch.setattr(labels, "DECLARE_SECONDS", 0.01)
    with ExitStack() as found:
        yield found


def declared(stack: ExitStack, *answers: Any) -> Labels:
    FakeDeclarer.answers = list(answers)
    return Labels(stack, Kafka(), WANTED, "g")


def test_labels_are_held_from_the_start_or_not_at_all(stack: ExitStack):
    assert declared(stack, "yes").held == WANTED
    with pytest.raises(DittoError):
        declared(stack, label_not_unique())
    with pytest.raises(UnreachableError, match="did not store the declaration"):
        declared(stack, None)


def test_labels_are_taken_when_another_client_has_them_and_not_because_their_lease_is_late(stack: ExitStack) -> None:
    FakeDeclarer.answers = [label_not_unique(), None, "yes"]
    found = Labels(stack, Kafka(), WANTED, "g", required=False)
    assert (found.taken, found.complete) == (True, False)
    found.keep(0.0)
    # declared again, and the answer is open
    assert (found.taken, found.complete) == (False, False)
    held = declared(stack, "yes")
    assert (held.taken, held.complete) == (False, True)
    held._declared.until = 0.0
    assert (held.taken, held.complete) == (False, False)
    # another client's record was read
    held._declared.granted = False
    assert (held.taken, held.complete) == (True, False)


def test_acknowledgements_wait_while_a_lease_may_be_renewed_and_are_not_issued_for_labels_of_another_client(
    stack: ExitStack,
) -> None:
    found = declared(stack, "yes")
    assert (found.ready, found.issued) == (True, WANTED)
    found._declared.until = 0.0
    assert (found.held, found.ready, found.issued) == (frozenset(), False, WANTED)
    found._declared.granted = False
    assert (found.ready, found.issued) == (True, frozenset())


def test_without_labels_nothing_is_declared(stack: ExitStack):
    found = Labels(stack, Kafka(), frozenset(), None)
    found.keep(0.0)
    assert (found.held, found.ready) == (frozenset(), True)


def test_lost_labels_are_declared_again_and_again_until_they_are_held(stack: ExitStack):
    found = declared(stack, "yes", label_not_unique(), "yes")
    declaration = found._declared
    found.keep(100.0)
    assert found._declared is declaration
    declaration.granted = False
    found.keep(100.0)
    assert found.held == frozenset()
    found.keep(100.0 + REDECLARE_SECONDS - 0.1)
    assert len(FakeDeclarer.answers) == 1
    found.keep(100.0 + REDECLARE_SECONDS)
    assert found.held == WANTED


# -- the own clock


class _Log:
    """Stores what a declarer sends, and gives it back with the broker's time."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.declarer: Any = Declarer.__new__(Declarer)
        self.declarer.__dict__ |= {
            "_topic": "declarations",
            "_lease_ms": 30_000,
            "_pause": 10.0,
            "_declarations": Declarations(),
            "_lock": ExitStack(),
            "_own": {},
            "_producer": SimpleNamespace(put=self._put),
            "_time": 0,
            "_forget_at": math.inf,
        }

    def _put(self, _stored: Any, _failed: Any, _topic: str, **record: Any) -> None:
        self.sent.append(record)

    def read(self, offset: int, timestamp: int) -> None:
        record = self.sent.pop(0)
        self.declarer._receive(SimpleNamespace(**record, offset=offset, timestamp=timestamp))


def test_a_label_is_held_for_a_lease_after_the_last_record_that_was_read_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, now = _Log(), [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    own = log.declarer.declare(["a-a"])
    now[0] += 5
    log.read(0, 50_000)
    assert own.held
    now[0] += 5
    log.declarer._renew(now[0])
    now[0] += 10
    # of two renewals of the same lease the first one counts: which of them is read is not known
    log.declarer._renew(now[0])
    now[0] += 10
    assert (own.held, own.granted) == (False, True), "nothing was read for a lease"
    log.read(1, 75_000)
    assert own.held
    now[0] += 10
    assert not own.held


def test_labels_that_are_taken_are_named_with_who_holds_them() -> None:
    log = _Log()
    own = log.declarer.declare(["a-a", "b-b", "c-c"])
    log.sent[:0] = [
        {"key": b"1", "value": b'{"labels":["b-b","x-x"],"group":"lamps"}'},
        {"key": b"2", "value": b'{"labels":["a-a"]}'},
        {"key": b"3", "value": b'{"labels":["c-c"],"lease_ms":1}'},
    ]
    for offset in range(4):
        log.read(offset, 50_000 + offset)
    error = own.future.exception(0)
    assert isinstance(error, LabelsTakenError)
    assert str(error) == (
        "One or more declared acknowledgement labels are taken by other subscribers: a-a; b-b (by the group lamps)."
        " Those of a killed party are free after 30 s."
    )
    assert (error.labels, error.groups) == ({"a-a", "b-b"}, {"lamps"})
    # whoever is told over HTTP or a WebSocket learns no names
    assert error.to_dict() == label_not_unique().to_dict()


def test_a_group_that_has_other_labels_is_named_with_those() -> None:
    log = _Log()
    own = log.declarer.declare(["a-a"], group="lamps")
    log.sent.insert(0, {"key": b"1", "value": b'{"labels":["b-b"],"group":"lamps"}'})
    log.read(0, 50_000)
    log.read(1, 50_001)
    assert str(own.future.exception(0)).endswith(
        "taken by other subscribers: b-b (by the group lamps). Those of a killed party are free after 30 s."
    )


def test_a_callback_about_lost_labels_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = _Log()
    own = log.declarer.declare(["a-a"], lost=lambda: 1 / 0)
    log.read(0, 50_000)
    log.declarer._send(own)
    log.sent.insert(0, {"key": b"rival", "value": b'{"labels":["a-a"]}'})
    log.read(1, 90_000)
    log.read(2, 95_000)
    assert (own.held, "A handler of the application failed" in caplog.text) == (False, True)


# -- acknowledging declared labels


class Acks:
    def __init__(self, *issued: str) -> None:
        self.sent: list[tuple[str, Envelope]] = []
        labels: Any = SimpleNamespace(issued=frozenset(issued))
        self.outbox: Any = SimpleNamespace(
            waiting=0, send=lambda identity, message, _work: self.sent.append((identity, message))
        )
        self.acks = LabelAcks(labels, self.outbox)

    def answers(self) -> list[tuple[str, int, Any]]:
        decoded = [json.loads(encode(message)) for _, message in self.sent]
        return [(answer["topic"], answer["status"], answer.get("value")) for answer in decoded]


def _sample(key: bytes | None = None, requested: bytes | None = b'["a-a"]', **headers: bytes) -> Sample:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    asked = {"correlation-id": b"c-1"} | ({} if requested is None else {"requested-acks": requested})
    return Sample("w1", None, key, b"v", asked | named, 0, 1, 0, 5)


@pytest.mark.parametrize(
    ("response", "payload"),
    [(None, None), (b'{"a": [1]}', {"a": [1]}), (b"7", 7), (b"done", "done"), (b"\xff\x00", "/wA=")],
)
def test_the_response_is_the_payload_of_a_declared_label(response: bytes | None, payload: Any) -> None:
    acked = Acks("a-a", "b-b")
    acked.acks.acknowledged(_sample(requested=b'["a-a","c-c","a-a"]', ditto_entity_id=b"thing:ns:n"), response, None)
    assert acked.answers() == [("ns/n/things/twin/acks/a-a", 200, payload)]
    assert [(identity, message.topic.thing_id) for identity, message in acked.sent] == [("c-1", "ns:n")]


@pytest.mark.parametrize(
    ("sample", "thing"),
    [
        (_sample(b"ns:key", ditto_entity_id=b"ns:header"), "ns/header"),
        (_sample(b"ns:key"), "ns/key"),
        (_sample(b"ns:key", ditto_entity_id=b"none"), "ns/key"),
        (_sample(b"no id"), "unknown/unknown"),
        (_sample(b"a:b/c"), "unknown/unknown"),
        (_sample(b"\xff:\xfe/"), "unknown/unknown"),
    ],
)
def test_the_thing_is_that_of_the_header_else_of_the_key(sample: Sample, thing: str) -> None:
    acked = Acks("a-a")
    acked.acks.acknowledged(sample, None, None)
    assert acked.answers() == [(f"{thing}/things/twin/acks/a-a", 200, None)]


def test_a_live_message_is_acknowledged_on_the_live_channel() -> None:
    acked = Acks("a-a")
    acked.acks.acknowledged(_sample(b"ns:n", channel=b"live"), None, None)
    assert acked.answers() == [("ns/n/things/live/acks/a-a", 200, None)]


@pytest.mark.parametrize("requested", [None, b"", b"[]", b'["b-b"]', b'[{"a":1},null,7]', b"\xff\xfe", b"{"], ids=repr)
def test_nothing_is_said_where_no_declared_label_is_requested(requested: bytes | None) -> None:
    acked = Acks("a-a")
    acked.acks.acknowledged(_sample(requested=requested), None, None)
    acked.acks.rejected(_sample(requested=requested), "no", 400)
    acked.acks.failed(_sample(requested=requested), ValueError())
    assert acked.sent == []


def test_labels_that_were_lost_are_not_used() -> None:
    acked = Acks()
    acked.acks.acknowledged(_sample(), None, None)
    assert acked.sent == []


@pytest.mark.parametrize("taken", [False, True], ids=["renewed", "taken"])
def test_what_is_acknowledged_while_the_lease_has_lapsed_is_sent_once_it_is_renewed(
    stack: ExitStack, *, taken: bool
) -> None:
    found = declared(stack, "yes")
    own, sent = found._declared, list[Any]()
    outbox = Answers(SimpleNamespace(put=lambda *_, **record: sent.append(record)), FakeConnection(), found)
    acks = LabelAcks(found, outbox)
    own.until = 0.0
    acks.acknowledged(_sample(b"ns:n"), b"7", None)
    acks.rejected(_sample(b"ns:n"), "no", 400)
    acks.failed(_sample(b"ns:n"), ValueError())
    outbox.turn(math.inf)
    assert (sent, outbox.waiting, outbox.wait(math.inf)) == ([], 3, None)
    own.until, own.granted = math.inf, not taken
    outbox.turn(math.inf)
    assert [json.loads(record["value"])["status"] for record in sent] == ([] if taken else [200, 400, 500])
    assert (outbox.waiting, outbox.lost) == (0, 3 if taken else 0)


def test_of_too_many_acknowledgements_that_wait_for_a_lease_the_last_ones_are_not_issued(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(messages, "MAX_WAITING", 2)
    acked = Acks("a-a")
    for acked.outbox.waiting in (1, 2):
        acked.acks.acknowledged(_sample(b"ns:n"), None, None)
    assert (len(acked.sent), "c-1 gets none" in caplog.text) == (1, True)


def test_a_sample_that_no_code_saw_is_acknowledged_weakly() -> None:
    acked = Acks("a-a")
    acked.acks.acknowledged(_sample(b"ns:n"), None, "filtered")
    (sent,) = acked.sent
    assert sent[1].headers["ditto-weak-ack"] is True
    assert acked.answers()[0][1] == 200


def test_what_the_application_rejects_and_what_fails_are_nacks() -> None:
    acked = Acks("a-a")
    acked.acks.rejected(_sample(b"ns:n"), "sold out", 409)
    acked.acks.failed(_sample(b"ns:n"), ValueError("broken"))
    acked.acks.failed(_sample(b"ns:n"), thing_not_found("ns:n"))
    assert [(status, value if isinstance(value, str) else min(value)) for _, status, value in acked.answers()] == [
        (409, "sold out"),
        (500, "description"),
        (404, "description"),
    ]


# -- the time of the broker --------------------------------------------------------------------------------------------


def test_the_time_of_the_broker_is_that_of_the_records_that_it_stores():
    now = 50.0
    broker = BrokerTime(lambda: now)
    assert broker.milliseconds is None
    broker.note(SimpleNamespace(timestamp=1_000_000))
    now = 52.0
    assert broker.milliseconds == 1_002_000
    # a report that comes late shows less
    broker.note(SimpleNamespace(timestamp=1_001_500))
    assert broker.milliseconds == 1_002_000
    # this machine has slept
    broker.note(SimpleNamespace(timestamp=9_000_000))
    assert broker.milliseconds == 9_000_000


def test_a_correction_of_the_broker_s_clock_is_believed():
    broker = BrokerTime(lambda: 0.0)
    broker.note(SimpleNamespace(timestamp=9_000_000))
    # an answer that was slow is none
    broker.note(SimpleNamespace(timestamp=8_999_100))
    assert broker.milliseconds == 9_000_000
    broker.note(SimpleNamespace(timestamp=1_000_000))
    assert broker.milliseconds == 1_000_000


def test_the_time_of_the_broker_is_fresh_for_a_second():
    now = 50.0
    broker = BrokerTime(lambda: now)
    assert not broker.fresh
    broker.note(SimpleNamespace(timestamp=1_000_000))
    now = 51.0
    assert broker.fresh
    now = 51.1
    assert not broker.fresh
