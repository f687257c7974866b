"""Files with certificates and keys in PEM, read by the package cryptography, which is of the extra ``tls``.

What cannot be used raises ``ValueError`` with a sentence that names the file.
"""

from __future__ import annotations

import ssl
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from ackstream.settings.security import read_text

if TYPE_CHECKING:
    from pathlib import Path


def certificates(path: Path) -> str:
    """Return the certificates in a file, without what stands between them.

    :raises ValueError: it has none, or one that cannot be read
    """
    text = read_text(path)
    try:
        found = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        raise ValueError(f"the file {path} has no certificate in PEM (-----BEGIN CERTIFICATE-----)") from None
    return "".join(each.public_bytes(Encoding.PEM).decode() for each in found)


def subject(chain: str) -> str:
    """Return the name of the first certificate's owner (RFC 4514)."""
    return x509.load_pem_x509_certificate(chain.encode()).subject.rfc4514_string()


def private_key(path: Path, password: bytes | None) -> str:
    """Return a key in the one form that Java reads: PKCS #8, not encrypted."""
    key = load_pem_private_key(read_text(path).encode(), password)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def show(context: ssl.SSLContext, certificate: Path, key: Path | None, password: str) -> None:
    """Let a context show a certificate.

    :param key: ``None``: it stands in the same file
    :param password: of the key; without one OpenSSL would ask for it at the terminal
    :raises ValueError: certificate or key cannot be read or do not fit, or the certificate has expired
    """
    expiry = x509.load_pem_x509_certificate(certificates(certificate).encode()).not_valid_after_utc
    file = key or certificate
    if "PRIVATE KEY-----" not in read_text(file):
        raise ValueError(f"the file {file} has no private key in PEM: name the one of {certificate} as key")
    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        problem = "cannot be read: correct key_password, which is needed if the key is encrypted, or the file"
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"is not that of the certificate {certificate}: name its own"
        raise ValueError(f"the key in {file} {problem}") from None
    if expiry < datetime.now(timezone.utc):
        raise ValueError(f"the certificate {certificate} expired at {expiry:%F %T} UTC: renew it")
