"""Correlation-ids on the way to one subscriber and back: two signals that are open there never have the same one."""

from __future__ import annotations

from collections import OrderedDict


class Forwarding:
    """Remembers under which correlation-id each signal went out; times are seconds of a clock that only goes forward.

    Source of the rule: Eclipse Ditto, ``AcknowledgementForwarderActorStarter#startConflictFree``.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def publish(self, correlation_id: str, until: float, now: float) -> str:
        """Return the correlation-id to publish a signal with: one that is open gets ``#0``, ``#1`` …, ``#n`` counts up.

        :param until: how long its acknowledgements count
        """
        while self._open and next(iter(self._open.values()))[1] <= now:
            self._open.popitem(last=False)
        published = correlation_id
        while published in self._open:
            published = _next(published)
        self._open[published] = (correlation_id, until)
        return published

    def original(self, published: str) -> str:
        """Return the correlation-id of the signal that an acknowledgement is for."""
        return self._open.get(published, (published, 0.0))[0]


class Recent:
    """Ids that were used in the last so many seconds."""

    def __init__(self, seconds: float) -> None:
        """Remember each id so long."""
        self._seconds = seconds
        self._until: OrderedDict[str, float] = OrderedDict()

    def add(self, identity: str, now: float) -> None:
        """Remember an id."""
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        self._until[identity] = now + self._seconds

    def __contains__(self, identity: str) -> bool:
        return identity in self._until


def _next(correlation_id: str) -> str:
    head, mark, number = correlation_id.rpartition("#")
    if mark and number.isascii() and number.isdigit():
        return f"{head}#{int(number) + 1}"
    return f"{correlation_id}#0"
