"""``[lake]``, which clients read too, and the further lakes of ``[[destinations]]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from ackstream.settings.base import Milliseconds, Part, duration

if TYPE_CHECKING:
    from typing_extensions import Self


class Lake(Part):
    """The Delta tables."""

    path: str = ".ackstream/lake"
    checkpoints: str = ".ackstream/checkpoints"
    checkpoint_interval: int = Field(100, ge=1)
    retention: Milliseconds = duration("7d")
    storage_options: dict[str, str] = Field({}, repr=False)

    def table(self, name: str) -> str:
        """Return a table's location."""
        return f"{self.path.rstrip('/')}/{name}"

    def checkpoint(self, job: str) -> str:
        """Return a job's checkpoint location."""
        return f"{self.checkpoints.rstrip('/')}/{job}"


class Destination(Part):
    """A further lake that gets every message, written by one mirror job (AMPS replication; brokers.md A9, A12, A13)."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    path: str = Field(min_length=1)
    type: Literal["sync", "async"]
    ack_conflation_interval: Milliseconds = duration("1s")
    check_interval: Milliseconds = duration("15s")
    downgrade_age: Milliseconds | None = None
    upgrade_age: Milliseconds | None = None

    @model_validator(mode="after")
    def _consistent_ages(self) -> Self:
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
