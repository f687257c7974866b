"""Password hashes, as the settings hold them: ``scrypt$N$R$P$SALT$HASH``, salt and hash in base64."""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import b64decode, b64encode

N, R, P = 2**14, 8, 1
"""The cost: some 50 ms and 16 MB a password."""

LENGTH = 32
_MEMORY = 64 * 1024 * 1024
_FIELDS = 6


def hash_password(password: str, salt: bytes | None = None) -> str:
    """Return what the settings hold for a password; a new salt where none is given."""
    salt = os.urandom(16) if salt is None else salt
    return f"scrypt${N}${R}${P}${b64encode(salt).decode()}${b64encode(_hash(password, salt, N, R, P)).decode()}"


def matches(password: str, hashed: str) -> bool:
    """Tell whether a password is the one that was hashed.

    :raises ValueError: ``hashed`` is not such a hash
    """
    kind, *numbers, salt, expected = hashed.split("$")
    if kind != "scrypt" or len(numbers) + 3 != _FIELDS:
        raise ValueError("it is not of the form scrypt$N$R$P$SALT$HASH")
    n, r, p = map(int, numbers)
    return hmac.compare_digest(_hash(password, b64decode(salt, validate=True), n, r, p), b64decode(expected))


def _hash(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY, dklen=LENGTH)
