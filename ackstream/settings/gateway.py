"""``[gateway]``: where HTTP and WebSocket are served and to whom; ``[[quotas]]``: the limits of tenants."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from ackstream.errors import SettingsError
from ackstream.protocol.rql.patterns import matches_any
from ackstream.settings.access import AccessFile, AccessRule, Issuer, Proxy, Users
from ackstream.settings.base import Limit, Milliseconds, Part, duration, key, parse_toml, problem
from ackstream.settings.security import HostName, OptionalPath, OptionalSecret, Tls

_ORIGIN = r"^[a-z][a-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[^/?#@*\s\[\]:]+)(:[0-9]+)?$"
_HOST = r"^(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?$"


class GatewayTls(Part):
    """``[gateway.tls]``: the certificate under which HTTPS is served, and that of clients. All files are in PEM."""

    certificate: OptionalPath = None
    key: OptionalPath = None
    key_password: OptionalSecret = None
    client_ca: OptionalPath = None

    def context(self) -> ssl.SSLContext:
        """Return the context with the files as they are now; raises ``ValueError`` with a sentence."""
        found = Tls.model_construct(
            ca=self.client_ca, certificate=self.certificate, key=self.key, key_password=self.key_password
        )
        context = found.server_context()
        # tickets follow the handshake: a client that reads in one thread while another one writes can lose both
        context.num_tickets = 0
        return context

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is read from."""
        return tuple(filter(None, (self.certificate, self.key, self.client_ca)))

    def _check(self) -> None:
        if self.certificate is None and (self.key or self.key_password or self.client_ca):
            raise ValueError("there is no certificate to serve HTTPS under: name it as certificate")
        if self.certificate is not None:
            self.context()


class Gateway(Part):
    """HTTP and WebSocket."""

    host: HostName = "127.0.0.1"
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
    allowed_origins: tuple[Annotated[str, Field(pattern=_ORIGIN)], ...] = ()
    allowed_hosts: tuple[Annotated[str, Field(pattern=_HOST)], ...] = ()
    max_connections: int = Field(2_000, ge=1)
    max_sockets: int = Field(100, ge=1)
    max_sockets_per_address: int = Field(500, ge=1)
    max_requests: int = Field(1_000, ge=1)

    @field_validator("issuers")
    @classmethod
    def _distinct(cls, issuers: tuple[Issuer, ...]) -> tuple[Issuer, ...]:
        for name in ("issuer", "prefix"):
            values = [getattr(issuer, name) for issuer in issuers]
            for value in values:
                if values.count(value) > 1:
                    raise ValueError(f"several have the {name} {value!r}: their subjects would be the same")
        return issuers

    def _check(self) -> None:
        if self.access_file is not None and (self.users or self.access):
            raise ValueError(f"users and access are in {self.access_file} (access_file): remove them here")


def with_access_file(settings: Gateway) -> Gateway:
    """Return the settings with users and rules of ``access_file``, if any. SettingsError names the key and no value."""
    if settings.access_file is None:
        return settings
    try:
        found = AccessFile.model_validate(parse_toml(settings.access_file.read_text("utf-8")))
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except ValidationError as error:
        # without the values, which may be passwords
        reason = f"cannot be used: {'; '.join(f'{key(each)} {problem(each)}' for each in error.errors())}"
    except ValueError as error:
        reason = f"is not valid TOML ({error})"
    else:
        if found.access:
            return settings.model_copy(update={"users": found.users, "access": found.access})
        reason = "grants nothing: grant access with [[access]] (subjects or roles, things, path, grant)"
    raise SettingsError(f"The file {settings.access_file} (gateway.access_file) {reason}.")


class Quota(Part):
    """The limits of one tenant; ``*`` stands for any run of characters."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    namespaces: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    max_things: Limit = 0
    max_bytes: Limit = 0
    max_open_requests: Limit = 0
    max_sockets: Limit = 0

    def _check(self) -> None:
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

    def has_namespace(self, namespace: str) -> bool:
        """Return whether things of a namespace count."""
        return matches_any(self.namespaces, namespace)

    def has_subject(self, subjects: Iterable[str]) -> bool:
        """Return whether requests and sockets of a client with these subjects count."""
        return any(matches_any(self.subjects, subject) for subject in subjects)
