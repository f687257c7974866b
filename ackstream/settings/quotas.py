"""``[[quotas]]`` of the settings: what a tenant may use at most, by the namespaces of its things and its subjects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from ackstream.protocol.patterns import matches_any
from ackstream.settings.base import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

Limit = Annotated[int, Field(ge=0)]
"""Of something that is counted; 0: none."""


class Quota(Part):
    """The limits of one tenant; ``*`` stands for any run of characters.

    :ivar namespaces: whose things count together
    :ivar subjects: whose requests and sockets count together
    :ivar max_things: in the twin
    :ivar max_bytes: of their JSON, together
    :ivar max_open_requests: at a gateway, at a time
    :ivar max_sockets: at a gateway: WebSockets and streams of events
    """

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    namespaces: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    max_things: Limit = 0
    max_bytes: Limit = 0
    max_open_requests: Limit = 0
    max_sockets: Limit = 0

    @model_validator(mode="after")
    def _counted(self) -> Self:
        """Refuse a limit of nothing, and a tenant without limits: an operator would believe that it has some."""
        limits = {
            "namespaces": {"max_things": self.max_things, "max_bytes": self.max_bytes},
            "subjects": {"max_open_requests": self.max_open_requests, "max_sockets": self.max_sockets},
        }
        for counted, named in limits.items():
            given = [name for name, limit in named.items() if limit]
            if given and not getattr(self, counted):
                raise ValueError(f"{given[0]} of {self.name} counts nothing: name its {counted}, too")
            if getattr(self, counted) and not given:
                raise ValueError(f"the {counted} of {self.name} have no limit: set {' or '.join(named)}")
        if not (self.namespaces or self.subjects):
            raise ValueError(f"{self.name} limits nothing: name its namespaces or its subjects, and a limit of theirs")
        return self

    def has_namespace(self, namespace: str) -> bool:
        """Return whether things of a namespace count."""
        return matches_any(self.namespaces, namespace)

    def has_subject(self, subjects: Iterable[str]) -> bool:
        """Return whether what someone with these subjects has open counts."""
        return any(matches_any(self.subjects, subject) for subject in subjects)
