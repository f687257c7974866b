"""The join as Spark's documentation leads one to write it: applyInPandasWithState, one group a correlation-id.

It answers complete requests and those whose timeout has passed; it keeps no ledger, checks nothing and remembers no
decided request, so it does less than correlate.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.state import GroupState

    from ackstream.settings import Settings

TIMEOUT_MS = 60_000


def start(spark: SparkSession, settings: Settings, target: str, max_offsets: int) -> StreamingQuery:
    """Join signals and acks; replies go to the topic ``target``."""
    kafka = settings.kafka
    spark.conf.set("spark.sql.shuffle.partitions", str(settings.correlate.shuffle_partitions))
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", f"{kafka.topic('signals')},{kafka.topic('acks')}")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max_offsets)
        .option("kafka.fetch.max.wait.ms", "5")
        .load()
    )
    value = F.col("value").cast("string")
    key = F.get_json_object(value, "$.headers.correlation-id")
    return (
        records.select(key.alias("correlation_id"), value.alias("text"))
        .groupBy("correlation_id")
        .applyInPandasWithState(
            join, "key string, value string", "request string, acks string", "append", "ProcessingTimeTimeout"
        )
        .select(F.lit(target).alias("topic"), "key", "value")
        .writeStream.format("kafka")
        .queryName("per-key")
        .outputMode("append")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("kafka.linger.ms", "5")
        .option("checkpointLocation", settings.lake.checkpoint("per-key"))
        .start()
    )


def join(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Collect the acknowledgements of one request; answer it when all are there, or when its time is over."""
    request_text, acks_text = state.get if state.exists else (None, "{}")
    request: dict[str, Any] | None = json.loads(request_text) if request_text else None
    acks: dict[str, Any] = json.loads(acks_text)
    if not state.hasTimedOut:
        for frame in frames:
            for text in frame["text"]:
                message = json.loads(text)
                criterion, _, label = message["topic"].split("/", 4)[4].partition("/")
                if criterion == "acks":
                    acks.setdefault(label, {name: message.get(name) for name in ("status", "value", "headers")})
                else:
                    request = message
    requested = request["headers"]["requested-acks"] if request else []
    if request and (state.hasTimedOut or all(label in acks for label in requested)):
        if state.exists:
            state.remove()
        yield pd.DataFrame({"key": [key[0]], "value": [json.dumps(reply(request, acks))]})
    elif state.hasTimedOut:
        state.remove()
    else:
        state.update((json.dumps(request) if request else None, json.dumps(acks)))
        state.setTimeoutDuration(TIMEOUT_MS)


def reply(request: dict[str, Any], acks: dict[str, Any]) -> dict[str, Any]:
    """Aggregate: a missing acknowledgement is a 408."""
    entries = {label: acks.get(label, {"status": 408}) for label in request["headers"]["requested-acks"]}
    namespace, name, _ = request["topic"].split("/", 2)
    good = all(200 <= entry["status"] < 300 for entry in entries.values())
    return {
        "topic": f"{namespace}/{name}/things/twin/acks",
        "headers": {**request["headers"], "response-required": False, "content-type": "application/json"},
        "path": "/",
        "value": entries,
        "status": 200 if good else 424,
    }
