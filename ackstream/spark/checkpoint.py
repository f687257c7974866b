"""What a checkpoint rests on, and a start must find again: the topics it counts offsets of, and the tables it fills.

Offsets mean nothing in another topic of the same name, one that was created anew or is on another cluster; Kafka gives
each topic an id. And tables skip the batches that they have already: beside an older copy of the checkpoint (restored,
or after a power failure) they would skip other records under the same numbers, in silence.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ackstream.errors import StartError
from ackstream.kafka import topics as kafka_topics
from ackstream.kafka.clients import connect_admin
from ackstream.settings import Settings
from ackstream.spark.kafka import ANY_RUN
from ackstream.spark.session import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from ackstream.settings import Kafka
    from ackstream.spark.operator import State
    from ackstream.spark.pieces import PieceStore

    Unite = Callable[[Iterable[State]], State]

REMEMBERED = "ackstream.json"
"""The file in a checkpoint that remembers the settings it was made with; starting it with others is refused."""
TOPIC_ID = "topic-id:"
"""With a topic's real name the key under which a checkpoint remembers the topic's id."""
RULES, RUNS, DECIDES = "rules", "runs", "decides"
"""The keys in :data:`REMEMBERED` for the rules of the job that started last, for its run (beside the run whose batch it
replays, with the offset behind the ticks of that batch), and for the settings that it decides by."""
DRAFT = ".migrated"
"""The end of the name of a checkpoint that is to replace another one."""


@dataclass(frozen=True)
class Resharding:
    """How a room divides its states among other shards; pure functions.

    :ivar divide: from their new number, version and blob of an old shard, and its pieces, to parts by the number of the
        new shard, which name no pieces
    :ivar unite: from the parts of a new shard, in any order, to its state
    """

    divide: Callable[[int, int, bytes, PieceStore | None], Mapping[int, State]]
    unite: Unite


@dataclass(frozen=True, kw_only=True)
class CheckpointRules:
    """What a job's checkpoint rests on.

    :ivar fixed: the keys of settings that cannot change under it
    :ivar movable: those of them that ``ackstream migrate`` can change
    :ivar decides: the keys of settings that the job decides records by, which cannot change within a batch
    :ivar shards: the settings key of the number of the job's shards, if they are numbered
    :ivar resharding: how the job divides its states among other shards
    :ivar otherwise: the remedy if another setting has to change, as the end of a sentence
    :ivar committed: returns the newest batch of a query (its id) in the job's tables, as the query numbers it; or -1
    :ivar rules: the number of the job's rules, one more with each release that may decide a batch differently
    """

    fixed: tuple[str, ...] = ("kafka.topic_prefix",)
    movable: tuple[str, ...] = ()
    decides: tuple[str, ...] = ()
    shards: str | None = None
    resharding: Resharding | None = None
    otherwise: str = "start with a new checkpoint"
    committed: Callable[[SparkSession, Settings, str], int] = lambda _, __, ___: -1
    rules: int = 1


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
        found: dict[str, Any] = json.loads(self.read(REMEMBERED)) if self.exists(REMEMBERED) else {}
        return found

    def remember(self, values: Mapping[str, object]) -> None:
        """Replace what it remembers, at once: a job may be killed at any moment."""
        draft = f".{REMEMBERED}.draft"
        self.write(draft, json.dumps(dict(values)))
        gateway: Any = self._spark.sparkContext._gateway  # noqa: SLF001 - there is no public way
        fs, conf = gateway.jvm.org.apache.hadoop.fs, self._spark._jsc.hadoopConfiguration()  # noqa: SLF001
        rename = getattr(fs, "Options$Rename")
        overwrite = gateway.new_array(rename, 1)
        overwrite[0] = rename.OVERWRITE
        context = fs.FileContext.getFileContext(self._path().toUri(), conf)
        context.rename(self._path(draft), self._path(REMEMBERED), overwrite)

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


def is_new_checkpoint(spark: SparkSession, location: str) -> bool:
    """Return whether no query has been started with a checkpoint yet."""
    return not Checkpoint(spark, location).remembered


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


# -- settings ----------------------------------------------------------------------------------------------------------


def fixed_values(settings: Settings, keys: Iterable[str]) -> dict[str, object]:
    """Return settings by their full keys, such as ``settle.shards``."""
    return {key: attrgetter(key)(settings) for key in keys}


def deciding_values(settings: Settings, keys: Iterable[str]) -> dict[str, object]:
    """Return settings, or parts of them, by their full keys, as JSON has them; ``None`` for a default."""
    # without defaults, of which a later release may add some
    written = settings.model_dump(mode="json", exclude_defaults=True)
    defaults = Settings()
    found: dict[str, object] = {}
    for key in keys:
        part: Any = written
        if attrgetter(key)(settings) == attrgetter(key)(defaults):
            part = None
        else:
            for name in key.split("."):
                part = part[name]
        found[key] = part
    return found


def guard_checkpoint(
    checkpoint: Checkpoint,
    ours: Mapping[str, object],
    remedy: Callable[[str], str],
    *,
    decides: Mapping[str, object] = MappingProxyType({}),
    stored: bool = False,
    run: str = ANY_RUN,
    end: int | None = None,
) -> str | None:
    """Compare the settings with those the checkpoint was made with; write them down on the first start.

    :param ours: the settings that cannot change under the checkpoint, by their full keys, and the number of the rules
    :param remedy: returns the remedy for a key that has to change, as the end of a sentence
    :param decides: the settings by which records are decided
    :param stored: whether a table has the newest batch already
    :param run: the run whose ticks count from now on
    :param end: the offset behind the ticks of the batch to replay; ``None``: the newest batch is finished
    :return: the run that planned the batch to replay, whose ticks count in it; ``None`` if unknown
    :raises StartError: a setting differs, a migration was interrupted, or other rules or settings began the last batch
    """
    theirs, location = checkpoint.remembered, checkpoint.location
    if theirs:
        compare_topics(ours, theirs, f"The checkpoint {location}", remedy(TOPIC_ID))
        compare_values({key: value for key, value in ours.items() if key != RULES}, theirs, location, remedy)
        if end is not None:
            compare_rules(ours, theirs, location)
            if stored:
                compare_decisions(decides, theirs.get(DECIDES, {}), location)
    elif checkpoint.at(location + DRAFT).remembered:
        raise StartError(
            f"The migration of the checkpoint {location} was interrupted: repeat `ackstream migrate`, or delete "
            f"{location}{DRAFT} to start with a new checkpoint."
        )
    # a run that only replays a batch has no ticks in it: they are behind its end
    ends = {known: planned for planned, known in theirs.get(RUNS, {}).items()}
    former: str | None = None if end is None else ends.get(end, ends.get(None))
    runs = {run: None} if former is None else {former: end, run: None}
    checkpoint.remember(theirs | dict(ours) | {RUNS: runs, DECIDES: dict(decides)})
    return former


def compare_rules(ours: Mapping[str, object], theirs: Mapping[str, object], location: str) -> None:
    """Refuse to decide a batch again by other rules: it could be answered differently under the same id.

    :raises StartError: with the way out
    """
    # the first releases did not write their number
    if theirs.get(RULES, 1) != ours.get(RULES, 1):
        raise StartError(
            f"The checkpoint {location} ends with a batch that another release has begun, and this one decides by other"
            " rules: what was answered already could be answered differently. Start the other release once more, and"
            " stop it in order (SIGTERM) when it has caught up and nothing is sent to it; if it was stopped within a"
            f" batch again, repeat that. If it cannot finish the batch, set {RULES} to {ours.get(RULES, 1)} in the"
            f" checkpoint's {REMEMBERED}; what that costs is in docs/upgrade.md."
        )


def compare_decisions(ours: Mapping[str, object], theirs: Mapping[str, object], location: str) -> None:
    """Refuse to decide a batch again by other settings: tables have it, and its answers would say something else.

    :raises StartError: naming the first key, both values and the way out
    """
    for key, value in ours.items():
        if key in theirs and theirs[key] != value:
            before, now = ("its default" if one is None else json.dumps(one) for one in (theirs[key], value))
            raise StartError(
                f"The checkpoint {location} ends with a batch that is in the tables, decided with {key} = {before}, and"
                f" not answered as a whole; the settings now say {now}, and could answer otherwise. Set {key} back,"
                " start the job, and change the setting after that."
            )


def compare_values(
    ours: Mapping[str, object], theirs: Mapping[str, object], location: str, remedy: Callable[[str], str]
) -> None:
    """Refuse values that differ from those of the checkpoint.

    :raises StartError: naming the first key, both values and the ways out
    """
    for key, value in ours.items():
        if key in theirs and theirs[key] != value:
            raise StartError(
                f"The checkpoint {location} was made with {key} = {theirs[key]}, the settings say {value}. Set {key} "
                f"back to that, or {remedy(key)}."
            )
