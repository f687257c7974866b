"""Under which correlation-id a signal goes to the system.

The system takes a correlation-id that comes twice for a producer's retry, which the first answer serves too. A message
that is delivered again wants an answer of its own, as does one that repeats the id of another; so their signals get a
suffix, as Ditto does (``AcknowledgementForwarderActorStarter``, ditto.md 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Callable

REMEMBERED = 100_000


class Identities:
    """Gives each signal a correlation-id that was not used lately."""

    def __init__(self, token: Callable[[], str] = lambda: uuid4().hex[:8]) -> None:
        """Make suffixes with ``token``."""
        self._token = token
        # a dict keeps the order in which they came
        self._used: dict[str, None] = {}

    def take(self, correlation_id: str, *, redelivered: bool) -> str:
        """Return the correlation-id itself where it is fresh, else one with a suffix.

        :param redelivered: the message may have come before, to another process perhaps
        """
        fresh = correlation_id not in self._used and not redelivered
        identity = correlation_id if fresh else f"{correlation_id}#{self._token()}"
        self._used[identity] = None
        if len(self._used) > REMEMBERED:
            del self._used[next(iter(self._used))]
        return identity
