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


class Planned(NamedTuple):
    """The query of a checkpoint, and the newest batch that it has planned."""

    query_id: str
    batch: int


class Checkpoint:
    """The files of a checkpoint, on whatever file system Hadoop knows.

    Source of their names and forms: Spark's ``StreamExecution``, ``OffsetSeqLog`` and ``CommitLog``.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        """Name a checkpoint, which may not exist."""
        self.location = location
        self._spark = spark
        self._files, _ = locate(spark, location)

    def at(self, location: str) -> Checkpoint:
        """Return another checkpoint."""
        return Checkpoint(self._spark, location)

    def path(self, name: str) -> str:
        """Return the location of a file or directory."""
        return f"{self.location}/{name}" if name else self.location

    def exists(self, name: str) -> bool:
        """Return whether a file exists."""
        return bool(self._files.exists(self._path(name)))

    def last(self, log: str) -> int:
        """Return the last batch in a log, ``offsets`` or ``commits``; -1 if there is none."""
        if not self.exists(log):
            return -1
        names = [entry.getPath().getName() for entry in self._files.listStatus(self._path(log))]
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def read(self, name: str) -> str:
        """Return the text of a file."""
        with closing(self._files.open(self._path(name))) as stream:
            return bytes(stream.readAllBytes()).decode()

    def write(self, name: str, text: str) -> None:
        """Write a text file, over what it may have been."""
        overwrite = True
        with closing(self._files.create(self._path(name), overwrite)) as out:
            out.write(text.encode())

    def delete(self, name: str = "") -> None:
        """Delete a file or a directory, the whole checkpoint by default, if it exists."""
        recursive = True
        self._files.delete(self._path(name), recursive)

    def copy(self, name: str, other: Checkpoint) -> None:
        """Copy a directory to another checkpoint."""
        util, to, delete_source = self._spark._jvm.org.apache.hadoop.fs.FileUtil, other._path(name), False  # noqa: SLF001
        conf = self._spark._jsc.hadoopConfiguration()  # noqa: SLF001
        util.copy(self._files, self._path(name), self._files, to, delete_source, conf)

    def move(self, location: str) -> None:
        """Rename the checkpoint.

        :raises StartError: if the file system does not do it
        """
        if not self._files.rename(self._path(), locate(self._spark, location)[1]):
            raise StartError(f"{self.location} cannot be renamed to {location}: rename it by hand.")

    @property
    def remembered(self) -> dict[str, Any]:
        """What it remembers; nothing if no query has been started with it yet."""
        found: dict[str, Any] = {}
        if self.exists(REMEMBERED):
            found = json.loads(self.read(REMEMBERED))
        elif self.exists(_DRAFT):
            # half of one is there if the first start was killed at once
            with suppress(ValueError, Py4JJavaError):
                found = json.loads(self.read(_DRAFT))
        return found

    def remember(self, values: Mapping[str, object]) -> None:
        """Write what it is to remember: whole or not at all, since a job may be killed at any moment."""
        self.write(_DRAFT, json.dumps(dict(values)))
        # in between, the draft is what is read
        self.delete(REMEMBERED)
        self._files.rename(self._path(_DRAFT), self._path(REMEMBERED))

    @property
    def planned(self) -> Planned | None:
        """How far it is; ``None`` if no query has planned a batch with it yet."""
        if not self.exists("metadata"):
            return None
        query_id, batch = json.loads(self.read("metadata"))["id"], self.last("offsets")
        return None if batch < 0 else Planned(query_id, batch)

    def is_unfinished(self, batch: int) -> bool:
        """Return whether the newest batch that it has planned will be replayed by the next start."""
        return not self.exists(f"commits/{batch}")

    def planned_end(self, batch: int, topic: str) -> int:
        """Return the offset behind the last record that a batch reads of a topic with one partition; 0 if of none."""
        _, _, *sources = self.read(f"offsets/{batch}").splitlines()
        ends = [json.loads(source).get(topic, {}).get("0", 0) for source in sources if source.startswith("{")]
        return max(ends, default=0)

    def _path(self, name: str = "") -> Any:
        return locate(self._spark, self.path(name))[1]


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
