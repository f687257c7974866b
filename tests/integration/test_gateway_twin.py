"""The gateway with the twin itself and a subscriber behind it: all parts real, over HTTP and WebSockets."""

from __future__ import annotations

from base64 import b64encode
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from websockets.sync.client import connect

from ackstream.client import Command, Requester
from ackstream.gateway.access.passwords import hash_password
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.protocol.ditto.labels import TWIN_PERSISTED
from ackstream.settings import Gateway
from tests.harness.gateway import LAMP, Client, Running, check_header_table, running_with_twin, serving
from tests.harness.system import THING
from tests.harness.waiting import PATIENCE_SECONDS, eventually
from tests.prose import prose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


CUSTOM, PREFIXED = "my-custom-ack", "some-connection-id:my-custom-ack"
"""Labels of the examples in Ditto's documents."""


@pytest.fixture(scope="module")
def running(broker: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    labels = ["http-ack", "bar-ack", CUSTOM, PREFIXED]
    with running_with_twin(broker, spark, tmp_path_factory.mktemp("twin"), labels, "bar") as made:
        yield made


def test_http_header_table_with_the_twin(running: Running) -> None:
    check_header_table(running)


def test_the_sample_bodies_come_from_the_twin_too(running: Running) -> None:
    def ask(label: str, timeout: str, attempt: int) -> tuple[str, Any]:
        path = f"{LAMP}-{label}-{attempt}"
        query = {"requested-acks": f"twin-persisted,{label}", "timeout": timeout}
        found = running("PUT", path, json={}, params=query, headers={"correlation-id": f"sample-{label}-{attempt}"})
        if found.status_code == 408:
            return path, {"twin-persisted": {"status": 408}}
        assert found.status_code == (424 if label == "nobody-ack" else 200)
        assert list(found.json()) == ["twin-persisted", label]
        return path, found.json()

    for label, timeout in (("http-ack", "55s"), ("nobody-ack", "6s")):
        attempts = (ask(label, timeout, attempt) for attempt in count())
        # a busy machine may need longer than the six seconds
        path, body = next((path, body) for path, body in attempts if body["twin-persisted"]["status"] != 408)
        persisted = body["twin-persisted"]
        thing = path.rpartition("/")[2]
        assert persisted["status"] == 201
        assert persisted["payload"].items() >= {"thingId": thing}.items()
        assert persisted["headers"]["location"] == path
        assert persisted["headers"]["correlation-id"].startswith(f"sample-{label}-")
        if label == "http-ack":
            assert body[label]["status"] == 200
            continue
        assert body[label]["status"] == 408
        assert body[label]["payload"] == {
            "status": 408,
            "error": "acknowledgement:request.timeout",
            "message": "The acknowledgement request reached the specified timeout of 6,000ms.",
            "description": (
                "Try increasing the timeout and make sure that the requested acknowledgement is sent back in time."
            ),
        }


def test_preconditions_conditions_and_what_is_not_available_over_http(running: Running) -> None:
    path = f"{LAMP}/attributes/guarded"
    made = running("PUT", path, json={"on": 1})
    assert made.status_code == 201
    same = running("PUT", path, json={"on": 1}, headers={"if-equal": "skip"})
    assert (same.status_code, same.json()["error"]) == (412, "things:precondition.failed")
    # 1 is not true
    assert running("PUT", path, json={"on": True}, headers={"if-equal": "skip"}).status_code == 204
    tag = running("GET", path).headers["etag"]
    assert running("GET", path, headers={"if-none-match": f"W/{tag}"}).status_code == 304
    assert running("PUT", path, json=1, params={"dry-run": "true"}).status_code == 501
    assert running("GET", path).json() == {"on": True}
    told = running("POST", f"{LAMP}/inbox/messages/ask", params={"condition": "eq(attributes/guarded/on,false)"})
    assert (told.status_code, told.json()["error"]) == (412, "things:condition.failed")
    smart = {"live-channel-condition": "eq(attributes/guarded/on,false)"}
    found = running("GET", path, params=smart)
    assert (found.json(), found.headers["channel"]) == ({"on": True}, "twin")
    late = {"live-channel-condition": "eq(attributes/guarded/on,true)", "timeout": "2s"}
    assert running("GET", path, params=late).status_code == 408
    found = running("GET", path, params=late | {"live-channel-timeout-strategy": "use-twin", "timeout": "20s"})
    assert (found.json(), found.headers["live-channel-condition-matched"]) == ({"on": True}, "true")


def test_a_second_user_learns_and_does_what_its_rules_say(running: Running) -> None:
    rules = [
        {"subjects": ["user:boss"], "grant": ["READ", "WRITE"]},
        {"subjects": ["user:guest"], "things": ["org.boss:*"], "path": "/attributes/name", "grant": ["READ"]},
        {"subjects": ["user:guest"], "things": ["org.boss:*"], "path": "/inbox/messages/ask", "grant": ["WRITE"]},
        {"subjects": ["user:guest"], "things": ["org.guest:*"], "grant": ["READ", "WRITE"]},
    ]
    users = {name: hash_password(name) for name in ("boss", "guest")}
    guarded = Gateway(port=0, users=users, access=rules)
    with serving(running.system.settings.model_copy(update={"gateway": guarded})) as (url, _):

        def ask(name: str, method: str, path: str, **options: Any) -> httpx.Response:
            return httpx.request(method, f"{url}/api/2{path}", auth=(name, name), timeout=PATIENCE_SECONDS, **options)

        ceo = "/things/org.boss:ceo"
        made = ask("boss", "PUT", ceo, json={"attributes": {"name": "x", "salary": 7777}})
        assert made.status_code == 201
        mine = ask("guest", "PUT", "/things/org.guest:probe", json={"attributes": {"salary": 9999}})
        assert mine.status_code == 201
        # neither values nor tags, and nothing of whether they are there
        found = ask("guest", "GET", f"{ceo}/attributes")
        assert (found.json(), "etag" in found.headers) == ({"name": "x"}, False)
        for part in ("salary", "nothing"):
            hidden = ask("guest", "GET", f"{ceo}/attributes/{part}", headers={"if-match": '"x"'})
            assert (hidden.status_code, hidden.json()["error"]) == (404, "things:thing.notfound")
            assert "etag" not in hidden.headers
        # a search that continues behind a hidden thing tells nothing of it
        query = {"option": "sort(+attributes/salary)"}
        last = {"accept": "text/event-stream", "last-event-id": "org.boss:ceo"}
        behind, unknown = (
            ask("guest", "GET", "/search/things", params=query, headers=last | {"last-event-id": name})
            for name in ("org.boss:ceo", "org.boss:nobody")
        )
        assert behind.status_code == unknown.status_code
        assert behind.text.replace("org.boss:ceo", "") == unknown.text.replace("org.boss:nobody", "")
        # a message is what its path says
        basic = {"authorization": f"Basic {b64encode(b'guest:guest').decode()}"}
        with connect(f"ws{url.removeprefix('http')}/ws/2", additional_headers=basic) as socket:
            client = Client(socket)
            topic = "org.boss/ceo/things/live/messages/self-destruct"
            client.tell({"topic": topic, "path": "/inbox/messages/ask", "headers": {}})
            assert client.get()["value"]["error"] == "protocoladapter:unknown.path"
            # and gets nowhere if its condition does not hold
            own = {"topic": "org.guest/probe/things/live/messages/open", "path": "/inbox/messages/open"}
            client.tell({**own, "headers": {"condition": "eq(attributes/salary,1)", "timeout": "60s"}})
            assert client.get()["value"]["error"] == "things:condition.failed"


def test_all_things_are_found_page_by_page_in_forms_and_as_events(running: Running) -> None:
    names = [f"org.pages:{number}" for number in range(5)]
    for name in names:
        assert running("PUT", f"/api/2/things/{name}", json={"attributes": {"n": 1}}).status_code == 201
    seen, path = [], "/api/2/things?namespaces=org.pages&fields=thingId&option=size(2)"
    while path:
        page = running("GET", path)
        seen += [thing["thingId"] for thing in page.json()]
        following = [link for link in page.headers.get_list("link") if link.endswith('rel="next"')]
        path = following[0][1:].partition(">")[0] if following else ""
    assert seen == names
    form = {"filter": "eq(attributes/n,1)", "namespaces": "org.pages", "option": "size(1),sort(-thingId)"}
    first = running("POST", "/api/2/search/things", data=form).json()
    assert [thing["thingId"] for thing in first["items"]] == names[-1:]
    cursor = f"size(9),cursor({first['cursor']})"
    rest = running("POST", "/api/2/search/things", data={"option": cursor}).json()
    assert [thing["thingId"] for thing in rest["items"]] == names[-2::-1]
    other = running("POST", "/api/2/search/things", data={"option": cursor, "filter": "eq(attributes/n,2)"})
    assert (other.status_code, other.json()["error"]) == (400, "thing-search:search.option.invalid")
    assert running("POST", "/api/2/search/things/count", data={"namespaces": "org.pages"}).json() == 5
    query = {"namespaces": "org.pages", "fields": "thingId", "option": "sort(+attributes/n),size(2)"}
    found = running("GET", "/api/2/search/things", params=query, headers=EVENTS | {"last-event-id": names[1]})
    assert [line for line in found.text.splitlines() if line.startswith("id")] == [f"id: {name}" for name in names[2:]]


EVENTS = {"accept": "text/event-stream"}


def test_changes_and_messages_arrive_as_server_sent_events(running: Running) -> None:
    changed, sent = f"{LAMP}/attributes/seen", f"{LAMP}/outbox/messages"
    # the stream, what is sent, and the lines of its event
    for path, how, expected in (
        (changed, {"method": "PUT", "path": changed, "json": {"a": 1}}, ['data: {"a":1}']),
        (
            sent,
            {"method": "POST", "path": f"{sent}/smoke", "json": {"a": 2}, "params": {"timeout": "0"}},
            ["event: smoke", 'data: {"a":2}'],
        ),
    ):
        with httpx.stream("GET", running.url + path, headers=EVENTS, timeout=PATIENCE_SECONDS) as stream:
            lines = (line for line in stream.iter_lines() if line)
            assert next(lines) == ":"
            assert running(**how).status_code in (201, 202)
            assert [next(line for line in lines if line != ":") for _ in expected] == expected


def test_acknowledgements_are_requested_by_headers_or_by_parameters(running: Running) -> None:
    """The examples of the documents."""
    headers = {"requested-acks": f"twin-persisted,{PREFIXED}", "timeout": "1m"}
    by_headers = running("PUT", f"{LAMP}-headers", json={}, headers=headers)
    query = f"requested-acks=twin-persisted,{CUSTOM}&timeout=42s"
    by_parameters = running("PUT", f"/api/2/things/org.eclipse.ditto:thing-1?{query}", json={})
    for found, label in ((by_headers, PREFIXED), (by_parameters, CUSTOM)):
        statuses = {name: entry["status"] for name, entry in found.json().items()}
        assert (found.status_code, statuses) == (200, {"twin-persisted": 201, label: 200})


def started(running: Running, correlation_id: str) -> dict[str, Any]:
    """Return how correlate has recorded a request."""

    def look() -> Any:
        signals = [record["signal"] for record in running.system.ledger() if "signal" in record]
        return next((signal for signal in signals if shown_id(signal["correlation_id"]) == correlation_id), None)

    return eventually(look, f"the record of {correlation_id}")


def test_a_request_waits_60_seconds_unless_it_says_less_and_never_more(running: Running) -> None:
    def ask(key: str, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): text for name, text in headers.items()} | {"correlation-id": key}
        return running("PUT", f"{LAMP}/attributes/x", json=1, headers=named)

    assert ask("unbounded", requested_acks="http-ack").status_code == 200
    assert started(running, "unbounded")["timeout_ms"] == 60_000
    longer = ask("longer", timeout="61s")
    assert (longer.status_code, longer.json()["error"]) == (400, "gateway:timeout.invalid")
    # accepted, though neither the twin nor anyone else is so quick
    assert ask("short", requested_acks="twin-persisted,nobody", timeout="250ms").status_code in (408, 424)
    assert started(running, "short")["timeout_ms"] == 250


def test_a_request_without_a_timeout_waits_60_seconds_on_every_way_in(running: Running, address: str) -> None:
    running("PUT", f"{LAMP}/attributes/x", json=1, headers={"correlation-id": "by-http"})
    with connect(address) as socket:
        client = Client(socket)
        client.tell(running.system.command_json("by-websocket"))
        assert client.get()["status"] == 204
    running.system.command("by-record")
    with Requester(running.system.settings.kafka) as requester:
        assert requester.request(Command.modify_attribute(THING, "x", 1), correlation_id="by-sdk").ok
    for way in ("by-http", "by-websocket", "by-record", "by-sdk"):
        assert started(running, way)["timeout_ms"] == 60_000, way


def test_acknowledgements_are_not_issued_over_http(running: Running) -> None:
    for method in ("PUT", "POST"):
        assert running(method, f"{LAMP}/acks/{CUSTOM}", json={"status": 200}).status_code == 404


COMMAND = "org.acme/lamp/things/twin/commands/modify"


@pytest.fixture
def address(running: Running) -> str:
    return f"{running.url.replace('http', 'ws')}/ws/2"


SEEN, ASK = "device:seen", f"{LAMP}/inbox/messages/ask"


class Device:
    """A WebSocket client that live commands and messages reach, and the requests of others that it answers."""

    def __init__(self, running: Running, client: Client, pool: ThreadPoolExecutor) -> None:
        self._running, self._client, self._pool = running, client, pool

    def asked(self, method: str, path: str, **headers: str) -> tuple[Future[httpx.Response], dict[str, Any]]:
        """Make a request; return its future, and the signal that came of it."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        waiting = self._pool.submit(self._running, method, path, json="?", headers=named)
        return waiting, self._client.get()

    def respond(self, signal: dict[str, Any], status: int, **fields: Any) -> None:
        headers = {"correlation-id": signal["headers"]["correlation-id"], "content-type": "application/json"}
        told = {"topic": signal["topic"], "path": signal["path"], "headers": headers, "status": status}
        self._client.tell(told | fields)

    def acknowledge(self, signal: dict[str, Any]) -> None:
        self.respond(signal | {"topic": f"org.acme/lamp/things/live/acks/{SEEN}", "path": "/"}, 202)


@pytest.fixture
def device(running: Running, address: str) -> Iterator[Device]:
    with connect(f"{address}?declared-acks={SEEN}") as socket, ThreadPoolExecutor(1) as pool:
        client = Client(socket)
        client.subscribe("START-SEND-MESSAGES")
        client.subscribe("START-SEND-LIVE-COMMANDS")
        yield Device(running, client, pool)


def test_live_commands_and_messages_are_answered_and_acknowledged(running: Running, device: Device) -> None:
    for method, path, status in (("POST", ASK, 200), ("PUT", f"{LAMP}/attributes/x?channel=live", 204)):
        waiting, signal = device.asked(method, path, requested_acks=SEEN, timeout="55s")
        assert signal["headers"]["requested-acks"] == [SEEN]
        device.respond(signal, status)
        assert not waiting.done()
        device.acknowledge(signal)
        found = waiting.result(PATIENCE_SECONDS)
        statuses = {label: entry["status"] for label, entry in found.json().items()}
        assert (found.status_code, statuses) == (200, {SEEN: 202, "live-response": status})
    # without a response the acknowledgement alone is waited for, even if the response is asked for by name
    labels, named = f"live-response,{SEEN}", {"response_required": "false", "correlation_id": "unanswered"}
    waiting, signal = device.asked("POST", ASK, requested_acks=labels, timeout="55s", **named)
    device.acknowledge(signal)
    found = waiting.result(PATIENCE_SECONDS)
    assert (found.status_code, found.content) == (202, b"")
    assert started(running, "unanswered")["requested_acks"] == [SEEN]


def test_labels_of_the_other_channel_are_not_waited_for(running: Running, device: Device) -> None:
    headers = {"requested-acks": "live-response,twin-persisted", "timeout": "55s"}
    twin = running("PUT", f"{LAMP}/attributes/x", json=1, headers=headers)
    assert (twin.status_code, twin.content) == (204, b"")
    labels = "twin-persisted,live-response,search-persisted"
    waiting, signal = device.asked("POST", ASK, requested_acks=labels, timeout="55s")
    device.respond(signal, 200, value="!")
    live = waiting.result(PATIENCE_SECONDS)
    assert (live.status_code, live.json()) == (200, "!")


def test_a_request_without_headers_waits_for_the_label_of_its_channel(running: Running, device: Device) -> None:
    twin = running("PUT", f"{LAMP}/attributes/x", json=1, headers={"correlation-id": "twin"})
    assert (twin.status_code, started(running, "twin")["requested_acks"]) == (204, ["twin-persisted"])
    waiting, signal = device.asked("POST", ASK, correlation_id="live")
    device.respond(signal, 200, value="!")
    live = waiting.result(PATIENCE_SECONDS)
    assert (live.status_code, started(running, "live")["requested_acks"]) == (200, ["live-response"])
    # without a response there is nothing to wait for
    for key, headers in (("quiet", {"response-required": "false"}), ("hurried", {"timeout": "0"})):
        found = running("PUT", f"{LAMP}/attributes/x", json=1, headers=headers | {"correlation-id": key})
        signal = started(running, key)
        assert (found.status_code, signal["response_required"], signal["requested_acks"]) == (202, False, [])


def test_websocket_header_table(address: str) -> None:
    rows = {name: case for name, case in prose("header_defaults").items() if name.startswith("doc-WebSocket-")}
    assert len(rows) == 8
    with connect(address, additional_headers={"declared-acks": "foo-ack"}) as first, connect(address) as second:
        party, requester = Client(first), Client(second)
        party.subscribe("START-SEND-EVENTS")
        for name, case in rows.items():
            given, outcome = case["given"], case["expect"]["outcome"]
            acks = ["foo-ack", "bar-ack"] if given["requested-acks"] == "non-empty" else []
            headers = {
                "correlation-id": name,
                "response-required": given["response-required"],
                "requested-acks": acks,
                "timeout": "0s" if given["timeout"] == "zero" else "55s",
            }
            requester.tell({"topic": COMMAND, "headers": headers, "path": "/attributes/x", "value": 1})
            if case["expect"]["clientError"]:
                error = requester.get()
                assert (error["status"], error["value"]["error"]) == (400, "header.invalid"), name
                continue
            # events of earlier commands may still come
            event = next(event for event in iter(party.get, None) if event["headers"]["correlation-id"] in rows)
            assert event["headers"]["correlation-id"] == name
            if outcome == "no response":
                continue
            if acks:
                assert event["headers"]["requested-acks"] == ["foo-ack"]
                answer = {"correlation-id": name}
                topic = "org.acme/lamp/things/twin/acks/foo-ack"
                party.tell({"topic": topic, "headers": answer, "path": "/", "value": "done", "status": 200})
            # what no answer was promised for would come before this one
            reply = requester.get()
            assert reply["headers"]["correlation-id"] == name
            if acks:
                found = {label: entry["status"] for label, entry in reply["value"].items()}
                assert (reply["status"], found) == (200, {"foo-ack": 200, "bar-ack": 200}), name
            else:
                assert (reply["topic"], reply["status"]) == (COMMAND, 204), name


def test_weak_acks_complete_an_aggregate_and_undeclared_labels_run_into_the_timeout(address: str) -> None:
    with connect(f"{address}?declared-acks=foo-ack") as first, connect(address) as second:
        party, requester = Client(first), Client(second)
        party.subscribe("START-SEND-EVENTS?filter=gt(attributes/x,10)")

        def ask(attempt: int) -> dict[str, Any]:
            acks = [TWIN_PERSISTED, "foo-ack", "nobody"]
            headers = {"correlation-id": f"weak-{attempt}", "requested-acks": acks, "timeout": "8s"}
            requester.tell({"topic": COMMAND, "headers": headers, "path": "/attributes/x", "value": 1})
            reply = requester.get()
            if reply["status"] == 408:
                return {"foo-ack": {"status": 408}}
            assert (reply["status"], list(reply["value"])) == (424, acks)
            return reply["value"]

        # a busy machine may need longer than the eight seconds
        answers = (ask(attempt) for attempt in count())
        entries = next(found for found in answers if found["foo-ack"]["status"] != 408)
    assert (entries["foo-ack"]["status"], entries["foo-ack"]["headers"]["ditto-weak-ack"]) == (200, True)
    assert (entries[TWIN_PERSISTED]["status"], entries["nobody"]["status"]) == (204, 408)
