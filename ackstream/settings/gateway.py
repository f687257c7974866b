"""``[gateway]`` of the settings: where HTTP and WebSocket are served, to whom, and who may do what."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from ackstream.settings.base import Milliseconds, Part, duration

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[^/?#@*\s\[\]:]+)(:[0-9]+)?")


class AccessRule(Part):
    """Grants READ or WRITE to subjects, on things, at a path and below; ``*`` stands for any run of characters.

    :ivar labels: those that the subjects may declare on a WebSocket
    """

    subjects: tuple[str, ...] = Field(min_length=1)
    things: tuple[str, ...] = ("*",)
    path: str = Field("/", pattern="^/")
    grant: tuple[Literal["READ", "WRITE"], ...] = ("READ",)
    labels: tuple[str, ...] = ()


class Gateway(Part):
    """HTTP and WebSocket."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8080, ge=0, le=65535)
    max_body_bytes: int = Field(1_000_000, ge=1)
    max_timeout: Milliseconds = duration("60s")
    max_claim_timeout: Milliseconds = duration("10m")
    delivery_timeout: Milliseconds = duration("10s")
    default_namespace: str = Field("org.ackstream", pattern=r"^[A-Za-z]\w*([.-]\w+)*$")
    page_window: Milliseconds = duration("60s")
    users: dict[str, str] = Field({})
    jwt_key_file: str = ""
    jwt_jwks_file: str = ""
    jwt_algorithms: tuple[str, ...] = ("RS256",)
    jwt_issuer: str = ""
    jwt_audience: str = ""
    access: tuple[AccessRule, ...] = ()
    cors_origins: tuple[str, ...] = ()

    @field_validator("cors_origins")
    @classmethod
    def _complete_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if _ORIGIN.fullmatch(origin) is None:
                raise ValueError(
                    f"{origin!r} is not the origin of a page: write its scheme, host and port if any, such as"
                    " https://app.example or http://localhost:3000"
                )
        return origins
