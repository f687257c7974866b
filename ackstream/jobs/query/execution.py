"""What one command does: its acknowledgements and what stands between them (brokers.md 1.1 A18 to A27, 1.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from ackstream.jobs.query.plan import Counted, Deleted, Framed, LogDelivered, LogSubscription, Selected, Step, Told
from ackstream.jobs.query.requests import INVALID_TOPIC, WITH_TOPIC
from ackstream.protocol import queries
from ackstream.protocol.messages import CommandAck
from ackstream.protocol.patterns import matches_any
from ackstream.protocol.queries import INVALID_BOOKMARK, BookmarkSyntaxError, LogSpan

if TYPE_CHECKING:
    from ackstream.jobs.query.plan import SubscriptionPlan
    from ackstream.jobs.query.requests import QueryRequest

EXISTS, LOGON_REQUIRED = "subscription already exists", "logon required"


@dataclass(frozen=True)
class Terms:
    """What holds for all commands.

    :ivar floor_ms: more often than so nothing is told
    :ivar topics: those there are, ``*`` stands for any run of characters; none: any
    """

    floor_ms: int = 0
    topics: tuple[str, ...] = ()


def carry_out(desk: SubscriptionPlan, request: QueryRequest, terms: Terms) -> None:
    """Carry out a command, or say why not."""
    _Execution(desk, request).run(terms)


class _Execution:
    def __init__(self, desk: SubscriptionPlan, request: QueryRequest) -> None:
        self._desk = desk
        self._request = request
        self._command = request.command
        self._count = 0

    def run(self, terms: Terms) -> None:
        reason = self._request.reason or self._conflict(terms.topics)
        wanted = self._request.conflation_ms
        logon = self._command.name == "logon"
        floor = terms.floor_ms if logon and wanted is not None and wanted < terms.floor_ms else None
        for ack in queries.opening(self._command, reason):
            self._tell(msgspec.structs.replace(ack, effective_conflation_ms=floor), sub_id=None)
        if reason is None:
            getattr(self, f"_{self._command.name}")()
        if self._command.name == "sow_delete" and "persisted" in self._command.asked:
            self._persisted(reason)

    def _conflict(self, topics: tuple[str, ...]) -> str | None:
        request = self._request
        if self._command.name in WITH_TOPIC and topics and not matches_any(topics, request.topic):
            return INVALID_TOPIC
        if self._command.name in ("subscribe", "sow_and_subscribe"):
            if self._desk.find(request.client, request.sub_id) and "replace" not in request.options:
                return EXISTS
            try:
                self._span()
            except BookmarkSyntaxError:
                return INVALID_BOOKMARK
        if self._command.name == "heartbeat" and request.heartbeat_ms is None and not self._desk.knows(request.client):
            # its subscriptions have ended with its session
            return LOGON_REQUIRED
        return None

    # -- commands ----------------------------------------------------------------------------------------------------

    def _logon(self) -> None:
        self._desk.log_on(self._request.client, self._command.cid, self._request.conflation_ms or 0)
        self._heartbeat()

    def _heartbeat(self) -> None:
        if self._request.heartbeat_ms is not None:
            self._desk.lease(self._request.client, self._request.heartbeat_ms)

    def _flush(self) -> None:
        # commands are done one after the other, and told after what they change is durable
        self._desk.tell_deleted(self._request.client)
        self._end()
        if "persisted" in self._command.asked:
            self._tell(CommandAck(ack_type="persisted", cid=self._command.cid))

    def _unsubscribe(self) -> None:
        self._desk.drop(self._request.client, self._request.sub_id)

    def _sow(self) -> None:
        self._frame("group_begin")
        if self._command.top_n != 0:
            self._step(Selected(self._request))
        self._frame("group_end")
        self._end()
        self._statistics()

    def _sow_delete(self) -> None:
        self._step(Deleted(self._request))
        self._end()
        self._statistics()

    def _sow_and_subscribe(self) -> None:
        self._sow()
        self._desk.add(self._subscription())

    def _subscribe(self) -> None:
        after, stop = self._span()
        subscription = self._subscription()
        reached = self._desk.newest if stop is None else stop
        if after < reached:
            self._step(LogDelivered((subscription,), after, reached))
            self._desk.changed = True
        if self._request.bookmark is not None:
            self._end(queries.bookmark(reached, self._request.topic))
        if stop is None:
            self._desk.add(subscription)
        else:
            # what it replaces ends with it
            self._desk.drop(self._request.client, self._request.sub_id)

    # -- parts of them -----------------------------------------------------------------------------------------------

    def _span(self) -> LogSpan:
        newest = self._desk.newest
        bookmark = self._request.bookmark
        return LogSpan(newest) if bookmark is None else queries.span(bookmark, self._request.topic, newest)

    def _subscription(self) -> LogSubscription:
        request = self._request
        bookmarked = request.bookmark is not None and "persisted" in self._command.asked
        return LogSubscription(
            request.client,
            request.sub_id,
            self._command.cid,
            request.origin,
            request.topic,
            self._command.filter,
            bookmarked,
        )

    def _persisted(self, reason: str | None) -> None:
        seq = self._command.seq
        ack = CommandAck(
            ack_type="persisted",
            status=queries.status(reason),
            client=self._request.client,
            cid=self._command.cid if seq is None else None,
            first=seq,
            seq=seq,
            reason=reason,
        )
        if seq is None:
            self._tell(ack)
        else:
            self._desk.decide_deleted(Told(self._request.client, self._id(), ack))

    def _frame(self, word: Literal["group_begin", "group_end"]) -> None:
        self._step(Framed(self._request, self._id(), word))

    def _end(self, bookmark: str | None = None) -> None:
        for ack in queries.completed(self._command, bookmark):
            self._tell(ack, self._request.sub_id if "subscribe" in self._command.name else None)

    def _statistics(self) -> None:
        if "stats" in self._command.asked:
            self._step(Counted(self._request, self._id()))

    def _tell(self, ack: CommandAck, sub_id: str | None = None) -> None:
        named = msgspec.structs.replace(ack, client=self._request.client, sub_id=sub_id)
        self._step(Told(self._request.client, self._id(), named))

    def _step(self, step: Step) -> None:
        self._desk.steps.append(step)

    def _id(self) -> str:
        self._count += 1
        return f"{self._request.origin}/{self._count}"
