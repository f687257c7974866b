"""What one command does: its acknowledgements and the steps between them (brokers.md 1.1 A18 to A27, 1.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import msgspec

from ackstream.jobs.query.plan import (
    Acknowledged,
    Counted,
    Deleted,
    GroupMark,
    LogDelivered,
    LogSubscription,
    Selected,
    Step,
)
from ackstream.jobs.query.requests import INVALID_TOPIC, WITH_TOPIC
from ackstream.protocol import messages, queries
from ackstream.protocol.dispositions import NOT_ENTITLED
from ackstream.protocol.messages import CommandAck
from ackstream.protocol.patterns import matches_any
from ackstream.protocol.queries import INVALID_BOOKMARK, TOO_MANY, BookmarkSyntaxError, LogSpan
from ackstream.settings import Query

if TYPE_CHECKING:
    from ackstream.jobs.query.plan import SubscriptionPlan
    from ackstream.jobs.query.requests import QueryRequest

EXISTS, LOGON_REQUIRED = "subscription already exists", "logon required"


def execute(plan: SubscriptionPlan, request: QueryRequest, limits: Query, topics: tuple[str, ...] = ()) -> None:
    """Add the steps of a command to a plan, or the acknowledgements that reject it.

    :param limits: who may do what, and the minimum time between bookmarks, whatever a client requests
    :param topics: patterns of the topics that exist; any if empty
    """
    _Execution(plan, request).run(limits, topics)


def refuse(plan: SubscriptionPlan, request: QueryRequest, reason: str) -> None:
    """Add the acknowledgements that reject a command to a plan; its client must learn of it."""
    asked = request.command.asked | {"processed"}
    _Execution(plan, replace(request, command=replace(request.command, asked=asked), reason=reason)).run(Query(), ())


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
        if name in ("subscribe", "sow_and_subscribe"):
            return self._conflict_of_subscription()
        if self._is_beat and not self._plan.knows(request.client):
            # its subscriptions ended with its session
            return LOGON_REQUIRED
        return None

    def _conflict_of_subscription(self) -> str | None:
        if self._plan.find(self._request.client, self._request.sub_id):
            if "replace" not in self._request.options:
                return EXISTS
        elif not self._plan.has_room(self._request.client):
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
            self._add(Selected(self._request))
        self._mark("group_end")
        self._complete(bookmark)
        self._statistics()

    def _sow_delete(self) -> None:
        self._add(Deleted(self._request))
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
            self._add(LogDelivered((subscription,), after, reached))
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

    def _subscription(self) -> LogSubscription:
        request, command = self._request, self._command
        bookmarked = request.bookmark is not None and "persisted" in command.asked
        return LogSubscription(
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
        self._add(GroupMark(self._request, self._id(), mark))

    def _complete(self, bookmark: str | None = None) -> None:
        for ack in messages.completed(self._command, bookmark):
            self._acknowledge(ack, self._request.sub_id if "subscribe" in self._command.name else None)

    def _statistics(self) -> None:
        if "stats" in self._command.asked:
            self._add(Counted(self._request, self._id()))

    def _acknowledge(self, ack: CommandAck, sub_id: str | None = None) -> None:
        self._add(self._addressed(ack, sub_id))

    def _addressed(self, ack: CommandAck, sub_id: str | None = None) -> Acknowledged:
        return Acknowledged(self._id(), msgspec.structs.replace(ack, client=self._request.client, sub_id=sub_id))

    def _add(self, step: Step) -> None:
        self._plan.steps.append(step)

    def _id(self) -> str:
        self._count += 1
        return f"{self._request.origin}/{self._count}"
