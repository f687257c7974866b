"""A publisher's message, as readers, consumers of queues and streams give it to the application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_OBJECT_BYTES = 500
"""What a message takes besides its key, its value and its headers."""


@dataclass(frozen=True, eq=False)
class Message:
    """What every message has, however it was received.

    :ivar publisher: the name of the publisher
    :ivar topic: the subject that the publisher named; ``None``: none
    :ivar key: the application's key
    :ivar value: the message itself; ``None`` for a tombstone
    :ivar headers: the application's own record headers; the last value of a name that occurs twice
    :ivar timestamp_ms: the broker's time of it, in epoch milliseconds
    """

    publisher: str
    topic: str | None
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]
    timestamp_ms: int

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers.items())
        return _OBJECT_BYTES + len(self.value or b"") + len(self.key or b"") + headers
