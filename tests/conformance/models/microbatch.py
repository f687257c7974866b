"""When a consumer that works in batches may acknowledge: a Spark query, for example (brokers.md 3.3, SOL-31).

A batch is done when it is committed, and that is certain when the next one starts: then, not before, its messages are
acknowledged. After a crash in between they come again, so the sink must know them.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class BatchAcks(Generic[T]):
    """The messages of batches that are not acknowledged."""

    def __init__(self) -> None:
        self._batches: dict[int, list[T]] = {}
        self._committed: set[int] = set()

    def read(self, batch: int, messages: list[T]) -> None:
        """Note what a batch holds; a batch that runs again holds what it holds now."""
        self._batches[batch] = list(messages)

    def commit(self, batch: int) -> None:
        """Note that a batch is in the sink and in the commit log."""
        if batch in self._batches:
            self._committed.add(batch)

    def start(self, batch: int) -> list[T]:
        """Return what to acknowledge when a batch starts: the messages of the committed ones before it, in order."""
        done = sorted(earlier for earlier in self._committed if earlier < batch)
        self._committed.difference_update(done)
        return [message for earlier in done for message in self._batches.pop(earlier)]

    @property
    def unacknowledged(self) -> list[T]:
        """What comes again after a crash now."""
        return [message for batch in sorted(self._batches) for message in self._batches[batch]]
