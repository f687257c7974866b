"""Open requests, read from the checkpoint with Spark's state reader, whether or not the job is running."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ackstream.errors import AckstreamError
from ackstream.jobs.correlate.state import open_requests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackstream.settings import Settings


class InFlight(msgspec.Struct, frozen=True):
    """An open request; times in epoch milliseconds of event time."""

    correlation_id: str
    thing_id: str | None
    started_at: int
    deadline: int
    missing: tuple[str, ...]


def inflight(spark: SparkSession, settings: Settings) -> list[InFlight]:
    """Read the open requests as of the last finished batch, oldest first.

    ``missing`` are the labels not acknowledged yet; empty if only the response is awaited.

    :raises AckstreamError: if there is no checkpoint yet
    """
    location = settings.lake.checkpoint("correlate")
    # the reader needs the state stores' coordinator, which starts when the streams of a session are first accessed
    _ = spark.streams.active
    try:
        rows = spark.read.format("statestore").load(location).selectExpr("value.*").collect()
    except Exception as error:
        raise AckstreamError(
            f"No state can be read at {location}: start the correlate job first, or correct lake.checkpoints. ({error})"
        ) from error
    found = []
    for row in rows:
        state = row.asDict(recursive=True)
        group = state.get("groupState") or state
        for entry in open_requests(group["version"], bytes(group["blob"])):
            taken = {received.label for received in entry.received}
            missing = tuple(label for label in entry.request.awaited if label not in taken)
            found.append(
                InFlight(entry.correlation_id, entry.request.thing_id, entry.started_at, entry.deadline, missing)
            )
    return sorted(found, key=lambda entry: (entry.started_at, entry.correlation_id))
