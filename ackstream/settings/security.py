"""How a connection to another system is secured: secrets, TLS, OAuth, and ``[kafka.security]``.

All of it is checked when the settings are read: a file that is missing, a key that does not fit its certificate, or a
password that nothing would use ends the start with one sentence. No secret is ever part of a text.
"""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, SecretStr, model_validator
from pydantic_core import core_schema

from ackstream.settings.base import Part

if TYPE_CHECKING:
    from pydantic import ValidationInfo
    from typing_extensions import Self

_OR_NONE = BeforeValidator(lambda value: None if value == "" else value)
"""An empty text means that a value is not given: TOML has no other way to show such a default."""


class Secret(SecretStr):
    """A text that is never shown: itself, or where to read it, ``{file = "…"}`` or ``{environment = "NAME"}``.

    It is read once, with the settings; the line feed at the end of a file is not part of it.
    """

    def reveal(self) -> str:
        """Return the text."""
        return self.get_secret_value()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        inner = super().__get_pydantic_core_schema__(source, handler)
        return core_schema.with_info_before_validator_function(_read_secret, inner)


def _read_secret(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        # in a variable of the environment a table is JSON
        with suppress(ValueError):
            table = json.loads(value)
            value = table if list(table) in (["file"], ["environment"]) else value
    if not isinstance(value, dict):
        return value
    if list(value) == ["file"]:
        text = read_text(Path(str(value["file"]))).removesuffix("\n").removesuffix("\r")
    elif list(value) == ["environment"]:
        variables: dict[str, str] = (info.context or {}).get("environment", os.environ)
        text = variables.get(str(value["environment"]), "")
        if not text:
            raise ValueError(f"there is no environment variable {value['environment']}: set it, or name another")
    else:
        raise ValueError('must be a text, {file = "…"} or {environment = "NAME"}')
    if not text:
        raise ValueError(f"the file {value['file']} is empty: write the secret into it, or name another")
    return text


MIN_KEY_CHARACTERS = 32


def _long_enough(key: Secret | None) -> Secret | None:
    if key is not None and len(key.reveal()) < MIN_KEY_CHARACTERS:
        raise ValueError(
            f"must have {MIN_KEY_CHARACTERS} random characters or more, such as `openssl rand -hex 32` prints"
        )
    return key


OptionalSecret = Annotated[Secret | None, _OR_NONE]
OptionalKey = Annotated[Secret | None, AfterValidator(_long_enough), _OR_NONE]
"""A secret that signs."""
OptionalPath = Annotated[Path | None, _OR_NONE]


def read_text(path: Path) -> str:
    """Read a file; raise a sentence if it cannot be read or is no text."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ValueError(f"the file {path} cannot be read ({error.strerror}): correct the path or its rights") from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {path} is not a text: name one in PEM (-----BEGIN …)") from None


class Tls(Part):
    """Certificates in PEM: whom to trust, and who one is.

    :ivar ca: authorities that the other side's certificate must be of; ``None``: those of the system
    :ivar certificate: one's own, followed by its chain; ``None``: one shows none
    :ivar key: of ``certificate``; ``None``: it stands in the same file
    """

    ca: OptionalPath = None
    certificate: OptionalPath = None
    key: OptionalPath = None
    key_password: OptionalSecret = None
    verify_hostname: bool = True

    @property
    def given(self) -> bool:
        """Whether anything in it was set."""
        return self != Tls()

    def client_context(self) -> ssl.SSLContext:
        """Return the context with which a client connects.

        :raises ValueError: a file is missing or unfit, with a sentence
        """
        context = ssl.create_default_context()
        if self.ca is not None:
            context = ssl.create_default_context(cadata=_certificates(self.ca))
        context.check_hostname = self.verify_hostname
        if self.certificate is not None:
            self._show_certificate(context, self.certificate)
        return context

    def server_context(self) -> ssl.SSLContext:
        """Return the context with which a server listens; with ``ca``, clients must show a certificate of it.

        :raises ValueError: a file is missing or unfit, with a sentence
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if self.certificate is not None:
            self._show_certificate(context, self.certificate)
        if self.ca is not None:
            context.load_verify_locations(cadata=_certificates(self.ca))
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    @property
    def authorities(self) -> str:
        """The certificates of ``ca`` in PEM."""
        return "" if self.ca is None else _certificates(self.ca)

    @property
    def chain(self) -> str:
        """``certificate`` with its chain in PEM."""
        return "" if self.certificate is None else _certificates(self.certificate)

    def private_key(self) -> str:
        """Return the key of ``certificate`` in the one form that Java reads: PKCS #8 in PEM, not encrypted."""
        from ackstream.settings import pem  # noqa: PLC0415 - its package is of an extra

        file = self.key or self.certificate
        if file is None:
            return ""
        password = None if self.key_password is None else self.key_password.reveal().encode()
        return pem.private_key(file, password)

    def _show_certificate(self, context: ssl.SSLContext, certificate: Path) -> None:
        from ackstream.settings import pem  # noqa: PLC0415 - its package is of an extra

        pem.show(context, certificate, self.key, "" if self.key_password is None else self.key_password.reveal())

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.certificate is None and (self.key or self.key_password):
            raise ValueError("there is a key without a certificate: name the certificate too, or remove the key")
        if self.ca or self.certificate:
            self.client_context()
        return self


def _certificates(path: Path) -> str:
    from ackstream.settings import pem  # noqa: PLC0415 - its package is of an extra

    return pem.certificates(path)


def _token_url(url: str) -> str:
    parts = urlsplit(url)
    if not url or parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        if "@" not in parts.netloc:
            return url
        raise ValueError("it names a user: write client_id and client_secret instead")
    raise ValueError("it is not a URL that begins with https://: a client's secret goes there")


class OAuth(Part):
    """A client that gets its tokens from an authorisation server (client credentials, RFC 6749 4.4).

    :ivar ca: authorities that the certificate of ``token_url`` must be of; ``None``: those of the system
    """

    token_url: Annotated[str, AfterValidator(_token_url)] = ""
    client_id: str = ""
    client_secret: OptionalSecret = None
    scope: str = ""
    ca: OptionalPath = None

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.ca is not None:
            self.context()
        return self

    def context(self) -> ssl.SSLContext:
        """Return the context with which to connect to ``token_url``."""
        return Tls(ca=self.ca).client_context()

    @property
    def authorities(self) -> str:
        """The certificates of ``ca`` in PEM."""
        return Tls(ca=self.ca).authorities


Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"]

OF_OPTIONS = ("GSSAPI", "AWS_MSK_IAM")
"""Mechanisms that are set up by ``sasl.*`` in the two tables of options, since the libraries share nothing there."""


class KafkaSecurity(Part):
    """``[kafka.security]``: how all clients, those of Python and those of Spark, reach the brokers and log in."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: Annotated[Mechanism | None, _OR_NONE] = None
    username: str = ""
    password: OptionalSecret = None
    oauth: OAuth = OAuth()
    tls: Tls = Tls()

    @property
    def logs_in(self) -> bool:
        """Whether clients log in (SASL)."""
        return self.protocol.startswith("SASL_")

    @property
    def encrypted(self) -> bool:
        """Whether connections are encrypted (TLS)."""
        return self.protocol.endswith("SSL")

    @property
    def by_password(self) -> bool:
        """Whether clients log in with a name and a password."""
        return self.mechanism == "PLAIN" or str(self.mechanism).startswith("SCRAM-")

    @property
    def principal(self) -> str:
        """Who the clients are for the brokers, unless these map names otherwise; without ``User:``."""
        if self.by_password:
            return self.username
        if self.mechanism == "OAUTHBEARER":
            return self.oauth.client_id
        if self.tls.chain and not self.logs_in:
            from ackstream.settings import pem  # noqa: PLC0415 - its package is of an extra

            return pem.subject(self.tls.chain)
        return "ANONYMOUS"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Refuse what is missing, and what would have no effect: someone believes to be protected by it."""
        secured = self.protocol.replace("PLAINTEXT", "SSL")
        if self.tls.given and not self.encrypted:
            raise ValueError(f"tls has no effect with the protocol {self.protocol}: write {secured}")
        if not self.logs_in:
            if self.mechanism or self.username or self.password or self.oauth != OAuth():
                raise ValueError(
                    f"nobody logs in with the protocol {self.protocol}: write SASL_SSL, or remove mechanism, username, "
                    f"password and oauth"
                )
            return self
        if self.mechanism is None:
            raise ValueError(f"the protocol {self.protocol} needs a mechanism, such as SCRAM-SHA-512")
        if bool(self.username and self.password) != self.by_password or bool(self.username) != bool(self.password):
            wanted = "needs both username and password" if self.by_password else "takes no username and password"
            raise ValueError(f"the mechanism {self.mechanism} {wanted}")
        self._check_oauth()
        return self

    def _check_oauth(self) -> None:
        given = {"token_url": self.oauth.token_url, "client_id": self.oauth.client_id}
        missing = [name for name, value in (given | {"client_secret": self.oauth.client_secret}).items() if not value]
        if self.mechanism != "OAUTHBEARER" and self.oauth != OAuth():
            raise ValueError(f"oauth has no effect with the mechanism {self.mechanism}: write OAUTHBEARER")
        if self.mechanism == "OAUTHBEARER" and missing:
            raise ValueError(f"the mechanism OAUTHBEARER needs {', '.join(f'oauth.{name}' for name in missing)}")

    def warning(self, bootstrap: str) -> str | None:
        """Return what the way to these brokers exposes, as a sentence; ``None``: nothing."""
        if not self.logs_in or self.encrypted or all(map(is_loopback, hosts_of(bootstrap))):
            return None
        return (
            f"Everyone on the network between here and {bootstrap} can read passwords, tokens and records: the "
            f"protocol SASL_PLAINTEXT encrypts nothing. Set kafka.security.protocol to SASL_SSL."
        )


_OWNED = {
    *("bootstrap.servers", "group.id", "group.instance.id", "acks", "enable.idempotence", "isolation.level"),
    *("enable.auto.commit", "auto.offset.reset", "transactional.id", "allow.auto.create.topics"),
    *("key.serializer", "value.serializer", "key.deserializer", "value.deserializer", "interceptor.classes"),
}
"""What the jobs' and clients' promises hang on; none of it is an operator's to change."""

_OF_SECURITY = ("security.", "sasl.", "ssl.")


def _free(options: dict[str, str]) -> dict[str, str]:
    for name in options:
        spelled = name.replace("_", ".")
        if spelled in _OWNED:
            raise ValueError(f"{name} is set by ackstream itself, whose promises hang on it: remove it")
        if spelled.startswith(_OF_SECURITY[:1] + _OF_SECURITY[2:]) or spelled == "sasl.mechanism":
            raise ValueError(f"{name} is set in kafka.security, for all clients at once: move it there")
    return options


ClientOptions = Annotated[dict[str, str], AfterValidator(_free), Field(repr=False)]
"""Options of Kafka clients in Kafka's spelling, without those that are not an operator's to change."""


class KafkaOptions(Part):
    """``[kafka.options]``: further options of the clients of Python, and of those of Spark."""

    python: ClientOptions = Field({})
    java: ClientOptions = Field({})

    def check(self, security: KafkaSecurity) -> None:
        """Refuse options of a login that ``security`` sets itself.

        :raises ValueError: with a sentence
        """
        if security.mechanism not in OF_OPTIONS:
            for name in (*self.python, *self.java):
                if name.replace("_", ".").startswith("sasl."):
                    raise ValueError(f"{name} is set in kafka.security, for all clients at once: move it there")


def hosts_of(bootstrap: str) -> list[str]:
    """Return the names or addresses of brokers."""
    return [address.strip().rpartition(":")[0].strip("[]") for address in bootstrap.split(",")]


def is_loopback(name: str) -> bool:
    """Return whether a host name or address can only be this machine."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
