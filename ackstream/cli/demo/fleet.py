"""Simulated devices: most are prompt, some slow or silent, one refuses, one is gone."""

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
"""The timeout of each command."""

FULL = 507

Habit = Literal["prompt", "slow", "late", "forgetful", "silent", "stuttering", "refusing", "gone"]
HABITS: dict[Habit, str] = {
    "prompt": "acknowledges received at once and done soon after",
    "slow": "takes seconds to acknowledge done",
    "late": "acknowledges done after the deadline",
    "forgetful": "never acknowledges done",
    "silent": "never acknowledges anything",
    "stuttering": "acknowledges done twice",
    "refusing": f"acknowledges done with status {FULL}",
    "gone": "its gateway responds with an error",
}
_UNUSUAL: tuple[tuple[Habit, int], ...] = (
    ("slow", 4), ("late", 2), ("forgetful", 2), ("silent", 1), ("stuttering", 1), ("refusing", 1), ("gone", 1)
)  # fmt: skip


@dataclass(frozen=True)
class Device:
    """A thing id and how the device behaves."""

    thing_id: str
    habit: Habit


def fleet(size: int) -> list[Device]:
    """Create devices that cover all habits.

    :param size: at least 12
    """
    unusual = [habit for habit, number in _UNUSUAL for _ in range(number)]
    habits: list[Habit] = [*unusual, *["prompt"] * (size - len(unusual))]  # type: ignore[list-item]
    return [Device(f"org.acme.fleet:truck-{number:02d}", habit) for number, habit in enumerate(habits, start=1)]


class Fleet:
    """The responder's handler, acting for all devices."""

    def __init__(self, devices: list[Device]) -> None:
        """Act for the given devices."""
        self._habits = {device.thing_id: device.habit for device in devices}

    def __call__(self, signal: Signal) -> Answer:
        """Acknowledge a command as its device would."""
        habit = self._habits.get(signal.thing_id)
        if habit is None:
            return None
        return answer(habit, signal.thing_id, signal.value, random.Random(signal.correlation_id))  # noqa: S311 - chance


def answer(  # noqa: PLR0911 - one per habit
    habit: Habit, thing_id: str, value: object, chance: random.Random
) -> Answer:
    """Return how a device with the habit answers a command.

    :param value: the value of the command, repeated in the acknowledgement
    :param chance: decides the delays, reproducibly for a given seed
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
