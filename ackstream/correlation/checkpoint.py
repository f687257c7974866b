"""A checkpoint remembers the values it was made with; a start with others is refused in plain words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ackstream.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackstream.settings import Settings

NAME = "ackstream.json"


def guard(spark: SparkSession, settings: Settings) -> None:
    """Compare the settings with those the checkpoint was made with; write them down on the first start.

    The number of shards decides where a request's state is, the shuffle partitions which file that state is in, the
    topics which offsets count: none of them can change under a checkpoint.

    :raises StartError: if one differs
    """
    location = settings.lake.checkpoint("correlate")
    ours = {
        "correlate.shards": settings.correlate.shards,
        "correlate.shuffle_partitions": settings.correlate.shuffle_partitions,
        "correlate.state_store": settings.correlate.state_store,
        "kafka.topic_prefix": settings.kafka.topic_prefix,
    }
    jvm = spark._jvm  # noqa: SLF001 - the way to Hadoop's file systems, which hold the checkpoint
    path = jvm.org.apache.hadoop.fs.Path(f"{location}/{NAME}")
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
    if files.exists(path):
        stream = files.open(path)
        try:
            theirs = json.loads(bytes(stream.readAllBytes()))
        finally:
            stream.close()
        compare(ours, theirs, location)
        return
    # whole or not at all: a job may be killed at any moment
    draft = jvm.org.apache.hadoop.fs.Path(f"{location}/.{NAME}.draft")
    out = files.create(draft, True)  # noqa: FBT003 - overwrite, in Java's signature
    try:
        out.write(json.dumps(ours).encode())
    finally:
        out.close()
    files.rename(draft, path)


def compare(ours: dict[str, object], theirs: dict[str, object], location: str) -> None:
    """Refuse values that differ from those of the checkpoint.

    :raises StartError: naming the first key, both values and the ways out
    """
    for key, value in ours.items():
        if key in theirs and theirs[key] != value:
            raise StartError(
                f"The checkpoint {location} was made with {key} = {theirs[key]}, the settings say {value}. Set {key} "
                "back to that, or let the open requests finish (ackstream inflight shows them) and start with a new "
                "checkpoint."
            )
