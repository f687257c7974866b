"""Users and their passwords, which a few threads check beside the event loop.

Hashes have the form ``scrypt$N$R$P$SALT$HASH``, salt and hash in base64. After wrong passwords an address, and a user
from any address, must wait before the next attempt: the refusal names the seconds, and no password is compared earlier.
Guessing costs the gateway little, and many connections guess no faster than one. An address from which a user has
signed in does not wait for guesses from elsewhere.
"""

import asyncio
import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from time import monotonic
from typing import NamedTuple

from ackstream.errors import SettingsError
from ackstream.gateway.errors import too_many_attempts, unavailable
from ackstream.protocol.ditto.correlation_ids import Latest
from ackstream.settings import Gateway
from ackstream.settings.gateway import ROLE, User

FREE_OF_USER, FREE_OF_ADDRESS = 5, 20
"""Wrong passwords before delays begin: more of an address, which several people may share."""

LONGEST = 60.0
"""Seconds; each further wrong password doubles the delay up to this."""

HELD_SECONDS = 1.0
"""Maximum seconds for which an attempt that comes too early is held before it is refused."""

FORGOTTEN = 900.0
"""Seconds without a wrong password after which earlier ones are forgotten."""

NAME_CHARACTERS = 256
"""Characters of a user name that are remembered."""

_MAX_KEYS = 20_000


class Attempts:
    """Recent wrong passwords."""

    def __init__(self) -> None:
        # their number, and the time of the last one
        self._failures: Latest[tuple[str, str], tuple[int, float]] = Latest(_MAX_KEYS)
        self._signed_in: Latest[tuple[str, str], None] = Latest(_MAX_KEYS)

    def begin(self, user: str, address: str, now: float) -> float:
        """Count an attempt as wrong until it succeeds and return 0, or return the seconds until it is allowed."""
        keys = self._keys(user, address)
        wait = max(self._wait(key, free, now) for key, free in keys.items())
        if wait > 0:
            return wait
        for key in keys:
            count, _ = self._failures.get(key, (0, now))
            self._failures[key] = count + 1, now
        return 0.0

    def succeeded(self, user: str, address: str) -> None:
        """Uncount a successful attempt, and forget the wrong ones of the user from there."""
        for kind, key in self._keys(user, address):
            count, last = self._failures.pop((kind, key), (0, 0.0))
            if kind == "address" and count > 1:
                # a client that knows one password may still guess those of others
                self._failures[kind, key] = count - 1, last
        self._signed_in[user, address] = None

    def _keys(self, user: str, address: str) -> dict[tuple[str, str], int]:
        own = (user, address) in self._signed_in
        mine = ("user", f"{user}\n{address}") if own else ("user", user)
        return {("address", address): FREE_OF_ADDRESS, mine: FREE_OF_USER}

    def _wait(self, key: tuple[str, str], free: int, now: float) -> float:
        count, last = self._failures.get(key, (0, now))
        if now - last >= FORGOTTEN:
            del self._failures[key]
            return 0.0
        # 2**6 seconds are above the longest delay
        delay = min(LONGEST, 2.0 ** min(count - free, 6)) if count >= free else 0.0
        return last + delay - now


REMEMBERED = 1_024
"""Number of verified credentials remembered by a keyed hash, since hashing a password takes 50 ms."""

WAITING = 32
"""Number of passwords that wait to be checked: about two seconds. Further ones are refused with 503."""

N, R, P = 2**14, 8, 1
"""scrypt cost parameters: about 50 ms and 16 MB per password. None of the settings may be cheaper."""

LENGTH = 32
SALT_BYTES = 8
_MEMORY = 64 * 1024 * 1024


class Account(NamedTuple):
    """The subjects of a user; ``stamp`` changes with the password and the roles."""

    subjects: tuple[str, ...]
    stamp: bytes


class Passwords:
    """Checks names and passwords."""

    def __init__(self, users: Mapping[str, User]) -> None:
        """Use these users, whose hashes have been checked (:func:`check_users`)."""
        self._pepper = os.urandom(32)
        self._known: Latest[bytes, None] = Latest(REMEMBERED)
        # unknown names are checked against this hash, so that they take as long as known ones
        self._nobody = hash_password("", b"nobody's")
        self._checking: dict[bytes, asyncio.Future[bool]] = {}
        # one of two processors stays free for other work
        self._threads = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2), thread_name_prefix="ackstream-password")
        self.accounts: dict[str, Account] = {}
        self.replace(users)
        self._attempts = Attempts()

    def replace(self, users: Mapping[str, User]) -> None:
        """Replace the users; may be called in another thread."""
        accounts = {}
        for name, user in users.items():
            roles = tuple(f"{ROLE}user:{role}" for role in user.roles)
            stamp = self._keyed(user.password.get_secret_value(), *roles)
            accounts[name] = Account((f"user:{name}", *roles), stamp)
        self._users, self.accounts = users, accounts

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def check(self, credentials: str, address: str) -> tuple[str, bool]:
        """Return the name in credentials of HTTP Basic (RFC 7617), and whether they are valid; raises 429, 503."""
        try:
            name, colon, password = b64decode(credentials, validate=True).decode().partition(":")
        except ValueError:
            name = colon = password = ""
        user = self._users.get(name)
        hashed = self._nobody if user is None else user.password.get_secret_value()
        # with the hash, so that a password is forgotten with it
        key = self._keyed(hashed, name, password)
        if not colon:
            return name, False
        if key in self._known:
            self._known[key] = None
            return name, True
        guessed = name[:NAME_CHARACTERS]
        if key not in self._checking:
            if len(self._checking) >= WAITING:
                raise unavailable("Too many clients are signing in at the moment.", "Try again in a moment.")
            if wait := self._attempts.begin(guessed, address, monotonic()):
                # a refusal is work, too: one connection causes at most one a second
                await asyncio.sleep(min(wait, HELD_SECONDS))
                raise too_many_attempts(ceil(wait))
        right = await self._hashed(key, password, hashed) and user is not None
        if right:
            self._attempts.succeeded(guessed, address)
            self._known[key] = None
        return name, right

    async def _hashed(self, key: bytes, password: str, hashed: str) -> bool:
        """Compare a password with a hash; connections that bring the same one share the work."""
        task = self._checking.get(key)
        if task is None:
            task = asyncio.get_running_loop().run_in_executor(self._threads, matches, password, hashed)
            self._checking[key] = task
            task.add_done_callback(lambda _: self._checking.pop(key, None))
        # the work continues for the others if a client disconnects
        return await asyncio.shield(task)

    def _keyed(self, *texts: str) -> bytes:
        found = hashlib.blake2b(key=self._pepper)
        for text in texts:
            found.update(b"%d:" % len(text))
            found.update(text.encode())
        return found.digest()


def check_users(settings: Gateway) -> None:
    """Refuse unfit names and hashes of users by a ``SettingsError`` without the hash."""
    where = "The setting gateway.users" if settings.access_file is None else f"The file {settings.access_file}"
    for name, user in settings.users.items():
        try:
            check_hash(user.password.get_secret_value())
        except ValueError as error:
            raise SettingsError(
                f"{where} has no password hash for {name!r} ({error}): use the output of `ackstream password`."
            ) from None
        if ":" in name:
            raise SettingsError(f"{where} has the name {name!r}: a user name must not contain a colon.")


def check_hash(hashed: str) -> None:
    """Refuse a malformed or weak hash by a ``ValueError`` with the reason, but no part of the hash."""
    n, r, p, salt, expected = _parts(hashed)
    if n < N or r < R or p < P:
        raise ValueError(f"its cost is below N={N}, R={R}, P={P}")
    if len(salt) < SALT_BYTES or len(expected) != LENGTH:
        raise ValueError(f"its salt is shorter than {SALT_BYTES} bytes, or its hash does not have {LENGTH}")
    try:
        _hash("", salt, n, r, p)
    except ValueError:
        raise ValueError("its numbers are not valid for scrypt, or need more than 64 MB") from None


def hash_password(password: str, salt: bytes | None = None) -> str:
    """Hash a password for the settings, with a random salt unless one is given."""
    salt = os.urandom(16) if salt is None else salt
    return f"scrypt${N}${R}${P}${b64encode(salt).decode()}${b64encode(_hash(password, salt, N, R, P)).decode()}"


def matches(password: str, hashed: str) -> bool:
    """Return whether the password matches the hash; ``ValueError``: ``hashed`` is not a password hash."""
    n, r, p, salt, expected = _parts(hashed)
    return hmac.compare_digest(_hash(password, salt, n, r, p), expected)


def _parts(hashed: str) -> tuple[int, int, int, bytes, bytes]:
    match hashed.split("$"):
        case ["scrypt", n, r, p, salt, expected]:
            try:
                return int(n), int(r), int(p), b64decode(salt, validate=True), b64decode(expected, validate=True)
            except ValueError:
                # the text of the error would contain a part of the hash
                raise ValueError("expected three numbers, and salt and hash in base64") from None
    raise ValueError("expected scrypt$N$R$P$SALT$HASH")


def _hash(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY, dklen=LENGTH)
