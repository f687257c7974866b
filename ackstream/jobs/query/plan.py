"""The steps of a batch of commands, and the clients' sessions and subscriptions between batches.

Pure: the state of the clients and the position of the log go in, steps come out in the order in which the clients see
them (brokers.md 1.1 A22 to A24, A38). A step names what to read from the tables; the job reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from ackstream.protocol import queries
from ackstream.protocol.messages import CommandAck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackstream.jobs.query.requests import QueryRequest
    from ackstream.protocol.queries import Position

ALL = "all"
"""In place of a subscription's id: all subscriptions of the client."""

MAX_SUBSCRIPTIONS = 1_000
"""Of one client: the state is stored whole."""

SILENT_MS = 7 * 86_400_000
"""How long a client without a heartbeat may be silent: then its session and its subscriptions are forgotten."""


# -- state -------------------------------------------------------------------------------------------------------------


class ClientSession(msgspec.Struct):
    """A client's session, and the time of its last record (epoch milliseconds).

    :ivar cid: the id of the command that began it, "" for one without an id; the same logon repeated does not begin
        another session. ``None``: a subscription alone began it, so that its client may have lost an earlier one
    :ivar interval_ms: the minimum time between bookmarks
    :ivar lease_ms: how long it may be silent; 0: as long as :data:`SILENT_MS`
    """

    cid: str | None = None
    interval_ms: int = 0
    lease_ms: int = 0
    seen: int = 0


class LogSubscription(msgspec.Struct):
    """A subscription to new messages; the fields are the JSON in the table ``subscriptions``.

    :ivar origin: of the command that began it
    :ivar bookmarked: whether its client requested bookmarks of the log's position
    :ivar acknowledged_through: the last batch whose bookmark was sent
    :ivar due: when the next bookmark may be sent, epoch milliseconds
    """

    client: str
    sub_id: str
    cid: str | None
    origin: str
    topic: str
    filter: str | None = None
    bookmarked: bool = False
    acknowledged_through: int = msgspec.field(default=-1, name="told")
    due: int = 0


class QueryState(msgspec.Struct):
    """The state that the next batch needs."""

    sessions: dict[str, ClientSession] = {}
    subscriptions: list[LogSubscription] = []


def withdraw(state: QueryState, objection: Callable[[LogSubscription], str | None]) -> dict[str, str]:
    """End the sessions with a subscription that must not go on; return the reasons by client.

    Such a client learns it by its next heartbeat, as one does whose session was forgotten.
    """
    reasons: dict[str, str] = {}
    for subscription in state.subscriptions:
        if why := objection(subscription):
            reasons.setdefault(subscription.client, why)
    state.subscriptions = [one for one in state.subscriptions if one.client not in reasons]
    for client in reasons:
        state.sessions.pop(client, None)
    return reasons


# -- steps -------------------------------------------------------------------------------------------------------------


class Acknowledged(NamedTuple):
    """An acknowledgement to its client; a replayed batch gives it the same id."""

    id: str
    ack: CommandAck


class GroupMark(NamedTuple):
    """The beginning or the end of the records of a query."""

    request: QueryRequest
    id: str
    mark: Literal["group_begin", "group_end"]


class Selected(NamedTuple):
    """The records that a query selects now."""

    request: QueryRequest


class Counted(NamedTuple):
    """The number of records in the topic and of those a command selects, acknowledged as its ``stats``."""

    request: QueryRequest
    id: str


class Deleted(NamedTuple):
    """The records that a command removes from the state of the world."""

    request: QueryRequest


class LogDelivered(NamedTuple):
    """The messages after one position, up to and including another, to the subscriptions that they match."""

    subscriptions: tuple[LogSubscription, ...]
    after: Position
    upto: Position


Step: TypeAlias = "Acknowledged | GroupMark | Selected | Counted | Deleted | LogDelivered"


class SubscriptionPlan:
    """Plans a batch: first :meth:`deliver`, then each command (see ``execution``), then :meth:`close`."""

    def __init__(self, state: QueryState, *, known: int, newest: int, now: int) -> None:
        """Begin without steps.

        :param state: modified in place
        :param known: the batch of the log up to which subscriptions have received everything
        :param newest: the last batch of the log
        :param now: the broker's time of the newest record, epoch milliseconds
        """
        self.steps: list[Step] = []
        self.changed = False
        """Whether the state has changed in a way that the next start must know."""
        self._state = state
        self._known, self._newest, self._now = known, newest, now
        self._deletes: dict[str | None, list[Acknowledged]] = {}

    @property
    def lasting(self) -> bool:
        """Whether the batch must be stored: its results depend on the position of the log, or the state changed."""
        return self.changed or any(isinstance(step, (Selected, Counted, Deleted)) for step in self.steps)

    def deliver(self, requests: Iterable[QueryRequest]) -> None:
        """Deliver new messages and due bookmarks to the subscriptions; end the sessions of clients without requests."""
        for request in requests:
            if request.client in self._state.sessions:
                self._state.sessions[request.client].seen = request.time
        for client, session in list(self._state.sessions.items()):
            if self._now - session.seen > (session.lease_ms or SILENT_MS):
                self._end(client)
        subscriptions = tuple(self._state.subscriptions)
        if subscriptions and self._newest > self._known:
            self.steps.append(LogDelivered(subscriptions, queries.end(self._known), self.newest))
        for subscription in subscriptions:
            if subscription.acknowledged_through < self._newest and self._now >= subscription.due:
                self._send_bookmark(subscription)

    def close(self) -> None:
        """Acknowledge the deletes that this batch makes durable."""
        for client in list(self._deletes):
            self.acknowledge_deletes(client)

    # -- for a command -------------------------------------------------------------------------------------------------

    @property
    def newest(self) -> Position:
        """The end of the log."""
        return queries.end(self._newest)

    def log_on(self, client: str, cid: str | None, interval_ms: int) -> None:
        """Begin a session and end the client's previous one; a repeated logon changes nothing."""
        known = self._state.sessions.get(client)
        if known is not None and cid and known.cid == cid:
            return
        self._end(client)
        self._state.sessions[client] = ClientSession(cid or "", interval_ms, seen=self._now)
        self.changed = True

    def lease(self, client: str, interval_ms: int) -> None:
        """Set a client's heartbeat interval; it may be silent for twice as long."""
        session = self._state.sessions.setdefault(client, ClientSession(seen=self._now))
        if session.cid is None or session.lease_ms != 2 * interval_ms:
            session.cid, session.lease_ms = session.cid or "", 2 * interval_ms
            self.changed = True

    def knows(self, client: str) -> bool:
        """Return whether a client has the session that it has begun."""
        session = self._state.sessions.get(client)
        return session is not None and session.cid is not None

    def find(self, client: str, sub_id: str) -> LogSubscription | None:
        """Return a subscription, or ``None``."""
        return next((one for one in self._state.subscriptions if (one.client, one.sub_id) == (client, sub_id)), None)

    def has_room(self, client: str) -> bool:
        """Return whether a client may have one more subscription."""
        return sum(one.client == client for one in self._state.subscriptions) < MAX_SUBSCRIPTIONS

    def add(self, subscription: LogSubscription) -> None:
        """Begin a subscription whose client has received the messages up to now."""
        self._state.sessions.setdefault(subscription.client, ClientSession(seen=self._now))
        self.drop(subscription.client, subscription.sub_id)
        self._state.subscriptions.append(subscription)
        self.changed = True
        self._send_bookmark(subscription)

    def drop(self, client: str, sub_id: str) -> None:
        """End a subscription, or all of a client, if there is any."""
        kept = [one for one in self._state.subscriptions if one.client != client or sub_id not in (one.sub_id, ALL)]
        self.changed |= len(kept) < len(self._state.subscriptions)
        self._state.subscriptions = kept

    def note_delete(self, acknowledged: Acknowledged) -> None:
        """Keep the numbered ``persisted`` of a delete, merged with the previous one if both are successes."""
        ack = acknowledged.ack
        runs = self._deletes.setdefault(ack.client, [])
        last = runs[-1].ack if runs else None
        if last is not None and last.status == ack.status == "success" and last.seq == (ack.seq or 0) - 1:
            runs[-1] = acknowledged._replace(ack=msgspec.structs.replace(ack, first=last.first))
        else:
            runs.append(acknowledged)

    def acknowledge_deletes(self, client: str | None) -> None:
        """Acknowledge a client's deletes up to now."""
        self.steps += self._deletes.pop(client, [])

    def _end(self, client: str) -> None:
        self.drop(client, ALL)
        self.changed |= self._state.sessions.pop(client, None) is not None

    def _send_bookmark(self, subscription: LogSubscription) -> None:
        if not subscription.bookmarked:
            return
        bookmark = queries.bookmark(self.newest, subscription.topic)
        client, sub_id = subscription.client, subscription.sub_id
        ack = CommandAck(ack_type="persisted", client=client, bookmark=bookmark, sub_id=sub_id)
        self.steps.append(Acknowledged(f"{subscription.origin}/persisted/{bookmark}", ack))
        session = self._state.sessions.get(client, ClientSession())
        subscription.acknowledged_through, subscription.due = self._newest, self._now + session.interval_ms
