"""What records of the messages topic say besides their values, one by one or in runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

DAY_MS = 86_400_000
MAX_NUMBER = 2**63 - 1
_MAX_DIGITS = len(str(MAX_NUMBER))


class Fact(msgspec.Struct, frozen=True, gc=False):
    """What a record says besides its value; ``timestamp`` is the broker's, in epoch milliseconds."""

    partition: int
    offset: int
    timestamp: int
    size: int
    client: str | None
    seq: str | None = None
    command: str | None = None
    cid: str | None = None
    ack: str | None = None
    topic: str | None = None
    ttl: str | None = None
    first: str | None = None
    conflation: str | None = None


class Run(NamedTuple):
    """Messages of one client with consecutive numbers that differ in nothing else that matters."""

    fact: Fact
    """The first one."""
    numbers: range
    total: int
    """Bytes of all."""
    largest: int
    """Bytes of the largest."""
    newest: int
    """The latest of their times."""
    members: Callable[[], list[Fact]]
    """Returns them one by one."""


def milliseconds(text: str | None) -> int | None:
    """Read a duration in milliseconds, with or without its unit."""
    return number((text or "").removesuffix("ms"))


def number(text: str | None) -> int | None:
    """Read a whole number; ``None`` where it is none, or beyond 64 bits."""
    if text is None or not text.isdecimal() or len(text) > _MAX_DIGITS:
        return None
    found = int(text)
    return found if found <= MAX_NUMBER else None
