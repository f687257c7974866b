"""Correlation-ids: their places in a record, and those of a gateway's clients on the wire and back.

A client that knows the id of an open request can try to answer it, or to be answered in its place. So a gateway sends
the commands of its clients under ids that no client can guess (:func:`wire_id`), and hides those (:func:`shown_id`).
An id that is in use at a client gets a suffix, ``id#0``, ``id#1`` and so on, as in Ditto (ditto.md 2,
``AcknowledgementForwarderActorStarter#startConflictFree``).
"""

import re
import secrets
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from typing import Any, TypeVar

import msgspec

from ackstream.protocol.record_headers import CORRELATION_ID, SPRING_CORRELATION_ID

K = TypeVar("K")
V = TypeVar("V")

JSON_SPELLINGS = (CORRELATION_ID, "Correlation-Id")
"""Spellings of the JSON header that are recognized, the first one preferred; correlate looks for these in Spark."""

MAX_BYTES = 1_024
"""How long a correlation-id may be in JSON: a reply repeats it, perhaps once per label."""

_MAX_BYTES_OF_A_CHARACTER = 6
UUID_DIGITS = re.compile(r"[0-9A-F]{12}4[0-9A-F]{3}[89AB][0-9A-F]{15}")
"""The 16 bytes of a random UUID: version and variant of RFC 9562, so that byte 8 is not ASCII; also for Spark."""

_NUMBERED = re.compile(r"(.*)#([0-9]+)", re.DOTALL)
_RANDOM_BYTES = 12
_ON_WIRE = re.compile(r"(.+)#[A-Za-z0-9_-]{16}", re.DOTALL)


def correlation_id(
    record_headers: Iterable[tuple[str, bytes | None]], headers: Mapping[str, Any], coordinates: tuple[str, int, int]
) -> str:
    """Return the correlation-id of a request, from the same sources and in the same order as correlate."""
    # The record header, the JSON header, Spring's record header, and the coordinates (topic, partition, offset). Names
    # of record headers are compared exactly; of a repeated one the last counts.
    named = {name: value for name, value in record_headers if value}
    own = named.get(CORRELATION_ID)
    if own is not None:
        return own.decode("utf-8", "replace")
    in_json = of_json(headers)
    if in_json is not None:
        return in_json
    spring = named.get(SPRING_CORRELATION_ID)
    if spring is None:
        return "-".join(map(str, coordinates))
    return of_spring(spring)


def of_spring(value: bytes) -> str:
    """Return the text of Spring's correlation-id: a random UUID's 16 bytes, its default, are upper-case hexadecimal."""
    # so are other bytes that are not UTF-8; one random UUID of 16,000 happens to be UTF-8; ASCII text is no UUID
    digits = value.hex().upper()
    if not UUID_DIGITS.fullmatch(digits):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return digits


def of_json(headers: Mapping[str, Any]) -> str | None:
    """Return the correlation-id in the headers of a message, ``None`` if it is absent or empty."""
    found = next((headers[name] for name in JSON_SPELLINGS if headers.get(name) not in (None, "")), None)
    # Spark reads other values as their JSON, too
    return found if found is None or isinstance(found, str) else msgspec.json.encode(found).decode()


def is_too_long(identity: str) -> bool:
    """Return whether correlate refuses a correlation-id as too long."""
    # nearly all are too short for a closer look
    may_be = len(identity) * _MAX_BYTES_OF_A_CHARACTER > MAX_BYTES
    return may_be and len(msgspec.json.encode(identity)) > MAX_BYTES + len('""')


def suffixed(identity: str, suffix: object) -> str:
    """Return a correlation-id with a suffix, in place of its end where it would be too long."""
    end = f"#{suffix}"
    whole = identity + end
    return identity[: -len(end)] + end if is_too_long(whole) else whole


def wire_id(identity: str) -> str:
    """Return the id under which a gateway sends a client's command: the client's, and 16 characters at random."""
    return suffixed(identity, urlsafe_b64encode(unguessable(_RANDOM_BYTES)).decode())


_SECRET, _numbers = secrets.token_bytes(32), count()


def unguessable(size: int) -> bytes:
    """Return unique bytes that no other client can guess, from a secret of the process and a number."""
    # random bytes of the system release the interpreter lock: each call would cost a turn of another thread
    return blake2b(b"%d" % next(_numbers), key=_SECRET, digest_size=size).digest()


def shown_id(identity: str) -> str:
    """Return the id of a signal as clients of a gateway see it: without the suffix of :func:`wire_id`."""
    found = _ON_WIRE.fullmatch(identity)
    return identity if found is None else found[1]


class Latest(OrderedDict[K, V]):
    """A dictionary of at most ``most`` entries, which drops those that were set longest ago."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)

    def touch(self, key: K, make: Callable[[], V]) -> V:
        """Set a key to its value again, or to a new one, and return that."""
        self[key] = value = self[key] if key in self else make()
        return value


SPARE = 100
"""Number of ids that are remembered without a check of their expiry."""


class RecentIds:
    """A set whose members expire; times are seconds of any clock that never goes back."""

    def __init__(self, seconds: float) -> None:
        """Remember each id for ``seconds``, unless :meth:`add` has another time."""
        self._seconds = seconds
        self._until: dict[str, float] = {}
        self._sweep_at = SPARE

    def add(self, identity: str, now: float, seconds: float | None = None) -> None:
        """Remember an id."""
        self._until[identity] = now + (self._seconds if seconds is None else seconds)
        if len(self._until) > self._sweep_at:
            for expired in [known for known, until in self._until.items() if until <= now]:
                self._forget(expired)
            self._sweep_at = max(SPARE, 2 * len(self._until))

    def known(self, identity: str, now: float) -> bool:
        """Return whether an id is remembered."""
        return self._until.get(identity, now) > now

    def _forget(self, identity: str) -> None:
        """Forget an id."""
        self._until.pop(identity, None)


class ForwardedIds(RecentIds):
    """The ids under which one client received signals, no two of which are equal; it answers only those signals."""

    def __init__(self, seconds: float) -> None:
        """Remember each id for ``seconds``, unless :meth:`issue` has another time."""
        super().__init__(seconds)
        self._originals: dict[str, str] = {}
        # the number that the next repetition of an id tries: a thousand take no million look-ups
        self._numbers: dict[str, int] = {}

    def issue(self, original: str, now: float, seconds: float | None = None) -> str:
        """Return the id for a signal (``original`` on the wire) as it is shown, with a suffix while another is open."""
        issued = wanted = shown_id(original)
        if self.known(wanted, now):
            numbered = _NUMBERED.fullmatch(wanted)
            head, first = (wanted, 0) if numbered is None else (numbered[1], int(numbered[2]) + 1)
            number = self._numbers.get(wanted, first)
            while self.known(issued := suffixed(head, number), now):
                number += 1
            self._numbers[wanted] = number + 1
        # it may have had another meaning, which has expired
        self._forget(issued)
        self._originals[issued] = original
        self.add(issued, now, seconds)
        return issued

    def original(self, issued: str, now: float) -> str | None:
        """Return the id on the wire of the signal that a client received under an id; ``None`` if it may not answer."""
        return self._originals.get(issued) if self.known(issued, now) else None

    def _forget(self, identity: str) -> None:
        super()._forget(identity)
        self._originals.pop(identity, None)
        self._numbers.pop(identity, None)
