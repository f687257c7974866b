"""Hands a table over between Spark jobs: one writes it, and ends when the others have loaded it, or names who has not.

``handover.py SETTINGS write TOPIC TABLES NAME TIMEOUT LABEL…`` writes, asks, and waits for the outcome. It exits with 0
if all have loaded the table, with 1 if the outcome is another one, and with 2 if there is none.
``handover.py SETTINGS load TOPIC LABEL COPIES CHECKPOINT`` loads each table that waits, then acknowledges it, and ends.
"""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import SparkSession

from ackstream.client import RequestTimeout
from ackstream.dataframe import acknowledge, register
from ackstream.kafka.clients import spark_options
from ackstream.settings import load as load_settings
from ackstream.settings.base import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

GRACE = 120.0
"""Seconds to wait for the outcome after the timeout: correlate may lag."""
DAY = 86_400.0


def write(spark: SparkSession, settings: str, topic: str, tables: str, name: str, timeout: str, *labels: str) -> Row:
    """Write a table, ask the parties whether they have loaded it, and return the outcome.

    Until the timeout of a request has passed, another call under its name writes nothing once the outcome is known, and
    returns the same one. Later calls ask anew, as ``NAME.2``, ``NAME.3``, … ``RequestTimeout``: there is no outcome.
    """
    register(spark)
    seconds = milliseconds(timeout) / 1000
    ids = [name, *(f"{name}.{number}" for number in range(2, 100))]
    # older requests are forgotten, so that their correlation-ids may be used again
    since = datetime.fromtimestamp(time() - 2 * seconds - DAY, timezone.utc).isoformat()
    options = {"settings": settings, "since": since}
    # the deadline of the other requests has passed
    current = f"unix_millis(started_at) > {round((time() - seconds) * 1000)}"
    known = spark.read.format("ackstream.outcomes").options(**options, correlation_id=",".join(ids)).load()
    known = known.selectExpr("*", f"{current} AS current").orderBy("decided_at").collect()
    # one that timed out had a shorter timeout than this call
    if found := [row for row in known if row.current and row.completed_by != "timeout"]:
        return found[-1]
    identity = next(one for one in ids if one not in {row.correlation_id for row in known})
    # a path of its own: parties may be reading that of an earlier call, whose request is open
    path = f"{tables}/{identity}-{uuid4().hex}"
    spark.range(1_000).selectExpr("id AS sale", "id * 3 AS cents").write.parquet(path)
    request = spark.createDataFrame([(identity, path)], "correlation_id string, value string")
    asking = request.write.format("ackstream").mode("append").option("settings", settings)
    asking.options(topic=topic, labels=",".join(labels), timeout=timeout).save()
    until = monotonic() + seconds + GRACE
    outcomes = spark.readStream.format("ackstream.outcomes").options(**options, correlation_id=identity).load()
    outcomes = outcomes.where(current)
    query = outcomes.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect())).start()
    # it raises the error of a query that fails
    while not found and not query.awaitTermination(1) and monotonic() < until:
        pass
    query.stop()
    if not found:
        raise RequestTimeout(
            f"No outcome of {identity} arrived within {seconds + GRACE:g} s (timeout and grace): check that the"
            f" correlate job runs and that correlate.request_topics allows {topic}. A party may have extended it, or"
            f" the correlation-id was used a moment ago: ackstream outcomes story {identity}",
            identity,
        )
    return found[0]


def load(spark: SparkSession, settings: str, topic: str, label: str, copies: str, checkpoint: str) -> None:
    """Load the tables of all requests since the last run, and acknowledge each batch once its tables are loaded."""
    kafka = load_settings(Path(settings)).kafka
    loaded = acknowledge(label, kafka=kafka)
    # the brokers and the login
    source = spark.readStream.format("kafka").options(**spark_options(kafka))
    requests = source.options(subscribe=topic, startingOffsets="earliest", includeHeaders="true").load()

    def take(batch: DataFrame, _: int) -> None:
        for row in batch.selectExpr("CAST(key AS STRING) AS name", "CAST(value AS STRING) AS path").collect():
            # overwrites: a batch that runs again, or a copy of a request, loads nothing twice
            spark.read.parquet(row.path).write.mode("overwrite").parquet(f"{copies}/{row.name}")
        loaded.after(batch)

    query = requests.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


def main(arguments: list[str]) -> None:
    """Run one of the two sides, and end the process with its status."""
    settings, action, *rest = arguments
    spark = SparkSession.builder.appName(f"handover-{action}").getOrCreate()
    if action == "load":
        load(spark, settings, *rest)
        return
    try:
        outcome = write(spark, settings, *rest)
    except RequestTimeout as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(2)
    print(outcome.status, outcome.completed_by, *outcome.missing)  # noqa: T201
    sys.exit(0 if outcome.status == 200 else 1)  # noqa: PLR2004


if __name__ == "__main__":
    main(sys.argv[1:])
