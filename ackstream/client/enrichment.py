"""Extra fields: what a thing has at the moment, asked of the twin for signals that tell nothing of it.

Source of the error: Eclipse Ditto, ``SignalEnrichmentFailedException``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.client.commands import Command
from ackstream.protocol.errors import NOT_FOUND, DittoError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackstream.client.reply import Reply
    from ackstream.client.requester import Requester
    from ackstream.protocol.envelopes import Envelope


def fields_of(requester: Requester, timeout: float | str | None = None) -> Callable[[str, str], dict[str, Any]]:
    """Return what a ``Subscriber`` takes as ``extra``: each signal with extra fields waits for an answer of the twin.

    :param timeout: seconds, or a text of the protocol
    """

    def extra(thing_id: str, fields: str) -> dict[str, Any]:
        return fields_in(requester.request(retrieval(thing_id, fields), timeout=timeout), thing_id)

    return extra


def retrieval(thing_id: str, fields: str) -> Envelope:
    """Return the query for some fields of a thing."""
    command = Command.retrieve(thing_id)
    command.fields = fields
    return command


def fields_in(reply: Reply, thing_id: str) -> dict[str, Any]:
    """Return the fields in the reply to such a query; a thing that is not there has none.

    :raises DittoError: the twin could not be asked
    """
    if reply.ok and isinstance(reply.value, dict):
        return reply.value
    if reply.status == NOT_FOUND:
        return {}
    raise DittoError(
        reply.status,
        "connectivity:signal.enrichment.failed",
        "Signal enrichment failed.",
        f"The extra fields of the thing {thing_id} could not be retrieved.",
    )
