"""Records of the topic ``messages`` as Spark frames: their headers as columns, and the rows to append to the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.lake.schemas import MESSAGES
from ackstream.protocol import record_headers
from ackstream.spark import batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from ackstream.jobs.persist.publishers import RejectedRecord


HEADER_COLUMNS = {
    "client": record_headers.CLIENT,
    "seq": record_headers.SEQ,
    "command": record_headers.COMMAND,
    "cid": record_headers.CID,
    "ack": record_headers.ACK,
    "subject": record_headers.TOPIC,
    "ttl": record_headers.TTL,
    "first": record_headers.FIRST,
    "conflation": record_headers.ACK_CONFLATION,
}
"""The record header of each column."""

_REJECTED = pa.schema(
    [("rejected_partition", pa.int32()), ("rejected_offset", pa.int64()), ("rejected_reason", pa.string())]
)


def with_headers(frame: DataFrame) -> DataFrame:
    """Give each of the service's headers a column; the application's own remain in ``headers``."""
    found = {name: F.col("found")[header] for name, header in {**HEADER_COLUMNS, "key": record_headers.KEY}.items()}
    service = sorted(record_headers.PUBLISHER)
    count = sum((F.col("found")[name].isNotNull().cast("int") for name in service), F.lit(0))
    own = F.transform(
        F.filter("headers", lambda header: ~header["key"].isin(service)),
        lambda header: F.struct(header["key"].alias("name"), header["value"].alias("value")),
    )
    # functions over arrays are slow: only records with headers of their own pay for them
    others = F.when(F.size("headers") > count, own)
    texts = {name: F.make_valid_utf8(value.cast("string")) for name, value in found.items() if name != "key"}
    return frame.withColumn("found", F.map_from_entries("headers")).select(
        *("topic", "partition", "offset", "timestamp", "value"),
        found["key"].alias("key"),
        others.alias("headers"),
        *[value.alias(name) for name, value in texts.items()],
    )


def metadata_table(records: DataFrame) -> pa.Table:
    """Bring the records to the driver without their values, in the columns of ``MessageMetadata``."""
    return records.select(
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp"),
        F.coalesce(F.length("value"), F.lit(0)).alias("size"),
        *[F.col(name).alias("topic" if name == "subject" else name) for name in HEADER_COLUMNS],
    ).toArrow()


def message_rows(records: DataFrame, rejected: Sequence[RejectedRecord], query_id: str, batch: int) -> DataFrame:
    """Return the rows to append to ``messages``: rejected ones with their reason; commands and duplicates dropped."""
    own = {
        "received_at": F.col("timestamp"),
        "query_id": F.lit(query_id),
        "batch": F.lit(batch).cast("long"),
        "seq": F.expr("try_cast(seq AS BIGINT)"),
        "ttl_ms": F.expr("try_cast(ttl AS BIGINT)"),
        "day": F.to_date("timestamp"),
    }
    return _with_reasons(records, rejected).withColumns(own).select(*MESSAGES.fieldNames())


def _with_reasons(records: DataFrame, rejected: Sequence[RejectedRecord]) -> DataFrame:
    if not rejected:
        return records.withColumn("reason", F.lit(None).cast("string"))
    known = F.broadcast(records.sparkSession.createDataFrame(batches.arrow(rejected, _REJECTED)))
    same = (F.col("partition") == F.col("rejected_partition")) & (F.col("offset") == F.col("rejected_offset"))
    joined = records.join(known, same, "left").withColumn("reason", F.col("rejected_reason"))
    return joined.where(F.col("rejected_offset").isNull() | F.col("reason").isNotNull())
