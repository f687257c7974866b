"""What the subjects of each tenant have open at this gateway, against ``[[quotas]]``: requests, and sockets."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from ackstream.gateway.errors import quota_exhausted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.settings import Quota

Kind = Literal["requests", "sockets"]


class OpenCounts:
    """Counts what is open, quota by quota; used by the thread of the event loop alone."""

    def __init__(self, quotas: Iterable[Quota], kind: Kind) -> None:
        """Count open requests, or sockets."""
        self._kind = "open requests" if kind == "requests" else kind
        limits = [(quota, quota.max_open_requests if kind == "requests" else quota.max_sockets) for quota in quotas]
        self._limits = [(quota, limit) for quota, limit in limits if limit]
        self._open = [0] * len(self._limits)

    @contextmanager
    def one(self, subjects: Iterable[str]) -> Iterator[None]:
        """Count one more for the time of the block.

        :param subjects: of the one who opens it; each quota that names one of them counts it once
        :raises DittoError: 429 ``too.many.requests``: a quota has no room for it
        """
        subjects = tuple(subjects)
        counting = [number for number, (quota, _) in enumerate(self._limits) if quota.has_subject(subjects)]
        for number in counting:
            quota, limit = self._limits[number]
            if self._open[number] >= limit:
                raise quota_exhausted(quota.name, limit, self._kind)
        for number in counting:
            self._open[number] += 1
        try:
            yield
        finally:
            for number in counting:
                self._open[number] -= 1
