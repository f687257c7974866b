"""What a handler's end means for the message it was called with (brokers.md S17, A30)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from ackstream.delivery.errors import OutcomeNotEnabledError

if TYPE_CHECKING:
    from ackstream.protocol.app_acks import Outcome

AckMode: TypeAlias = Literal["client", "auto", "auto-cancel"]
"""Who acknowledges: the application by its calls; or the library after the handler, which leaves the message with its
consumer where the handler raised (Solace), or gives it back (AMPS)."""


def after_handler(mode: AckMode, *, raised: bool) -> Outcome | None:
    """Return how the library settles a message when its handler has ended; ``None``: it does not.

    It knows of the handler alone: work that was handed to another thread may not be done yet.
    """
    if mode == "client":
        return None
    if not raised:
        return "accepted"
    return "failed" if mode == "auto-cancel" else None


def takes_call(mode: AckMode, outcome: Outcome) -> bool:
    """Tell whether a call of the application settles anything; an ``accepted`` where the library does it does not.

    :raises OutcomeNotEnabledError: another outcome where the library settles
    """
    if mode != "client" and outcome != "accepted":
        raise OutcomeNotEnabledError(f"A message cannot be settled as {outcome} where the library acknowledges.")
    return mode == "client"
