"""``[[destinations]]`` of the settings: further lakes that get every message, and whether acks wait for them.

The words are those of AMPS' replication destinations and of its actions that downgrade and upgrade them (brokers.md 1.1
A9, A12, A13).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from ackstream.settings.parts import Milliseconds, Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self


class Destination(Part):
    """A lake that one mirror job writes to; ``sync``: a message is persisted only when its table has it, too.

    ``downgrade_age``: a sync destination that lacks a message so old is waited for no longer; ``upgrade_age``: it is
    waited for again once all it lacks is younger.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    path: str = Field(min_length=1)
    type: Literal["sync", "async"]
    ack_conflation_interval: Milliseconds = Field("1s")  # type: ignore[assignment]
    check_interval: Milliseconds = Field("15s")  # type: ignore[assignment]
    downgrade_age: Milliseconds | None = None
    upgrade_age: Milliseconds | None = None

    @model_validator(mode="after")
    def _rules_that_can_hold(self) -> Self:
        if self.type == "async" and (self.downgrade_age or self.upgrade_age):
            raise ValueError(f"nothing waits for {self.name}, which is async: leave out downgrade_age and upgrade_age")
        if self.upgrade_age is None:
            return self
        if self.downgrade_age is None:
            raise ValueError(f"{self.name} has an upgrade_age but is never downgraded: set downgrade_age, too")
        if self.upgrade_age >= self.downgrade_age:
            raise ValueError(
                f"{self.name} would be downgraded as soon as it is upgraded: set upgrade_age below downgrade_age,"
                " to about half of it"
            )
        return self


def check_places(destinations: Iterable[Destination], lake: str) -> None:
    """Make sure that each destination is a place of its own.

    :param lake: where the messages come from
    :raises ValueError: with the words for a person
    """
    names: set[str] = set()
    places = {_place(lake): "the lake's own (lake.path)"}
    for destination in destinations:
        if destination.name in names:
            raise ValueError(f"two destinations have the name {destination.name!r}: give each its own")
        names.add(destination.name)
        place = _place(destination.path)
        if place in places:
            raise ValueError(f"the path of {destination.name} is {places[place]}: messages would be there twice")
        places[place] = f"that of {destination.name}"


def _place(path: str) -> str:
    return path.rstrip("/") if ":" in path.partition("/")[0] else str(Path(path).resolve())
