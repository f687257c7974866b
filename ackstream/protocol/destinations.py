"""Reports of destinations: the batches of ``messages`` that a further lake has (brokers.md 1.1 A9, A12, A13).

The contract between the mirror, persist and the observers of both:

- A mirror copies all rows of the table, batch by batch in ascending order, and each batch as a whole. The position of
  its destination is the newest batch among the rows there: the destination has all rows up to it.
- The mirror reports the position when it starts and each time that it has grown, on a compacted topic under the name
  of the destination. Reports never shrink, and a repeated one changes nothing.
- A batch without messages has no rows, so it is never a position, and no destination ever reports it. Acks of such a
  batch need the messages of the batches before it: :func:`needed_position`.
- Batches are numbered within one table. A report names the table as its ``source``, and a report of another table is
  ignored.

A mirror that left out rows would break the second sentence: acks would wait for batches that it never reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ackstream.protocol.json import reader

if TYPE_CHECKING:
    from collections.abc import Callable

NO_BATCH: Final = -1
"""The position of an empty table."""


class Replicated(msgspec.Struct, frozen=True, tag_field="type", tag="replicated"):
    """A mirror job's destination has all rows of ``messages`` up to a batch; published on a compacted topic.

    :ivar source: the id of the table that the rows come from; batches of another table mean nothing here
    :ivar batch: the column of that name in ``messages``; -1 if there is nothing yet
    """

    destination: str
    source: str
    batch: int


read_replicated: Callable[[bytes | None], Replicated] = reader(Replicated, "a destination")
write_replicated = msgspec.json.Encoder().encode


def needed_position(batch: int, newest_with_messages: int) -> int:
    """Return the position at which a destination has all messages that the acks of a batch are about.

    :param newest_with_messages: the newest batch with rows in ``messages``; else ``NO_BATCH``
    """
    return min(batch, newest_with_messages)
