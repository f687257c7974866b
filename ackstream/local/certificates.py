"""Certificates of the secured local Kafka: an authority of its own, made once, and what it signs."""

from __future__ import annotations

import ipaddress
import os
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

AUTHORITY_VALID, VALID = timedelta(days=3650), timedelta(days=365)
HOSTS: list[x509.GeneralName] = [
    x509.DNSName("localhost"),
    *(x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1")),
]
_BEFORE = timedelta(days=1)
"""A certificate is valid from then on, whatever zone a clock was set for."""


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first moment on."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(content)
    part.replace(path)


class Authority:
    """Signs certificates for this machine.

    :ivar ca: the file with its own certificate
    """

    def __init__(self, directory: Path, name: str = "ackstream local authority") -> None:
        """Take the authority of a directory, or make one."""
        self._directory, self.ca = directory, directory / "ca.pem"
        file = directory / "ca.key"
        if not (file.exists() and self.ca.exists()):
            key, subject = ec.generate_private_key(ec.SECP256R1()), _name(name)
            builder = _builder(subject, subject, key, AUTHORITY_VALID)
            constraints = x509.BasicConstraints(ca=True, path_length=0)
            certificate = builder.add_extension(constraints, critical=True).sign(key, hashes.SHA256())
            write_secret(file, _key_pem(key))
            self.ca.write_bytes(certificate.public_bytes(Encoding.PEM))
        self._subject = x509.load_pem_x509_certificate(self.ca.read_bytes()).subject
        self._key = load_pem_private_key(file.read_bytes(), None)

    def issue(self, name: str, valid: timedelta = VALID, hosts: list[x509.GeneralName] = HOSTS) -> Path:
        """Write a key and its certificate, by default for this machine, to one file; return it."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._subject, key, valid)
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())  # type: ignore[arg-type]  # made above
        file = self._directory / f"{name}.pem"
        write_secret(file, _key_pem(key) + certificate.public_bytes(Encoding.PEM))
        return file


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + min(timedelta(), valid) - _BEFORE)
        .not_valid_after(now + valid)
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
