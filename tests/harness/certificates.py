"""An authority of a test's own, and certificates of it, in PEM."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

DAY = dt.timedelta(days=1)
STORE_PASSWORD = "changeit"


class Authority:
    """Signs certificates; ``ca`` is the file with its own."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory, self._key = directory, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca = directory / f"{name}.pem"
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.ca.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def stores(self, name: str, **options: Any) -> tuple[Path, Path]:
        """Write a certificate and its key, and those who are trusted, as stores of Java; return the two files."""
        certificate, key = (file.read_bytes() for file in self.issue(name, **options))
        own, trusted = self._directory / f"{name}.p12", self._directory / f"{name}.trust.p12"
        authority = x509.load_pem_x509_certificate(self.ca.read_bytes())
        encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        private: Any = serialization.load_pem_private_key(key, None)
        found = x509.load_pem_x509_certificate(certificate)
        own.write_bytes(pkcs12.serialize_key_and_certificates(name.encode(), private, found, [authority], encryption))
        entry = pkcs12.PKCS12Certificate(authority, b"authority")
        trusted.write_bytes(pkcs12.serialize_java_truststore([entry], encryption))
        return own, trusted

    def issue(
        self, name: str, *, expired: bool = False, password: str = "", host: str = "localhost"
    ) -> tuple[Path, Path]:
        """Write a certificate of a host, by default this one, and its key; return the two files."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._name, key.public_key(), -DAY if expired else DAY)
        names: list[x509.GeneralName] = [x509.DNSName(host)]
        if host == "localhost":
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate, file = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        encryption = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
        return certificate, file


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, left: dt.timedelta = DAY
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + left)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
