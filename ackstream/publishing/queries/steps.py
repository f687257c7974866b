"""What a batch of commands comes to, step by step, and what is remembered of the clients between two batches.

Steps are in the order in which the clients are to see them. They name what is to be read from the tables; somebody else
reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

if TYPE_CHECKING:
    from ackstream.publishing.acks import Ack
    from ackstream.publishing.queries.positions import Position
    from ackstream.publishing.queries.requests import Request


class Session(msgspec.Struct):
    """What a client has said of itself, and when it was heard last (epoch milliseconds).

    :ivar cid: id of the logon it began with: sent again, it begins no other one
    :ivar interval_ms: how often it wants bookmarks
    :ivar lease_ms: so long it may be silent; 0: for ever
    """

    cid: str | None = None
    interval_ms: int = 0
    lease_ms: int = 0
    seen: int = 0


class Subscription(msgspec.Struct):
    """A subscription that gets what is new.

    :ivar origin: of the command that began it
    :ivar bookmarked: whether its client wants to know how far the log is
    :ivar told: the batch it was told of last
    :ivar due: when it may be told next, epoch milliseconds
    """

    client: str
    sub_id: str
    cid: str | None
    origin: str
    topic: str
    filter: str | None = None
    bookmarked: bool = False
    told: int = -1
    due: int = 0


class State(msgspec.Struct):
    """What the next batch has to know."""

    sessions: dict[str, Session] = {}
    subscriptions: list[Subscription] = []


class Told(NamedTuple):
    """An acknowledgement; the id is the same when it is told again."""

    client: str
    id: str
    ack: Ack


class Framed(NamedTuple):
    """The beginning or the end of the records of a query."""

    request: Request
    id: str
    word: Literal["group_begin", "group_end"]


class Selected(NamedTuple):
    """The records that a query asks for, as they are now."""

    request: Request


class Counted(NamedTuple):
    """How many records there are in the topic, and how many a command selects: told as its ``stats``."""

    request: Request
    id: str


class Deleted(NamedTuple):
    """The records that a command takes out of the state of the world."""

    request: Request


class Delivered(NamedTuple):
    """Messages behind one place, up to and with another one, each to those of the subscriptions that it matches."""

    subscriptions: tuple[Subscription, ...]
    after: Position
    upto: Position


Step: TypeAlias = "Told | Framed | Selected | Counted | Deleted | Delivered"
