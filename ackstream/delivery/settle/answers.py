"""What there is to say at the end of a batch: what is done by it, and how things are for who asks."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from ackstream.delivery.settle.settled import pieces
from ackstream.protocol.app_acks import KnownWriter, ReaderState, SamplesDone, WriterState
from ackstream.protocol.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.delivery.settle.retention import Retention
    from ackstream.protocol.intervals import Interval

PART_BYTES = 4_000_000
"""About how large a part of a ReaderState gets."""
_WRITER_BYTES, _RUN_BYTES = 2_000, 50


def samples_done(writer: str, retention: Retention, runs: Iterable[Interval]) -> list[SamplesDone]:
    """Return what has become done, in any order, ascending and as of now."""
    found = list(Intervals(runs, start=retention.done.start))
    return [SamplesDone(writer, piece, retention.released) for piece in pieces(found)] if found else []


def reader_states(
    reader: str, epoch: int, place: tuple[int, int], as_of: int, lease_ms: int, writers: Iterable[tuple[str, Retention]]
) -> list[ReaderState]:
    """Return what a shard knows of its writers for one reader, in as many parts as it needs.

    :param place: which shard, and of how many
    :param as_of: the watermark
    :param lease_ms: how long the reader may be silent
    """
    parts: list[list[KnownWriter]] = [[]]
    size = 0
    for known in _known(reader, writers):
        size += _WRITER_BYTES + _RUN_BYTES * (len(known.acknowledged) + len(known.undelivered))
        if size > PART_BYTES and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(known)
    return [
        ReaderState(reader, epoch, *place, as_of, tuple(part), number, len(parts), lease_ms)
        for number, part in enumerate(parts)
    ]


def _known(reader: str, writers: Iterable[tuple[str, Retention]]) -> Iterator[KnownWriter]:
    for writer, retention in writers:
        known = retention.readers.get(reader)
        if known is not None:
            acknowledged, undelivered = pieces(list(known.acknowledged)), pieces(retention.undelivered(reader))
            for runs in zip_longest(acknowledged, undelivered, fillvalue=()):
                yield KnownWriter(writer, known.acknowledged.start, retention.written, *runs)


def writer_states(writer: str, retention: Retention) -> list[WriterState]:
    """Return how far a writer's samples are."""
    released, written = retention.released, retention.written
    waiting_for = tuple(retention.waiting_for(released + 1)) if released < written else ()
    behind = [run for run in retention.done if run[0] > released]
    return [WriterState(writer, written, released, piece, waiting_for) for piece in pieces(behind)]
