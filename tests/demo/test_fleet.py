from __future__ import annotations

import io
import json
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console

from ackstream.cli.terminal import Terminal
from ackstream.client import Ack, After, Reply, Requester, Signal
from ackstream.protocol.ditto.labels import parse_label
from ackstream.protocol.errors import DittoError
from tests.demo import fleet as traffic
from tests.demo.fleet import (
    DONE,
    FULL,
    HABITS,
    LABELS,
    RECEIVED,
    TIMEOUT_SECONDS,
    Evidence,
    check,
    fleet,
    respond,
    send_all,
)

if TYPE_CHECKING:
    from ackstream.protocol.ditto.envelopes import Envelope


THING = "org.acme.fleet:truck-01"


def said(habit: str, seed: int) -> list[tuple[float, str | None, int]]:
    """Return the answers of a device: seconds after the command, label, status."""
    found: list[tuple[float, str | None, int]] = []
    signal = SimpleNamespace(thing_id=THING, value=7, correlation_id=str(seed))
    answers: Any = respond({THING: habit}, cast("Signal", signal))
    for part in answers if isinstance(answers, tuple) else [answers] if answers is not None else []:
        seconds, inner = (part.seconds, part.answer) if isinstance(part, After) else (0.0, part)
        assert isinstance(inner, (Ack, DittoError))
        found.append((seconds, inner.label if isinstance(inner, Ack) else None, inner.status))
    return found


@pytest.mark.parametrize(
    ("habit", "statuses", "earliest", "latest"),
    [
        ("prompt", [(RECEIVED, 200), (DONE, 200)], 0, 0.5),
        ("slow", [(RECEIVED, 200), (DONE, 200)], 1, TIMEOUT_SECONDS - 1),
        ("late", [(RECEIVED, 200), (DONE, 200)], TIMEOUT_SECONDS + 0.4, TIMEOUT_SECONDS + 2),
        ("forgetful", [(RECEIVED, 200)], 0, 0),
        ("silent", [], 0, 0),
        ("stuttering", [(RECEIVED, 200), (DONE, 200), (DONE, 200)], 0, 0.5),
        ("refusing", [(RECEIVED, 200), (DONE, FULL)], 0, 0.5),
        ("gone", [(None, 404)], 0, 0),
    ],
)
def test_a_device_keeps_its_habit(habit: str, statuses: list[tuple[str | None, int]], earliest: float, latest: float):
    for seed in range(50):
        found = said(habit, seed)
        assert [(label, status) for _, label, status in found] == statuses
        assert earliest <= max((seconds for seconds, _, _ in found), default=0) <= latest


def test_the_same_command_is_answered_the_same_way():
    assert said("slow", 3) == said("slow", 3) != said("slow", 4)


@pytest.mark.parametrize("size", [13, 50, 200])
def test_a_fleet_has_all_habits_and_most_devices_are_prompt(size: int):
    devices = fleet(size)
    assert len(devices) == size
    counts = Counter(devices.values())
    assert counts.keys() == HABITS.keys()
    assert counts["gone"] == 1


def test_a_fleet_answers_for_its_own_devices_alone():
    devices = fleet(50)
    own = SimpleNamespace(thing_id=THING, value=1, correlation_id="c")
    assert respond(devices, cast("Signal", own)) is not None
    assert respond(devices, cast("Signal", SimpleNamespace(thing_id="org.other:thing"))) is None


def test_the_labels_are_labels():
    assert [parse_label(label) for label in LABELS] == list(LABELS)


MESSAGE = {
    "topic": "a/b/things/twin/acks",
    "path": "/",
    "status": 200,
    "value": {"a:b": {"status": 200, "headers": {}}},
}


class Service:
    """In place of a requester: answers everything at once."""

    def __init__(self) -> None:
        self.sent: list[tuple[Envelope, dict[str, Any]]] = []

    def send(self, envelope: Envelope, **options: Any) -> Future[Reply]:
        self.sent.append((envelope, options))
        future: Future[Reply] = Future()
        identity = options["correlation_id"]
        future.set_result(Reply(identity, f"r-{identity}", 200, "acknowledgements", json.dumps(MESSAGE).encode()))
        return future


class Time:
    """A clock that only sleeping moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(traffic, "time", time)
    return time


def test_commands_are_sent_at_the_rate_to_the_devices_in_turn(time: Time):
    service, things, console = Service(), list(fleet(13)), Console(file=io.StringIO(), width=80)
    asked: list[float] = []
    sent = send_all(cast("Requester", service), things, 40, 10, console, healthy=lambda: asked.append(time.now))
    assert time.now == pytest.approx(100 + 39 / 10)
    assert [envelope.topic.thing_id for envelope, _ in service.sent[:14]] == [
        *things, things[0]
    ]  # fmt: skip
    assert all(options["acks"] == LABELS for _, options in service.sent)
    assert len({options["correlation_id"] for _, options in service.sent}) == 40
    assert len(sent) == len([each for each in sent.values() if each.reply]) == 40
    # once a second at least
    assert [round(moment) for moment in asked[:4]] == [100, 101, 102, 103]


@pytest.mark.usefixtures("time")
def test_what_makes_waiting_vain_ends_it():
    def broken() -> None:
        raise RuntimeError("The job has ended.")

    with pytest.raises(RuntimeError, match="The job has ended"):
        send_all(cast("Requester", Service()), list(fleet(13)), 40, 10, Console(file=io.StringIO()), broken)


# -- checks ------------------------------------------------------------------------------------------------------------


def reply(key: str = "c-1", status: int = 200, reply_id: str = "", *statuses: int) -> Reply:
    value = {f"a:{number}": {"status": entry, "headers": {}} for number, entry in enumerate(statuses or (200, 200))}
    data = json.dumps({"topic": "a/b/things/twin/acks", "path": "/", "value": value, "status": status}).encode()
    return Reply(key, reply_id or f"r-{key}", status, "acknowledgements", data)


def whole() -> Evidence:
    """Two commands, each acknowledged twice and answered once."""
    keys = ("c-1", "c-2")
    acks = [f"acks-0-{offset}" for offset in range(4)]
    replies = [reply(key) for key in keys]
    return Evidence(
        keys, replies, replies, acks, signal_rows=keys, outcome_rows=replies, ack_rows=acks, dead_letters=()
    )


def differences(evidence: Evidence) -> list[str]:
    return [difference for finding in check(evidence) for difference in finding.wrong]


def test_what_adds_up_has_no_differences():
    assert differences(whole()) == []
    texts = [finding.text for finding in check(whole())]
    assert texts[0] == "2 commands sent = 2 replies received = 2 rows in outcomes = 2 rows in signals"
    assert texts[1] == "4 acknowledgements, responses and errors of devices and twin = 4 rows in acknowledgements"


def test_a_repeated_reply_with_the_same_content_is_no_difference():
    evidence = whole()
    assert differences(evidence._replace(replies=[*evidence.replies, evidence.replies[0]])) == []


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"received": [reply()]}, ["c-2"]),
        ({"outcome_rows": [reply()]}, ["c-2", "c-2"]),
        ({"outcome_rows": [reply(), reply("c-2"), reply("c-2")]}, ["c-2"]),
        ({"signal_rows": ["c-1", "c-2", "c-3"]}, ["c-3"]),
        ({"dead_letters": ["dead letter c-1"]}, ["dead letter c-1"]),
        (
            {"ack_rows": ["acks-0-0", "acks-0-0", "acks-0-2", "acks-0-3"]},
            ["acks-0-1", "acks-0-0"],
        ),
        (
            {"replies": [reply(), reply("c-1", 200, "", 500)]},
            ["c-1"],
        ),
        (
            {"replies": [reply(), reply("c-1", 200, "other")]},
            ["c-1"],
        ),
        (
            {"outcome_rows": [reply(), reply("c-2", status=424)]},
            ["c-2"],
        ),
        (
            {"outcome_rows": [reply(), reply("c-2", 200, "", 200, 204)]},
            ["c-2"],
        ),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], wanted: list[str]):
    assert differences(whole()._replace(**changes)) == wanted


def test_a_heading_is_one_line_that_people_can_read_where_the_output_is_a_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    output = io.StringIO()
    traffic.title(Terminal(file=output), "Does it add up?")
    assert output.getvalue().startswith("Does it add up? ──")
    assert len(output.getvalue()) <= 101
