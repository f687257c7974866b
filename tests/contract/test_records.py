"""Records that the product writes and reads fit the schemas.

Each is made by the code that makes it in production: the jobs' pure rules, the clients' writers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ackstream.client import Ack, Command, subscription
from ackstream.client.publishing.publications import NewMessage, Publications, message_of
from ackstream.jobs.persist.decisions import Admission
from ackstream.jobs.persist.job import fold
from ackstream.jobs.persist.records import MessageMetadata
from ackstream.jobs.query.results import Acknowledged, GroupMark
from ackstream.jobs.query.results import _headers as result_headers
from ackstream.protocol import ledger, queues, readers
from ackstream.protocol.ditto import envelopes
from ackstream.protocol.ditto.acknowledgements import read_issued
from ackstream.protocol.errors import DittoError
from ackstream.protocol.ledger import LedgerRecord
from ackstream.protocol.messages import encode_ack, write_stored
from ackstream.settings import Persist, PublishRule
from ackstream.settings.jobs import QueueSettings
from ackstream.testing import RequestSystem, TopicRecord
from tests.contract.asyncapi import FORMATS
from tests.contract.checking import Contract
from tests.gateway.access.test_authentication import ACCESS, USERS, as_
from tests.gateway.parts import Web
from tests.jobs.query.test_plan import Server
from tests.jobs.queues.test_endpoint import Service
from tests.jobs.settle.logs import Log, Run

VECTORS = Path(__file__).parent.parent / "vectors"
CONTRACT = Contract()
FITS = CONTRACT.fits


# -- requests ----------------------------------------------------------------------------------------------------------


def _requests() -> RequestSystem:
    """Return a system with commands and messages of all kinds, answered, refused and unanswered."""
    system = RequestSystem(twin=True)
    system.responder(handler=lambda signal: Ack(400, "too bright") if signal.value == 700 else Ack(204), labels=["a:b"])
    system.subscriber(handler=lambda _: None, subscriptions=[subscription("events")], labels=["fleet:seen"])
    requester, lamp = system.requester(), "org.acme:lamp"
    requester.request(Command.create_thing(lamp), acks=["twin-persisted", "search-persisted", "fleet:seen"])
    requester.request(Command.modify_attribute(lamp, "power", 70), acks=["a:b"])
    requester.request(Command.modify_attribute(lamp, "power", 700), acks=["a:b", "twin-persisted"])
    requester.request(Command.modify_attribute(lamp, "power", 1), acks=["nobody:here"], timeout="1s")
    requester.request(Command.modify_attribute("org.acme:none", "power", 1))
    requester.publish(Command.modify_attribute(lamp, "power", 2))
    requester.send(Command.modify_attribute(lamp, "power", 3), timeout="2s")
    waiting = requester.send(Command.modify_attribute(lamp, "power", 4), acks=["nobody:here"], timeout="5s")
    requester.cancel(waiting.correlation_id)
    named = {"headers": {"correlation-id": "m-1", "timeout": "5s"}, "path": "/inbox/messages/dim", "value": {"to": 3}}
    message = {"topic": "org.acme/lamp/things/live/messages/dim", **named}
    system.feed("signals", json.dumps(message).encode(), key=b"org.acme:lamp")
    answer = message | {"status": 200, "value": "dimmed"}
    system.feed("acks", json.dumps(answer).encode(), headers=[("correlation-id", b"m-1")])
    live = {"topic": "org.acme/lamp/things/live/commands/modify", "path": "/attributes/a", "value": 1}
    system.feed("signals", json.dumps(live | {"headers": {"correlation-id": "l-1"}}).encode())
    failed = {"status": 500, "error": "device:failed", "message": "It is on fire."}
    error = {"topic": "org.acme/lamp/things/live/errors", "path": "/", "status": 500, "value": failed}
    system.feed("acks", json.dumps(error | {"headers": {"correlation-id": "l-1"}}).encode())
    system.acknowledge("late", "a:b", thing_id=lamp)
    system.feed("acks", b"\xff", headers=[("correlation-id", b"late"), ("label", b"a:c")])
    system.feed("signals", b"not JSON", headers=[("correlation-id", b"c-9"), ("kafka_correlationId", bytes(16))])
    system.advance(200)
    return system


REQUESTS = _requests()


def _readable(topic: str) -> list[TopicRecord]:
    return [record for record in REQUESTS.records[topic] if (topic, record.value) != ("signals", b"not JSON")]


@pytest.mark.parametrize("topic", sorted(REQUESTS.records))
def test_every_record_of_the_requests_plane_is_one_of_the_kinds_of_its_topic(topic: str) -> None:
    records = _readable(topic)
    found = [FITS(topic, record.headers, record.value) for record in records]
    assert records
    assert [names for names in found if len(names) != 1] == []


def test_those_records_are_of_all_kinds_of_the_requests_plane() -> None:
    seen = {
        (topic, name)
        for topic in REQUESTS.records
        for record in _readable(topic)
        for name in FITS(topic, record.headers, record.value)
    }
    topics = ("signals", "acks", "twin-acks", "replies", "events", "ledger", "dead-letters")
    wanted = {(topic, one.name) for topic in topics for one in FORMATS[topic].formats}
    assert wanted - seen == {("acks", "acknowledgements"), ("acks", "response")}


def _cases() -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield the acknowledgements of the case files: id, envelope, and whether one may write it to ``acks``."""
    for name in ("read-ack", "read-acks", "write-ack"):
        for line in (VECTORS / "cases" / f"{name}.jsonl").read_text("utf-8").splitlines():
            case = json.loads(line)
            envelope = case["given"].get("protocol") or case["expect"].get("protocol")
            if envelope is not None:
                yield case["id"], envelope, _is_issued(envelope)


def _is_issued(envelope: dict[str, Any]) -> bool:
    try:
        read_issued(envelopes.decode(json.dumps(envelope).encode()))
    except DittoError:
        return False
    return True


CASES = list(_cases())


@pytest.mark.parametrize(("name", "envelope", "issued"), CASES, ids=[name for name, *_ in CASES])
def test_the_schemas_accept_the_acknowledgements_that_the_product_accepts(
    name: str, envelope: dict[str, Any], issued: bool,  # noqa: FBT001 - a table
) -> None:  # fmt: skip
    # that no built-in label is in an aggregate, no schema of a whole topic can say: the twin writes some
    accepted = issued or name == "acks-extra-builtin-labels-accepted"
    assert bool(FITS("acks", [], json.dumps(envelope).encode())) == accepted


def test_the_schemas_accept_the_messages_of_the_documents() -> None:
    lines = (VECTORS / "prose" / "protocol_acks.jsonl").read_text("utf-8").splitlines()
    found = [envelope for line in lines for envelope in _envelopes(json.loads(line))]
    topics = ("signals", "acks", "twin-acks", "events")
    assert len(found) > 10
    for envelope in found:
        assert any(FITS(topic, [], json.dumps(envelope).encode()) for topic in topics), envelope


def _envelopes(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        if {"topic", "path"} <= part.keys():
            yield part
        for one in part.values():
            yield from _envelopes(one)
    elif isinstance(part, list):
        for one in part:
            yield from _envelopes(one)


def test_what_a_gateway_records_of_its_clients_is_a_record_of_audit() -> None:
    client = Web(users=USERS, access=ACCESS)
    client("GET", "/whoami", auth=("ada", "wrong"))
    client("PUT", "/things/org.bank:safe/attributes/a", json=1, **as_("ada"))
    assert client.rows
    for number, row in enumerate(client.rows, 1):
        record = ledger.encode(LedgerRecord("audit", f"run-{number}", "run", number, audit=row))
        assert FITS("audit", [], record) == ["entry"]


# -- messages ----------------------------------------------------------------------------------------------------------


def test_what_a_publisher_writes_is_a_record_of_messages() -> None:
    records = Publications("orders-1", "logon-1", acknowledged=True)
    plain = message_of(NewMessage(b"1"))
    headers = [("colour", b"red"), ("correlation-id", b"c"), ("requested-acks", b'["a:b"]')]
    asked: dict[str, Any] = {"acks": ["received", "processed"], "cid": "order 7", "ack_immediately": True}
    full = message_of(NewMessage(b"\xff", topic="orders", key=b"k", headers=headers, ttl_ms=500, **asked))
    written = {
        "publish": (records.message(1, plain), b"1"),
        "publish-full": (records.message(2, full), b"\xff"),
        "logon": (records.logon("logon-1", 1, 1000, 250), b""),
        "logon-plain": (records.logon("logon-1", None, 10, None), b""),
        "flush": (records.flush("flush-1"), b""),
        "withdraw": (records.withdrawal(3, 4), b""),
    }
    for name, (headers, value) in written.items():
        assert FITS("messages", headers, value) == [name.partition("-")[0]]


def test_what_persist_answers_is_a_record_of_its_topics() -> None:
    limits = Persist(entitlements=(PublishRule(clients=("*",), topics=("open",)),))
    logon = MessageMetadata(0, 0, 1, 0, client="p", session="s", command="logon", cid="l", ack="processed", first="1")
    messages = [
        MessageMetadata(0, seq, seq, 9, client="p", session="s", seq=str(seq), topic=topic, cid=f"m{seq}",
                        ack="received,processed,persisted,completed,stats")
        for seq, topic in enumerate(("open", "open", "secret", "open"), 1)
    ]  # fmt: skip
    result = fold([logon, *messages], {}, Admission(limits), floor_ms=500, batch=7)
    acks = [encode_ack(ack) for _, ack in result.acks]
    stored = [write_stored(one) for one in result.stored]
    assert {json.loads(ack)["a"] for ack in acks} == {"received", "processed", "persisted"}
    assert stored
    assert {tuple(FITS("publisher-acks", [], ack)) for ack in acks} == {("acknowledgement",)}
    assert {tuple(FITS("stored", [], one)) for one in stored} == {("stored",)}


def test_what_readers_report_and_settle_answers_are_records_of_their_topics() -> None:
    log, run = Log(), Run()
    reports = [
        log.start("R", durable=True),
        log.ack("R", 1, (1, 2), (4, 4)),
        log.say(readers.WriterStateRequest("w1", {"Auditor": 1})),
        log.say(readers.ReadersRequest("ops", 3)),
    ]
    run.feed(log.stored(1, 5, (3, 3)), *reports)
    run.feed(log.say(readers.ReaderStop("R")))
    answers = [value for _, value in run.settled.messages()]
    kinds = {name for answer in answers for name in FITS("publisher-acks", [], answer)}
    assert {len(FITS("app-acks", [], report.value)) for report in reports} == {1}
    assert {len(FITS("publisher-acks", [], answer)) for answer in answers} == {1}
    assert kinds >= {"reader-state", "app-ack-conf", "application-ack", "writer-state", "readers-known"}


def test_what_workers_and_queues_write_are_records_of_their_topics() -> None:
    service = Service(QueueSettings(name="q", topics=("orders",)))
    requests = [
        queues.Bind("q", "A", 1, backlog=2, outcomes=("failed",)),
        queues.Alive("q", "A", 1, received=1, missing=(2,)),
        queues.SettleMessages("q", "A", 1, ("m-7-0",)),
        queues.SettleMessages("q", "A", 1, ("m-9-0",), "rejected"),
        queues.Unbind("q", "A", 1),
        queues.Drain("q", "ada", 1),
    ]
    for at, request in enumerate(requests):
        service.batch((at, at), (at, request))
    assert {len(FITS("app-acks", [], queues.write(request))) for request in requests} == {1}
    found = [FITS("queue-deliveries", [], queues.write(answer)) for answer in service.answers]
    assert {tuple(names) for names in found} == {
        ("bound",),
        ("delivered",),
        ("not-settled",),
        ("unbound",),
        ("drained",),
    }


# -- queries -----------------------------------------------------------------------------------------------------------

COMMANDS: list[dict[str, str]] = [
    {"command": "logon", "ack": "processed", "options": "ack_conflation=1s"},
    {"command": "sow", "ack": "received,processed,completed,stats", "filter": "/x > 1", "top_n": "3", "order_by": "/x"},
    {"command": "subscribe", "ack": "processed,completed,persisted", "bookmark": "EPOCH", "sub_id": "s"},
    {"command": "subscribe", "ack": "processed", "filter": "/x =="},
    {"command": "sow_and_subscribe", "ack": "completed"},
    {"command": "sow_delete", "ack": "processed,persisted,stats", "sow_keys": "a,b"},
    {"command": "flush", "ack": "completed,persisted,processed"},
    {"command": "heartbeat", "ack": "processed", "options": "beat"},
    {"command": "unsubscribe", "sub_id": "s"},
]


def test_commands_and_what_they_are_answered_are_records_of_their_topics() -> None:
    server, answers = Server(), []
    for headers in COMMANDS:
        named = {"topic": "orders", "cid": "c", **headers}
        written = [(name, text.encode()) for name, text in named.items()]
        assert FITS("queries", written, b"") == [headers["command"]]
        for step in server.batch(server.command(headers["command"], **headers), newest=3):
            if isinstance(step, Acknowledged):
                answers.append((result_headers("ack", step.id, step.ack.cid, step.ack.sub_id), encode_ack(step.ack)))
            elif isinstance(step, GroupMark):
                answers.append((result_headers(step.mark, step.id, step.request.command.cid, None), None))
    found = [FITS("query-results", [(one["key"], one["value"]) for one in named], value) for named, value in answers]
    assert {tuple(names) for names in found} == {("ack",), ("group_begin",), ("group_end",)}
