"""Results of commands: the steps of a batch, which become records for ``query-results``; few rows pass the driver.

The key of a record is the client's name. Its header ``command`` names its kind: ``ack`` (the value is the
acknowledgement as JSON), ``group_begin`` and ``group_end`` around ``sow`` (a record), ``publish`` (a message). The
other headers are ``id`` (the same for a replayed batch), ``cid``, ``sub_id``, and of messages ``bookmark``,
``topic``, ``key``, ``client``, ``timestamp``; those of the application begin with ``header-``.
"""

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.query.filters import as_number, field, fits
from ackstream.jobs.query.records import QueryRequest
from ackstream.lake import messages as lake_messages
from ackstream.lake.messages import POSITION, Moment, Tail
from ackstream.protocol import queries, record_headers
from ackstream.protocol.messages import CommandAck, encode_ack
from ackstream.protocol.queries import Position
from ackstream.settings import Lake
from ackstream.spark.kafka import HEADER, application_headers, copy_limit, fitting, header_entry, json_text

_encode = msgspec.json.Encoder().encode

_ORDER = ("step", "rank", *POSITION)
_RESULTS = pa.schema(
    [(name, pa.int64()) for name in _ORDER]
    + [("key", pa.string()), ("value", pa.binary()), ("headers", pa.list_(HEADER))]
)
_SUBSCRIBER = ("to", "cid", "sub_id", "origin", "tag")
_SUBSCRIBERS = f"ARRAY<STRUCT<{', '.join(f'`{name}`: STRING' for name in _SUBSCRIBER)}>>"


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


class LogSubscription(msgspec.Struct):
    """A subscription to new messages; the fields are the JSON in the table ``subscriptions``."""

    client: str
    sub_id: str
    cid: str | None
    origin: str
    topic: str
    filter: str | None = None
    bookmarked: bool = False
    acknowledged_through: int = msgspec.field(default=-1, name="told")
    """The last batch whose bookmark was sent; the next one may be sent when it is ``due``, epoch milliseconds."""
    due: int = 0


class LogDelivered(NamedTuple):
    """The messages after one position, up to and including another, to the subscriptions that they match."""

    subscriptions: tuple[LogSubscription, ...]
    after: Position
    upto: Position


Step: TypeAlias = "Acknowledged | GroupMark | Selected | Counted | Deleted | LogDelivered"


def records(
    spark: SparkSession, lake: Lake, tail: Tail, steps: Sequence[Step], newest: int, start: Moment
) -> DataFrame:
    """Return the records of the steps, in order: key, value, headers; ``start`` is the position of the first step."""
    # ``tail``: of the table messages; ``steps``: without Counted, which the job has turned into acknowledgements
    parts = []
    for number, step in enumerate(steps):
        if isinstance(step, Selected):
            found = selected(spark, lake, step.request, newest, start.after(number))
            parts.append(_records(found, step.request, number))
        elif isinstance(step, LogDelivered):
            parts.append(_messages(tail, step, number))
    marks = _marks(steps)
    if marks.num_rows or not parts:
        parts.append(spark.createDataFrame(marks))
    whole = reduce(lambda one, other: one.unionByName(other), parts)
    # one task keeps each client's records in order
    return whole.coalesce(1).sortWithinPartitions(*_ORDER).select("key", "value", "headers")


def selected(spark: SparkSession, lake: Lake, request: QueryRequest, newest: int, moment: Moment) -> DataFrame:
    """Return the records of the state of the world that a command selects."""
    world = _with_text(lake_messages.world(spark, lake, request.topic, newest, moment))
    return world.where(condition(spark, request))


def counted(spark: SparkSession, lake: Lake, request: QueryRequest, newest: int, moment: Moment) -> tuple[int, int]:
    """Return the number of records in a command's topic, and of those that it selects."""
    topic = _with_text(lake_messages.world(spark, lake, request.topic, newest, moment))
    row = topic.select(condition(spark, request).alias("fits")).agg(F.count(F.lit(1)), F.count_if("fits")).collect()[0]
    return row[0], row[1]


def condition(spark: SparkSession, request: QueryRequest) -> Column:
    """Return the condition of a command, over the columns ``value`` (text) and ``key``."""
    if request.keys:
        return F.col("key").isin([key.encode() for key in request.keys])
    return fits(spark.sparkContext, request.command.filter)


def _marks(steps: Sequence[Step]) -> pa.Table:
    """Return the records of the steps that have no message."""
    rows: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        place = {**dict.fromkeys(_ORDER, 0), "step": number}
        if isinstance(step, Acknowledged):
            headers = _headers("ack", step.id, step.ack.cid, step.ack.sub_id)
            rows.append({**place, "key": step.ack.client, "value": encode_ack(step.ack), "headers": headers})
        elif isinstance(step, GroupMark):
            headers = _headers(step.mark, step.id, step.request.command.cid, None)
            rows.append({**place, "key": step.request.client, "value": None, "headers": headers})
    return pa.Table.from_pylist(rows, schema=_RESULTS)


def _headers(*values: str | None) -> list[dict[str, Any]]:
    """Return the headers that identify a result; those without a value are left out."""
    names = (record_headers.COMMAND, record_headers.ID, record_headers.CID, record_headers.SUB_ID)
    given = zip(names, values, strict=True)
    return [{"key": name, "value": value.encode()} for name, value in given if value is not None]


def _records(found: DataFrame, request: QueryRequest, number: int) -> DataFrame:
    order = [column for path, down in request.order_by for column in _ordered(path, descending=down)]
    ranked = found.withColumn("rank", F.row_number().over(Window.orderBy(*order, *POSITION)))
    if request.command.top_n is not None:
        ranked = ranked.where(F.col("rank") <= request.command.top_n)
    receiver = _receiver(request.client, request.command.cid, None, request.origin, request.topic)
    own = {name: F.lit(value).cast("string") for name, value in receiver.items()}
    return _addressed(ranked.withColumns(own), "sow", number)


def _receiver(client: str, cid: str | None, sub_id: str | None, origin: str, topic: str) -> dict[str, str | None]:
    return dict(zip(_SUBSCRIBER, (client, cid, sub_id, origin, queries.tag(topic)), strict=True))


def _ordered(path: Sequence[str], *, descending: bool) -> list[Column]:
    """Order by a field: first numbers, by value, then texts; records without the field come last."""
    text = field(path)
    keys = [as_number(text), text]
    return [key.desc_nulls_last() if descending else key.asc_nulls_last() for key in keys]


def _messages(tail: Tail, step: LogDelivered, number: int) -> DataFrame:
    """Match messages once for all subscriptions with the same topic and filter."""
    wanted: dict[tuple[str, str | None], list[dict[str, str | None]]] = {}
    for one in step.subscriptions:
        receiver = _receiver(one.client, one.cid, one.sub_id, one.origin, one.topic)
        wanted.setdefault((one.topic, one.filter), []).append(receiver)
    found = lake_messages.between(tail, {topic for topic, _ in wanted}, step.after, step.upto)
    receivers = tuple((*what, _encode(who).decode()) for what, who in wanted.items())
    messages = _with_text(found).withColumn("for", _receivers(found.sparkSession.sparkContext, receivers))
    return _addressed(messages.select("*", "for.*"), "publish", number)


@lru_cache(maxsize=64)
def _receivers(context: SparkContext, wanted: tuple[tuple[str, str | None, str], ...]) -> Column:
    """Return a message's receivers one by one; kept: subscriptions last, and each part of it is a call to the JVM."""
    # ``wanted``: topic, filter, and the receivers of matching messages, as JSON

    # the subscribers are a constant: no join
    matching = [
        F.when((F.col("subject") == topic) & fits(context, text), F.from_json(F.lit(who), _SUBSCRIBERS))
        for topic, text, who in wanted
    ]
    return F.explode(F.flatten(F.array_compact(F.array(*matching))))


def _with_text(messages: DataFrame) -> DataFrame:
    return messages.withColumn("body", F.col("value")).withColumn("value", json_text())


def _addressed(messages: DataFrame, command: str, number: int) -> DataFrame:
    """Turn messages into records; the columns to, cid, sub_id, origin and tag give their receivers, and ``rank``."""
    spark = messages.sparkSession
    return messages.select(
        F.lit(number).cast("long").alias("step"), *_laid_out(spark.sparkContext, command, copy_limit(spark))
    )


@lru_cache(maxsize=8)
def _laid_out(_context: SparkContext, command: str, limit: int) -> tuple[Column, ...]:
    """Return the columns of a message's record after its step; kept, as in :func:`_receivers`."""
    place = F.concat_ws("|", *POSITION)
    values = {
        record_headers.COMMAND: F.lit(command),
        record_headers.ID: F.concat_ws("/", "origin", place),
        record_headers.CID: F.col("cid"),
        record_headers.SUB_ID: F.col("sub_id"),
        record_headers.BOOKMARK: F.concat_ws("|", place, "tag"),
        record_headers.TOPIC: F.col("subject"),
        record_headers.CLIENT: F.col("client"),
        record_headers.TIMESTAMP: F.unix_millis("received_at").cast("string"),
    }
    key = F.when(F.col("key").isNotNull(), F.array(header_entry(record_headers.KEY, F.col("key"))))
    copied = F.concat(application_headers("headers", record_headers.APPLICATION), F.coalesce(key, F.array()))
    value, headers = fitting(limit, F.col("body"), copied, values)
    rank = F.col("rank") if command == "sow" else F.lit(0)
    return (
        rank.cast("long").alias("rank"),
        *map(F.col, POSITION),
        F.col("to").alias("key"),
        value.alias("value"),
        headers.alias("headers"),
    )
