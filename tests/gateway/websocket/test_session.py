"""WebSocket sessions without Kafka: the test plays the hub that hands signals over and takes answers."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from starlette.applications import Starlette

from ackstream.client.core.labels import Declaration
from ackstream.gateway import streaming
from ackstream.gateway.access.authentication import Authenticator, access_of
from ackstream.gateway.access.passwords import hash_password
from ackstream.gateway.exchange import Dependencies
from ackstream.gateway.middleware.audit import Audit
from ackstream.gateway.streaming import as_shown
from ackstream.gateway.websocket import session
from ackstream.gateway.websocket.session import socket_route
from ackstream.protocol.ditto.correlation_ids import shown_id, wire_id
from ackstream.protocol.ditto.envelopes import Envelope, encode, raw
from ackstream.protocol.ditto.topics import TopicPath
from ackstream.protocol.ditto.twin.subscriptions import publication
from ackstream.protocol.errors import DittoError, condition_failed, label_not_unique, thing_not_found
from ackstream.settings import Gateway, Settings
from ackstream.settings.gateway import AccessRule
from tests.gateway.parts import Exchange, failure, response
from tests.gateway.sockets import Closed, connected
from tests.prose import each

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
        self.answers: list[tuple[str, Envelope]] = []
        self.extra: Any = {}
        self.full = False
        self._came = threading.Condition()
        self._listeners: set[Any] = set()
        self._loop: Any = None

    def subscribe(self, listener: Any, _stream: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners.add(listener)

    @property
    def listeners(self) -> int:
        """The number of those who receive signals."""
        return len(self._listeners)

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

    async def thing(self, *_arguments: Any) -> Any:
        if isinstance(self.extra, DittoError):
            raise self.extra
        return self.extra

    def publish(
        self, topic: str = EVENT, correlation_id: str = "c-1", value: Any = 1, path: str = "/attributes/x",
        **headers: Any,
    ) -> None:  # fmt: skip
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        signal = publication(Envelope(TopicPath.parse(topic), named, path, raw(value)), correlation_id)
        assert signal is not None
        for listener in list(self._listeners):
            self._loop.call_soon_threadsafe(listener.receive, as_shown(signal), NOW)

    def fail(self) -> None:
        for listener in list(self._listeners):
            self._loop.call_soon_threadsafe(listener.fail)

    def wait(self, number: int) -> list[tuple[str, Envelope]]:
        with self._came:
            assert self._came.wait_for(lambda: len(self.answers) >= number, 10)
        return self.answers


class World:
    def __init__(self, answer: Callable[[Envelope], Any], **gateway: Any) -> None:
        settings = Settings(gateway=Gateway(**gateway))
        self.rows: list[Any] = []
        audit = Audit(settings.gateway.audit, self.rows.append)
        self.authenticator = authenticator = Authenticator(settings.gateway, audit.failed)
        self.hub = Hub()
        self.exchange = Exchange(answer)
        access = access_of(settings.gateway, authenticator)
        parts: Any = (settings, authenticator, access, self.exchange, None, self.hub, audit)
        self.dependencies = Dependencies(*parts)
        self._app = Starlette(routes=[socket_route(self.dependencies)])

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


@pytest.mark.parametrize(
    "label", ["no+label", "twin-persisted", "my-ack,live-response", "search-persisted", "[1]", "[{}]"]
)
def test_an_invalid_or_built_in_label_is_refused_before_the_connection(label: str):
    with pytest.raises(Closed) as caught, world().client(f"declared-acks={label}"):
        pass
    assert caught.value.code == 400


@pytest.mark.parametrize(("labels", "status"), [("my-ack", None), ("my-ack,fleet:done", 403), ("fleet:done", 403)])
def test_a_label_is_declared_by_who_is_granted_it_and_not_by_whom_it_suits(labels: str, status: int | None):
    here = reader()
    if status is None:
        with here.client(f"declared-acks={labels}", **ANN) as client:
            client.subscribe("START-SEND-EVENTS")
        return
    with pytest.raises(Closed) as caught, here.client(f"declared-acks={labels}", **ANN):
        pass
    assert caught.value.code == status


def test_a_parameter_that_the_connection_does_not_have_is_refused():
    with pytest.raises(Closed) as caught, world().client("declared-ack=my-ack"):
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
    first, second = (command.headers["correlation-id"] for command in here.exchange.sent)
    assert first != second
    assert shown_id(first) == shown_id(second) == "mine"


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


def test_a_subscription_that_cannot_be_read_is_answered_under_the_correlation_id_of_its_message():
    with world().client(correlation_id="connection") as client:
        for control, code, identity in (
            ("START-SEND-EVENTS?filter=eq(&correlation-id=mine", "rql.expression.invalid", "mine"),
            ("START-SEND-MESSAGES?filter=eq(", "rql.expression.invalid", "connection"),
            ("START-SEND-EVENTS?correlation-id=mine&extraFields=attributes(", "json.fieldselector.invalid", "mine"),
        ):
            client.write(control)
            error = client.get()
            assert (error["topic"], error["status"]) == ("unknown/unknown/things/twin/errors", 400)
            assert (error["value"]["error"], error["headers"]["correlation-id"]) == (code, identity)
    with world().client() as client:
        client.write("START-SEND-EVENTS?filter=eq(")
        assert "correlation-id" not in client.get()["headers"]
        client.write(f"START-SEND-EVENTS?filter={'x' * 1_000_001}")
        assert client.get()["status"] == 413


READER = {
    "subjects": ["user:ann"], "things": ["org.acme:*"], "path": "/attributes/x", "grant": ["READ"], "labels": ["my-*"],
}  # fmt: skip
ANN = {"authorization": "Basic YW5uOnNlY3JldA=="}


def reader(answer: Callable[[Envelope], Any] = response(204), **gateway: Any) -> World:  # noqa: B008 - it has no state
    return world(answer, users={"ann": hash_password("secret")}, access=(READER,), **gateway)


def test_an_ack_of_an_undeclared_label_is_an_error_for_its_sender_alone():
    here = world()
    with here.client("declared-acks=my-ack") as client:
        topic = "org.acme/lamp/things/twin/acks"
        for fields in ({"topic": f"{topic}/other"}, {"topic": topic, "value": {"other": {"status": 200}}}):
            client.tell(path="/", status=200, headers={"correlation-id": "c-1"}, **fields)
            error = client.get()
            assert (error["topic"], error["status"]) == ("org.acme/lamp/things/twin/errors", 400)
            assert error["value"]["error"] == "acknowledgement:label.not.declared"
            assert error["value"]["message"].startswith("Cannot send acknowledgement with label <other>")
            assert error["headers"]["correlation-id"] == "c-1"
        client.subscribe("START-SEND-EVENTS")
        here.hub.publish(EVENT, "c-1", requested_acks=["my-ack"])
        client.get()
        client.tell(f"{topic}/my-ack", status=200, headers={"correlation-id": "c-1"})
        ((_, forwarded),) = here.hub.wait(1)
    assert str(forwarded.topic) == f"{topic}/my-ack"


DOOR = "org.acme/door/things/live/messages/open"
UNLOCKED = {"condition": "eq(attributes/locked,false)", "correlation-id": "mine", "timeout": "5s"}


def twin(*, matches: bool) -> Callable[[Envelope], Any]:
    """Answer as the twin, which matches conditions or not, and as the device."""

    def answer(command: Envelope) -> Any:
        if command.topic.channel == "live":
            return response(200, "device")(command)
        if "condition" in command.headers and not matches:
            return failure(condition_failed())(command)
        return response(200, "twin")(command)

    return answer


@pytest.mark.parametrize(
    ("topic", "path"), [(DOOR, "/inbox/messages/open"), ("org.acme/door/things/live/commands/modify", "/attributes/x")]
)
def test_the_condition_of_a_live_command_is_decided_by_the_twin_before_a_device_gets_it(topic: str, path: str):
    here = world(twin(matches=False))
    with here.client() as client:
        client.tell(topic, path, headers=UNLOCKED, value=1)
        error = client.get()
    assert (error["status"], error["headers"]["correlation-id"]) == (412, "mine")
    (question,) = here.exchange.sent
    assert str(question.topic) == "org.acme/door/things/twin/commands/retrieve"
    here = world(twin(matches=True))
    with here.client() as client:
        client.tell(topic, path, headers=UNLOCKED, value=1)
        assert client.get()["value"] == "device"
    assert [sent.topic.channel for sent in here.exchange.sent] == ["twin", "live"]
    # it is decided
    assert "condition" not in here.exchange.sent[1].headers
    assert shown_id(here.exchange.sent[1].headers["correlation-id"]) == "mine"


def test_a_message_that_needs_no_response_is_sent_if_its_condition_holds_else_there_is_an_error():
    quiet = {**UNLOCKED, "response-required": False}
    here = world(twin(matches=False))
    with here.client() as client:
        client.tell(DOOR, "/inbox/messages/open", headers=quiet)
        error = client.get()
    assert (error["status"], error["headers"]["correlation-id"]) == (412, "mine")
    assert [sent.topic.channel for sent in here.exchange.sent] == ["twin"]
    here = world(twin(matches=True))
    with here.client() as client:
        client.tell(DOOR, "/inbox/messages/open", headers=quiet)
        client.tell(COMMAND, value=1)
        assert client.get()["value"] == "twin"
    assert "live" in [sent.topic.channel for sent in here.exchange.sent]


def test_commands_for_a_thing_are_sent_in_their_order_whatever_their_conditions_take():
    """The twin answers the first question last, and refuses the second condition."""
    here = world(twin(matches=True))
    ask, told = here.exchange.ask, 0

    async def slow(command: Envelope) -> Any:
        nonlocal told
        if command.fields == "thingId":
            told = number = told + 1
            await asyncio.sleep(0.3 if number == 1 else 0.0)
            if number == 2:
                raise condition_failed()
        return await ask(command)

    here.exchange.ask = slow  # type: ignore[method-assign]
    with here.client() as client:
        for subject, condition in (("unlock", True), ("open", True), ("lock", True), ("status", False)):
            headers = UNLOCKED if condition else {}
            topic = f"org.acme/door/things/live/messages/{subject}"
            client.tell(topic, f"/inbox/messages/{subject}", headers={**headers, "correlation-id": subject})
        # another thing does not wait
        client.tell("org.acme/other/things/live/messages/ring", "/inbox/messages/ring", headers={"correlation-id": "r"})
        answered = [client.get()["headers"]["correlation-id"] for _ in range(5)]
    assert answered[0] == "r"
    sent = [command.topic.subject for command in here.exchange.sent if command.topic.criterion == "messages"]
    assert sent == ["ring", "unlock", "lock", "status"]


def test_a_session_ends_while_commands_wait_for_each_other():
    here = world()

    async def never(_command: Envelope) -> Any:
        await asyncio.Event().wait()

    here.exchange.ask = never  # type: ignore[method-assign]
    with here.client() as client:
        for _ in range(3):
            client.tell(DOOR, "/inbox/messages/open", headers=UNLOCKED)
        client.subscribe("START-SEND-EVENTS")


@pytest.mark.parametrize(("matches", "answered"), [(True, ("device", "live")), (False, ("twin", "twin"))])
def test_a_query_goes_to_the_device_if_the_twin_matches_its_live_channel_condition(
    matches: bool,  # noqa: FBT001 - a column
    answered: tuple[str, str],
):
    here = world(twin(matches=matches))
    with here.client() as client:
        client.tell(COMMAND.replace("modify", "retrieve"), headers={"live-channel-condition": "eq(attributes/on,true)"})
        found = client.get()
    assert (found["value"], found["headers"]["channel"]) == answered
    assert found["headers"]["live-channel-condition-matched"] is matches


# -- searches ----------------------------------------------------------------------------------------------------------

SEARCH = "_/_/things/twin/search"


def test_a_search_brings_pages_as_they_are_requested():
    here = world(response(200, {"items": [{"thingId": "org.acme:lamp"}]}))
    with here.client() as client:
        client.tell(f"{SEARCH}/subscribe", headers={"correlation-id": "s"}, value={"filter": "eq(attributes/x,1)"})
        created = client.get()
        assert (created["topic"], created["headers"]["correlation-id"]) == (f"{SEARCH}/created", "s")
        identity = created["value"]["subscriptionId"]
        client.tell(
            f"{SEARCH}/request", headers={"correlation-id": "r"}, value={"subscriptionId": identity, "demand": 2}
        )
        found, end = client.get(), client.get()
    assert (found["topic"], found["headers"]["correlation-id"]) == (f"{SEARCH}/next", "r")
    assert found["value"] == {"subscriptionId": identity, "items": [{"thingId": "org.acme:lamp"}]}
    assert (end["topic"], end["value"]) == (f"{SEARCH}/complete", {"subscriptionId": identity})
    (query,) = here.exchange.sent
    assert (query.path, msgspec.json.decode(query.value)) == ("/search/things", {"filter": "eq(attributes/x,1)"})


def test_a_search_finds_what_the_client_may_read_whole():
    rules = ({"subjects": ["user:ann"], "things": ["org.acme:*"], "grant": ["READ"]},)
    here = world(response(200, {"items": []}), users={"ann": hash_password("secret")}, access=rules)
    with here.client(**ANN) as client:
        client.tell(f"{SEARCH}/subscribe", value={"filter": "exists(attributes)"})
        client.tell(f"{SEARCH}/request", value={"subscriptionId": client.get()["value"]["subscriptionId"], "demand": 1})
        assert client.get()["topic"] == f"{SEARCH}/complete"
    (query,) = here.exchange.sent
    assert query.headers["ditto-originator"] == "user:ann"
    asked = msgspec.json.decode(query.value)
    assert (asked["filter"], asked["only"]) == ("exists(attributes)", ["org.acme:*"])


def test_a_search_command_that_cannot_be_read_is_answered_under_its_correlation_id():
    with world().client() as client:
        client.tell(f"{SEARCH}/request", headers={"correlation-id": "mine"}, value={"demand": 1})
        error = client.get()
        assert (error["topic"], error["value"]["error"]) == ("unknown/unknown/things/twin/errors", "json.invalid")
        assert error["headers"]["correlation-id"] == "mine"


# -- tokens ------------------------------------------------------------------------------------------------------------

SECRET = "a secret of at least thirty-two bytes"
ROBOTS = ({"subjects": ["jwt:*"], "things": ["*"], "grant": ["READ", "WRITE"]},)


def token(seconds: float, subject: str = "robot", key: str = SECRET, **more: Any) -> str:
    claims = {"iss": "me", "aud": "ackstream", "sub": subject, "exp": int(time.time() + seconds), **more}
    return jwt.encode(claims, key, "HS256")


def robots(directory: Path, access: Any = ROBOTS) -> World:
    key = directory / "key"
    key.write_text(SECRET, "utf-8")
    issuer = {"issuer": "me", "audience": ["ackstream"], "algorithms": ["HS256"], "key_file": str(key)}
    return world(issuers=[issuer | {"roles": ["roles"]}], access=access)


def test_a_session_ends_with_its_token(tmp_path: Path):
    with robots(tmp_path).client(authorization=f"Bearer {token(2)}") as client:
        client.tell(COMMAND, value=1)
        assert client.get()["status"] == 204
        with pytest.raises(Closed) as caught:
            client.get()
    assert caught.value.code == 1000


def test_a_new_token_of_the_same_subject_continues_the_session(tmp_path: Path):
    with robots(tmp_path).client(authorization=f"Bearer {token(2)}") as client:
        client.write(f"JWT-TOKEN?jwtToken={token(60)}")
        time.sleep(2.1)
        client.tell(COMMAND, value=1)
        assert client.get()["status"] == 204


def test_a_new_token_brings_its_own_roles(tmp_path: Path):
    access = ({"roles": ["jwt:writer"], "things": ["*"], "grant": ["READ", "WRITE"]},)
    with robots(tmp_path, access).client(authorization=f"Bearer {token(60, roles=['writer'])}") as client:
        for roles, status in ((["writer"], 204), ([], 404), (["writer", "other"], 204)):
            client.write(f"JWT-TOKEN?jwtToken={token(60, roles=roles)}")
            client.tell(COMMAND, value=1)
            assert client.get()["status"] == status


def test_a_device_gets_the_patch_that_was_compared_with_the_rules():
    here = world(response(204), users={"ann": hash_password("secret")}, access=(READER | {"grant": ["READ", "WRITE"]},))
    topic, twice = "org.acme/lamp/things/live/commands/merge", '{"attributes": {"y": 1}, "attributes": {"x": 2}}'
    with here.client(**ANN) as client:
        client.write(f'{{"topic": "{topic}", "headers": {{}}, "path": "/", "value": {twice}}}')
        assert client.get()["status"] == 204
    assert bytes(here.exchange.sent[-1].value) == b'{"attributes":{"x":2}}'


def test_a_session_ends_when_its_user_changes_and_not_when_another_does():
    here, other = reader(), hash_password("other")
    before = here.authenticator._passwords._users
    with here.client(**ANN) as client:
        here.authenticator.replace_users({**before, **Gateway(users={"bob": other}).users})
        client.tell(COMMAND, "/attributes/x", value=1)
        assert client.get()["status"] == 403
        here.authenticator.replace_users(Gateway(users={"ann": other}).users)
        with pytest.raises(Closed) as caught:
            client.get()
    assert (caught.value.code, caught.value.reason) == (1000, "The user has changed: sign in again.")
    assert not here.authenticator._changed


def test_a_session_ends_when_one_of_its_labels_is_withdrawn():
    here = reader()
    with here.client("declared-acks=my-ack,my-other", **ANN) as client:
        here.dependencies.access.replace([AccessRule(**READER | {"labels": ["my-ack"]}).rule])
        here.authenticator.replace_users(here.authenticator._passwords._users)
        with pytest.raises(Closed) as caught:
            client.get()
    assert (caught.value.code, caught.value.reason) == (
        1000,
        "The label <my-other> may not be declared by this client.",
    )
    assert not here.hub.declarer.taken


def test_a_token_without_the_role_that_a_label_needs_ends_the_session(tmp_path: Path):
    access = ({"roles": ["jwt:fleet"], "grant": ["READ"], "labels": ["my-ack"]},)
    here = robots(tmp_path, access)
    with here.client("declared-acks=my-ack", authorization=f"Bearer {token(60, roles=['fleet'])}") as client:
        client.write(f"JWT-TOKEN?jwtToken={token(60, roles=['fleet', 'other'])}")
        client.subscribe("START-SEND-EVENTS")
        client.write(f"JWT-TOKEN?jwtToken={token(60)}")
        with pytest.raises(Closed) as caught:
            client.get()
    assert caught.value.reason.startswith("The label <my-ack>")


def test_a_user_who_is_removed_during_the_handshake_has_no_session(monkeypatch: pytest.MonkeyPatch):
    here = reader()
    real = Audit.opened

    def removed(self: Audit, *given: Any) -> None:
        here.authenticator.replace_users({})
        real(self, *given)

    monkeypatch.setattr(Audit, "opened", removed)
    with here.client(**ANN) as client, pytest.raises(Closed):
        client.get()


@pytest.mark.parametrize(
    "second", [token(3600, "other"), token(-60), token(3600, key="another secret of at least thirty-two bytes"), ""]
)
def test_a_token_that_is_not_valid_or_another_subjects_ends_the_session(tmp_path: Path, second: str):
    with robots(tmp_path).client(authorization=f"Bearer {token(60)}") as client:
        client.write(f"JWT-TOKEN?jwtToken={second}")
        with pytest.raises(Closed) as caught:
            client.get()
    assert caught.value.code == 1000


def test_the_reason_of_an_end_fits_its_frame(tmp_path: Path):
    header = base64.urlsafe_b64encode(json.dumps({"alg": "ü" * 200}).encode()).rstrip(b"=").decode()
    claims = base64.urlsafe_b64encode(json.dumps({"iss": "me"}).encode()).rstrip(b"=").decode()
    with robots(tmp_path).client(authorization=f"Bearer {token(60)}") as client:
        client.write(f"JWT-TOKEN?jwtToken={header}.{claims}.AA")
        with pytest.raises(Closed) as caught:
            client.get()
    assert caught.value.code == 1000
    assert 0 < len(caught.value.reason.encode()) <= 123


def test_a_session_with_a_password_is_not_continued_by_a_token_and_one_without_credentials_needs_none():
    with reader().client(**ANN) as client:
        client.write(f"JWT-TOKEN?jwtToken={token(60)}")
        with pytest.raises(Closed):
            client.get()
    with world().client() as client:
        client.write(f"JWT-TOKEN?jwtToken={token(-60)}")
        client.tell(COMMAND, value=1)
        assert client.get()["status"] == 204


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


# -- forged answers ----------------------------------------------------------------------------------------------------

LIVE = "org.acme/lamp/things/live/commands/modify"
ACK = "org.acme/lamp/things/twin/acks"


@pytest.mark.parametrize(
    ("topic", "path", "fields", "status"),
    [
        (LIVE, "/attributes/x", {"status": 204}, 404),
        ("org.acme/lamp/things/live/errors", "/", {"status": 403, "value": {"status": 403, "error": "x"}}, 404),
        (MESSAGE, "/inbox/messages/ask", {"status": 200, "value": "!"}, 404),
        (COMMAND, "/attributes/x", {"status": 204}, 400),
        (f"{ACK}/my-ack", "/", {"status": 200}, 404),
        (ACK, "/", {"status": 200, "value": {"my-ack": {"status": 200, "headers": {}}}}, 404),
        (ACK, "/", {"status": 200, "value": {"twin-persisted": {"status": 204, "headers": {}}}}, 400),
        (f"{ACK}/twin-persisted", "/", {"status": 204}, 400),
        ("unknown/unknown/things/twin/acks/my-ack", "/", {"status": 200}, 404),
    ],
)
@pytest.mark.parametrize("known", ["victims", wire_id("victims")], ids=["own-id", "id-on-the-wire"])
def test_who_may_read_a_part_of_a_thing_answers_nothing_that_it_was_not_sent(
    topic: str, path: str, fields: dict[str, Any], status: int, known: str
):
    here = reader()
    with here.client("declared-acks=my-ack", **ANN) as client:
        client.tell(topic, path, headers={"correlation-id": known}, **fields)
        found = client.get()
        assert (found["status"], found["headers"]["correlation-id"]) == (status, known)
    assert here.hub.answers == []


def test_who_may_write_nothing_answers_what_it_was_sent_as_long_as_the_signal_and_its_memory_last():
    here = world(users={"ann": hash_password("secret")}, access=({**READER, "path": "/attributes"},))
    on_wire = wire_id("c")
    with here.client("declared-acks=my-ack", **ANN) as client:
        client.subscribe("START-SEND-LIVE-COMMANDS")
        here.hub.publish(LIVE, on_wire, requested_acks=["my-ack"])
        found = client.get()
        assert found["headers"]["correlation-id"] == "c"
        client.tell(LIVE, "/attributes/x", status=204, headers={"correlation-id": "c"})
        client.tell(f"{ACK}/my-ack", status=200, headers={"correlation-id": "c"})
        sent = here.hub.wait(2)
    assert [message.headers["correlation-id"] for _, message in sent] == [on_wire, on_wire]


def test_nothing_is_read_of_clients_while_kafka_does_not_take_what_they_send(monkeypatch: pytest.MonkeyPatch):
    looks: list[bool] = []

    def full(hub: Hub) -> bool:
        looks.append(not hub.answers)
        return len(looks) <= 3

    monkeypatch.setattr(session, "FULL_SECONDS", 0.001)
    here = world(users={"ann": hash_password("secret")}, access=({**READER, "path": "/", "grant": ["READ", "WRITE"]},))
    monkeypatch.setattr(Hub, "full", property(full), raising=False)
    with here.client(**ANN) as client:
        client.tell(LIVE.replace("commands/modify", "events/modified"), "/attributes/x", value=1)
        here.hub.wait(1)
    assert looks == [True] * 4


def test_headers_that_only_the_system_sets_are_taken_from_no_answer_and_no_event():
    here = world(users={"ann": hash_password("secret")}, access=({**READER, "path": "/", "grant": ["READ", "WRITE"]},))
    forged = {
        "ditto-originator": "user:root", "ditto-weak-ack": True, "ditto-sudo": True, "Ditto-Originator": "user:root",
        "www-authenticate": "Basic realm=x",
    }  # fmt: skip
    with here.client("declared-acks=my-ack", **ANN) as client:
        client.subscribe("START-SEND-EVENTS")
        here.hub.publish(EVENT, "c", requested_acks=["my-ack"])
        client.get()
        client.tell(f"{ACK}/my-ack", status=200, headers={"correlation-id": "c", **forged})
        entry = {"my-ack": {"status": 200, "headers": forged}}
        client.tell(ACK, status=200, value=entry, headers={"correlation-id": "c", **forged})
        client.tell(LIVE, "/attributes/x", status=204, headers={"correlation-id": "d", **forged})
        client.tell(LIVE.replace("commands/modify", "events/modified"), value=1, headers=forged)
        sent = here.hub.wait(4)
    for _, message in sent:
        text = encode(message).decode()
        assert "root" not in text
        assert not {"ditto-weak-ack", "ditto-sudo", "www-authenticate"} & json.loads(text)["headers"].keys()
        assert "weak" not in text


ASKER = {"subjects": ["user:ann"], "things": ["org.acme:*"], "path": "/inbox/messages/ask", "grant": ["READ", "WRITE"]}


@pytest.mark.parametrize("path", ["/inbox/messages/ask", "/attributes", "/", "/outbox/messages/ask", "/features/f"])
@pytest.mark.parametrize("rule", [ASKER, {**ASKER, "path": "/attributes"}], ids=["ask", "attributes"])
def test_a_message_is_sent_by_who_may_send_its_subject_whatever_path_it_names(path: str, rule: dict[str, Any]):
    here = world(response(200, "ok"), users={"ann": hash_password("secret")}, access=(rule,))
    reboot = "org.acme/lamp/things/live/messages/reboot"
    with here.client(**ANN) as client:
        client.tell(reboot, path, value="!")
        assert client.get()["status"] == 400
        client.tell(reboot, "/inbox/messages/reboot", value="!")
        assert client.get()["status"] in (403, 404)
        client.tell(reboot, path, status=200, value="!", headers={"correlation-id": "c"})
        assert client.get()["status"] == 400
    assert (here.exchange.sent, here.hub.answers) == ([], [])


def test_a_message_is_received_by_who_may_read_its_subject_whatever_path_it_names():
    here = world(users={"ann": hash_password("secret")}, access=(ASKER,))
    with here.client(**ANN) as client:
        client.subscribe("START-SEND-MESSAGES")
        here.hub.publish("org.acme/lamp/things/live/messages/secret", "m-1", path="/inbox/messages/ask")
        here.hub.publish(MESSAGE, "m-2", path="/inbox/messages/ask")
        assert client.get()["headers"]["correlation-id"] == "m-2"


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
        here.hub.publish(EVENT, here.exchange.sent[0].headers["correlation-id"])
        # of another client that has chosen the same id
        here.hub.publish(EVENT, wire_id("mine"), 2)
        found = client.get()
        assert (found["headers"]["correlation-id"], found["value"]) == ("mine", 2)


def test_what_a_client_caused_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "STREAM_SECONDS", 0.0)
    here = world()
    with here.client() as client:
        client.subscribe("START-SEND-EVENTS")
        client.tell(COMMAND, value=1, headers={"correlation-id": "1"})
        assert client.get()["status"] == 204
        here.hub.publish(EVENT, here.exchange.sent[0].headers["correlation-id"])
        assert client.get()["headers"]["correlation-id"] == "1"


def test_a_signal_that_cannot_be_handled_ends_the_session():
    here = world()
    with here.client() as client:
        client.subscribe("START-SEND-EVENTS")
        here.hub.fail()
        with pytest.raises(Closed) as caught:
            client.get()
    assert caught.value.code == 1011


def test_extra_fields_come_with_the_signal_in_its_order():
    here = world()
    with here.client() as client:
        client.subscribe('START-SEND-EVENTS?extraFields=attributes/room&filter=eq(attributes/room,"hall")')
        here.hub.extra = {"attributes": {"room": "hall"}}
        here.hub.publish(EVENT, "c-1")
        assert client.get()["extra"] == {"attributes": {"room": "hall"}}
        here.hub.extra = thing_not_found("org.acme:lamp")
        on_wire = wire_id("c-2")
        here.hub.publish(EVENT, on_wire)
        error = client.get()
        assert (error["status"], error["headers"]["correlation-id"]) == (404, "c-2")
        assert on_wire not in json.dumps(error)


def test_a_signal_that_cannot_be_completed_ends_the_session_with_a_log(caplog: pytest.LogCaptureFixture):
    here = world()
    with here.client() as client:
        client.subscribe("START-SEND-EVENTS?extraFields=attributes/room")

        async def broken(*_arguments: Any) -> Any:
            raise LookupError("oops")

        here.hub.thing = broken  # type: ignore[method-assign]
        here.hub.publish(EVENT, "c-1")
        with pytest.raises(Closed) as caught:
            client.get()
    assert caught.value.code == 1011
    assert "oops" in caplog.text


def test_live_events_and_responses_are_passed_on():
    here = world()
    with here.client() as client:
        client.tell("org.acme/lamp/things/live/events/modified", value=1, headers={"correlation-id": "e"})
        client.tell(MESSAGE, "/inbox/messages/ask", value="!", status=200, headers={"correlation-id": "m"})
        (event_topic, event), (answer_topic, answer) = here.hub.wait(2)
    assert (event_topic, event.topic.criterion) == ("events", "events")
    assert (answer_topic, msgspec.json.decode(answer.value)) == ("acks", "!")


def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "MAX_WAITING", 2)
    here = world()
    with here.client() as client:
        client.subscribe("START-SEND-EVENTS?extraFields=attributes")
        blocked = asyncio.Event()

        async def never(*_arguments: Any) -> Any:
            await blocked.wait()

        here.hub.thing = never  # type: ignore[method-assign]
        for number in range(5):
            here.hub.publish(EVENT, f"c-{number}")
        with pytest.raises(Closed) as caught:
            client.get()
    assert caught.value.code == 1013
