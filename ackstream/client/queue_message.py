"""A message of a work queue as its consumer gets it, and what a consumer counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackstream.client.fetching import Content
    from ackstream.protocol.app_acks import Outcome
    from ackstream.protocol.queues import Delivered


@dataclass(frozen=True, eq=False)
class QueueMessage:
    """One delivery of a message, which is its consumer's until it is settled.

    Safe to settle from any thread and in any order; see :class:`QueueConsumer` for who settles when.
    """

    delivery: Delivered
    content: Content
    _settle: Callable[[QueueMessage, Outcome], None] = field(repr=False)

    @property
    def id(self) -> str:
        """Its name in the queue, the same in each delivery."""
        return self.delivery.message

    @property
    def topic(self) -> str | None:
        """The subject that its publisher named."""
        return self.delivery.subject

    @property
    def key(self) -> bytes | None:
        """The application's key."""
        return self.content.key

    @property
    def value(self) -> bytes | None:
        """The message itself."""
        return self.content.value

    @property
    def headers(self) -> Mapping[str, bytes | None]:
        """The application's own record headers."""
        return self.content.headers

    @property
    def count(self) -> int:
        """How often it has been delivered, this time included."""
        return self.delivery.count

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before."""
        return self.delivery.redelivered

    def settle(self, outcome: Outcome = "accepted") -> None:
        """Decide about it; a second decision changes nothing.

        :raises OutcomeNotEnabledError: the consumer did not declare the outcome; the message stays with it
        :raises NotConnectedError: the session in which it was delivered is over: it comes again, here or elsewhere
        """
        self._settle(self, outcome)


class QueueStatistics(msgspec.Struct, frozen=True):
    """Counts since the consumer began.

    ``received`` deliveries came, ``copies`` of them again after a crash of the service (the application never saw
    those); ``accepted``, ``failed`` and ``rejected`` were settled, ``refused`` settlements had no effect; ``lost``
    sessions ended because the service did not hear of the consumer in time.
    """

    received: int
    copies: int
    accepted: int
    failed: int
    rejected: int
    refused: int
    lost: int
