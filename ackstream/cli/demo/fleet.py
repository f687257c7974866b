"""Simulated devices: most are prompt, some are slow or silent, one says no, one is gone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ackstream.client import Ack, After
from ackstream.protocol.ditto.errors import thing_not_found

if TYPE_CHECKING:
    from ackstream.client import Answer, Signal

RECEIVED, DONE = LABELS = ("fleet:received", "fleet:done")
TIMEOUT_SECONDS = 5.0
"""How long a command waits for its device."""

FULL = 507

Habit = Literal["prompt", "slow", "late", "forgetful", "silent", "stuttering", "refusing", "gone"]
HABITS: dict[Habit, str] = {
    "prompt": "says received at once and done soon after",
    "slow": "needs some seconds for done",
    "late": "says done when the deadline has passed",
    "forgetful": "never says done",
    "silent": "says nothing at all",
    "stuttering": "says done twice",
    "refusing": f"answers done with the status {FULL}",
    "gone": "is answered for by its gateway, with an error",
}
_UNUSUAL: tuple[tuple[Habit, int], ...] = (
    ("slow", 4), ("late", 2), ("forgetful", 2), ("silent", 1), ("stuttering", 1), ("refusing", 1), ("gone", 1)
)  # fmt: skip


@dataclass(frozen=True)
class Device:
    """A thing's id and how it behaves."""

    thing_id: str
    habit: Habit


def fleet(size: int) -> list[Device]:
    """Return devices with all habits among them, for any size from 12 on."""
    unusual = [habit for habit, number in _UNUSUAL for _ in range(number)]
    habits: list[Habit] = [*unusual, *["prompt"] * (size - len(unusual))]  # type: ignore[list-item]
    return [Device(f"org.acme.fleet:truck-{number:02d}", habit) for number, habit in enumerate(habits, start=1)]


class Fleet:
    """The handler of a responder that stands for all devices."""

    def __init__(self, devices: list[Device]) -> None:
        """Answer for these."""
        self._habits = {device.thing_id: device.habit for device in devices}

    def __call__(self, signal: Signal) -> Answer:
        """Answer a command as its device would."""
        habit = self._habits.get(signal.thing_id)
        if habit is None:
            return None
        return answer(habit, signal.thing_id, signal.value, random.Random(signal.correlation_id))  # noqa: S311 - chance


def answer(  # noqa: PLR0911 - one for each habit
    habit: Habit, thing_id: str, value: object, chance: random.Random
) -> Answer:
    """Return what a device answers to a command.

    :param value: what the command sets; the device repeats it
    :param chance: decides how long things take, the same for the same seed
    """
    received = Ack(label=RECEIVED)
    done = Ack(200, {"applied": value}, DONE)
    moment = After(chance.uniform(0.02, 0.4), done)
    match habit:
        case "prompt":
            return received, moment
        case "slow":
            return received, After(chance.uniform(1.0, 0.7 * TIMEOUT_SECONDS), done)
        case "late":
            return received, After(TIMEOUT_SECONDS + chance.uniform(0.5, 2.0), done)
        case "forgetful":
            return received
        case "stuttering":
            return received, moment, moment
        case "refusing":
            return received, After(chance.uniform(0.02, 0.4), Ack(FULL, {"error": "storage.full"}, DONE))
        case "gone":
            return thing_not_found(thing_id)
        case "silent":
            return None
