"""A client's session with a job: its beginning, its signs of life, its end, and answers that come in parts. Pure.

A publisher and a query client log on, a reader starts, a consumer binds to a queue. All of them repeat that until the
job answers, then show that they are alive; a later session of the same name ends theirs. Times are in any unit, of a
clock that only goes forward; pauses are in the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

    from typing_extensions import Self

AGAIN_SECONDS = 3.0
"""The pause before a beginning is repeated that the job has not answered, or could not process."""

ALIVE_PER_LEASE = 3
"""Signs of life per lease: two of them may be lost before the session lapses."""

P = TypeVar("P", bound=Any)
R = TypeVar("R", bound=Any)


class Session(Generic[P]):
    """One session of a client.

    :ivar position: where the session begins, by the answer of the job; later for each session of the name; ``None``
        until it has answered, and after the session was lost
    """

    def __init__(self, again: float = AGAIN_SECONDS) -> None:
        """Begin before the first answer.

        :param again: the pause between two beginnings
        """
        self.position: P | None = None
        self._again = self._alive = again
        # when the next record is due; None: at once
        self._next: float | None = None

    def begin(self, position: P, alive: float) -> None:
        """Note the answer of the job.

        :param alive: the pause between two signs of life; the first one follows the last beginning
        """
        self.position, self._alive = position, alive

    def lapse(self) -> None:
        """Note that the job has ended the session: it begins again at once."""
        self.position = self._next = None

    def is_over(self, position: P) -> bool:
        """Return whether a session of the name that began at ``position`` has ended this one."""
        return self.position is not None and position > self.position

    def due(self, now: float) -> Literal["begin", "alive"] | None:
        """Return which record to send now, if one is due; it counts as sent."""
        if self._next is not None and now < self._next:
            return None
        self.sent(now)
        return "begin" if self.position is None else "alive"

    def sent(self, now: float) -> None:
        """Note a record that shows that the client is alive."""
        self._next = now + (self._again if self.position is None else self._alive)


class Parts(Generic[R]):
    """An answer that each shard of a job gives in one or more records.

    A record has ``shard`` and ``shards``, and ``part`` and ``parts`` if there may be several. A later answer of a shard
    replaces its earlier one.
    """

    def __init__(self) -> None:
        # by shard: the number of its parts and which answer they are, and the parts by number
        self._shards: dict[int, tuple[tuple[int, Hashable], dict[int, R]]] = {}
        self._expected = 0

    def add(self, record: R, answer: Hashable = None) -> Self:
        """Add a record; ``answer`` distinguishes the answers of one shard."""
        kind = (getattr(record, "parts", 1), answer)
        known, parts = self._shards.get(record.shard, (kind, {}))
        if known != kind:
            parts = {}
        parts[getattr(record, "part", 0)] = record
        self._shards[record.shard] = (kind, parts)
        self._expected = record.shards
        return self

    @property
    def whole(self) -> list[R] | None:
        """All records; ``None`` until every part of every shard has arrived."""
        found = [record for _, parts in self._shards.values() for record in parts.values()]
        complete = all(len(parts) == kind[0] for kind, parts in self._shards.values())
        return found if found and len(self._shards) == self._expected and complete else None
