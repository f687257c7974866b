"""What the things of each tenant use of its quota, and whether a change still fits.

Pure, and derived from the things alone: a batch that is replayed decides the same, wherever batches are cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.protocol.ditto.twin.thing_errors import quota_exceeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackstream.jobs.twin.changes import Thing
    from ackstream.settings import Quota


class Usage(msgspec.Struct):
    """The number of things and their bytes."""

    things: int = 0
    bytes: int = 0


class QuotaUsage:
    """The usage of each quota that limits things."""

    def __init__(self, quotas: Iterable[Quota], things: Mapping[str, Thing]) -> None:
        """Count the things."""
        self._quotas = [quota for quota in quotas if quota.namespaces]
        self._used = [Usage() for _ in self._quotas]
        # of a namespace, which of them count its things
        self._of: dict[str, tuple[int, ...]] = {}
        if self._quotas:
            for thing_id, thing in things.items():
                self.add(thing_id, None, thing)

    def copy(self) -> QuotaUsage:
        """Return the same usage, to be changed by a part of a batch that may still fail."""
        other = QuotaUsage((), {})
        other._quotas, other._of = self._quotas, self._of
        other._used = [msgspec.structs.replace(usage) for usage in self._used]
        return other

    def take(self, other: QuotaUsage) -> None:
        """Take over the usage of a copy."""
        self._used = other._used

    def check(self, thing_id: str, before: Thing | None, after: Thing) -> None:
        """Reject a change for which a quota has no room; one that uses no more is none of its business.

        :raises DittoError: 403 ``things:quota.exceeded``
        """
        more = _difference(before, after)
        for number in self._counting(thing_id):
            quota, used = self._quotas[number], self._used[number]
            if more.things > 0 and 0 < quota.max_things < used.things + more.things:
                raise quota_exceeded(thing_id, quota.name, f"{quota.max_things:,} things")
            if more.bytes > 0 and 0 < quota.max_bytes < used.bytes + more.bytes:
                raise quota_exceeded(thing_id, quota.name, f"{quota.max_bytes:,} bytes of things")

    def add(self, thing_id: str, before: Thing | None, after: Thing) -> None:
        """Count a change."""
        more = _difference(before, after)
        for number in self._counting(thing_id):
            used = self._used[number]
            used.things += more.things
            used.bytes += more.bytes

    def _counting(self, thing_id: str) -> tuple[int, ...]:
        if not self._quotas:
            return ()
        namespace = thing_id.partition(":")[0]
        found = self._of.get(namespace)
        if found is None:
            found = tuple(number for number, quota in enumerate(self._quotas) if quota.has_namespace(namespace))
            self._of[namespace] = found
        return found


def _difference(before: Thing | None, after: Thing) -> Usage:
    """Return how much more a thing uses; a deleted one uses nothing."""
    old = None if before is None else before.content
    new = after.content
    return Usage((new is not None) - (old is not None), len(new or b"") - len(old or b""))
