"""The party of a request in a terminal, beside the requests plane in memory."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from ackstream import client
from ackstream.client import Command, Reply, Responder
from ackstream.protocol.ditto.labels import parse_declared
from ackstream.settings import Correlate, Settings
from ackstream.testing import RequestSystem
from tests.cli.commands import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Requests:
    """Makes the responder of a command, and sends requests as soon as it is there."""

    def __init__(self) -> None:
        self.system = RequestSystem(Settings(correlate=Correlate(request_topics=("orders",))))
        self.requester = self.system.requester()
        self.replies: list[Reply] = []
        self.send: Callable[[], list[Reply]] = list
        self.group: str | None = None

    def __call__(self, _kafka: Any, *, group: str | None, **options: Any) -> Responder:
        self.group = group
        for label in options["labels"]:
            parse_declared(label) if label != "live-response" else None
        responder = self.system.responder(**options)
        self.replies = self.send()
        return responder

    def modify(self, *acks: str) -> Reply:
        return self.requester.request(Command.modify_attribute("org.acme:lamp", "power", 7), acks=acks, timeout="5s")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Requests:
    monkeypatch.chdir(tmp_path)
    requests = Requests()
    monkeypatch.setattr(client, "Responder", requests)
    return requests


def test_a_label_is_acknowledged_until_there_were_enough(requests: Requests) -> None:
    requests.send = lambda: [requests.modify("fleet:done"), requests.modify("fleet:done")]
    result = run("ack", "fleet:done", "--status", "204", "--payload", '{"by":"me"}', "--count", "1")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert line.endswith("org.acme:lamp  twin commands modify /attributes/power  fleet:done 204")
    # the second request found the responder finished, though it had the label still
    answered, silent = requests.replies
    assert answered.acks["fleet:done"].status == 204
    assert answered.acks["fleet:done"].payload == {"by": "me"}
    assert silent.missing == ("fleet:done",)


def test_what_requests_another_label_is_neither_answered_nor_shown(requests: Requests) -> None:
    requests.send = lambda: [requests.modify("billing:booked"), requests.modify("fleet:done")]
    result = run("ack", "fleet:done", "fleet:seen", "--status", "400", "--json", "--count", "1")
    (line,) = map(json.loads, result.stdout.splitlines())
    assert (line["labels"], line["status"], line["value"], line["path"]) == (
        ["fleet:done"],
        400,
        7,
        "/attributes/power",
    )
    assert line["topic"] == "org.acme/lamp/things/twin/commands/modify"
    assert [reply.status for reply in requests.replies] == [408, 400]


def test_a_group_and_a_number_are_not_taken_together_as_signals_beyond_it_would_be_lost(requests: Requests) -> None:
    result = run("ack", "fleet:done", "--count", "1", "--group", "fleet")
    assert (result.exit_code, requests.group) == (2, None)
    assert "--count does not go with --group" in result.stderr
    # the label has no form, so that the command ends
    run("ack", "no label", "--group", "fleet")
    assert requests.group == "fleet"


@pytest.mark.parametrize("as_json", [False, True])
def test_records_of_a_topic_are_acknowledged_and_commands_are_not(requests: Requests, as_json: bool) -> None:  # noqa: FBT001
    def send() -> list[Reply]:
        record = requests.requester.request_record("orders", b"seven", acks=["fleet:done"], correlation_id="order-7")
        return [requests.modify("fleet:done"), record]

    requests.send = send
    options = ["--json"] if as_json else []
    result = run(
        "ack", "fleet:done", "--topic", "orders", "--topic", "returns", "--status", "204", "--count", "1", *options
    )
    assert result.exit_code == 0, result.output
    assert [reply.status for reply in requests.replies] == [408, 204]
    (line,) = result.stdout.splitlines()
    if as_json:
        found = json.loads(line)
        assert (found["topic"], found["correlation_id"], found["value"]) == ("orders", "order-7", "seven")
    else:
        assert line.endswith("order-7  orders-0-0  fleet:done 204")


def test_a_delayed_answer_comes_when_it_is_due(requests: Requests) -> None:
    requests.send = lambda: [requests.modify("fleet:done")]
    assert run("ack", "fleet:done", "--delay", "3s", "--count", "1").exit_code == 0
    assert (requests.replies[0].status, requests.system.now) == (200, 3_000)


def test_a_device_responds_to_live_commands_alone(requests: Requests) -> None:
    live = Command.on_thing("retrieve", "org.acme:lamp", "/attributes", channel="live")
    requests.send = lambda: [requests.modify("fleet:done"), requests.requester.request(live, timeout="5s")]
    result = run("respond", '{"power": 7}', "--count", "1")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert line.endswith("live commands retrieve /attributes  response 200")
    assert [reply.completed_by for reply in requests.replies] == ["timeout", "response"]
    assert requests.replies[1].value == {"power": 7}


def test_ctrl_c_ends_it_in_order(requests: Requests) -> None:
    requests.send = list
    closed: list[bool] = []

    class Interrupted(Responder):
        def wait_closed(self, timeout: float | None = None) -> bool:
            signal.raise_signal(signal.SIGINT)
            return super().wait_closed(timeout)

        def close(self) -> None:
            # the second one does not interrupt the end
            signal.raise_signal(signal.SIGINT)
            super().close()
            closed.append(True)

    requests.system.responder = lambda **options: Interrupted(requests.system.connection, **options)  # type: ignore[method-assign]
    result = run("ack", "fleet:done")
    assert (result.exit_code, closed) == (0, [True])
    assert result.stderr == "Answering fleet:done. Ctrl-C stops it.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ack", "fleet:done", "--payload", "on"], "The payload is 'on', which is not JSON "),
        (["respond", "on"], "The value is 'on', which is not JSON "),
        (["ack", "fleet:done", "--delay", "soon"], "--delay is 'soon': "),
        (["ack", "no label!"], "Acknowledgement label <no label!> is invalid."),
    ],
)
def test_wrong_input_is_a_sentence(requests: Requests, arguments: list[str], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence), result.stderr
    assert not requests.replies


def test_a_label_that_another_has_is_refused(requests: Requests) -> None:
    requests.system.responder(handler=lambda _signal: None, labels=["fleet:done"])
    result = run("ack", "fleet:done")
    assert result.exit_code == 1
    assert result.stderr


def test_what_others_wrote_controls_no_terminal(requests: Requests) -> None:
    evil = Command.on_thing("modify", "org.acme:lamp", "/attributes/\u202eon", 1)
    requests.send = lambda: [requests.requester.request(evil, acks=["fleet:done"], timeout="5s")]
    assert r"/attributes/\u202eon" in run("ack", "fleet:done", "--count", "1").stdout
