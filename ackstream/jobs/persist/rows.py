"""Records of the topic ``messages`` as Spark frames: their headers as columns, and the rows to append to the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.lake.schemas import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from ackstream.jobs.persist.account import RefusedRun


_HEADER_COLUMNS = {
    "client": "client", "seq": "seq", "command": "command", "cid": "cid", "ack": "ack", "subject": "topic",
    "ttl": "ttl", "first": "first", "conflation": "ack-conflation",
}  # fmt: skip
"""Columns, and the record headers they come from."""


_REFUSED = pa.schema(
    [("refused_partition", pa.int32()), ("refused_offset", pa.int64()), ("refused_reason", pa.string())]
)


def with_headers(frame: DataFrame) -> DataFrame:
    """Give each header that means something a column; the application's own remain in ``headers``."""
    found = {name: F.col("found")[header] for name, header in {**_HEADER_COLUMNS, "key": "key"}.items()}
    ours = [*_HEADER_COLUMNS.values(), "key"]
    count = sum((F.col("found")[name].isNotNull().cast("int") for name in ours), F.lit(0))
    own = F.transform(
        F.filter("headers", lambda header: ~header["key"].isin(ours)),
        lambda header: F.struct(header["key"].alias("name"), header["value"].alias("value")),
    )
    # functions over arrays are slow: they are for those records alone that have headers of their own
    others = F.when(F.size("headers") > count, own)
    texts = {name: F.make_valid_utf8(value.cast("string")) for name, value in found.items() if name != "key"}
    return frame.withColumn("found", F.map_from_entries("headers")).select(
        *("topic", "partition", "offset", "timestamp", "value"),
        found["key"].alias("key"),
        others.alias("headers"),
        *[value.alias(name) for name, value in texts.items()],
    )


def header_table(records: DataFrame) -> pa.Table:
    """Bring to the driver what records say besides their values, in the columns of ``facts.Fact``."""
    return records.select(
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp"),
        F.coalesce(F.length("value"), F.lit(0)).alias("size"),
        *[F.col(name).alias("topic" if name == "subject" else name) for name in _HEADER_COLUMNS],
    ).toArrow()


def message_rows(records: DataFrame, refused: Sequence[RefusedRun], query_id: str, batch: int) -> DataFrame:
    """Return the rows of the table ``messages``: what is no message, or there already, is none."""
    own = {
        "received_at": F.col("timestamp"),
        "query_id": F.lit(query_id),
        "batch": F.lit(batch).cast("long"),
        "seq": F.expr("try_cast(seq AS BIGINT)"),
        "ttl_ms": F.expr("try_cast(ttl AS BIGINT)"),
        "day": F.to_date("timestamp"),
    }
    return _judged(records, refused).withColumns(own).select(*MESSAGES.fieldNames())


def _judged(records: DataFrame, refused: Sequence[RefusedRun]) -> DataFrame:
    if not refused:
        return records.withColumn("reason", F.lit(None).cast("string"))
    columns = zip(*refused, strict=True)
    arrow = pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _REFUSED, strict=True)], schema=_REFUSED
    )
    known = F.broadcast(records.sparkSession.createDataFrame(arrow))
    same = (F.col("partition") == F.col("refused_partition")) & (F.col("offset") == F.col("refused_offset"))
    joined = records.join(known, same, "left").withColumn("reason", F.col("refused_reason"))
    return joined.where(F.col("refused_offset").isNull() | F.col("reason").isNotNull())
