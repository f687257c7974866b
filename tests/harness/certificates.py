"""An authority of a test's own, and certificates of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from ackstream.local import certificates

if TYPE_CHECKING:
    from pathlib import Path

DAY = timedelta(days=1)


class Authority(certificates.Authority):
    """That of ``ackstream up --secure``, which also signs what is not to be accepted."""

    def issue_pair(self, name: str, *, expired: bool = False, password: str = "") -> tuple[Path, Path]:
        """Write a certificate and its key, perhaps encrypted, to two files."""
        both = self.issue(name, -DAY if expired else DAY)
        key, _, certificate = both.read_text("ascii").partition("-----BEGIN CERTIFICATE")
        file = both.with_suffix(".key")
        both.write_text(f"-----BEGIN CERTIFICATE{certificate}", "ascii")
        if password:
            encryption = BestAvailableEncryption(password.encode())
            opened = load_pem_private_key(key.encode(), None)
            key = opened.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()
        file.write_text(key, "ascii")
        return both, file
