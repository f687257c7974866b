"""Publishing to another system: what its transport answers becomes an acknowledgement, where one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.connectivity.messages import Outgoing


class Published(msgspec.Struct, frozen=True):
    """The transport has a message: the status and payload of the acknowledgement that says so."""

    status: int
    payload: Raw | UnsetType = UNSET


class Publisher(Protocol):
    """What sends messages to another system. Safe to use from several threads, none of which it holds up."""

    def publish(self, message: Outgoing, done: Callable[[Published | Exception], None]) -> None:
        """Send a message; ``done`` is called once, in any thread, with what the transport answers."""

    def status_of(self, error: Exception) -> int:
        """Return the status of the acknowledgement for a message that was not published."""

    def close(self) -> None:
        """Send what was accepted, for some seconds at most, and disconnect."""
