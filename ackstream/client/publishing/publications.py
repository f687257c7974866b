"""A publisher's messages: an application's arguments, records in ``messages``, receipts, and failed ones.

Arguments are checked before a message has a number. The service's headers come last: a repeated name's last one counts.
"""

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from ackstream.client.core.arguments import check_type, encoded, names
from ackstream.client.core.storage import KeptMessage
from ackstream.client.errors import MessageTooLargeError
from ackstream.errors import BadParameterError
from ackstream.kafka.clients import MAX_RECORD_BYTES
from ackstream.protocol import record_headers as wire
from ackstream.protocol.messages import MAX_CLIENT_CHARACTERS, AckType

Headers: TypeAlias = "list[tuple[str, bytes]]"

Stage: TypeAlias = Literal["accepted", "persisted"]
"""The meaning of a receipt: Kafka has stored the message (milliseconds), or the tables hold it (a batch later)."""

_OVERHEAD = 1024
"""Bytes of a record besides the application's: names and values of the service's headers, its name twice."""
_PER_HEADER = 16
_ACK_TYPES = frozenset(name.encode() for name in get_args(AckType))


@dataclass(frozen=True)
class NewMessage:
    """The arguments of ``Publisher.publish``, which documents them."""

    value: bytes
    _: KW_ONLY
    topic: str | None = None
    key: bytes | None = None
    headers: Iterable[tuple[str, bytes]] = ()
    ttl_ms: int | None = None
    context: Any = None
    acks: Iterable[AckType] = ()
    cid: str | None = None
    ack_immediately: bool = False
    timeout: float | None = None


@dataclass(frozen=True)
class AwaitedMessage(NewMessage):
    """The arguments of ``Publisher.publish_await_acknowledgement``."""

    timeout: float | None = None
    _: KW_ONLY
    ack_immediately: bool = True


class Receipt(msgspec.Struct, frozen=True):
    """The acknowledgement of a message.

    :ivar context: the object that the application passed to ``publish``
    :ivar first: the first message that this receipt covers; ``seq`` itself unless receipts are windowed
    :ivar timestamp_ms: when the publisher got it, by its own clock, in epoch milliseconds
    :ivar duplicate: it was already stored; the first copy counts
    """

    seq: int
    stage: Stage
    context: Any
    first: int
    timestamp_ms: int
    duplicate: bool = False


def described(receipt: Receipt) -> tuple[dict[str, Any], None]:
    """Return the attributes of a receipt in the trace of its message."""
    return {f"ackstream.{name}": getattr(receipt, name) for name in ("seq", "stage", "duplicate")}, None


class FailedMessage(msgspec.Struct, frozen=True):
    """A refused message or a duplicate, for the failed-write handler, with the copy in the store, if there is one.

    ``topic``, ``key``, ``headers`` and ``ttl_ms`` are as they were given to ``publish``, which takes them again.
    """

    seq: int
    reason: str
    value: bytes | None
    topic: str | None
    key: bytes | None
    headers: list[tuple[str, bytes]]
    ttl_ms: int | None
    context: Any

    @classmethod
    def of(cls, seq: int, reason: str, kept: KeptMessage | None, context: Any) -> "FailedMessage":
        """Return a message with its copy, if there is one."""
        if kept is None or kept.withdrawn:
            return cls(seq, reason, None, None, None, [], None, context)
        own, ours = dict(kept.headers), [header for header in kept.headers if header[0] not in wire.PUBLISHER]
        topic = own[wire.TOPIC].decode() if wire.TOPIC in own else None
        ttl_ms = int(own[wire.TTL]) if wire.TTL in own else None
        return cls(seq, reason, kept.value, topic, kept.key, ours, ttl_ms, context)


class PublishStatistics(msgspec.Struct, frozen=True):
    """Counts since the publisher started.

    ``published`` messages were numbered, ``accepted`` stored by Kafka, ``acknowledged`` at the publisher's stage,
    ``failed`` refused, by the service or by Kafka; ``unpersisted`` are still in the store. ``resent`` counts
    retransmissions, ``window_closed`` how often a message had to wait for room.
    """

    published: int
    accepted: int
    acknowledged: int
    failed: int
    unpersisted: int
    resent: int
    window_closed: int


class Open(NamedTuple):
    """The context of an open message: the destination of its receipt, and the application's own object."""

    future: Future[Receipt]
    context: Any


def message_of(new: NewMessage, headers: Iterable[tuple[str, bytes]] | None = None) -> KeptMessage:
    """Return a message to keep and to send; ``headers`` replace its own."""
    named = [*(new.headers if headers is None else headers)]
    check_type("value", new.value, bytes)
    check_type("key", new.key, bytes, optional=True)
    check_type("topic", new.topic, str, optional=True)
    for header in named:
        if not isinstance(header, tuple) or [type(part) for part in header] != [str, bytes]:
            raise BadParameterError(f"headers has {header!r:.80}: each header is a tuple of a str and bytes.")
        encoded("headers", header[0])
        if header[0] in wire.PUBLISHER or header[0] == wire.FOR_QUEUE:
            raise BadParameterError(
                f"headers has {header[0]}, which is the service's own: rename it; topic, key and ttl_ms are arguments."
            )
    if new.ttl_ms is not None:
        if type(new.ttl_ms) is not int or new.ttl_ms < 0:
            raise BadParameterError(f"ttl_ms is {new.ttl_ms!r:.80}: give whole milliseconds, 0 or more.")
        named.append((wire.TTL, b"%d" % new.ttl_ms))
    named += [(wire.TOPIC, encoded("topic", new.topic))] if new.topic is not None else []
    check_type("cid", new.cid, str, optional=True)
    check_type("ack_immediately", new.ack_immediately, bool)
    asked = list(dict.fromkeys(names("acks", new.acks, AckType)))
    named += [(wire.ACK, ",".join(asked).encode())] if asked else []
    named += [(wire.CID, encoded("cid", new.cid))] if new.cid is not None else []
    named += [(wire.ACK_IMMEDIATELY, b"true")] if new.ack_immediately else []
    message = KeptMessage(new.value, named, new.key)
    size = message.size + _PER_HEADER * len(named)
    if size > MAX_RECORD_BYTES - _OVERHEAD - 8 * MAX_CLIENT_CHARACTERS:
        raise MessageTooLargeError("message too large", f"A message of {size} bytes")
    return message


class Publications:
    """The records of one publisher in one session."""

    def __init__(self, client: str, session: str, *, acknowledged: bool) -> None:
        """Begin a session, which distinguishes the publishers of one name: the last one to log on counts."""
        self._own = [(wire.CLIENT, client.encode()), (wire.SESSION, session.encode())]
        self._ack = b"persisted" if acknowledged else b"none"

    def message(self, seq: int, message: KeptMessage) -> Headers:
        """Return the headers of a message."""
        if message.withdrawn:
            return self.withdrawal(seq, seq, self._ack)
        kept, number = dict(message.headers), b"%d" % seq
        headers = [header for header in message.headers if header[0] != wire.ACK]
        headers += [(wire.KEY, message.key)] if message.key is not None else []
        asked = [ack for ack in kept.get(wire.ACK, b"").split(b",") if ack in _ACK_TYPES]
        headers += [(wire.CID, number)] if asked and wire.CID not in kept else []
        asked += [self._ack] if self._ack not in asked else []
        return [*headers, *self._own, (wire.SEQ, number), (wire.ACK, b",".join(asked))]

    def withdrawal(self, first: int, last: int, ack: bytes = b"none") -> Headers:
        """Return the headers of the command that withdraws these numbers."""
        return self._command(b"withdraw", (wire.FIRST, b"%d" % first), (wire.SEQ, b"%d" % last), (wire.ACK, ack))

    def logon(self, cid: str, first: int | None, window: int, conflation_ms: int | None, store: str = "") -> Headers:
        """Return a logon's headers; ``first`` is the first number kept or next; each third of ``window`` is acked."""
        named = (wire.CID, cid.encode()), (wire.ACK, b"processed"), (wire.WINDOW, b"%d" % window)
        headers = self._command(b"logon", *named)
        headers += [(wire.STORE, store.encode())] if store else []
        headers += [(wire.FIRST, b"%d" % first)] if first is not None else []
        return headers + ([(wire.ACK_CONFLATION, b"%dms" % conflation_ms)] if conflation_ms is not None else [])

    def flush(self, cid: str) -> Headers:
        """Return the headers of a flush, which is answered when everything before it is stored or refused."""
        return self._command(b"flush", (wire.CID, cid.encode()), (wire.ACK, b"persisted"))

    def _command(self, name: bytes, *headers: tuple[str, bytes]) -> Headers:
        return [*self._own, (wire.COMMAND, name), *headers]
