"""Steps as records for the topic ``query-results``; what the tables hold goes there without passing the driver.

The key of a record is the client's name. Its header ``command`` says what it is: ``ack`` (the value is the
acknowledgement as JSON), ``group_begin`` and ``group_end`` around ``sow`` (a record), ``publish`` (a message). The
other headers are ``id`` (the same where a batch runs again), ``cid``, ``sub_id``, and of messages ``bookmark``,
``topic``, ``key``, ``client``, ``timestamp``; those of the application begin with ``header-``.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.jobs.query.plan import Framed, LogDelivered, Selected, Told
from ackstream.lake import messages as lake_messages
from ackstream.lake.messages import PLACE, Moment
from ackstream.protocol import filters, queries
from ackstream.protocol.filters import field
from ackstream.protocol.messages import encode_ack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from ackstream.jobs.query.plan import Step
    from ackstream.jobs.query.requests import QueryRequest
    from ackstream.settings import Lake

APPLICATION: Final = "header-"
"""Before the names of the application's own headers."""

_encode = msgspec.json.Encoder().encode

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_SPOKEN = pa.schema(
    [("step", pa.int64()), ("key", pa.string()), ("value", pa.binary()), ("headers", pa.list_(_HEADER))]
)
_SUBSCRIBER = ("to", "cid", "sub_id", "origin", "tag")
_SUBSCRIBERS = f"ARRAY<STRUCT<{', '.join(f'`{name}`: STRING' for name in _SUBSCRIBER)}>>"
_ORDER = ("step", "rank", *PLACE)


def records(spark: SparkSession, lake: Lake, steps: Sequence[Step], newest: int, batch: int) -> DataFrame:
    """Return what the steps have to say, in their order: key, value, headers.

    :param steps: without :class:`Counted`, which is told as an ack by whoever has counted
    :param newest: the last batch of the log
    :param batch: the number of the query's batch
    """
    parts = [_spoken(spark, steps)]
    for number, step in enumerate(steps):
        if isinstance(step, Selected):
            found = selected(spark, lake, step.request, newest, Moment(batch, number))
            parts.append(_records(found, step.request, number))
        elif isinstance(step, LogDelivered):
            parts.append(_messages(spark, lake, step, number))
    whole = reduce(lambda one, other: one.unionByName(other), parts)
    # one task: what concerns one client stays in order
    return whole.coalesce(1).sortWithinPartitions(*_ORDER).select("key", "value", "headers")


def selected(spark: SparkSession, lake: Lake, request: QueryRequest, newest: int, moment: Moment) -> DataFrame:
    """Return the records of the state of the world that a command is about."""
    return _with_text(lake_messages.world(spark, lake, request.topic, newest, moment)).where(condition(request))


def counted(spark: SparkSession, lake: Lake, request: QueryRequest, newest: int, moment: Moment) -> tuple[int, int]:
    """Return how many records there are in a command's topic, and how many of them it is about."""
    there = _with_text(lake_messages.world(spark, lake, request.topic, newest, moment))
    row = there.select(condition(request).alias("fits")).agg(F.count(F.lit(1)), F.count_if("fits")).collect()[0]
    return row[0], row[1]


def condition(request: QueryRequest) -> Column:
    """Return the condition of a command, over the columns ``value`` (text) and ``key``."""
    if request.keys:
        return F.col("key").isin([key.encode() for key in request.keys])
    text = request.command.filter
    return F.lit(True) if text is None else fits(text)  # noqa: FBT003 - Spark's way


def fits(text: str) -> Column:
    """Return a filter as a condition over the column ``value`` (text)."""
    selection = filters.read_filter(text)
    if isinstance(selection, str):
        return F.expr(selection).cast("boolean")
    found: Column = F.udf(lambda value: filters.fits_filter(selection, value), "boolean", useArrow=True)("value")
    return found


def _spoken(spark: SparkSession, steps: Sequence[Step]) -> DataFrame:
    said: list[tuple[int, str, bytes | None, list[dict[str, Any]]]] = []
    for number, step in enumerate(steps):
        if isinstance(step, Told):
            headers = _headers(command="ack", id=step.id, cid=step.ack.cid, sub_id=step.ack.sub_id)
            said.append((number, step.client, encode_ack(step.ack), headers))
        elif isinstance(step, Framed):
            headers = _headers(command=step.word, id=step.id, cid=step.request.command.cid)
            said.append((number, step.request.client, None, headers))
    columns: Any = zip(*said, strict=True) if said else [[]] * len(_SPOKEN)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _SPOKEN, strict=True)]
    nowhere = {name: F.lit(0).cast("long") for name in _ORDER if name != "step"}
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=_SPOKEN)).withColumns(nowhere)


def _headers(**said: str | None) -> list[dict[str, Any]]:
    return [{"key": name, "value": value.encode()} for name, value in said.items() if value is not None]


def _records(found: DataFrame, request: QueryRequest, number: int) -> DataFrame:
    order = [column for path, down in request.order_by for column in _ordered(path, descending=down)]
    ranked = found.withColumn("rank", F.row_number().over(Window.orderBy(*order, *PLACE)))
    if request.command.top_n is not None:
        ranked = ranked.where(F.col("rank") <= request.command.top_n)
    own = {
        "to": F.lit(request.client),
        "cid": F.lit(request.command.cid).cast("string"),
        "sub_id": F.lit(None).cast("string"),
        "origin": F.lit(request.origin),
        "tag": F.lit(queries.tag(request.topic)),
        "rank": F.col("rank").cast("long"),
    }
    return _addressed(ranked.withColumns(own), "sow", number)


def _ordered(path: Sequence[str], *, descending: bool) -> list[Column]:
    """Order by a field: numbers as such and first, then texts; what has no such field comes last."""
    keys = [F.expr(f"try_cast({field(path)} AS DOUBLE)"), F.expr(field(path))]
    return [key.desc_nulls_last() if descending else key.asc_nulls_last() for key in keys]


def _messages(spark: SparkSession, lake: Lake, step: LogDelivered, number: int) -> DataFrame:
    """Match messages once for all subscriptions that want the same."""
    wanted: dict[tuple[str, str | None], list[dict[str, str | None]]] = {}
    for one in step.subscriptions:
        whom = {
            "to": one.client,
            "cid": one.cid,
            "sub_id": one.sub_id,
            "origin": one.origin,
            "tag": queries.tag(one.topic),
        }
        wanted.setdefault((one.topic, one.filter), []).append(whom)
    found = lake_messages.between(spark, lake, {topic for topic, _ in wanted}, step.after, step.upto)
    # the subscribers are a constant: no join
    matching = [
        F.when(_matching(topic, text), F.from_json(F.lit(_encode(whom).decode()), _SUBSCRIBERS))
        for (topic, text), whom in wanted.items()
    ]
    messages = _with_text(found).withColumn("for", F.explode(F.flatten(F.array_compact(F.array(*matching)))))
    own = {name: F.col("for")[name] for name in _SUBSCRIBER}
    return _addressed(messages.withColumns({**own, "rank": F.lit(0).cast("long")}), "publish", number)


def _matching(topic: str, text: str | None) -> Column:
    of_topic = F.col("subject") == topic
    return of_topic if text is None else of_topic & fits(text)


def _with_text(messages: DataFrame) -> DataFrame:
    return messages.withColumn("body", F.col("value")).withColumn("value", F.col("value").cast("string"))


def _addressed(messages: DataFrame, command: str, number: int) -> DataFrame:
    """Make records of messages; the columns to, cid, sub_id, origin, tag and rank say whom they are for."""
    place = F.concat_ws("|", *PLACE)
    said = {
        "command": F.lit(command),
        "id": F.concat_ws("/", "origin", place),
        "cid": F.col("cid"),
        "sub_id": F.col("sub_id"),
        "bookmark": F.concat_ws("|", place, "tag"),
        "topic": F.col("subject"),
        "key": F.col("key"),
        "client": F.col("client"),
        "timestamp": F.unix_millis("received_at").cast("string"),
    }
    own = [F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in said.items()]
    given = F.filter(F.array(*own), lambda header: header["value"].isNotNull())
    application = F.transform(
        F.coalesce("headers", F.array()),
        lambda header: F.struct(
            F.concat(F.lit(APPLICATION), header["name"]).alias("key"), header["value"].alias("value")
        ),
    )
    return messages.select(
        F.lit(number).cast("long").alias("step"),
        "rank",
        *PLACE,
        F.col("to").alias("key"),
        F.col("body").alias("value"),
        F.concat(given, application).alias("headers"),
    )
