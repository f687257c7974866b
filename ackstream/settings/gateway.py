"""``[gateway]`` of the settings: where HTTP and WebSocket are served, to whom, and who may do what."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from ackstream.settings.base import Milliseconds, Part, duration
from ackstream.settings.identity import AccessRule, Issuer, Proxy, Users
from ackstream.settings.security import OptionalPath, OptionalSecret, Tls

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from typing_extensions import Self

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[^/?#@*\s\[\]:]+)(:[0-9]+)?")
_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


class GatewayTls(Part):
    """``[gateway.tls]``: the certificate under which HTTPS is served, and that of clients. All files are in PEM.

    :ivar certificate: followed by its chain; ``None``: HTTP is served
    :ivar key: of ``certificate``; ``None``: it stands in the same file
    :ivar client_ca: authorities of which each client must show a certificate; ``None``: they need none
    """

    certificate: OptionalPath = None
    key: OptionalPath = None
    key_password: OptionalSecret = None
    client_ca: OptionalPath = None

    def context(self) -> ssl.SSLContext:
        """Return the context with the files as they are now.

        :raises ValueError: one of them is missing or unfit, with a sentence
        """
        found = Tls.model_construct(
            ca=self.client_ca, certificate=self.certificate, key=self.key, key_password=self.key_password
        )
        return found.server_context()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is read from."""
        return tuple(filter(None, (self.certificate, self.key, self.client_ca)))

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.certificate is None and (self.key or self.key_password or self.client_ca):
            raise ValueError("there is no certificate to serve HTTPS under: name it as certificate")
        if self.certificate is not None:
            self.context()
        return self


class Gateway(Part):
    """HTTP and WebSocket."""

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8080, ge=0, le=65535)
    tls: GatewayTls = GatewayTls()
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
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_connections: int = Field(2_000, ge=1)
    max_sockets: int = Field(100, ge=1)
    max_sockets_per_address: int = Field(500, ge=1)
    max_requests: int = Field(1_000, ge=1)

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

    @field_validator("allowed_origins")
    @classmethod
    def _complete_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if _ORIGIN.fullmatch(origin) is None:
                raise ValueError(
                    f"{origin!r} is not the origin of a page: write its scheme, host and port if any, such as"
                    " https://app.example or http://localhost:3000"
                )
        return origins

    @field_validator("allowed_hosts")
    @classmethod
    def _names_alone(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if _HOST.fullmatch(host) is None:
                raise ValueError(
                    f"{host!r} is not the name of a host: write it as in a URL, without scheme and port, such as"
                    " things.example, or *.things.example for all names below"
                )
        return hosts
