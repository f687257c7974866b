"""What a mirror job says of its destination, on a compacted topic: up to where that has every message."""

from __future__ import annotations

import msgspec

from ackstream.protocol.decoding import decoded


class Replicated(msgspec.Struct, frozen=True, tag_field="type", tag="replicated"):
    """The destination has all rows of ``messages`` up to a batch.

    :ivar source: id of the table they come from; batches of another one say nothing
    :ivar batch: the column of that name in ``messages``; -1: there is nothing yet
    """

    destination: str
    source: str
    batch: int


class ReplicatedError(ValueError):
    """A record of the topic ``destinations`` cannot be read; the text says what is wrong with it."""


_decoder = msgspec.json.Decoder(Replicated)
write = msgspec.json.Encoder().encode


def read(value: bytes | None) -> Replicated:
    """Read a record.

    :raises ReplicatedError: it is none
    """
    return decoded(_decoder, value, "a destination", ReplicatedError)
