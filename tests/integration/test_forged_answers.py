"""Attackers on the running system: a WebSocket session with few rights, and a Kafka client, forge answers of others.

The victim asks for ``org.bank:safe``; the attackers have a thing of their own, and know the correlation-id. The Kafka
client even knows that on the wire.
"""

from __future__ import annotations

import base64
import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from ackstream.client import Command, Requester, RequestTimeout, Subscriber
from ackstream.client.core.labels import Declarer
from ackstream.gateway.access.passwords import hash_password
from ackstream.kafka.topics import ensure_topics
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.protocol.ditto.twin.subscriptions import subscription
from ackstream.protocol.errors import DittoError
from ackstream.settings import Gateway, Kafka
from tests.harness.gateway import Client, Running, serving
from tests.harness.kafka import following
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

LABEL, SAFE, MINE = "fleet:done", "org.bank:safe", "org.acme:mine"
EVE, VIC = ("eve", "secret"), ("vic", "secret")
WIRED = "org.acme/mine/things"
ACCESS = (
    {"subjects": ["user:vic"], "things": ["*"], "grant": ["READ", "WRITE"]},
    {"subjects": ["user:eve"], "things": [MINE], "path": "/attributes/x", "grant": ["READ"], "labels": ["eves:*"]},
    {"subjects": ["user:vic"], "things": [MINE], "labels": [LABEL]},
)


class World:
    """The system, two gateways, and who has the label: it acknowledges what it is told to."""

    def __init__(self, running: Running, other: Running, pool: ThreadPoolExecutor) -> None:
        self.system, self.running, self.other = running.system, running, other
        self._pool = pool
        self._names = count()
        self.deliveries: dict[str, Any] = {}

    def ask(self, acks: str = f"twin-persisted,{LABEL}") -> tuple[str, str, Future[httpx.Response]]:
        """Let the victim change its safe; return its correlation-id, that on the wire, and the answer to come."""
        name = f"victims-{next(self._names)}"
        headers = {"correlation-id": name, "requested-acks": acks, "timeout": "55s"}
        path = f"/api/2/things/{SAFE}/attributes/x"
        answer = self._pool.submit(self.running, "PUT", path, json=1, headers=headers, auth=VIC)
        return name, self.on_wire(name), answer

    def on_wire(self, name: str) -> str:
        def look() -> str | None:
            found = [dict(record.headers)["correlation-id"].decode() for record in self.system.records("signals")]
            return next((identity for identity in found if shown_id(identity) == name), None)

        return eventually(look, f"the request {name}")

    def acknowledge(self, identity: str) -> None:
        """Let the party that has the label acknowledge, and it alone."""
        eventually(lambda: self.deliveries.get(identity), f"the delivery of {identity}").ack(200)

    def signal(self, identity: str) -> Any:
        """Return the row of a request in the ledger."""
        rows = [record["signal"] for record in self.system.ledger() if "signal" in record]
        return next((row for row in rows if row["correlation_id"] == identity), None)

    def rows(self, identity: str) -> list[dict[str, Any]]:
        """Return the acknowledgements of a request in the ledger."""
        found = [ack for record in self.system.ledger() for ack in record.get("acks", ())]
        return [ack for ack in found if ack["correlation_id"] == identity]


@pytest.fixture(scope="module")
def world(broker: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    kafka = Kafka(bootstrap=broker, topic_prefix=f"forged-{time.time_ns()}-", partitions=2, originator_key="k" * 32)
    hashed = hash_password("secret")
    gateway = Gateway(port=0, users={"vic": hashed, "eve": hashed}, access=ACCESS)
    with ExitStack() as stack:
        stack.enter_context(following(kafka))
        system = stack.enter_context(closing(System(kafka, tmp_path_factory.mktemp("forged"), clock=True)))
        system.settings = system.settings.model_copy(update={"gateway": gateway})
        ensure_topics(system.settings)
        stack.enter_context(system.correlate(spark))
        stack.enter_context(system.twin(spark))
        gateways = [Running(system, stack.enter_context(serving(system.settings))[0]) for _ in range(2)]
        made = World(gateways[0], gateways[1], stack.enter_context(ThreadPoolExecutor(4)))
        for thing in (SAFE, MINE):
            body = {"attributes": {"x": 0, "secret": thing}}
            assert gateways[0]("PUT", f"/api/2/things/{thing}", json=body, auth=VIC).status_code == 201

        def take(delivered: Any) -> None:
            # of two of one id the first is the one that was asked for
            made.deliveries.setdefault(delivered.correlation_id, delivered)

        wanted = [subscription("events")]
        # it acknowledges when the test says so
        party = Subscriber(kafka, handler=take, subscriptions=wanted, labels=[LABEL], automatic=False)
        stack.enter_context(party)
        yield made


def authorization(user: tuple[str, str]) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(':'.join(user).encode()).decode()}"}


def decided(answer: Future[httpx.Response]) -> dict[str, int]:
    found = answer.result(PATIENCE_SECONDS)
    assert found.status_code == 200, found.text
    return {label: entry["status"] for label, entry in found.json().items()}


def test_a_websocket_session_answers_nothing_that_it_was_not_sent(world: World) -> None:
    url = f"{world.running.url.replace('http', 'ws')}/ws/2"
    basic = authorization(EVE)
    with connect(f"{url}?declared-acks=eves:own", additional_headers=basic) as socket:
        eve = Client(socket)
        with pytest.raises(InvalidStatus), connect(f"{url}?declared-acks=twin-persisted", additional_headers=basic):
            pass
        with pytest.raises(InvalidStatus) as refused, connect(f"{url}?declared-acks={LABEL}", additional_headers=basic):
            pass
        assert refused.value.response.status_code == 403
        # and who may has it already
        with connect(f"{url}?declared-acks={LABEL}", additional_headers=authorization(VIC)) as other:
            assert Client(other).get()["value"]["error"] == "acknowledgement:label.not.unique"
            with pytest.raises(ConnectionClosed):
                Client(other).text()
        before = {(record.partition, record.offset) for record in world.system.records("acks")}
        name, identity, answer = world.ask(f"twin-persisted,{LABEL},eves:own")
        for known in (name, identity):
            headers = {"correlation-id": known, "ditto-originator": "user:vic"}
            forged = [
                {"topic": f"{WIRED}/live/commands/modify", "path": "/attributes/z", "status": 204},
                {"topic": f"{WIRED}/live/errors", "path": "/", "status": 403, "value": {"status": 403, "error": "x"}},
                {"topic": f"{WIRED}/twin/acks/eves:own", "path": "/", "status": 200},
                {"topic": "org.bank/safe/things/twin/acks/eves:own", "path": "/", "status": 200},
                {"topic": "unknown/unknown/things/twin/acks/eves:own", "path": "/", "status": 200},
                {"topic": f"{WIRED}/twin/acks/{LABEL}", "path": "/", "status": 200},
                {"topic": f"{WIRED}/twin/acks", "path": "/", "status": 200,
                 "value": {"twin-persisted": {"status": 204, "headers": {}}}},
                {"topic": "org.bank/safe/things/twin/commands/modify", "path": "/attributes/x", "status": 204},
            ]  # fmt: skip
            for message in forged:
                eve.tell({**message, "headers": headers})
                assert eve.get()["status"] in (400, 404), message
        # not the weak acknowledgement of a signal that it may not see, which the gateway issues itself
        weak = [
            json.loads(record.value)
            for record in world.system.records("acks")
            if (record.partition, record.offset) not in before
        ]
        assert all(ack["headers"].get("ditto-weak-ack") for ack in weak)
        assert not answer.done()
        world.acknowledge(identity)
        assert decided(answer) == {"twin-persisted": 204, LABEL: 200, "eves:own": 200}


@pytest.mark.parametrize("planted", [False, True], ids=["open", "planted"])
def test_a_kafka_client_with_the_id_on_the_wire_does_not_answer_for_another_thing(
    world: World, *, planted: bool
) -> None:
    def forge(identity: str) -> None:
        headers = {"correlation-id": identity}
        for value in (
            {"topic": f"{WIRED}/live/commands/modify", "path": "/attributes/x", "status": 204},
            {"topic": f"{WIRED}/live/errors", "path": "/", "status": 403, "value": {"status": 403, "error": "x"}},
            {"topic": "org.bank/safe/things/twin/commands/modify", "path": "/attributes/x", "status": 204},
            {"topic": f"{WIRED}/twin/acks/{LABEL}", "path": "/", "status": 200},
            {"topic": f"{WIRED}/twin/acks", "path": "/", "status": 200, "value": {LABEL: {"status": 200}}},
            {"topic": f"{WIRED}/twin/acks", "path": "/", "status": 200, "value": {"twin-persisted": {"status": 204}}},
        ):
            world.system.send("acks", {**value, "headers": headers}, key=MINE)

    if planted:
        # a producer of Kafka chooses its id: it may be known before
        with Requester(world.system.settings.kafka) as requester:
            identity = f"planted-{time.time_ns()}"
            forge(identity)
            command = Command.modify_attribute(SAFE, "x", 1)
            sent = requester.send(command, acks=["twin-persisted", LABEL], timeout=55, correlation_id=identity)
            world.acknowledge(identity)
            reply = sent.result(PATIENCE_SECONDS)
            assert {label: ack.status for label, ack in reply.acks.items()} == {"twin-persisted": 204, LABEL: 200}
    else:
        _, identity, answer = world.ask()
        forge(identity)
        eventually(lambda: len(world.rows(identity)) >= 5, "rows of what was forged")
        assert not answer.done()
        world.acknowledge(identity)
        assert decided(answer) == {"twin-persisted": 204, LABEL: 200}
    rows = eventually(lambda: found if len(found := world.rows(identity)) >= 7 else None, "all rows")
    refused = [row for row in rows if row["disposition"] == "invalid"]
    assert len(refused) == 5
    assert all(row["reason"] for row in refused)
    assert sorted(row["label"] for row in rows if row["disposition"] == "accepted") == [LABEL, "twin-persisted"]
    assert any("twin-persisted" in reason for reason in world.system.reasons())


def test_a_reply_reaches_who_asked_and_nobody_else_with_the_same_id(world: World) -> None:
    kafka, identity = world.system.settings.kafka, "the-same"
    with Requester(kafka) as victim, Requester(kafka, grace=3) as thief:
        change = Command.modify_attribute(SAFE, "x", 1)
        own = victim.send(change, acks=["twin-persisted", LABEL], timeout=55, correlation_id=identity)
        eventually(lambda: world.signal(identity), "the request of the victim")
        stolen = thief.send(Command.modify_attribute(MINE, "x", 1), timeout=5, correlation_id=identity)
        # correlate takes it for a copy of the first one
        eventually(lambda: [reason for reason in world.system.reasons() if "open or was decided" in reason], "the copy")
        world.acknowledge(identity)
        assert own.result(PATIENCE_SECONDS).ok
        with pytest.raises(RequestTimeout):
            stolen.result(PATIENCE_SECONDS)
        assert thief.statistics.foreign >= 1
    # two gateways, one id of both clients
    gateways = {SAFE: (world.running, VIC), MINE: (world.other, EVE)}
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            asked = {
                thing: pool.submit(
                    gateway, "GET", f"/api/2/things/{thing}", headers={"correlation-id": "both"}, auth=who
                )
                for thing, (gateway, who) in gateways.items()
            }
        found = {thing: answer.result(PATIENCE_SECONDS) for thing, answer in asked.items()}
        assert {thing: answer.headers["correlation-id"] for thing, answer in found.items()} == dict.fromkeys(
            gateways, "both"
        )
        assert found[SAFE].json()["attributes"]["secret"] == SAFE
        assert found[MINE].json()["attributes"].keys() == {"x"}


def test_a_forged_declaration_takes_no_label(world: World) -> None:
    forged = {"labels": [LABEL], "since": 0, "until": 2**60, "lease_ms": 2**60}
    for key in ("thief", "thief", "another"):
        world.system.send("declarations", forged, key=key)
    kafka = world.system.settings.kafka
    with Declarer(kafka) as later, pytest.raises(DittoError) as refused:
        later.declare([LABEL]).future.result(PATIENCE_SECONDS)
    assert refused.value.error == "acknowledgement:label.not.unique"
    # the holder holds it, and renews it
    for _ in range(2):
        _, identity, answer = world.ask()
        world.acknowledge(identity)
        assert decided(answer) == {"twin-persisted": 204, LABEL: 200}


def test_a_sender_is_recorded_if_a_gateway_has_signed_for_it(world: World) -> None:
    _, identity, answer = world.ask()
    row = eventually(lambda: world.signal(identity), "the row of the request")
    assert row["headers"]["ditto-originator"] == "user:vic"
    (sent,) = [
        record
        for record in world.system.records("signals")
        if dict(record.headers)["correlation-id"] == identity.encode()
    ]
    signed = dict(sent.headers)["originator-signature"]
    for name, headers in (("unsigned", {}), ("stolen", {"originator-signature": signed})):
        forged = f"{name}-{time.time_ns()}"
        value = world.system.command_json(forged, ditto_originator="user:root", requested_acks=[])
        world.system.send("signals", value, {"correlation-id": forged.encode(), **headers}, key=MINE)
        row = eventually(lambda: world.signal(forged), "the row of the forged one")  # noqa: B023 - called at once
        assert "ditto-originator" not in row["headers"]
    world.acknowledge(identity)
    assert decided(answer) == {"twin-persisted": 204, LABEL: 200}
