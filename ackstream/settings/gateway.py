"""``[gateway]``: addresses, users and access rules of HTTP and WebSocket; ``[[quotas]]``: the limits of tenants.

Its files are read again when they change, without a restart. An unusable file is refused, and the earlier content stays
in force. A file is read once it has not changed for half a second, so that no half-written one is used.
"""

import ipaddress
import logging
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator

from ackstream.errors import SettingsError
from ackstream.protocol.ditto.twin.access import Rule
from ackstream.protocol.rql.patterns import matches_any
from ackstream.settings.base import Limit, Milliseconds, Part, duration, key, parse_toml, problem
from ackstream.settings.security import HostName, OptionalPath, OptionalSecret, SecureUrl, Tls, is_secure

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5

ROLE = "role:"
"""The beginning of a role among subjects: ``role:PREFIX:NAME``. No issuer, user or proxy can give such a subject."""

OWN = ("user", "proxy", "connection", "certificate", "role", "anonymous")
"""Prefixes of subjects that an issuer cannot have."""

_Rsa = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]
Algorithm = Literal["HS256", "HS384", "HS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA"] | _Rsa


class AccessRule(Part):
    """Grants READ or WRITE to subjects and roles, on things, at a path and below; ``*`` stands for any characters."""

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

    def _check(self) -> None:
        if not (self.subjects or self.roles):
            raise ValueError("the rule applies to no client: name subjects or roles")

    @property
    def rule(self) -> Rule:
        """The rule as it is applied: with the roles among the subjects."""
        holders = (*self.subjects, *(f"{ROLE}{role}" for role in self.roles))
        return Rule(holders, self.things, self.path, self.grant, self.labels)


class User(Part):
    """A user with a password, of which the settings hold only the hash."""

    password: SecretStr
    roles: tuple[str, ...] = ()


_password = BeforeValidator(lambda value: {"password": value} if isinstance(value, str) else value)
Users = dict[str, Annotated[User, _password]]
"""Users by their names: the hash of the password, or a table with ``password`` and ``roles``."""


class Issuer(Part):
    """An issuer of JSON Web Tokens, such as an OpenID provider.

    Its keys come from ``jwks_url``, ``jwks_file`` or ``key_file``; without them its discovery document names their URL.
    """

    issuer: str = Field(min_length=1)
    audience: tuple[str, ...] = Field(min_length=1)
    prefix: str = Field("jwt", pattern=r"^[a-z][a-z0-9-]*$")
    algorithms: tuple[Algorithm, ...] = Field(("RS256",), min_length=1)
    subject: str = Field("sub", min_length=1)
    roles: tuple[str, ...] = ()
    jwks_url: SecureUrl = ""
    jwks_file: OptionalPath = None
    key_file: OptionalPath = None
    ca: OptionalPath = None

    @field_validator("prefix")
    @classmethod
    def _not_our_own(cls, prefix: str) -> str:
        if prefix in OWN:
            raise ValueError(f"an issuer cannot have it, as {', '.join(OWN)} are those of other subjects")
        return prefix

    def _check(self) -> None:
        if sum(map(bool, (self.jwks_url, self.jwks_file, self.key_file))) > 1:
            raise ValueError("has several sources of keys: leave one of jwks_url, jwks_file and key_file")
        if self.remote:
            if any(algorithm.startswith("HS") for algorithm in self.algorithms):
                raise ValueError("a published key cannot be a shared secret: use key_file with HS256, or RS256")
            if not is_secure(self.jwks_url or self.issuer):
                raise ValueError(
                    "its keys cannot be found: issuer must be a URL with https://, or name jwks_url, jwks_file or "
                    "key_file"
                )

    @property
    def remote(self) -> bool:
        """Whether its keys are fetched."""
        return not (self.jwks_file or self.key_file)


class Proxy(Part):
    """A proxy in front of the gateway, which may authenticate clients itself."""

    addresses: tuple[str, ...] = ()
    subject_header: str = Field("", pattern=r"^[A-Za-z0-9-]*$")
    roles_header: str = Field("", pattern=r"^[A-Za-z0-9-]*$")
    passed_headers: tuple[Annotated[str, Field(pattern=r"^x-[a-z0-9*_.-]*$")], ...] = ()

    @field_validator("addresses")
    @classmethod
    def _addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            try:
                network = ipaddress.ip_network(address)
            except ValueError as error:
                raise ValueError(f"{address!r} is not an address or network such as 10.0.0.7 or 10.1.0.0/16") from error
            if network.prefixlen == 0:
                raise ValueError(f"{address!r} is everyone: name the addresses of the proxy")
        return addresses

    def _check(self) -> None:
        if (self.subject_header or self.roles_header) and not self.addresses:
            raise ValueError(
                "has a header that authenticates, and no addresses: anyone could send it. Name the proxy's"
            )
        if self.roles_header and not self.subject_header:
            raise ValueError("has a header with roles, and none with the subject: set subject_header")


class AccessFile(Part):
    """The content of ``gateway.access_file``: users and access rules that may change while the gateway runs."""

    users: Users = Field({})
    access: tuple[AccessRule, ...] = ()


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
    operators: tuple[str, ...] = ()
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
        """Refuse a limit that counts nothing, and a tenant without limits, which an operator would think limited."""
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

    def has_subject(self, subjects: Iterable[str]) -> bool:
        """Return whether requests and sockets of a client with these subjects count."""
        return any(matches_any(self.subjects, subject) for subject in subjects)


class WatchedFile(NamedTuple):
    """A file, and the function that reads it again, or changes nothing and raises ``SettingsError``."""

    path: Path
    reload: Callable[[], None]


class FileWatch(AbstractContextManager["FileWatch"]):
    """Checks files twice a second, in a thread, during the block."""

    def __init__(
        self, files: Iterable[WatchedFile], report: Callable[[str, str | None], None] = lambda *_: None
    ) -> None:
        """Begin; ``report`` gets each file read again, and why it was refused. SettingsError: one is unusable."""
        self._files = {}
        for file in files:
            self._files[file] = file_state(file.path)
            file.reload()
        self._seen = dict(self._files)
        self._report = report
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ackstream-files", daemon=True)
        if self._files:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Stop checking."""
        self._closing.set()
        if self._files:
            self._thread.join()

    def look(self) -> None:
        """Read the changed files again, once they have stayed the same since the last check."""
        for file, read in self._files.items():
            state = file_state(file.path)
            if state is None and self._seen[file] is not None:
                log.error("The file %s is missing. The earlier content stays in force.", file.path)
            if state not in (read, None) and state == self._seen[file]:
                self._files[file] = state
                self._reload(file)
            self._seen[file] = state

    def _reload(self, file: WatchedFile) -> None:
        refusal = None
        try:
            file.reload()
        except SettingsError as error:
            refusal = str(error)
            log.error("%s The earlier content stays in force.", error)  # noqa: TRY400 - the sentence is complete
        else:
            log.warning("The file %s has changed and was read again.", file.path)
        self._report(str(file.path), refusal)

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            self.look()


def file_state(path: Path) -> tuple[int, ...] | None:
    """Return values that change with the content and the rights of a file; ``None`` while there is no file."""
    # those of the target of a link: Kubernetes replaces the link
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode, found.st_uid, found.st_gid
