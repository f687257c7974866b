from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ackstream.cli.demo.fleet import DONE, FULL, HABITS, LABELS, RECEIVED, TIMEOUT_SECONDS, Fleet, answer, fleet
from ackstream.client import Ack, After
from ackstream.protocol.ditto.labels import parse_label
from ackstream.protocol.errors import DittoError

if TYPE_CHECKING:
    from ackstream.cli.demo.fleet import Habit
    from ackstream.client import Signal

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
    assert len({device.thing_id for device in devices}) == len(devices) == size
    counts = Counter(device.habit for device in devices)
    assert counts.keys() == HABITS.keys()
    assert counts["gone"] == 1


def test_a_fleet_answers_for_its_own_devices_alone():
    handler = Fleet(fleet(50))
    own = SimpleNamespace(thing_id=THING, value=1, correlation_id="c")
    assert handler(cast("Signal", own)) is not None
    assert handler(cast("Signal", SimpleNamespace(thing_id="org.other:thing"))) is None


def test_the_labels_are_labels():
    assert [parse_label(label) for label in LABELS] == list(LABELS)
