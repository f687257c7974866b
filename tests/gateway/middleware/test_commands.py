"""What the twin decides for the live channel; the test answers as the twin and as the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ackstream.gateway.middleware import commands
from ackstream.protocol.ditto.correlation_ids import shown_id
from ackstream.protocol.errors import DittoError, command_timeout, condition_failed, thing_not_found
from tests.gateway.parts import Web, failure, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.protocol.ditto.envelopes import Envelope

THING = "/things/org.acme:lamp"
SMART = {"live-channel-condition": "eq(attributes/online,true)"}


class Clock:
    """Monotonic time that goes on when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(commands, "monotonic", found)
    return found


def world(condition: DittoError | None, *, device: DittoError | None = None) -> Callable[[Envelope], Any]:
    """Answer questions about a condition with an error or not, then as the twin or the device."""

    def answer(command: Envelope) -> Any:
        if command.fields == "thingId" and "condition" in command.headers:
            return (failure(condition) if condition else response(200, {"thingId": "org.acme:lamp"}))(command)
        if command.topic.channel == "live":
            return (failure(device) if device else response(200, "device"))(command)
        return response(200, "twin")(command)

    return answer


@pytest.mark.parametrize(
    ("method", "path", "options"),
    [
        ("POST", f"{THING}/inbox/messages/ask", {}),
        ("PUT", f"{THING}/attributes/a?channel=live", {"json": 1}),
        ("GET", f"{THING}?channel=live", {}),
    ],
)
@pytest.mark.parametrize(
    ("condition", "status"), [(None, 200), (condition_failed(), 412), (thing_not_found("org.acme:lamp"), 404)]
)
def test_a_device_gets_what_the_condition_on_its_twin_admits(
    method: str, path: str, options: dict[str, Any], condition: DittoError | None, status: int
) -> None:
    web = Web(world(condition))
    answer = web(method, path, headers={"condition": "eq(attributes/online,true)"}, **options)
    assert answer.status_code == status
    question, *rest = web.exchange.sent
    assert str(question.topic) == "org.acme/lamp/things/twin/commands/retrieve"
    assert question.headers == {"condition": "eq(attributes/online,true)", "timeout": "60000ms"}
    assert len(rest) == (status == 200)
    if condition is not None:
        assert answer.json() == condition.to_dict()


def test_a_message_without_a_response_is_admitted_by_its_condition_too() -> None:
    headers = {"condition": "eq(attributes/online,true)", "response-required": "false"}
    web = Web(world(condition_failed()))
    assert web("POST", f"{THING}/inbox/messages/ask", headers=headers).status_code == 412
    web = Web(world(None))
    assert web("POST", f"{THING}/inbox/messages/ask", headers=headers).status_code == 202


@pytest.mark.parametrize(
    ("condition", "device", "strategy", "answered"),
    [
        (None, None, None, ("device", "live", "true")),
        (condition_failed(), None, None, ("twin", "twin", "false")),
        (None, command_timeout(60_000), "use-twin", ("twin", "twin", "true")),
    ],
)
def test_a_query_goes_to_the_device_if_the_twin_matches_the_condition(
    condition: DittoError | None, device: DittoError | None, strategy: str | None, answered: tuple[str, str, str]
) -> None:
    web = Web(world(condition, device=device))
    headers = SMART | ({} if strategy is None else {"live-channel-timeout-strategy": strategy})
    answer = web("GET", f"{THING}/attributes/a", headers={**headers, "correlation-id": "c"})
    shown = answer.json(), answer.headers["channel"], answer.headers["live-channel-condition-matched"]
    assert (answer.status_code, shown) == (200, answered)
    assert answer.headers["correlation-id"] == "c"
    # none is sent as a retry of another, and none has a condition that only the gateway knows how to carry out
    ids = [sent.headers["correlation-id"] for sent in web.exchange.sent[1:]]
    assert len(set(ids)) == len(ids)
    assert not any(name.startswith("live-channel") for sent in web.exchange.sent for name in sent.headers)


def test_a_device_that_does_not_answer_is_a_timeout_unless_the_twin_may_answer() -> None:
    answer = Web(world(None, device=command_timeout(60_000)))("GET", THING, headers=SMART)
    assert (answer.status_code, answer.json()["error"]) == (408, "command.timeout")
    assert answer.headers["channel"] == "live"


@pytest.mark.parametrize(("seconds", "status", "left"), [(3.0, 200, "2000ms"), (5.0, 408, None)])
def test_a_device_has_what_the_condition_has_left_of_the_timeout(
    clock: Clock, seconds: float, status: int, left: str | None
) -> None:
    def answer(command: Envelope) -> Any:
        if command.topic.channel == "twin":
            clock.now += seconds
        return world(None)(command)

    web = Web(answer)
    found = web("POST", f"{THING}/inbox/messages/ask?timeout=5s", headers={"condition": "eq(attributes/locked,false)"})
    question, *sent = web.exchange.sent
    assert (found.status_code, question.headers["timeout"]) == (status, "5000ms")
    assert [message.headers["timeout"] for message in sent] == ([] if left is None else [left])
    if left is None:
        assert found.json() == command_timeout(5_000).to_dict()


def test_the_channels_of_a_query_share_its_timeout_and_a_twin_that_stands_in_has_some_seconds(clock: Clock) -> None:
    def answer(command: Envelope) -> Any:
        clock.now += 10
        return world(None, device=command_timeout(40_000))(command)

    web = Web(answer)
    headers = {**SMART, "condition": "eq(attributes/x,1)", "live-channel-timeout-strategy": "use-twin"}
    assert web("GET", THING, headers=headers).status_code == 200
    assert [sent.headers["timeout"] for sent in web.exchange.sent] == ["60000ms", "50000ms", "40000ms", "10000ms"]


def test_an_id_is_issued_when_the_command_is_sent() -> None:
    web = Web(world(condition_failed()))
    headers = {"condition": "eq(attributes/online,true)", "correlation-id": "c"}
    assert web("POST", f"{THING}/inbox/messages/ask", headers=headers).status_code == 412
    assert web("PUT", f"{THING}/attributes/a", json=1, headers={"correlation-id": "c"}).status_code == 200
    first, last = web.exchange.sent
    assert "correlation-id" not in first.headers
    assert shown_id(last.headers["correlation-id"]) == "c"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"if-match": '"rev:3"'}, 400),
        ({"if-equal": "skip"}, 400),
        ({"put-metadata": "[]"}, 501),
        # which a device gets, and may follow
        ({"dry-run": "true"}, 200),
    ],
)
def test_what_a_device_would_not_be_told_is_refused(headers: dict[str, str], status: int) -> None:
    for method, path in (("PUT", f"{THING}/attributes/a?channel=live"), ("POST", f"{THING}/inbox/messages/ask")):
        web = Web(world(None))
        assert web(method, path, json=1, headers=headers).status_code == status
        assert len(web.exchange.sent) == (status == 200)
