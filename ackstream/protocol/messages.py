"""What the persist job says of every batch after its commit: which messages of a client can be relied on.

Readers, settle and queues believe in a message only once it is in such a record: in Kafka it may still be refused.
"""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from ackstream.protocol.json import decoded

if TYPE_CHECKING:
    from collections.abc import Collection

DUPLICATE, NOT_ENTITLED = "duplicate", "not entitled"
"""Reasons in acks of a publish that the client treats specially."""

MAX_NUMBER = 2**63 - 1
_MAX_DIGITS = len(str(MAX_NUMBER))


def read_number(text: str | None) -> int | None:
    """Read a number from a record header; return ``None`` if it is not a whole number of at most 64 bits."""
    if text is None or not text.isdecimal() or len(text) > _MAX_DIGITS:
        return None
    number = int(text)
    return number if number <= MAX_NUMBER else None


class StoredRange(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="stored"):
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


_decoder = msgspec.json.Decoder(StoredRange)
write_stored = msgspec.json.Encoder().encode


def read_stored(value: bytes | None) -> StoredRange:
    """Read a record.

    :raises StoredError: it is none
    """
    return decoded(_decoder, value, "stored messages", StoredError)


# -- What a mirror job says of its destination, on a compacted topic: up to where that has every message.


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


_replicated_decoder = msgspec.json.Decoder(Replicated)
write_replicated = msgspec.json.Encoder().encode


def read_replicated(value: bytes | None) -> Replicated:
    """Read a record.

    :raises ReplicatedError: it is none
    """
    return decoded(_replicated_decoder, value, "a destination", ReplicatedError)


# -- The acknowledgement as a publisher or a requester gets it, and which can be asked for (brokers.md 1.2, 1.3).
# Each type is a message of its own and names the stage that was reached: ``received`` (arrived, nothing checked),
# ``processed`` (checked, may not have been executed), ``persisted`` (durable), ``completed`` (the part done at once is
# over), ``stats`` (numbers, after the command has ended).


AckType: TypeAlias = Literal["received", "processed", "persisted", "completed", "stats"]
ACK_TYPES: tuple[AckType, ...] = get_args(AckType)
"""In the order in which they come, as far as they can be ordered."""

Status: TypeAlias = Literal["success", "failure", "retry"]


class CommandAck(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="c",
    tag="ack",
    rename={"ack_type": "a", "seq": "s"},
):
    """One acknowledgement.

    A conflated one has no command id: ``seq`` is the last number it is about and ``first`` the first; with ``success``
    all between are meant and all before were answered, with ``failure`` the two are equal.
    """

    ack_type: AckType
    status: Status = "success"
    client: str | None = None
    cid: str | None = None
    first: int | None = None
    seq: int | None = None
    reason: str | None = None
    bookmark: str | int | None = None
    sub_id: str | None = None
    user_id: str | None = None
    password: str | None = None
    options: str | None = None
    topic_matches: int | None = None
    matches: int | None = None
    records_returned: int | None = None
    records_deleted: int | None = None
    effective_conflation_ms: int | None = None
    """Where merged acks come less often than was asked: how often they do come."""
    ack_id: str | None = None

    def identified(self) -> CommandAck:
        """Return the ack with its stable id: a replayed batch gives the same one, and receivers drop repeats."""
        parts = (self.client, self.cid, self.first, self.seq, self.ack_type, self.status, self.reason, self.bookmark)
        return msgspec.structs.replace(self, ack_id=blake2b(msgspec.json.encode(parts), digest_size=12).hexdigest())


encode_ack = msgspec.json.Encoder().encode
decode_ack = msgspec.json.Decoder(CommandAck).decode


class Support(Enum):
    """Whether a command can be asked for a type of acknowledgement."""

    NO = "no"
    YES = "yes"
    CONFLATED = "yes, merged over sequence numbers"
    WITH_BOOKMARK = "with a bookmark"
    WITH_FILTER = "with a filter"


_BASIC: dict[AckType, Support] = {"received": Support.YES, "processed": Support.YES}
_PUBLISH = _BASIC | {"persisted": Support.CONFLATED, "completed": Support.YES}
_SUBSCRIBE = _BASIC | {"persisted": Support.WITH_BOOKMARK, "completed": Support.WITH_BOOKMARK}
_QUERY = _BASIC | {"completed": Support.YES, "stats": Support.YES}

SUPPORTED: dict[str, dict[AckType, Support]] = {
    "logon": _BASIC,
    "publish": _PUBLISH,
    "delta_publish": _PUBLISH,
    "subscribe": _SUBSCRIBE,
    "delta_subscribe": _SUBSCRIBE | {"stats": Support.YES},
    "sow": _QUERY,
    "sow_and_subscribe": _QUERY,
    "sow_and_delta_subscribe": _QUERY,
    "sow_delete": _BASIC | {"persisted": Support.CONFLATED, "completed": Support.WITH_FILTER, "stats": Support.YES},
    "unsubscribe": _BASIC,
    "flush": _BASIC | {"persisted": Support.YES, "completed": Support.YES},
    "heartbeat": _BASIC,
}
"""Which types a command supports; a type that is not named is not supported."""


def unsupported(command: str, asked: Collection[str]) -> list[str]:
    """Return the types among those asked for that the command can never answer."""
    supported = SUPPORTED[command]
    return [name for name in asked if name not in supported]


def expected(command: str, asked: Collection[str], *, bookmark: bool = False, filtered: bool = False) -> set[str]:
    """Return the types among those asked for that are going to be answered where the command succeeds."""
    conditions = {Support.WITH_BOOKMARK: bookmark, Support.WITH_FILTER: filtered}
    return {
        name for name, support in SUPPORTED.get(command, {}).items() if name in asked and conditions.get(support, True)
    }
