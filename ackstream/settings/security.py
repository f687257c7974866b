"""Secrets, and TLS and OAuth of a connection to another system.

All of it is checked when the settings are read: a file that is missing, a key that does not fit its certificate, or an
unused password stops the start with one sentence. No text ever contains a secret. Certificates and keys are read by the
package cryptography, which the extra ``tls`` installs.
"""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, WrapValidator

from ackstream.settings.base import HomePath, Part

if TYPE_CHECKING:
    from pydantic import ValidationInfo, ValidatorFunctionWrapHandler

OR_NONE = BeforeValidator(lambda value: None if value == "" else value)
"""An empty text means that a value is not given: TOML has no other way to show such a default."""


class Secret(SecretStr):
    """A text that is never shown: itself, or where to read it, ``{file = "…"}`` or ``{environment = "NAME"}``.

    It is read once, with the settings; the line feed at the end of a file is not part of it.
    """

    def reveal(self) -> str:
        """Return the text."""
        return self.get_secret_value()


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


def _read_elsewhere(value: object, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
    text = _read_secret(value, info)
    if text is value:
        return check(text)
    with suppress(ValidationError):
        return check(text)
    # the reasons may contain a part of the text
    raise ValueError("the text that is read from there is not accepted: correct it")


ELSEWHERE = WrapValidator(_read_elsewhere)
"""Lets a text be read from elsewhere, as a :class:`Secret` is; the last entry of an ``Annotated``."""

MIN_KEY_CHARACTERS = 32


def _long_enough(key: Secret | None) -> Secret | None:
    if key is not None and len(key.reveal()) < MIN_KEY_CHARACTERS:
        raise ValueError(
            f"must have {MIN_KEY_CHARACTERS} random characters or more, such as `openssl rand -hex 32` prints"
        )
    return key


OptionalSecret = Annotated[Secret | None, BeforeValidator(_read_secret), OR_NONE]
OptionalKey = Annotated[OptionalSecret, AfterValidator(_long_enough)]
"""A key for signatures."""
OptionalPath = Annotated[Annotated[Path, HomePath] | None, OR_NONE]


def revealed(secret: Secret | None) -> str:
    """Return the text of a secret, empty without one."""
    return "" if secret is None else secret.reveal()


def read_text(path: Path) -> str:
    """Read a file; raise a sentence if it cannot be read or is no text."""
    try:
        return path.expanduser().read_text("utf-8")
    except (OSError, RuntimeError) as error:
        raise ValueError(f"the file {path} cannot be read ({error.args[-1]}): correct the path or its rights") from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {path} is not a text: name one in PEM (-----BEGIN …)") from None


class Tls(Part):
    """Trusted and own certificates, in PEM."""

    ca: OptionalPath = None
    certificate: OptionalPath = None
    key: OptionalPath = None
    key_password: OptionalSecret = None
    verify_hostname: bool = True

    def client_context(self) -> ssl.SSLContext:
        """Return the context with which a client connects; raises ``ValueError`` for an unfit file."""
        context = ssl.create_default_context(cadata=self.authorities or None)
        context.check_hostname = self.verify_hostname
        self._load_certificate(context)
        return context

    def server_context(self) -> ssl.SSLContext:
        """Return the context of a server; with ``ca``, clients must show a certificate of it. Raises ``ValueError``."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._load_certificate(context)
        if self.ca is not None:
            context.load_verify_locations(cadata=self.authorities)
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
        file = self.key or self.certificate
        if file is None:
            return ""
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - of the extra tls

        key = serialization.load_pem_private_key(read_text(file).encode(), revealed(self.key_password).encode() or None)
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return key.private_bytes(*form).decode()

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        """Let a context show the certificate, if any; raises ``ValueError`` if it or its key is unfit or expired."""
        if self.certificate is None:
            return
        from cryptography import x509  # noqa: PLC0415 - of the extra tls

        expiry = x509.load_pem_x509_certificate(self.chain.encode()).not_valid_after_utc
        file = self.key or self.certificate
        if "PRIVATE KEY-----" not in read_text(file):
            raise ValueError(f"the file {file} has no private key in PEM: name the one of {self.certificate} as key")
        try:
            # without a password OpenSSL would prompt for it at the terminal
            context.load_cert_chain(self.certificate, self.key, revealed(self.key_password))
        except ssl.SSLError as error:
            problem = "cannot be read: correct key_password, which is needed if the key is encrypted, or the file"
            if error.reason == "KEY_VALUES_MISMATCH":
                problem = f"is not that of the certificate {self.certificate}: name its own"
            raise ValueError(f"the key in {file} {problem}") from None
        if expiry < datetime.now(timezone.utc):
            raise ValueError(f"the certificate {self.certificate} expired at {expiry:%F %T} UTC: renew it")

    def _check(self) -> None:
        if self.certificate is None and (self.key or self.key_password):
            raise ValueError("there is a key without a certificate: name the certificate too, or remove the key")
        if self.ca or self.certificate:
            self.client_context()


def _secure(url: str) -> str:
    if url and not is_secure(url):
        raise ValueError("must begin with https://, or with http:// and a loopback address: others on the way could "
                         "read a secret, or change the keys with which tokens are signed")  # fmt: skip
    if "@" in urlsplit(url).netloc:
        raise ValueError("it names a user, which is not needed: remove it")
    return url


SecureUrl = Annotated[str, AfterValidator(_secure)]
"""The URL of a server whose identity is verified; empty if none is given."""


class OAuth(Part):
    """A client that gets its tokens from an authorisation server (client credentials, RFC 6749 4.4)."""

    token_url: SecureUrl = ""
    client_id: str = ""
    client_secret: OptionalSecret = None
    scope: str = ""
    ca: OptionalPath = None

    def _check(self) -> None:
        if self.ca is not None:
            self.tls.client_context()

    @property
    def tls(self) -> Tls:
        """TLS of the connection to ``token_url``."""
        return Tls.model_construct(ca=self.ca)


HostName = Annotated[str, Field(pattern=r"^([^:/?#@\s\[\]]+|\[?[0-9A-Fa-f]*(:[0-9A-Fa-f.]*){2,}(%\w+)?\]?)$")]
"""The name or address of a host; not a URL, which may contain a password."""


def is_loopback(name: str) -> bool:
    """Return whether a host name or address can only be this machine."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_secure(url: str) -> bool:
    """Return whether a URL leads to the server that it names: by TLS, or on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def _certificates(path: Path) -> str:
    """Return the certificates in a file, without the text between them; raises ``ValueError`` if it has none."""
    from cryptography import x509  # noqa: PLC0415 - of the extra tls
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    text = read_text(path)
    try:
        found = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        raise ValueError(f"the file {path} has no certificate in PEM (-----BEGIN CERTIFICATE-----)") from None
    return "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in found)


def subject(chain: str) -> str:
    """Return the name of the first certificate's owner (RFC 4514)."""
    from cryptography import x509  # noqa: PLC0415 - of the extra tls

    return x509.load_pem_x509_certificate(chain.encode()).subject.rfc4514_string()
