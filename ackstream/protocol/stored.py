"""What the persist job says of every batch after its commit: which messages of a client can be relied on.

Readers, settle and queues believe in a message only once it is in such a record: in Kafka it may still be refused.
"""

from __future__ import annotations

import msgspec

from ackstream.protocol.decoding import decoded


class Stored(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="stored"):
    """Messages ``first`` to ``last`` of a client are decided: in the table ``messages``, but for runs in ``refused``.

    Those were refused, accepted and dropped, or are numbers that the client never used. ``first`` follows the ``last``
    of the client's record before; a batch that runs again after a crash repeats its record.

    :ivar batch: the column of that name in ``messages``
    """

    client: str
    first: int
    last: int
    batch: int
    refused: tuple[tuple[int, int], ...] = ()


class StoredError(ValueError):
    """A record of the topic ``stored`` cannot be read; the text says what is wrong with it."""


_decoder = msgspec.json.Decoder(Stored)
write = msgspec.json.Encoder().encode


def read(value: bytes | None) -> Stored:
    """Read a record.

    :raises StoredError: it is none
    """
    return decoded(_decoder, value, "stored messages", StoredError)
