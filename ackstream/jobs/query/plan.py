"""The steps of a batch of commands: the effects of each command, and its acknowledgements.

Pure: out come steps in the order in which clients see them (brokers.md 1.1 A22 to A24, A38), which name rows of tables.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from ackstream.jobs.query import results
from ackstream.jobs.query.records import INVALID_TOPIC, WITH_TOPIC, QueryRequest
from ackstream.protocol import messages, queries
from ackstream.protocol.dispositions import NOT_ENTITLED
from ackstream.protocol.messages import CommandAck
from ackstream.protocol.queries import INVALID_BOOKMARK, TOO_MANY, BookmarkSyntaxError, LogSpan, Position
from ackstream.protocol.rql.patterns import matches_any
from ackstream.settings import Query
from ackstream.spark.records import excused

SILENT_MS = 7 * 86_400_000
"""Maximum silence of a client without heartbeats; then its session and its subscriptions are forgotten."""
ALL = "all"
"""The id that stands for all subscriptions of the client."""

OUTAGE_MS = 1_000
"""Less time between two records does not count as an outage of Kafka."""

MAX_SUBSCRIPTIONS = 1_000
"""Maximum per client: the state is stored whole."""


class ClientSession(msgspec.Struct):
    """A client's session, and the time of its last record (epoch milliseconds).

    ``cid``: of the command that began it, "" without an id; the same logon repeated begins no other session. ``None``:
    a subscription alone began it, so its client may have lost an earlier one. ``interval_ms``: between bookmarks, at
    least; ``lease_ms``: how long it may be silent, 0: :data:`SILENT_MS`.
    """

    cid: str | None = None
    interval_ms: int = 0
    lease_ms: int = 0
    seen: int = 0


class QueryState(msgspec.Struct):
    """The state that the next batch needs."""

    sessions: dict[str, ClientSession] = {}
    subscriptions: list[results.LogSubscription] = []


class SubscriptionPlan:
    """Plans a batch: first :meth:`deliver`, then each command (:func:`execute`), then :meth:`close`."""

    def __init__(self, state: QueryState, *, known: int, newest: int, now: int) -> None:
        """Begin without steps; ``now`` is the broker's time of the newest record, epoch milliseconds."""
        # ``state`` is modified in place; ``known``: the batch of the log up to which subscriptions have received
        # everything; ``newest``: its last one
        self.steps: list[results.Step] = []
        self.changed = False
        """Whether the state has changed in a way that the next start must know."""
        self._state = state
        self._known, self._newest, self._now = known, newest, now
        self._deletes: dict[str | None, list[results.Acknowledged]] = {}

    @property
    def lasting(self) -> bool:
        """Whether the batch must be stored: its results depend on the position of the log, or the state changed."""
        return self.changed or any(
            isinstance(step, (results.Selected, results.Counted, results.Deleted)) for step in self.steps
        )

    def deliver(self, requests: Iterable[QueryRequest], times: Sequence[int] = ()) -> None:
        """Deliver new messages and due bookmarks to the subscriptions; end the sessions of clients without requests."""
        # ``times``: of the last record before this batch and of its records, in order
        read_until = (max(times[0], time) for time in times)
        pauses = [pause for pause in pairwise(read_until) if pause[1] - pause[0] >= OUTAGE_MS]
        for request in requests:
            if request.client in self._state.sessions:
                self._state.sessions[request.client].seen = request.time
        for client, session in list(self._state.sessions.items()):
            lease = session.lease_ms or SILENT_MS
            # half of a client's interval counts: it has as much time to write after an outage
            session.seen += sum(excused(*pause, lease // 2, session.seen) for pause in pauses)
            if self._now - session.seen > lease:
                self._end(client)
        subscriptions = tuple(self._state.subscriptions)
        if subscriptions and self._newest > self._known:
            self.steps.append(results.LogDelivered(subscriptions, queries.end(self._known), self.newest))
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

    def sub_ids(self, client: str) -> list[str]:
        """Return the ids of a client's subscriptions."""
        return [one.sub_id for one in self._state.subscriptions if one.client == client]

    def add(self, subscription: results.LogSubscription) -> None:
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

    def note_delete(self, acknowledged: results.Acknowledged) -> None:
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

    def _send_bookmark(self, subscription: results.LogSubscription) -> None:
        if not subscription.bookmarked:
            return
        bookmark = queries.bookmark(self.newest, subscription.topic)
        client, sub_id = subscription.client, subscription.sub_id
        ack = CommandAck(ack_type="persisted", client=client, bookmark=bookmark, sub_id=sub_id)
        self.steps.append(results.Acknowledged(f"{subscription.origin}/persisted/{bookmark}", ack))
        session = self._state.sessions.get(client, ClientSession())
        subscription.acknowledged_through, subscription.due = self._newest, self._now + session.interval_ms


EXISTS, LOGON_REQUIRED = "subscription already exists", "logon required"


def execute(plan: SubscriptionPlan, request: QueryRequest, limits: Query, topics: tuple[str, ...] = ()) -> None:
    """Add a command's steps to a plan, or the acknowledgements that reject it."""
    # clients cannot lower the minimum time between bookmarks in ``limits``; ``topics``: existing patterns, any if empty
    _Execution(plan, request).run(limits, topics)


class _Execution:
    def __init__(self, plan: SubscriptionPlan, request: QueryRequest) -> None:
        self._plan = plan
        self._request = request
        self._command = request.command
        self._count = 0

    def run(self, limits: Query, topics: tuple[str, ...]) -> None:
        reason = self._request.reason or self._conflict(limits, topics)
        floor_ms = limits.interval
        raised = floor_ms if self._request.options.get("ack_conflation", floor_ms) < floor_ms else None
        # instead of one for each subscription and batch: new messages come before the commands of their batch
        position = queries.bookmark(self._plan.newest, "") if self._is_beat and reason is None else None
        for ack in messages.opening(self._command, reason, self._request.detail):
            self._acknowledge(msgspec.structs.replace(ack, effective_conflation_ms=raised, bookmark=position))
        if reason is None:
            getattr(self, f"_{self._command.name}")()
        if self._command.name == "sow_delete" and "persisted" in self._command.asked:
            self._persisted(reason)

    @property
    def _is_beat(self) -> bool:
        return self._command.name == "heartbeat" and not self._request.options

    def _conflict(self, limits: Query, topics: tuple[str, ...]) -> str | None:
        request, name = self._request, self._command.name
        if name in WITH_TOPIC:
            if topics and not matches_any(topics, request.topic):
                return INVALID_TOPIC
            if not limits.entitles(request.client, request.topic, delete=name == "sow_delete"):
                return NOT_ENTITLED
        if self._is_beat and not self._plan.knows(request.client):
            # its subscriptions ended with its session
            return LOGON_REQUIRED
        return self._conflict_of_subscription(request) if name in ("subscribe", "sow_and_subscribe") else None

    def _conflict_of_subscription(self, request: QueryRequest) -> str | None:
        known = self._plan.sub_ids(request.client)
        if request.sub_id in known and "replace" not in request.options:
            return EXISTS
        if request.sub_id not in known and len(known) >= MAX_SUBSCRIPTIONS:
            return TOO_MANY
        try:
            self._span()
        except BookmarkSyntaxError:
            return INVALID_BOOKMARK
        return None

    # -- commands ------------------------------------------------------------------------------------------------------

    def _logon(self) -> None:
        self._plan.log_on(self._request.client, self._command.cid, self._request.options.get("ack_conflation", 0))
        self._heartbeat()

    def _heartbeat(self) -> None:
        if "heartbeat" in self._request.options:
            self._plan.lease(self._request.client, self._request.options["heartbeat"])

    def _flush(self) -> None:
        # commands run one after the other, and are acknowledged once their changes are durable
        self._plan.acknowledge_deletes(self._request.client)
        self._complete()
        if "persisted" in self._command.asked:
            self._acknowledge(CommandAck(ack_type="persisted", cid=self._command.cid))

    def _unsubscribe(self) -> None:
        self._plan.drop(self._request.client, self._request.sub_id)

    def _sow(self, bookmark: str | None = None) -> None:
        self._mark("group_begin")
        if self._command.top_n != 0:
            self._add(results.Selected(self._request))
        self._mark("group_end")
        self._complete(bookmark)
        self._statistics()

    def _sow_delete(self) -> None:
        self._add(results.Deleted(self._request))
        self._complete()
        self._statistics()

    def _sow_and_subscribe(self) -> None:
        self._sow(queries.bookmark(self._plan.newest, self._request.topic))
        self._plan.add(self._subscription())

    def _subscribe(self) -> None:
        after, stop = self._span()
        subscription = self._subscription()
        reached = self._plan.newest if stop is None else stop
        if after < reached:
            self._add(results.LogDelivered((subscription,), after, reached))
            self._plan.changed = True
        if self._request.bookmark is not None:
            self._complete(queries.bookmark(reached, self._request.topic))
        if stop is None:
            self._plan.add(subscription)
        else:
            # the subscription that it replaces ends with it
            self._plan.drop(self._request.client, self._request.sub_id)

    # -- parts of commands ---------------------------------------------------------------------------------------------

    def _span(self) -> LogSpan:
        newest = self._plan.newest
        bookmark = self._request.bookmark
        return LogSpan(newest) if bookmark is None else queries.span(bookmark, self._request.topic, newest)

    def _subscription(self) -> results.LogSubscription:
        request, command = self._request, self._command
        bookmarked = request.bookmark is not None and "persisted" in command.asked
        return results.LogSubscription(
            request.client, request.sub_id, command.cid, request.origin, request.topic, command.filter, bookmarked
        )

    def _persisted(self, reason: str | None) -> None:
        cid, seq, status = self._command.cid, self._command.seq, messages.status(reason)
        if seq is None:
            self._acknowledge(CommandAck(ack_type="persisted", status=status, cid=cid, reason=reason))
        else:
            ack = CommandAck(ack_type="persisted", status=status, first=seq, seq=seq, reason=reason)
            self._plan.note_delete(self._addressed(ack))

    def _mark(self, mark: Literal["group_begin", "group_end"]) -> None:
        self._add(results.GroupMark(self._request, self._id(), mark))

    def _complete(self, bookmark: str | None = None) -> None:
        for ack in messages.completed(self._command, bookmark):
            self._acknowledge(ack, self._request.sub_id if "subscribe" in self._command.name else None)

    def _statistics(self) -> None:
        if "stats" in self._command.asked:
            self._add(results.Counted(self._request, self._id()))

    def _acknowledge(self, ack: CommandAck, sub_id: str | None = None) -> None:
        self._add(self._addressed(ack, sub_id))

    def _addressed(self, ack: CommandAck, sub_id: str | None = None) -> results.Acknowledged:
        return results.Acknowledged(
            self._id(), msgspec.structs.replace(ack, client=self._request.client, sub_id=sub_id)
        )

    def _add(self, step: results.Step) -> None:
        self._plan.steps.append(step)

    def _id(self) -> str:
        self._count += 1
        return f"{self._request.origin}/{self._count}"
