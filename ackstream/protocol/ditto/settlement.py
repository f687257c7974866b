"""Settlement: whether a consumed message is settled or rejected, given its acknowledgements.

Source of the rule: Eclipse Ditto, ``BaseConsumerActor`` and ``ResponseCollectorActor`` (since 3.3.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from ackstream.protocol.ditto.acknowledgements import combined_status

if TYPE_CHECKING:
    from collections.abc import Sequence

Settlement: TypeAlias = Literal["settle", "reject-with-redelivery", "reject-without-redelivery"]

_TIMEOUT = 408
_PRECONDITION_FAILED = 412
_FAILED_DEPENDENCY = 424


class SettlementAnswer(msgspec.Struct, frozen=True):
    """The answer to one signal of a message: the status of a response or acknowledgement, or those of an aggregate.

    ``live``: a response to a live command or message (not an acknowledgement of one). Its status concerns only
    requester and responder, so only a timeout is a failure.
    """

    statuses: tuple[int, ...]
    live: bool = False

    @property
    def failed(self) -> bool:
        """Tell whether this answer prevents the message from being settled."""
        status = combined_status(self.statuses)
        return status == _TIMEOUT if self.live else 400 <= status <= 599  # noqa: PLR2004 - client and server errors


def settle(
    expected: int | None,
    responses: Sequence[SettlementAnswer] = (),
    *,
    complete: bool = True,
    error_status: int | None = None,
) -> Settlement:
    """Decide about a message that maps to signals of which ``expected`` await acknowledgements.

    :param expected: ``None`` if unknown, because the mapping of the whole message failed
    :param responses: the answers so far
    :param complete: ``False`` if waiting for more answers was abandoned
    :param error_status: status of a Ditto error that arrived instead of an answer
    """
    if error_status is not None and expected is not None:
        # a message excluded by a condition must not be redelivered
        return "settle" if error_status == _PRECONDITION_FAILED else _reject(redeliver=_is_transient(error_status))
    failed = [answer for answer in responses if answer.failed]
    if complete and len(responses) == expected and not failed:
        return "settle"
    # nothing failed: an answer is missing, and may arrive after a redelivery
    return _reject(
        redeliver=not failed or any(_is_transient(status) for answer in failed for status in answer.statuses)
    )


def _is_transient(status: int) -> bool:
    return status in (_TIMEOUT, _FAILED_DEPENDENCY) or 500 <= status <= 599  # noqa: PLR2004 - server errors


def _reject(*, redeliver: bool) -> Settlement:
    return "reject-with-redelivery" if redeliver else "reject-without-redelivery"
