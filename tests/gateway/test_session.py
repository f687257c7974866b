"""WebSocket sessions without Kafka: the test plays the hub that hands signals over and takes answers."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from starlette.applications import Starlette

from ackstream.client.labels import Declaration
from ackstream.gateway import session
from ackstream.gateway.authentication import Authenticator, access_of, hash_password
from ackstream.gateway.service import Dependencies
from ackstream.gateway.session import socket_route
from ackstream.protocol.correlation_ids import UniqueIds
from ackstream.protocol.ditto.envelopes import Envelope, encode, raw
from ackstream.protocol.ditto.errors import label_not_unique
from ackstream.protocol.ditto.subscriptions import publication
from ackstream.protocol.ditto.thing_errors import thing_not_found
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.errors import DittoError
from ackstream.settings import Gateway, Settings
from tests.gateway.parts import Exchange, failure, response
from tests.gateway.sockets import Closed, connected
from tests.prose import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMMAND = "org.acme/lamp/things/twin/commands/modify"
EVENT = "org.acme/lamp/things/twin/events/modified"
MESSAGE = "org.acme/lamp/things/live/messages/ask"
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Declarer:
    """Gives every label, but those that are taken."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.lost: Any = None

    def declare(self, labels: frozenset[str], *, lost: Any) -> Declaration:
        self.lost = lost
        declaration = Declaration(labels, None, granted=not self.taken & labels)
        if declaration.held:
            self.taken |= labels
            declaration.future.set_result(None)
        else:
            declaration.future.set_exception(label_not_unique())
        return declaration

    def release(self, declaration: Declaration) -> None:
        if declaration.held:
            self.taken -= declaration.labels


class Hub:
    """Takes the place of ``Streaming``."""

    def __init__(self) -> None:
        self.declarer = Declarer()
        self.correlation_ids = UniqueIds(65.0)
        self.answers: list[tuple[str, Envelope]] = []
        self.extra: Any = {}
        self._came = threading.Condition()
        self._listeners: set[Any] = set()
        self._loop: Any = None

    def subscribe(self, listener: Any, _stream: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners.add(listener)

    def add_labels(self, listener: Any, _labels: frozenset[str]) -> None:
        self.subscribe(listener, "")

    def unsubscribe(self, listener: Any, stream: str) -> None:
        """Leave it in: the session decides, too."""

    def remove(self, listener: Any, _labels: frozenset[str]) -> None:
        self._listeners.discard(listener)

    @staticmethod
    def text(envelope: Envelope) -> str:
        return encode(envelope).decode()

    def forward(self, message: Envelope, topic: str = "acks") -> None:
        with self._came:
            self.answers.append((topic, message))
            self._came.notify_all()

    async def enrich(self, _thing_id: str, _fields: str, _signal: Any) -> Any:
        if isinstance(self.extra, DittoError):
            raise self.extra
        return self.extra

    def publish(self, topic: str = EVENT, correlation_id: str = "c-1", value: Any = 1, **headers: Any) -> None:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        signal = publication(Envelope(TopicPath.parse(topic), named, "/attributes/x", raw(value)), correlation_id)
        for listener in list(self._listeners):
            self._loop.call_soon_threadsafe(listener.receive, signal, NOW)

    def wait(self, number: int) -> list[tuple[str, Envelope]]:
        with self._came:
            assert self._came.wait_for(lambda: len(self.answers) >= number, 10)
        return self.answers


class World:
    def __init__(self, answer: Callable[[Envelope], Any], **gateway: Any) -> None:
        settings = Settings(gateway=Gateway(**gateway))
        authenticator = Authenticator(settings.gateway)
        self.hub = Hub()
        self.exchange = Exchange(answer)
        access = access_of(settings.gateway, authenticator)
        parts: Any = (settings, authenticator, access, self.exchange, None, self.hub)
        self._app = Starlette(routes=[socket_route(Dependencies(*parts))])

    @contextmanager
    def client(self, query: str = "", **headers: str) -> Iterator[Client]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with connected(self._app, "/ws/2", query, named) as socket:
            yield Client(socket)


class Client:
    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def tell(self, topic: str, path: str = "/", **fields: Any) -> None:
        self._socket.send_text(json.dumps({"topic": topic, "path": path, "headers": {}, **fields}))

    def get(self) -> dict[str, Any]:
        return json.loads(self._socket.receive_text())

    def subscribe(self, control: str) -> None:
        self._socket.send_text(control)
        assert self._socket.receive_text() == f"{control.partition('?')[0]}:ACK"

    def write(self, text: str) -> None:
        self._socket.send_text(text)


def world(answer: Callable[[Envelope], Any] = response(204), **gateway: Any) -> World:  # noqa: B008 - it has no state
    return World(answer, **gateway)


# -- connecting --------------------------------------------------------------------------------------------------------


def test_who_is_not_known_is_refused_before_the_connection():
    rules = ({"subjects": ["user:*"], "things": ["*"], "grant": ["READ", "WRITE"]},)
    here = world(users={"ann": hash_password("secret")}, access=rules)
    with pytest.raises(Closed) as caught, here.client():
        pass
    assert caught.value.code == 401
    with here.client(authorization="Basic YW5uOnNlY3JldA==") as client:
        client.tell(COMMAND, value=1)
        assert client.get()["status"] == 204
    assert here.exchange.sent[0].headers["ditto-originator"] == "user:ann"


def test_an_invalid_label_is_refused_before_the_connection():
    with pytest.raises(Closed) as caught, world().client("declared-acks=no+label"):
        pass
    assert caught.value.code == 400


@each("labels", "ws-declare-failure")
def test_a_session_ends_with_the_error_of_its_declaration(given_: dict[str, Any], expect: dict[str, Any]):
    here = world()
    here.hub.declarer.taken = set(given_["declaredAcks"])
    with here.client(declared_acks=",".join(given_["declaredAcks"])) as client:
        assert client.get()["value"]["error"] == expect["error"]
        with pytest.raises(Closed):
            client.get()
    assert expect["session"] == "terminated"


def test_a_session_whose_labels_are_lost_ends_and_one_that_leaves_gives_them_back():
    here = world()
    with here.client("declared-acks=my-ack") as client:
        client.subscribe("START-SEND-EVENTS")
        here.hub.declarer.lost()
        assert client.get()["value"]["error"] == "acknowledgement:label.not.unique"
        with pytest.raises(Closed):
            client.get()
    assert here.hub.declarer.taken == set()


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_request_gets_its_answer_under_the_clients_correlation_id():
    here = world(response(201, {"x": 1}))
    with here.client() as client:
        for _ in range(2):
            client.tell(COMMAND, value={"x": 1}, headers={"correlation-id": "mine"})
            answer = client.get()
            assert (answer["status"], answer["value"]) == (201, {"x": 1})
            assert answer["headers"]["correlation-id"] == "mine"
    assert [command.headers["correlation-id"] for command in here.exchange.sent] == ["mine", "mine#0"]


def test_an_error_of_a_request_tells_its_thing_and_correlation_id():
    with world(failure(thing_not_found("org.acme:lamp"))).client() as client:
        client.tell(COMMAND, value=1, headers={"correlation-id": "mine"})
        error = client.get()
    assert (error["topic"], error["status"]) == ("org.acme/lamp/things/twin/errors", 404)
    assert error["headers"]["correlation-id"] == "mine"


def test_a_correlation_id_that_is_too_long_is_refused_and_one_of_the_greatest_length_may_be_repeated():
    here = world()
    with here.client() as client:
        client.tell(COMMAND, value=1, headers={"correlation-id": "x" * 1_025})
        error = client.get()
        assert (error["status"], error["value"]["error"]) == (400, "header.invalid")
        for _ in range(2):
            client.tell(COMMAND, value=1, headers={"correlation-id": "x" * 1_024})
            assert (found := client.get())["status"] == 204
            assert found["headers"]["correlation-id"] == "x" * 1_024
    assert [len(command.headers["correlation-id"]) for command in here.exchange.sent] == [1_024, 1_024]


def test_what_cannot_be_read_is_answered_and_the_session_goes_on():
    with world().client() as client:
        client.write("{")
        assert client.get()["value"]["error"] == "json.invalid"
        for text in ("", "[]", "\ud800"):
            client.write(text)
            assert client.get()["status"] == 400
        client.write("START-SEND-EVENTS?filter=eq(")
        assert client.get()["value"]["error"] == "rql.expression.invalid"
        client.tell(COMMAND, headers={"timeout": "0s", "requested-acks": ["a-a"]})
        assert client.get()["value"]["invalidHeaderKey"] == "timeout"
        client.write(" " * 1_000_001)
        assert client.get()["status"] == 413
        client.tell(COMMAND)
        assert client.get()["status"] == 204


READER = {"subjects": ["user:ann"], "things": ["org.acme:*"], "path": "/attributes/x", "grant": ["READ"]}
ANN = {"authorization": "Basic YW5uOnNlY3JldA=="}


def reader(answer: Callable[[Envelope], Any] = response(204)) -> World:  # noqa: B008 - it has no state
    return world(answer, users={"ann": hash_password("secret")}, access=(READER,))


def test_access_rules_hold_for_requests_their_answers_and_signals():
    here = reader(response(200, {"attributes": {"x": 1, "y": 2}}))
    with here.client("declared-acks=my-ack", **ANN) as client:
        client.tell(COMMAND, "/attributes/x", value=2)
        assert client.get()["status"] == 403
        client.tell(COMMAND.replace("modify", "retrieve"))
        assert client.get()["value"] == {"attributes": {"x": 1}}
        client.tell("org.other/lamp/things/twin/acks/my-ack", status=200, headers={"correlation-id": "c"})
        assert client.get()["status"] == 404
        client.subscribe("START-SEND-EVENTS")
        here.hub.publish("org.other/lamp/things/twin/events/modified", requested_acks=["my-ack"])
        here.hub.publish(EVENT, "c-2")
        assert client.get()["headers"]["correlation-id"] == "c-2"
    ((_, weak),) = here.hub.answers
    assert weak.headers["ditto-weak-ack"] is True


# -- signals -----------------------------------------------------------------------------------------------------------


def test_two_open_signals_with_one_correlation_id_are_told_apart_and_both_acknowledged():
    here = world()
    with here.client("declared-acks=my-ack") as client:
        client.subscribe("START-SEND-EVENTS")
        for value in (1, 2):
            here.hub.publish(EVENT, "c", value, requested_acks=["my-ack"])
        identities = [client.get()["headers"]["correlation-id"] for _ in range(2)]
        assert identities == ["c", "c#0"]
        for identity in identities:
            client.tell("org.acme/lamp/things/twin/acks/my-ack", status=200, headers={"correlation-id": identity})
        sent = here.hub.wait(2)
    assert [(topic, message.headers["correlation-id"]) for topic, message in sent] == [("acks", "c"), ("acks", "c")]


def test_a_client_does_not_hear_what_it_caused():
    here = world()
    with here.client() as client:
        client.subscribe("START-SEND-EVENTS")
        client.tell(COMMAND, value=1, headers={"correlation-id": "mine"})
        assert client.get()["status"] == 204
        here.hub.publish(EVENT, "mine")
        here.hub.publish(EVENT, "other")
        assert client.get()["headers"]["correlation-id"] == "other"


def test_extra_fields_come_with_the_signal_in_its_order():
    here = world()
    with here.client() as client:
        client.subscribe('START-SEND-EVENTS?extraFields=attributes/room&filter=eq(attributes/room,"hall")')
        here.hub.extra = {"attributes": {"room": "hall"}}
        here.hub.publish(EVENT, "c-1")
        assert client.get()["extra"] == {"attributes": {"room": "hall"}}
        here.hub.extra = thing_not_found("org.acme:lamp")
        here.hub.publish(EVENT, "c-2")
        assert client.get()["status"] == 404


def test_live_events_and_responses_are_passed_on():
    here = world()
    with here.client() as client:
        client.tell("org.acme/lamp/things/live/events/modified", value=1, headers={"correlation-id": "e"})
        client.tell(MESSAGE, "/inbox/messages/ask", value="!", status=200, headers={"correlation-id": "m"})
        (event_topic, event), (answer_topic, answer) = here.hub.wait(2)
    assert (event_topic, event.topic.criterion) == ("events", "events")
    assert (answer_topic, msgspec.json.decode(answer.value)) == ("acks", "!")


def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "MAX_WAITING", 2)
    here = world()
    with here.client() as client:
        client.subscribe("START-SEND-EVENTS?extraFields=attributes")
        blocked = asyncio.Event()

        async def never(*_arguments: Any) -> Any:
            await blocked.wait()

        here.hub.enrich = never  # type: ignore[method-assign]
        for number in range(5):
            here.hub.publish(EVENT, f"c-{number}")
        with pytest.raises(Closed) as caught:
            client.get()
    assert caught.value.code == 1013
