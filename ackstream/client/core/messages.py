"""A publisher's message, as readers, consumers of queues and streams give it to the application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ackstream.client.core.lifetime import check_handler
from ackstream.errors import InconsistentQosError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_BATCH = 100

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


M = TypeVar("M", bound=Message)


def handler_of(
    handler: Callable[[M], object] | None, batch_handler: Callable[[list[M]], object] | None, max_batch: int
) -> tuple[Callable[[list[M]], object], int] | None:
    """Return the function to call with messages, and with how many at most; ``None`` if the application iterates.

    :raises BadParameterError: the handler is a coroutine function
    :raises InconsistentQosError: there are two handlers, or a batch would have no message
    """
    if handler is not None and batch_handler is not None:
        raise InconsistentQosError("There is a handler and a batch_handler: give one of them.")
    if max_batch < 1:
        raise InconsistentQosError(f"max_batch is {max_batch}; it must be at least 1.")
    if batch_handler is not None:
        check_handler(batch_handler)
        return batch_handler, max_batch
    if handler is None:
        return None
    check_handler(handler)
    return lambda messages: handler(messages[0]), 1
