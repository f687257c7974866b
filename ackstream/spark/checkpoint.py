"""What a checkpoint rests on, and a start must find again: the topics it counts offsets of, and the tables it fills.

Offsets mean nothing in another topic of the same name, one that was created anew or is on another cluster; Kafka gives
each topic an id. And tables skip the batches that they have already: beside an older copy of the checkpoint (restored,
or after a power failure) they would skip other records under the same numbers, in silence.
"""

from __future__ import annotations

import json
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError

from ackstream.errors import StartError
from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import connect_admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from ackstream.settings import Kafka

REMEMBERED = "ackstream.json"
"""The file in a checkpoint that remembers the settings it was made with; starting it with others is refused."""
_DRAFT = f".{REMEMBERED}.draft"
TOPIC_ID = "topic-id:"
"""With a topic's real name the key under which a checkpoint remembers the topic's id."""


def remembered(spark: SparkSession, location: str) -> dict[str, Any]:
    """Return what a checkpoint remembers; nothing if no query has been started with it yet."""
    files, path = locate(spark, f"{location}/{REMEMBERED}")
    _, draft = locate(spark, f"{location}/{_DRAFT}")
    found: dict[str, Any] = {}
    if files.exists(path):
        found = json.loads(_text(files, path))
    elif files.exists(draft):
        # half of one is there if the first start was killed at once
        with suppress(ValueError, Py4JJavaError):
            found = json.loads(_text(files, draft))
    return found


def _text(files: Any, path: Any) -> str:
    with closing(files.open(path)) as stream:
        return bytes(stream.readAllBytes()).decode()


def remember(spark: SparkSession, location: str, values: Mapping[str, object]) -> None:
    """Write what a checkpoint is to remember: whole or not at all, since a job may be killed at any moment."""
    files, path = locate(spark, f"{location}/{REMEMBERED}")
    _, draft = locate(spark, f"{location}/{_DRAFT}")
    with closing(files.create(draft, True)) as out:  # noqa: FBT003 - overwrite, in Java's signature
        out.write(json.dumps(dict(values)).encode())
    # in between, the draft is what is read
    files.delete(path, False)  # noqa: FBT003 - not a directory
    files.rename(draft, path)


class Planned(NamedTuple):
    """The query of a checkpoint, and the newest batch that it has planned."""

    query_id: str
    batch: int


def planned(spark: SparkSession, location: str) -> Planned | None:
    """Return how far a checkpoint is; ``None`` if no query has planned a batch with it yet."""
    files, path = locate(spark, f"{location}/metadata")
    if not files.exists(path):
        return None
    query_id = json.loads(_text(files, path))["id"]
    _, offsets = locate(spark, f"{location}/offsets")
    names = [entry.getPath().getName() for entry in files.listStatus(offsets)] if files.exists(offsets) else []
    batches = [int(name) for name in names if name.isdecimal()]
    return Planned(query_id, max(batches)) if batches else None


def is_unfinished(spark: SparkSession, location: str, batch: int) -> bool:
    """Return whether the newest batch that a checkpoint has planned will be replayed by the next start."""
    files, path = locate(spark, f"{location}/commits/{batch}")
    return not files.exists(path)


def planned_end(spark: SparkSession, location: str, batch: int, topic: str) -> int:
    """Return the offset behind the last record that a batch reads of a topic with one partition; 0 if it reads none."""
    files, path = locate(spark, f"{location}/offsets/{batch}")
    _, _, *sources = _text(files, path).splitlines()
    ends = [json.loads(source).get(topic, {}).get("0", 0) for source in sources if source.startswith("{")]
    return max(ends, default=0)


def compare_batches(location: str, batch: int, committed: int, remedy: str) -> None:
    """Refuse a checkpoint that is older than the tables.

    :param batch: the newest batch that the checkpoint has planned
    :param committed: the newest batch of its query in the tables; the one that is planned may be replayed
    :param remedy: as the end of a sentence
    :raises StartError: with both numbers and the ways out
    """
    if committed > batch:
        raise StartError(
            f"The checkpoint {location} is older than the tables: it ends with batch {batch}, they have batch"
            f" {committed}. It is a copy from before, and what it reads now would be skipped in silence as already"
            f" stored. Put the newest checkpoint back, or {remedy}."
        )


def topic_ids(kafka: Kafka, names: Iterable[str]) -> dict[str, str]:
    """Return the ids of topics (without the prefix) that exist, by :data:`TOPIC_ID` and their real names."""
    real = [kafka.topic(name) for name in names]
    if not real:
        return {}
    with connect_admin(kafka) as admin:
        found = kafka_topics.ids(admin, real)
    return {TOPIC_ID + topic: identity for topic, identity in found.items()}


def compare_topics(ours: Mapping[str, object], theirs: Mapping[str, object], whose: str, remedy: str) -> None:
    """Refuse topics that are not the ones of a checkpoint or a table, although they have their names.

    :param ours: the ids of the topics now (:func:`topic_ids`)
    :param theirs: those that were remembered; a topic that was not remembered yet is accepted
    :param whose: what remembers them, as the beginning of a sentence
    :param remedy: as the end of a sentence
    :raises StartError: naming the topic, both ids and the ways out
    """
    for key, identity in ours.items():
        if key.startswith(TOPIC_ID) and theirs.get(key, identity) != identity:
            raise StartError(
                f"{whose} counts offsets of the topic {key.removeprefix(TOPIC_ID)} with the id {theirs[key]}, but the"
                f" topic now has the id {identity}: it was created anew, or kafka.bootstrap names another cluster."
                f" Correct kafka.bootstrap, or {remedy}."
            )


def locate(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """Return Hadoop's file system and path of a file of a checkpoint."""
    path = spark._jvm.org.apache.hadoop.fs.Path(name)  # noqa: SLF001 - there is no public way
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path  # noqa: SLF001
