"""The open requests of a checkpoint, for those who ask what is awaited."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ackstream.errors import AckstreamError
from ackstream.jobs.correlate.job import NAME
from ackstream.jobs.correlate.pending import whole
from ackstream.jobs.correlate.state import decode_pending, decode_state
from ackstream.spark.pieces import Aside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackstream.settings import Settings


class InFlight(msgspec.Struct, frozen=True):
    """An open request; times in epoch milliseconds of event time.

    ``missing`` are the labels not acknowledged yet; empty if only the response is awaited.
    """

    correlation_id: str
    thing_id: str | None
    started_at: int
    deadline: int
    missing: tuple[str, ...]


ATTEMPTS = 4


def inflight(spark: SparkSession, settings: Settings) -> list[InFlight]:
    """Read the open requests of the last finished batch from the checkpoint, oldest first; the job may be running.

    :raises AckstreamError: if there is no checkpoint yet
    """
    for _ in range(ATTEMPTS - 1):
        # a job in a hurry deletes what the state names once that is many batches old: a newer one names what is there
        with suppress(OSError):
            return _read(spark, settings)
    return _read(spark, settings)


def _read(spark: SparkSession, settings: Settings) -> list[InFlight]:
    location = settings.lake.checkpoint(NAME)
    # the reader needs the state stores' coordinator, which starts when the streams of a session are first accessed
    _ = spark.streams.active
    try:
        rows = spark.read.format("statestore").load(location).select("key.shard", "value.*").collect()
    except Exception as error:
        raise AckstreamError(
            f"No state can be read at {location}: start the correlate job first, or correct lake.checkpoints. ({error})"
        ) from error
    aside, opened = Aside.of(spark, location), list[bytes]()
    for row in rows:
        state = row.asDict(recursive=True)
        group = state.get("groupState") or state
        shard = whole(decode_state(group["version"], bytes(group["blob"])), aside.store(state["shard"]))
        opened += shard.open.values()
    found = []
    for pending in map(decode_pending, opened):
        request, arrived = pending.request, {received.label for received in pending.received}
        missing = tuple(label for label in request.awaited if label not in arrived)
        found.append(InFlight(pending.correlation_id, request.thing_id, pending.started_at, pending.deadline, missing))
    return sorted(found, key=lambda entry: (entry.started_at, entry.correlation_id))
