"""The state of a publisher: decided numbers, sessions, records read; and its table, from which a batch starts."""

from collections.abc import Iterable

import msgspec
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.window import Window

from ackstream.lake import commits, tables
from ackstream.protocol import messages as rules
from ackstream.protocol.durations import read_duration
from ackstream.protocol.intervals import Interval
from ackstream.settings import Settings

MAX_CONFLATION_MS = 60_000
"""The longest interval that is granted: acks that wait are sent again after a crash, so they must not wait forever."""


class PublisherState(msgspec.Struct):
    """State of a publisher between batches; the fields are the JSON in the table ``publishers``.

    :ivar watermark: the number up to which all are decided
    :ivar begins: the first number announced by the last logon; it takes effect with the next message
    :ivar held: runs of decided, unacknowledged numbers behind a hole; ``absent`` runs of them are not in the table,
        those ``asked`` have a requested acknowledgement, those ``withdrawn`` will never arrive
    :ivar refused: reasons of rejections, by number; up to ``unknown_through`` some may have been forgotten
    :ivar flushes: pending flush commands: the number each waits for, and its command id; ``completing`` are the ids of
        those that requested ``completed``, too
    :ivar stored: bytes stored on the UTC ``day``, counted from 1970
    :ivar session: that of the newest logon, empty if it named none; it ``began`` in epoch milliseconds
    :ivar superseded: earlier ones, whose messages are no longer accepted
    :ivar read: by partition: the last record that was read, its offset and the latest timestamp
    :ivar conflation: the interval of its merged acks, in milliseconds, as requested by its last logon
    :ivar window: its publish window, in messages; 0: its logon named none
    :ivar single: of ``held``: numbers whose ack is not merged, with their command ids
    :ivar takeovers: by change of the store, the newest last: the store (empty: none), the session that began with it,
        and the watermark before it
    :ivar sessions: of ``held``: the sessions of the messages
    """

    watermark: int = 0
    highest: int = -1
    begins: int = 0
    held: list[Interval] = []
    absent: list[Interval] = []
    refused: dict[int, str] = {}
    unknown_through: int = msgspec.field(default=-1, name="doubt")
    asked: list[Interval] = []
    flushes: list[tuple[int, str | None]] = []
    day: int = 0
    stored: int = 0
    withdrawn: list[Interval] = []
    session: str = ""
    superseded: list[str] = []
    read: dict[int, tuple[int, int]] = {}
    began: int = 0
    conflation: int = rules.CONFLATION_MS
    window: int = 0
    single: dict[int, str] = {}
    sessions: list[rules.SessionRun] = []
    takeovers: list[tuple[str, str, int]] = []
    completing: list[str | None] = []

    def was_read(self, partition: int, offset: int, timestamp: int) -> bool:
        """Return whether a record was read before, as all are that a new checkpoint begins with: it has its answer."""
        # a re-created topic has the same offsets again, but not the same times
        last, newest = self.read.get(partition, (-1, -1))
        return offset <= last and timestamp <= newest

    def note(self, partition: int, offset: int, timestamp: int) -> None:
        """Note the last record that was read."""
        self.read[partition] = (offset, max(timestamp, self.read.get(partition, (-1, -1))[1]))

    def begin_session(self, session: str | None, partition: int) -> bool:
        """Begin the session that a logon names, which supersedes all before it; return whether it is the latest."""
        # A later one may have been read before, from another partition. As everywhere, a record counts with the latest
        # time of its partition (that of the logon is noted already): a clock that was set back makes no logon earlier
        # than the one before.
        text = (session or "")[: rules.MAX_SESSION_CHARACTERS]
        _, at = self.read[partition]
        latest = at >= self.began or "" in (text, self.session)
        over = text
        if latest:
            over, self.session, self.began = self.session, text, at
        known = dict.fromkeys((*self.superseded, over))
        self.superseded = [one for one in known if one not in ("", self.session)][-rules.MAX_SESSIONS :]
        return latest

    def take_over(self, store: str | None, watermark: int) -> None:
        """Note the store of the present session; without one it keeps nothing of the session before."""
        name = (store or "")[: rules.MAX_SESSION_CHARACTERS]
        if not self.takeovers or self.takeovers[-1][0] != name:
            self.takeovers = [*self.takeovers, (name, self.session, watermark)][-rules.MAX_SESSIONS :]

    def agree(self, conflation: str | None, window: str | None, floor_ms: int) -> int | None:
        """Apply the interval and the window that a logon names; return the interval in force if it changes."""
        # ``floor_ms`` is the shortest interval
        wanted = read_duration(conflation or "")
        self.conflation = rules.CONFLATION_MS if wanted is None else min(wanted, MAX_CONFLATION_MS)
        self.window = rules.read_number(window) or 0
        granted = max(self.conflation, floor_ms)
        return None if conflation is None or wanted == granted else granted

    def is_superseded(self, session: str | None) -> bool:
        """Return whether a later publisher of the name has logged on: its numbers count, no longer this one's."""
        return session is not None and session[: rules.MAX_SESSION_CHARACTERS] in self.superseded


TABLES = ("publishers", "messages")
"""The tables of persist, which number their batches alike."""

DAYS_IN_MEMORY = 1
"""A publisher that stored nothing today or for this many days before is forgotten until it sends again."""

_decode = msgspec.json.Decoder(PublisherState).decode


class StoredStates:
    """The publishers' states in the table.

    :ivar first: the query's first batch, after those of other checkpoints
    :ivar interrupted: the last of those, if it has states without messages: it does not count, and is read again
    """

    def __init__(self, spark: SparkSession, settings: Settings, query_id: str | None) -> None:
        """Find out where the batches of other checkpoints end; ``query_id`` ``None``: it has no rows yet."""
        self.complete = True
        """Whether all clients of the table were in the result of :meth:`before` for all."""
        self._spark, self._lake = spark, settings.lake
        publishers, messages = (tables.read(spark, self._lake, name) for name in TABLES)
        own = F.lit(False) if query_id is None else F.col("query_id") == query_id  # noqa: FBT003 - Spark's way
        batch = F.col("batch")
        last, begin = publishers.agg(F.max(F.when(~own, batch)), F.min(F.when(own, batch))).collect()[0]
        last = -1 if last is None else last
        # no more than the files in between are read
        behind = messages.where(~own & (batch >= last) & (batch < F.lit(rules.MAX_NUMBER if begin is None else begin)))
        newest = tables.newest_batch(behind)
        # rows may have been erased, so the versions of the appends count; the rows in a table copied without versions
        following, _ = tables.first_and_newest(tables.newest_versions(spark, self._lake, TABLES), query_id or "")
        self.first = max(following, last + 1, newest + 1)
        self.interrupted = last if newest < last else None
        self._whole = own | (batch < (last + 1 if newest >= last else last))

    def before(self, batch_id: int, clients: Iterable[str] | None = None) -> dict[str, PublisherState]:
        """Return the states before a batch of this query; ``clients`` ``None``: all with recently stored messages."""
        rows = tables.read(self._spark, self._lake, "publishers").where(self._whole)
        rows = rows.where(F.col("batch") < self.first + batch_id)
        if clients is not None:
            rows = rows.where(F.col("client").isin(*sorted(clients)))
        states = rows.groupBy("client").agg(F.max_by("state", "batch").alias("state"))
        if clients is None:
            day = F.coalesce(F.get_json_object("state", "$.day").cast("long"), F.lit(0))
            newest, count = states.agg(F.max(day), F.count("client")).collect()[0]
            states = states.where(day >= (newest or 0) - DAYS_IN_MEMORY)
        found = {client: _decode(state) for client, state in states.collect()}
        if clients is None:
            self.complete = len(found) == count
        return found

    def prune(self) -> None:
        """Remove the rows that no batch is ever restored from again; the table grows by a row per client and batch."""
        # The newest batch may be replayed: it starts from the newest row of each client before it. The first and last
        # row of each query mark where its batches begin and end; acks that wait for destinations have yet to be sent.
        rows = tables.read(self._spark, self._lake, "publishers")
        newest, told = rows.agg(F.max("batch"), F.max("told")).collect()[0]
        if newest is None:
            return
        by_client, by_query = (Window.partitionBy(column) for column in ("client", "query_id"))
        batch = F.col("batch")
        old = (
            rows.where(batch < newest)
            .withColumn("begin", F.min("batch").over(by_query))
            .withColumn("end", F.max("batch").over(by_query))
            # a batch that was never whole has no later state, and its rows stay as a mark
            .where(self._whole)
            .withColumn("later", F.max("batch").over(by_client))
            .where((batch < F.col("later")) & (batch > F.col("begin")) & (batch < F.col("end")))
            .where(F.col("acks").isNull() | (batch <= F.lit(told)))
            .select("client", "batch")
        )
        table = DeltaTable.forPath(self._spark, tables.location(self._lake, "publishers")).alias("row")
        same = "row.client = old.client AND row.batch = old.batch"
        # maintenance may be compacting the table
        commits.retried(lambda: table.merge(old.alias("old"), same).whenMatchedDelete().execute())
