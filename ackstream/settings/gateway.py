"""``[gateway]`` of the settings: where HTTP and WebSocket are served, to whom, and who may do what."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from ackstream.settings.base import Milliseconds, Part, duration
from ackstream.settings.identity import AccessRule, Issuer, Proxy, Users
from ackstream.settings.security import OptionalPath

if TYPE_CHECKING:
    from typing_extensions import Self

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[^/?#@*\s\[\]:]+)(:[0-9]+)?")


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
    users: Users = Field({})
    access: tuple[AccessRule, ...] = ()
    access_file: OptionalPath = None
    issuers: tuple[Issuer, ...] = ()
    proxy: Proxy = Proxy()
    audit: Literal["changes", "all", "off"] = "changes"
    cors_origins: tuple[str, ...] = ()

    @field_validator("issuers")
    @classmethod
    def _distinct(cls, issuers: tuple[Issuer, ...]) -> tuple[Issuer, ...]:
        for key in ("issuer", "prefix"):
            values = [getattr(issuer, key) for issuer in issuers]
            for value in values:
                if values.count(value) > 1:
                    raise ValueError(f"several have the {key} {value!r}: their subjects would be the same")
        return issuers

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.access_file is not None and (self.users or self.access):
            raise ValueError(f"users and access are in {self.access_file} (access_file): remove them here")
        return self

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
