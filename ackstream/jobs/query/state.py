"""The state of the query job: sessions and subscriptions of its clients; and its table, from which a batch starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from delta.tables import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.lake import commits, messages, tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from ackstream.settings import Lake

SILENT_MS = 7 * 86_400_000
"""How long a client without a heartbeat may be silent: then its session and its subscriptions are forgotten."""


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


# -- the table ---------------------------------------------------------------------------------------------------------

encode_state = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(QueryState).decode


class Restored(NamedTuple):
    """The state before a batch.

    :ivar first: the number of the query's first batch: the batches of earlier checkpoints precede it
    :ivar known: the batch of the log up to which subscriptions have received everything
    :ivar newest: the last batch of the log; of a replayed batch the one that it has stored
    :ivar rows: how many rows the table has
    """

    state: QueryState
    first: int
    known: int
    newest: int
    rows: int
    replayed: bool


def restore(spark: SparkSession, lake: Lake, query_id: str, batch_id: int) -> Restored:
    """Return the state as it was before a batch of a query."""
    rows = tables.read(spark, lake, "subscriptions")
    last = rows.where(F.col("query_id") != query_id).agg(F.max("batch")).collect()[0][0]
    first = 0 if last is None else last + 1
    batch = first + batch_id
    before = rows.where(F.col("batch") < batch).orderBy(F.col("batch").desc()).limit(1).collect()
    own = rows.where(F.col("batch") == batch).collect()
    newest = own[0]["position"] if own else tables.newest_batch(tables.read(spark, lake, messages.TABLE))
    state = _decode(before[0]["state"]) if before else QueryState()
    known = before[0]["position"] if before else newest
    return Restored(state, first, known, newest, rows.count(), bool(own))


def prune(spark: SparkSession, lake: Lake) -> None:
    """Remove the states that no batch is ever restored from again; the table grows by a row per batch.

    The newest batch may be replayed: it starts from the state before. The last row of each query marks where its
    batches end.
    """
    table = DeltaTable.forPath(spark, tables.location(lake, "subscriptions"))
    rows = table.toDF().select("batch", "query_id")
    newest = [row.batch for row in rows.orderBy(F.col("batch").desc()).limit(2).collect()]
    ends = [row.end for row in rows.groupBy("query_id").agg(F.max("batch").alias("end")).collect()]
    # maintenance may be compacting the table
    commits.retried(lambda: table.delete((F.col("batch") < min(newest)) & ~F.col("batch").isin(ends)))
