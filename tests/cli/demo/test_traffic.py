""""""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console

from ackstream.cli.demo import traffic
from ackstream.cli.demo.traffic import (
    DONE,
    FULL,
    HABITS,
    LABELS,
    RECEIVED,
    TIMEOUT_SECONDS,
    answer,
    fleet,
    respond,
    send_all,
)
from ackstream.client import Ack, After, Reply
from ackstream.protocol.ditto.labels import parse_label
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from ackstream.cli.demo.traffic import Habit
    from ackstream.client import Requester, Signal
    from ackstream.protocol.ditto.envelopes import Envelope


THING = "org.acme.fleet:truck-01"


def said(habit: Habit, seed: int) -> list[tuple[float, str | None, int]]:
    """Return what a device says: seconds after the command, label, status."""
    found: list[tuple[float, str | None, int]] = []
    answers: Any = answer(habit, THING, 7, random.Random(seed))
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
def test_a_device_keeps_its_habit(habit: Habit, statuses: list[tuple[str | None, int]], earliest: float, latest: float):
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
    tally = send_all(cast("Requester", service), things, 40, 10, console, healthy=lambda: asked.append(time.now))
    assert time.now == pytest.approx(100 + 39 / 10)
    assert [envelope.topic.thing_id for envelope, _ in service.sent[:14]] == [
        *things, things[0]
    ]  # fmt: skip
    assert all(options["acks"] == LABELS for _, options in service.sent)
    assert len({options["correlation_id"] for _, options in service.sent}) == 40
    assert len(tally.sent) == len(tally.replies) == len(tally.latencies) == 40
    # once a second at least
    assert [round(moment) for moment in asked[:4]] == [100, 101, 102, 103]


@pytest.mark.usefixtures("time")
def test_what_makes_waiting_vain_ends_it():
    def broken() -> None:
        raise RuntimeError("The job has ended.")

    with pytest.raises(RuntimeError, match="The job has ended"):
        send_all(cast("Requester", Service()), list(fleet(13)), 40, 10, Console(file=io.StringIO()), broken)
