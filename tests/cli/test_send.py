from __future__ import annotations

import json
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ackstream import client
from ackstream.client import NoReplyExpectedError, Reply, RequestTimeout, Stored, Updates
from ackstream.protocol.ditto.requests import read_request
from tests.cli import commands

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from ackstream.protocol.ditto.envelopes import Envelope

TOPIC = "org.acme/lamp/things/twin/acks"
REPLIES = {
    200: (
        "acknowledgements",
        {"topic": TOPIC, "path": "/", "status": 200, "value": {"a:b": {"status": 200, "headers": {}}}},
    ),
    424: (
        "timeout",
        {
            "topic": TOPIC,
            "path": "/",
            "status": 424,
            "value": {"a:b": {"status": 408, "headers": {}}, "c:d": {"status": 200, "headers": {}}},
        },
    ),
    404: ("error", {"topic": "org.acme/lamp/things/twin/errors", "path": "/", "value": {"message": "It is gone."}}),
}


class Service:
    """In place of a requester: keeps what was sent and answers as it is told."""

    sent: list[Envelope]
    records: list[dict[str, Any]]

    def __init__(self) -> None:
        self.sent, self.records = [], []
        self.status: int | None = 200

    def __call__(self, *_arguments: Any, **_options: Any) -> Service:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def send(self, envelope: Envelope) -> Future[Reply]:
        if not read_request(envelope).response_required:
            raise NoReplyExpectedError
        self.sent.append(envelope)
        return self._replied()

    def send_record(self, **arguments: Any) -> Future[Reply]:
        self.records.append(arguments)
        return self._replied()

    def stream(self, envelope: Envelope) -> Updates:
        return self._streamed(self.send(envelope))

    def stream_record(self, **arguments: Any) -> Updates:
        return self._streamed(self.send_record(**arguments))

    def _streamed(self, reply: Future[Reply]) -> Updates:
        updates = Updates(Future)
        for number in range(2):
            entries = {"a:b": {"status": 102, "payload": number, "headers": {}}, "c:d": {"status": 200, "headers": {}}}
            message = {"topic": TOPIC, "path": "/", "status": 102, "value": entries}
            updates.add(Reply("c-1", "r-1", 102, "progress", json.dumps(message).encode()))
        if reply.exception() is None:
            updates.reply.set_result(reply.result())
        else:
            updates.reply.set_exception(reply.exception())
        return updates

    def _replied(self) -> Future[Reply]:
        future: Future[Reply] = Future()
        if self.status is None:
            future.set_exception(RequestTimeout("No reply to c-1 came.", "c-1"))
        else:
            completed_by, message = REPLIES[self.status]
            future.set_result(Reply("c-1", "r-1", self.status, completed_by, json.dumps(message).encode()))
        return future

    def publish(self, envelope: Envelope) -> Future[Stored]:
        self.sent.append(envelope)
        future: Future[Stored] = Future()
        future.set_result(Stored("c-1", "signals", 0, 7, 1_000))
        return future


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Service:
    monkeypatch.chdir(tmp_path)
    service = Service()
    monkeypatch.setattr(client, "Requester", service)
    return service


run = partial(commands.run, "send")


@pytest.mark.parametrize(
    ("arguments", "topic", "path", "value"),
    [
        (["/attributes/on", "true"], "twin/commands/modify", "/attributes/on", b"true"),
        (["/attributes/on"], "twin/commands/retrieve", "/attributes/on", None),
        ([], "twin/commands/retrieve", "/", None),
        (["/x", "1", "--live"], "live/commands/modify", "/x", b"1"),
        (["/x", "--action", "delete"], "twin/commands/delete", "/x", None),
        (["/", "{}", "--action", "create"], "twin/commands/create", "/", b"{}"),
        (["--message", "blink"], "live/messages/blink", "/inbox/messages/blink", None),
        (['{"n":3}', "--message", "blink"], "live/messages/blink", "/inbox/messages/blink", b'{"n":3}'),
    ],
)
def test_arguments_make_a_command(service: Service, arguments: list[str], topic: str, path: str, value: bytes | None):
    assert run("org.acme:lamp", *arguments).exit_code == 0
    (envelope,) = service.sent
    assert (str(envelope.topic), envelope.path) == (f"org.acme/lamp/things/{topic}", path)
    assert (bytes(envelope.value) if envelope.value else None) == value


def test_options_set_headers_with_values_of_their_type(service: Service):
    run(
        "org.acme:lamp", "/x", "1", "--ack", "a:b", "--ack", "c:d", "--timeout", "500ms",
        "-H", 'if-match="rev:1"', "-H", "ditto-dry-run=true", "-H", "mine=1",
    )  # fmt: skip
    assert service.sent[0].headers == {
        "if-match": '"rev:1"', "ditto-dry-run": True, "mine": "1", "requested-acks": ["a:b", "c:d"], "timeout": "500ms",
    }  # fmt: skip


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_a_message_may_come_from_a_file_and_options_add_to_it(service: Service, tmp_path: Path, source: str):
    message = {"topic": "org.acme/lamp/things/twin/commands/modify", "headers": {"x": "y"}, "path": "/x", "value": 1}
    (tmp_path / "command.json").write_text(json.dumps(message))
    if source == "file":
        result = run("--file", "command.json", "--ack", "a:b")
    else:
        result = run("--file", "-", "--ack", "a:b", stdin=json.dumps(message))
    assert result.exit_code == 0
    assert service.sent[0].headers == {"x": "y", "requested-acks": ["a:b"]}


@pytest.mark.parametrize(
    ("status", "code", "line"),
    [
        (200, 0, "200 OK  acknowledgements, "),
        (424, 1, "424 Failed Dependency  timeout, "),
        (404, 1, "404 Not Found  error, "),
    ],
)
def test_the_answer_is_a_line_on_standard_error_and_json_on_standard_output(
    service: Service, status: int, code: int, line: str
):
    service.status = status
    result = run("org.acme:lamp", "/x", "1")
    assert result.exit_code == code
    assert result.stderr.startswith(line)
    assert json.loads(result.stdout) == REPLIES[status][1]["value"]


def test_the_line_tells_what_is_missing(service: Service):
    service.status = 424
    assert "The deadline passed before this arrived: a:b.\nc-1\n" in run("org.acme:lamp", "/x", "1").stderr


def test_as_json_all_of_the_reply_is_on_standard_output(service: Service):
    service.status = 424
    result = run("org.acme:lamp", "/x", "1", "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    found = json.loads(result.stdout)
    assert (found["correlation_id"], found["status"], found["completed_by"]) == ("c-1", 424, "timeout")
    assert found["missing"] == ["a:b"]
    assert found["value"] == REPLIES[424][1]["value"]


def test_a_reply_that_cannot_be_read_is_a_sentence(service: Service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(REPLIES, 404, ("error", {"topic": "no topic"}))
    service.status = 404
    result = run("org.acme:lamp", "/x", "1")
    assert result.exit_code == 1
    assert result.stderr.startswith("The reply to c-1 (status 404) cannot be read: ")


def test_no_reply_at_all_is_exit_3(service: Service):
    service.status = None
    result = run("org.acme:lamp", "/x", "1")
    assert result.exit_code == 3
    assert result.stderr == "No reply to c-1 came.\n"


@pytest.mark.parametrize("asked", [["org.acme:lamp", "/x", "1"], ["--topic", "orders", "--ack", "a:b"]])
@pytest.mark.usefixtures("service")
def test_acknowledgements_are_printed_as_they_come(asked: list[str]):
    result = run(*asked, "--progress")
    assert result.exit_code == 0
    first, second, line, *_ = result.stderr.splitlines()
    assert [each.rpartition("  ")[0] for each in (first, second)] == ["a:b 102, c:d 200"] * 2
    assert line.startswith("200 OK  acknowledgements, ")
    assert json.loads(result.stdout) == REPLIES[200][1]["value"]
    lines = run(*asked, "--progress", "--json").stdout.splitlines()
    found = [json.loads(each) for each in lines]
    assert [(each["status"], each["completed_by"]) for each in found] == [
        (102, "progress"), (102, "progress"), (200, "acknowledgements"),
    ]  # fmt: skip


def test_without_a_reply_its_updates_are_printed_all_the_same(service: Service):
    service.status = None
    result = run("org.acme:lamp", "/x", "1", "--progress")
    assert result.exit_code == 3
    assert [line.split("  ")[0] for line in result.stderr.splitlines()] == ["a:b 102, c:d 200"] * 2 + [
        "No reply to c-1 came."
    ]


@pytest.mark.parametrize(
    "arguments",
    [["--no-response"], ["-H", "response-required=false"], ["--timeout", "0"], ["--no-response", "--progress"]],
)
def test_what_wants_no_answer_is_not_waited_for(service: Service, arguments: list[str]):
    result = run("org.acme:lamp", "/x", "1", *arguments)
    assert result.exit_code == 0
    assert result.stderr == "Sent as c-1 (signals-0-7); no reply requested.\n"
    assert len(service.sent) == 1


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_a_record_is_sent_with_its_key_its_headers_and_the_content_of_a_file(
    service: Service, tmp_path: Path, source: str
):
    (tmp_path / "order").write_bytes(b"\x00\xff")
    options = ["--topic", "orders", "--key", "7", "--ack", "a:b", "--ack", "c:d", "--timeout", "500ms", "-H", "mine=1"]
    if source == "file":
        result = run(*options, "--value-file", "order")
    else:
        result = run(*options, "--value-file", "-", stdin=b"\x00\xff")
    assert (result.exit_code, service.sent) == (0, [])
    assert result.stderr.startswith("200 OK  acknowledgements, ")
    assert service.records == [
        {
            "topic": "orders", "key": b"7", "value": b"\x00\xff", "headers": {"mine": "1"},
            "acks": ["a:b", "c:d"], "timeout": 0.5, "correlation_id": None,
        }
    ]  # fmt: skip


def test_a_record_has_the_correlation_id_of_its_header_as_a_command_has(service: Service):
    given = ["--ack", "a:b", "-H", "correlation-id=o-1", "-H", "mine=1"]
    assert run("--topic", "orders", *given).exit_code == run("org.acme:lamp", "/x", "1", *given).exit_code == 0
    assert (service.records[0]["correlation_id"], service.records[0]["headers"]) == ("o-1", {"mine": "1"})
    assert service.sent[0].headers["correlation-id"] == "o-1"


def test_a_record_may_have_no_value(service: Service):
    assert run("--topic", "orders", "--key", "7", "--ack", "a:b").exit_code == 0
    assert (service.records[0]["value"], service.records[0]["timeout"]) == (None, None)


_OF_A_RECORD = "the value is --value-file FILE, or - for standard input: name its topic, and omit the thing,"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--key", "7"], _OF_A_RECORD),
        (["--value-file", "f", "--ack", "a:b"], _OF_A_RECORD),
        (["a:b", "--topic", "orders", "--ack", "a:b"], _OF_A_RECORD),
        (["--topic", "orders", "--file", "f", "--ack", "a:b"], _OF_A_RECORD),
        (["--topic", "orders", "--live", "--ack", "a:b"], _OF_A_RECORD),
        (["--topic", "orders", "--no-response", "--ack", "a:b"], _OF_A_RECORD),
        (["--topic", "orders"], "A record has to request an acknowledgement: name its label with --ack."),
        (["--topic", "orders", "--ack", "x y"], "--ack is 'x y': a label has 3 to 165 letters"),
        (["--topic", "orders", "--ack", "a:b", "--timeout", "soon"], "--timeout is 'soon': "),
        (["--topic", "orders", "--ack", "a:b", "--value-file", "gone"], "The file gone cannot be read: No such file"),
        ([], "Name a thing, such as org.acme:lamp, or a message with --file."),
        (["lamp", "/x", "1"], "A thing id is namespace:name, such as org.acme:lamp; this one is 'lamp'."),
        (["a:b", "x", "1"], "The path is 'x': it must begin with a slash, such as /attributes/on."),
        (["a:b", "/x", "on"], "The value is 'on', which is not JSON"),
        (["a:b", "/x", "\udcff"], "The value is "),
        (
            ["a:b", "/x", "1", "--ack", "x y"],
            "--ack is 'x y': a label has 3 to 165 letters, digits",
        ),
        (["a:b", "/x", "1", "--timeout", "soon"], "soon"),
        (["a:b", "/x", "1", "--header", "nothing"], "--header is 'nothing': use NAME=VALUE."),
        (["a:b", "/x", "1", "--header", "response-required=perhaps"], "response-required"),
        (["a:b", "/x", "1", "--action", "explode"], "--action is 'explode': use one of create, retrieve,"),
        (["a:b", "/x", "1", "--message", "m"], "--message takes the thing and the payload only:"),
        (["a:b", "x", "--message", "m"], "The payload is 'x', which is not JSON"),
        (["a:b", "--file", "f"], "--file contains the whole message: omit the thing,"),
        (["--file", "nowhere.json"], "The file nowhere.json cannot be read: No such file or directory."),
        (["--file", "."], "The file . cannot be read: Is a directory."),
    ],
)
def test_bad_input_is_a_sentence(service: Service, arguments: list[str], sentence: str):
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence.lower() in result.stderr.lower()
    assert "Traceback" not in result.output
    assert not service.sent
    assert not service.records


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "Failed to parse JSON string"),
        (b"[]", "it is not a JSON object"),
        (b'{"topic":"\xff"}', "UTF-8"),
        (b'{"path":"/"}', "did not include required </topic> field"),
        (b'{"topic":"what","path":"/"}', "what"),
    ],
)
def test_a_file_that_is_no_message_is_a_sentence(service: Service, tmp_path: Path, data: bytes, sentence: str):
    (tmp_path / "bad").write_bytes(data)
    result = run("--file", "bad")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert not service.sent


def test_without_a_broker_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", "localhost:1")
    monkeypatch.setattr("ackstream.kafka.clients.BOOTSTRAP_MS", 500)
    monkeypatch.setattr("ackstream.kafka.clients._COMMON", {"bootstrap_timeout_ms": 500})
    result = run("org.acme:lamp", "/x", "1")
    assert result.exit_code == 3
    assert result.stderr.startswith("No Kafka answers at localhost:1: start one with `ackstream up`")
