"""Moves the checkpoint of a stopped job to other values of settings that are fixed under a checkpoint.

A special query writes the states to a new checkpoint, with the operator and the conf of the job. Then the offsets and
the watermark of the last batches replace those of the query, so that the job continues after them: no records are read
again or skipped, and time does not jump. The new checkpoint is complete before the old one is moved aside, and an
interrupted migration can be repeated. Source of the file formats: Spark's ``OffsetSeqLog`` and ``CommitLog``.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import StructType

from ackstream.errors import StartError
from ackstream.kafka.parties import PARTIES
from ackstream.kafka.topics import prepare
from ackstream.observe.metrics import Tally
from ackstream.settings import Settings
from ackstream.settings.loading import with_values
from ackstream.spark.checkpoint import DRAFT, REMEMBERED, Checkpoint, Unite, compare_values, fixed_values
from ackstream.spark.clock import clock
from ackstream.spark.job import Job
from ackstream.spark.operator import SHARD_KEYS, ShardBatch, State, distribute, operate
from ackstream.spark.pieces import Aside, PieceStore

STATES = "states"
FORMER = "former"
"""The key of the former checkpoint's location in a migrated one."""
_ONE_BY_ONE = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"}
"""States are large: more than 2 GB would not fit one Arrow column."""


class Migration(NamedTuple):
    """The result of a migration: the changed settings (before, now), and the location of the former checkpoint."""

    changed: Mapping[str, tuple[object, object]]
    former: str


def migrate(spark: SparkSession, settings: Settings, job: Job) -> Migration | None:
    """Move the checkpoint of a job to the settings, or finish an interrupted migration.

    :return: ``None`` if the checkpoint already has these settings
    :raises StartError: no checkpoint, the job is running, a changed setting cannot be migrated, or another release has
        to finish the last batch
    """
    location = settings.lake.checkpoint(job.name)
    old = Checkpoint(spark, location)
    new = old.at(location + DRAFT)
    # a migration may have been interrupted between its two renames
    if not old.exists(REMEMBERED) and not (
        new.exists(REMEMBERED) and new.at(new.remembered[FORMER]).exists(REMEMBERED)
    ):
        raise StartError(
            f"There is no checkpoint at {location}: start the {job.name} job, or correct lake.checkpoints."
        )
    with ExitStack() as stack:
        if job.lease is not None:
            # the first start of a release may add topics, such as that of the lease
            prepare(settings, job.topics, PARTIES[job.name])
            # the job cannot run while another clock runs
            stack.enter_context(clock(settings, job.lease, None, ()))
        if not old.exists(REMEMBERED):
            new.move(location)
        return _migrate(spark, settings, job, old, new)


def _migrate(spark: SparkSession, settings: Settings, job: Job, old: Checkpoint, new: Checkpoint) -> Migration | None:
    location = old.location
    theirs, ours = old.remembered, fixed_values(settings, job.keeps.fixed)
    changed = {key: (theirs[key], value) for key, value in ours.items() if theirs.get(key, value) != value}
    if not changed:
        return None
    fixed = {key: value for key, value in ours.items() if key not in job.keeps.movable}
    compare_values(fixed, theirs, location, job.remedy)
    if old.last("offsets") != old.last("commits"):
        # the last batch is finished under the former settings: no other batch may send its records
        as_before = with_values(settings, {key: before for key, (before, _) in changed.items()})
        job.start(spark, as_before, available_now=True).awaitTermination()
    batch = old.last("commits")
    if batch < 0:
        raise StartError(
            f"The checkpoint {location} has no finished batch: move it away, and start the {job.name} job."
        )
    new.delete()
    keys = _write_states(spark, settings, job, old, new)
    # a start reads the last batch once more, with the offsets of the one before
    for number, before in enumerate((batch - 1, batch) if batch else (0, 0)):
        new.write(f"offsets/{number}", carry_offsets(old.read(f"offsets/{before}"), new.read(f"offsets/{number}")))
        new.write(f"commits/{number}", carry_commit(old.read(f"commits/{before}"), new.read(f"commits/{number}")))
    new.delete("sources")
    old.copy("sources", new)
    if old.last("offsets") != batch:
        raise StartError(f"The {job.name} job was started in the meantime: stop it, and repeat the command.")
    former = f"{location}.{json.loads(old.read('metadata'))['id']}"
    new.remember({**theirs, **ours, **keys, FORMER: former})
    old.move(former)
    new.move(location)
    return Migration(changed, former)


def carry_offsets(old: str, new: str) -> str:
    """Return the entry of the offset log: conf from the new checkpoint; sources, watermark and time from the old."""
    (version, before, *sources), (_, own, *_) = old.splitlines(), new.splitlines()
    kept = {key: value for key, value in json.loads(before).items() if key != "conf"}
    return "\n".join([version, json.dumps(json.loads(own) | kept, separators=(",", ":")), *sources])


def carry_commit(old: str, new: str) -> str:
    """Return the entry of the commit log: the ids of the new states, if any, and the old watermark."""
    (_, before), (version, own) = old.splitlines(), new.splitlines()
    watermark = {"nextBatchWatermarkMs": json.loads(before)["nextBatchWatermarkMs"]}
    return f"{version}\n{json.dumps(json.loads(own) | watermark, separators=(',', ':'))}"


def _write_states(
    spark: SparkSession, settings: Settings, job: Job, old: Checkpoint, new: Checkpoint
) -> Mapping[str, list[int]]:
    """Let a query write the states in a first batch, and run a second one; return the keys of the shards if changed."""
    own = spark.newSession()
    for key, value in {**job.conf(settings), **_ONE_BY_ONE}.items():
        own.conf.set(key, value)
    # the reader needs the state stores' coordinator, which starts when the streams of a session are first accessed
    _ = own.streams.active
    states = own.read.format("statestore").option("batchId", old.last("commits")).load(old.location)
    (key,) = states.schema["key"].dataType.fieldNames()
    rows = states.select(
        f"key.{key}",
        "value.groupState.version",
        "value.groupState.blob",
        F.col("value.timeoutTimestamp").alias("timeout"),
        F.lit(None).cast("timestamp").alias("clock"),
    )
    unite: Unite = _only
    chosen: dict[str, list[int]] = {}
    if job.keeps.resharding is not None and job.keeps.shards is not None:
        # another number of tasks also needs other keys
        chosen = distribute(own, attrgetter(job.keeps.shards)(settings), {})
        aside, keys = Aside.of(spark, old.location), chosen[SHARD_KEYS]
        divide = partial(job.keeps.resharding.divide, len(keys))
        rows = rows.mapInPandas(partial(_divide, divide, keys, aside), rows.schema)
        unite = job.keeps.resharding.unite
    path = new.path(STATES)
    rows.write.parquet(path)
    parts = own.readStream.schema(rows.schema).parquet(path)
    moved = operate(parts, key, partial(_move, unite), StructType().add("version", "integer"))
    writer = moved.writeStream.format("noop").option("checkpointLocation", new.location).trigger(availableNow=True)
    writer.start().awaitTermination()
    rows.limit(0).write.mode("append").parquet(path)
    writer.start().awaitTermination()
    new.delete(STATES)
    return chosen


def _only(parts: Iterable[State]) -> State:
    (state,) = parts
    return state


def _divide(
    divide: Callable[[int, bytes, PieceStore | None], Mapping[int, State]],
    keys: Sequence[int],
    aside: Aside,
    frames: Iterable[pd.DataFrame],
) -> Iterator[pd.DataFrame]:
    for frame in frames:
        for key, version, blob, timeout, _ in frame.itertuples(index=False):
            for shard, part in divide(version, bytes(blob), aside.store(key)).items():
                yield pd.DataFrame([(keys[shard], *part, timeout, pd.NaT)], columns=frame.columns)


class _MovedShard(NamedTuple):
    """A shard that only passes its state to the shell."""

    state: State
    next_timeout: int | None

    def load(self, version: int, blob: bytes) -> None:
        raise ValueError(f"There is a state of version {version} already, of {len(blob)} bytes.")

    def dump(self) -> State:
        return self.state

    def measure(self, tally: Tally) -> None:
        """Report no counts."""


def _move(unite: Unite, batch: ShardBatch) -> Iterator[pd.DataFrame]:
    """Give a shard its state, and the earliest timeout of its parts: a shard that is called too early checks again."""
    parts: list[State] = []
    timeouts: list[int] = []
    for frame in batch.frames:
        parts += zip(frame["version"].tolist(), map(bytes, frame["blob"]), strict=True)
        timeouts += [int(timeout) for timeout in frame["timeout"].tolist() if timeout >= 0]
    with batch.restored(_MovedShard(unite(parts), min(timeouts, default=None))):
        pass
    yield pd.DataFrame({"version": pd.Series([], dtype="int32")})
