"""An authority of a test's own, and certificates of it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from tests.demo import secured

DAY = timedelta(days=1)
STORE_PASSWORD = "changeit"


class Authority(secured.Authority):
    """That of ``ackstream up --secure``, which also signs what is not to be accepted."""

    def issue_pair(self, name: str, *, expired: bool = False, password: str = "", host: str = "") -> tuple[Path, Path]:
        """Write a certificate of a host, by default this one, and its key, perhaps encrypted, to two files."""
        both = self.issue(name, -DAY if expired else DAY, [host] if host else secured.HOSTS)
        key, _, certificate = both.read_text("ascii").partition("-----BEGIN CERTIFICATE")
        file = both.with_suffix(".key")
        both.write_text(f"-----BEGIN CERTIFICATE{certificate}", "ascii")
        if password:
            encryption = BestAvailableEncryption(password.encode())
            opened = load_pem_private_key(key.encode(), None)
            key = opened.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()
        file.write_text(key, "ascii")
        return both, file

    def stores(self, name: str, **options: Any) -> tuple[Path, Path]:
        """Write a certificate and its key, and those who are trusted, as stores of Java; return the two files."""
        certificate, key = self.issue_pair(name, **options)
        own, trusted = certificate.with_suffix(".p12"), certificate.with_suffix(".trust.p12")
        authority = x509.load_pem_x509_certificate(self.ca.read_bytes())
        encryption = BestAvailableEncryption(STORE_PASSWORD.encode())
        private: Any = load_pem_private_key(key.read_bytes(), None)
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        own.write_bytes(pkcs12.serialize_key_and_certificates(name.encode(), private, found, [authority], encryption))
        entry = pkcs12.PKCS12Certificate(authority, b"authority")
        trusted.write_bytes(pkcs12.serialize_java_truststore([entry], encryption))
        return own, trusted
