"""The decision itself: which acknowledgements answer a request, and what the whole then says.

Source of the rules: Eclipse Ditto, ``AcknowledgementAggregator`` and ``AcknowledgementAggregatorActor``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from ackstream.protocol.acknowledgements import Acknowledgement, combined_status
from ackstream.protocol.errors import ack_request_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

REQUEST_TIMEOUT = 408


class Labelled(Protocol):
    """Whatever stands for an acknowledgement."""

    @property
    def label(self) -> str | None:
        """The acknowledgement's label."""


Entry = TypeVar("Entry", bound=Labelled)


class Aggregation(Generic[Entry]):
    """Collects the acknowledgements of one request.

    Every requested label is expected once. The first acknowledgement of an expected label takes its place; what comes
    later for that label, or for a label nobody requested, changes nothing. The result keeps the order of the request.
    """

    __slots__ = ("_received", "requested")

    def __init__(self, requested: Iterable[str], received: Iterable[Entry] = ()) -> None:
        """Expect ``requested`` (repeats collapse to their first position), with ``received`` taken already."""
        self.requested = tuple(dict.fromkeys(requested))
        self._received = {entry.label: entry for entry in received}

    def expects(self, label: str | None) -> bool:
        """Tell whether an acknowledgement with this label would still be taken."""
        return label in self.requested and label not in self._received

    def receive(self, entry: Entry) -> bool:
        """Take an acknowledgement; ``False`` where its label is not (or no longer) expected."""
        if not self.expects(entry.label):
            return False
        self._received[entry.label] = entry
        return True

    @property
    def complete(self) -> bool:
        """Tell whether nothing is expected any more."""
        return len(self._received) == len(self.requested)

    def entries(self, timed_out: Callable[[str], Entry]) -> list[Entry]:
        """Return one entry a requested label, in order of the request.

        :param timed_out: makes the entry of a label that was not received
        """
        received = self._received
        return [received[label] if label in received else timed_out(label) for label in self.requested]


def missing(entries: Iterable[Acknowledgement]) -> list[str]:
    """Return the labels that timed out (or said so themselves with a 408), in order."""
    return [ack.label for ack in entries if ack.status == REQUEST_TIMEOUT]


def status(entries: Iterable[Acknowledgement]) -> int:
    """Return the combined HTTP status: one entry's own; of several 200 where all are 2xx, else 424; of none 200."""
    return combined_status([ack.status for ack in entries])


def timed_out(label: str, correlation_id: str, timeout_ms: int) -> Acknowledgement:
    """Return the entry of a label nobody acknowledged in time."""
    return Acknowledgement(
        label=label,
        status=REQUEST_TIMEOUT,
        payload=_timeout_payload(timeout_ms),
        headers={"correlation-id": correlation_id, "response-required": False},
    )


@lru_cache(maxsize=1024)
def _timeout_payload(timeout_ms: int) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(ack_request_timeout(timeout_ms).to_dict()))
