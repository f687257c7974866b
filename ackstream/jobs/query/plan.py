"""What a batch of commands comes to, step by step, and what is remembered of the clients between two batches.

Steps are in the order in which the clients are to see them. They name what is to be read from the tables; somebody else
reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from ackstream.protocol import queries
from ackstream.protocol.messages import CommandAck

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackstream.jobs.query.requests import QueryRequest
    from ackstream.protocol.queries import Position


class ClientSession(msgspec.Struct):
    """What a client has said of itself, and when it was heard last (epoch milliseconds).

    :ivar cid: id of the logon it began with: sent again, it begins no other one
    :ivar interval_ms: how often it wants bookmarks
    :ivar lease_ms: so long it may be silent; 0: for ever
    """

    cid: str | None = None
    interval_ms: int = 0
    lease_ms: int = 0
    seen: int = 0


class LogSubscription(msgspec.Struct):
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

    sessions: dict[str, ClientSession] = {}
    subscriptions: list[LogSubscription] = []


class Told(NamedTuple):
    """An acknowledgement; the id is the same when it is told again."""

    client: str
    id: str
    ack: CommandAck


class Framed(NamedTuple):
    """The beginning or the end of the records of a query."""

    request: QueryRequest
    id: str
    word: Literal["group_begin", "group_end"]


class Selected(NamedTuple):
    """The records that a query asks for, as they are now."""

    request: QueryRequest


class Counted(NamedTuple):
    """How many records there are in the topic, and how many a command selects: told as its ``stats``."""

    request: QueryRequest
    id: str


class Deleted(NamedTuple):
    """The records that a command takes out of the state of the world."""

    request: QueryRequest


class LogDelivered(NamedTuple):
    """Messages behind one place, up to and with another one, each to those of the subscriptions that it matches."""

    subscriptions: tuple[LogSubscription, ...]
    after: Position
    upto: Position


Step: TypeAlias = "Told | Framed | Selected | Counted | Deleted | LogDelivered"


# -- One batch of commands over the message log: who has which subscription, and what is new for it.
# Pure: what is known of the clients and how far the log is go in; steps come out (brokers.md 1.1 A22 to A24, A38).


ALL = "all"
"""In place of a subscription's id: all of the client."""


class SubscriptionPlan:
    """First :meth:`deliver`, then the commands one by one (see ``execution``), then :meth:`close`."""

    def __init__(self, state: State, *, known: int, newest: int, now: int) -> None:
        """Begin.

        :param state: it is changed
        :param known: the batch of the log up to which subscriptions have everything
        :param newest: the last batch of the log
        :param now: the broker's time of the newest record, epoch milliseconds
        """
        self.steps: list[Step] = []
        self.changed = False
        """Whether the state is another, but for what may be forgotten."""
        self._state = state
        self._known, self._newest, self._now = known, newest, now
        self._deleted: dict[str, list[Told]] = {}

    @property
    def lasting(self) -> bool:
        """Whether the batch has to be remembered: its answers depend on how far the log was, or the state changed."""
        return self.changed or any(isinstance(step, (Selected, Counted, Deleted)) for step in self.steps)

    def deliver(self, requests: Iterable[QueryRequest]) -> None:
        """Give the subscriptions what is new, and those that are due a bookmark; end those of silent clients.

        :param requests: of this batch: their clients are not silent
        """
        for request in requests:
            if request.client in self._state.sessions:
                self._state.sessions[request.client].seen = request.time
        for client, session in list(self._state.sessions.items()):
            if session.lease_ms and self._now - session.seen > session.lease_ms:
                self._end(client)
        subscriptions = tuple(self._state.subscriptions)
        if subscriptions and self._newest > self._known:
            self.steps.append(LogDelivered(subscriptions, queries.end(self._known), self.newest))
        for subscription in subscriptions:
            if subscription.told < self._newest and self._now >= subscription.due:
                self._tell_bookmark(subscription)

    def close(self) -> None:
        """Tell what is told at the end of a batch: which deletes are durable."""
        for client in list(self._deleted):
            self.tell_deleted(client)

    # -- for a command -------------------------------------------------------------------------------------------------

    @property
    def newest(self) -> Position:
        """The end of the log."""
        return queries.end(self._newest)

    def log_on(self, client: str, cid: str | None, interval_ms: int) -> None:
        """Begin a session: what an earlier one has left behind ends. A logon that came again changes nothing."""
        known = self._state.sessions.get(client)
        if known is not None and cid is not None and known.cid == cid:
            return
        self._end(client)
        self._state.sessions[client] = ClientSession(cid, interval_ms, seen=self._now)
        self.changed = True

    def lease(self, client: str, interval_ms: int) -> None:
        """Note how often a client is going to be heard; twice as long it may be silent."""
        session = self._state.sessions.setdefault(client, ClientSession(seen=self._now))
        if session.lease_ms != 2 * interval_ms:
            session.lease_ms = 2 * interval_ms
            self.changed = True

    def knows(self, client: str) -> bool:
        """Tell whether a client has a session."""
        return client in self._state.sessions

    def find(self, client: str, sub_id: str) -> LogSubscription | None:
        """Return a subscription."""
        return next((one for one in self._state.subscriptions if (one.client, one.sub_id) == (client, sub_id)), None)

    def add(self, subscription: LogSubscription) -> None:
        """Begin a subscription; what is there already it has got."""
        self.drop(subscription.client, subscription.sub_id)
        self._state.subscriptions.append(subscription)
        self.changed = True
        self._tell_bookmark(subscription)

    def drop(self, client: str, sub_id: str) -> None:
        """End a subscription, or all of a client; there need not be one."""
        kept = [one for one in self._state.subscriptions if one.client != client or sub_id not in (one.sub_id, ALL)]
        self.changed |= len(kept) < len(self._state.subscriptions)
        self._state.subscriptions = kept

    def decide_deleted(self, told: Told) -> None:
        """Keep a numbered ``persisted`` of a delete, merged with the one before where both are successes."""
        runs = self._deleted.setdefault(told.client, [])
        last = runs[-1].ack if runs else None
        joins = last is not None and last.status == told.ack.status == "success" and last.seq == (told.ack.seq or 0) - 1
        if joins and last is not None:
            runs[-1] = told._replace(ack=msgspec.structs.replace(told.ack, first=last.first))
        else:
            runs.append(told)

    def tell_deleted(self, client: str) -> None:
        """Tell a client which deletes are durable."""
        self.steps += self._deleted.pop(client, [])

    def _end(self, client: str) -> None:
        self.drop(client, ALL)
        self.changed |= self._state.sessions.pop(client, None) is not None

    def _tell_bookmark(self, subscription: LogSubscription) -> None:
        if not subscription.bookmarked:
            return
        bookmark = queries.bookmark(self.newest, subscription.topic)
        ack = CommandAck(
            ack_type="persisted", client=subscription.client, bookmark=bookmark, sub_id=subscription.sub_id
        )  # fmt: skip
        self.steps.append(Told(subscription.client, f"{subscription.origin}/persisted/{bookmark}", ack))
        session = self._state.sessions.get(subscription.client, ClientSession())
        subscription.told, subscription.due = self._newest, self._now + session.interval_ms
