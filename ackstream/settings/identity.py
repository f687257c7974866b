"""Who the clients of the gateway are, and what they may do: users, issuers of tokens, a proxy, and access rules."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator

from ackstream.protocol.ditto.access import Rule
from ackstream.settings.base import Part
from ackstream.settings.security import OptionalPath, is_loopback

if TYPE_CHECKING:
    from typing_extensions import Self

ROLE = "role:"
"""The beginning of a role among subjects: ``role:PREFIX:NAME``. No issuer, user or proxy can give such a subject."""

OWN = ("user", "proxy", "connection", "certificate", "role", "anonymous")
"""Beginnings of subjects that are not for issuers."""

Shared = Literal["HS256", "HS384", "HS512"]
Algorithm = (
    Shared | Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA"]
)


class AccessRule(Part):
    """Grants READ or WRITE to subjects and roles, on things, at a path and below; ``*`` stands for any characters.

    :ivar labels: those that the subjects may declare on a WebSocket
    """

    subjects: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    things: tuple[str, ...] = ("*",)
    path: str = Field("/", pattern="^/")
    grant: tuple[Literal["READ", "WRITE"], ...] = ("READ",)
    labels: tuple[str, ...] = ()

    @field_validator("subjects")
    @classmethod
    def _no_roles(cls, subjects: tuple[str, ...]) -> tuple[str, ...]:
        for subject in subjects:
            if subject.startswith(ROLE):
                raise ValueError(f"{subject!r} is a role: write {subject.removeprefix(ROLE)!r} into roles")
        return subjects

    @model_validator(mode="after")
    def _for_someone(self) -> Self:
        if not (self.subjects or self.roles):
            raise ValueError("the rule is for no one: name subjects or roles")
        return self

    @property
    def rule(self) -> Rule:
        """The same as it is applied: with the roles among the subjects."""
        holders = (*self.subjects, *(f"{ROLE}{role}" for role in self.roles))
        return Rule(holders, self.things, self.path, self.grant, self.labels)


class User(Part):
    """Someone with a password, of which the settings have the hash alone."""

    password: SecretStr
    roles: tuple[str, ...] = ()


def _with_keys(value: Any) -> Any:
    return {"password": value} if isinstance(value, str) else value


Users = dict[str, Annotated[User, BeforeValidator(_with_keys)]]
"""Users by their names: the hash of the password, or a table with ``password`` and ``roles``."""


def _secure(url: str) -> str:
    if url and not is_secure(url):
        raise ValueError("must begin with https://, or with http:// and a loopback address: who changes keys on their "
                         "way may sign any token")  # fmt: skip
    return url


def is_secure(url: str) -> bool:
    """Return whether what is read from a URL comes from where it points."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


class Issuer(Part):
    """An issuer of JSON Web Tokens, such as an OpenID provider.

    Its keys come from ``jwks_url``, ``jwks_file`` or ``key_file``; without them its discovery document names their URL.

    :ivar issuer: the ``iss`` of its tokens
    :ivar audience: of these ``aud`` a token must have one
    :ivar prefix: begins its subjects, ``PREFIX:SUBJECT``, and its roles
    :ivar subject: the claim that names the subject
    :ivar roles: claims with roles: a name, or a JSON pointer such as ``/realm_access/roles``
    :ivar ca: authorities that the certificates of its servers must be of; ``None``: those of the system
    """

    issuer: str = Field(min_length=1)
    audience: tuple[str, ...] = Field(min_length=1)
    prefix: str = Field("jwt", pattern=r"^[a-z][a-z0-9-]*$")
    algorithms: tuple[Algorithm, ...] = Field(("RS256",), min_length=1)
    subject: str = Field("sub", min_length=1)
    roles: tuple[str, ...] = ()
    jwks_url: Annotated[str, AfterValidator(_secure)] = ""
    jwks_file: OptionalPath = None
    key_file: OptionalPath = None
    ca: OptionalPath = None

    @field_validator("prefix")
    @classmethod
    def _not_our_own(cls, prefix: str) -> str:
        if prefix in OWN:
            raise ValueError(f"no issuer can have it, as {', '.join(OWN)} are those of other subjects")
        return prefix

    @model_validator(mode="after")
    def _with_keys(self) -> Self:
        if sum(map(bool, (self.jwks_url, self.jwks_file, self.key_file))) > 1:
            raise ValueError("has several sources of keys: leave one of jwks_url, jwks_file and key_file")
        if self.remote:
            if any(algorithm.startswith("HS") for algorithm in self.algorithms):
                raise ValueError("a key that is published is no shared secret: use key_file with HS256, or RS256")
            if not is_secure(self.jwks_url or self.issuer):
                raise ValueError(
                    "its keys cannot be found: issuer must be a URL with https://, or name jwks_url, jwks_file or "
                    "key_file"
                )
        return self

    @property
    def remote(self) -> bool:
        """Whether its keys are fetched."""
        return not (self.jwks_file or self.key_file)


class Proxy(Part):
    """A proxy in front of the gateway, which may authenticate clients itself.

    :ivar addresses: of the proxy: addresses or networks. Only from there X-Forwarded-For and -Proto are believed
    :ivar subject_header: in which it names the client it has authenticated: the subject ``proxy:NAME``
    :ivar roles_header: in which it lists the client's roles, separated by commas
    """

    addresses: tuple[str, ...] = ()
    subject_header: str = Field("", pattern=r"^[A-Za-z0-9-]*$")
    roles_header: str = Field("", pattern=r"^[A-Za-z0-9-]*$")

    @field_validator("addresses")
    @classmethod
    def _addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            try:
                network = ipaddress.ip_network(address)
            except ValueError as error:
                raise ValueError(f"{address!r} is no address or network, such as 10.0.0.7 or 10.1.0.0/16") from error
            if network.prefixlen == 0:
                raise ValueError(f"{address!r} is everyone: name the addresses of the proxy")
        return addresses

    @model_validator(mode="after")
    def _from_somewhere(self) -> Self:
        if (self.subject_header or self.roles_header) and not self.addresses:
            raise ValueError(
                "has a header that authenticates, and no addresses: anyone could send it. Name the proxy's"
            )
        if self.roles_header and not self.subject_header:
            raise ValueError("has a header with roles, and none with the subject: set subject_header")
        return self


class AccessFile(Part):
    """The content of ``gateway.access_file``: users and access rules that may change while the gateway runs."""

    users: Users = Field({})
    access: tuple[AccessRule, ...] = ()
