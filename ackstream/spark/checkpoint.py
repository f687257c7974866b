"""The files of a checkpoint, and the conditions of a start: same topics, same fixed settings, no newer tables.

Offsets are valid in one topic only: a topic that was re-created, or is on another cluster, has another topic id.
Tables skip batches that they already have: with an older copy of the checkpoint (restored, or after a power failure),
they would silently skip other records under the same batch numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter, getitem
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pyspark.sql import SparkSession

from ackstream.errors import StartError
from ackstream.kafka.topics import TOPIC_ID, compare_topics
from ackstream.settings import Settings
from ackstream.spark.kafka import ANY_RUN
from ackstream.spark.operator import State
from ackstream.spark.pieces import PieceStore
from ackstream.spark.session import locate

Unite: TypeAlias = "Callable[[Iterable[State]], State]"

T = TypeVar("T")
REMEMBERED = "ackstream.json"
"""The file in a checkpoint with the settings it was created with; a start with other settings is refused."""
RULES, RUNS, DECIDES = "rules", "runs", "decides"
"""The keys in :data:`REMEMBERED` of the last started job: the number of its rules, its run (with the run whose batch it
replays, and the offset after the ticks of that batch), and the settings that affect its decisions."""
WAY_OUT = "put a copy of the checkpoint back, or start with a new one. See docs/operate/troubleshooting.md."
DRAFT = ".migrated"
"""The suffix of a checkpoint that will replace another one."""


@dataclass(frozen=True)
class Resharding:
    """Two pure functions that move states to another number of shards."""

    divide: Callable[[int, int, bytes, PieceStore | None], Mapping[int, State]]
    """From (new number of shards, version, blob, pieces) of an old shard to parts by new shard, without pieces."""
    unite: Unite
    """From the parts of a new shard, in any order, to its state."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRules:
    """The conditions under which a job may continue from its checkpoint.

    :ivar fixed: the keys of settings that cannot change under the checkpoint
    :ivar movable: the keys in ``fixed`` that ``ackstream migrate`` can change
    :ivar decides: the keys of settings that decide records; they cannot change within a batch
    :ivar shards: the settings key of the number of shards; ``None`` if the shards are not numbered
    :ivar otherwise: the remedy for a setting that is not movable, as the end of a sentence
    :ivar committed: returns the newest batch of a query (by its id) in the job's tables; -1 without one
    :ivar rules: one more with each release that may decide a batch differently
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
    """The id of a checkpoint's query, its newest planned batch, and whether the next start replays that batch."""

    query_id: str
    batch: int
    unfinished: bool = False


class Checkpoint:
    """The files of a checkpoint. Source: Spark's ``StreamExecution``, ``OffsetSeqLog`` and ``CommitLog``."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        """Name a checkpoint, which need not exist, on a file system of Hadoop."""
        self.location = location
        self._spark = spark
        self._files, _ = locate(spark, location)

    def at(self, location: str) -> Checkpoint:
        """Return the checkpoint at another location."""
        return Checkpoint(self._spark, location)

    def path(self, name: str) -> str:
        """Return the location of a file or directory."""
        return f"{self.location}/{name}" if name else self.location

    def exists(self, name: str) -> bool:
        """Return whether a file exists."""
        return bool(self._files.exists(self._path(name)))

    def last(self, log: str) -> int:
        """Return the last batch in the log ``offsets`` or ``commits``; -1 if the log is empty."""
        if not self.exists(log):
            return -1
        names = [entry.getPath().getName() for entry in self._files.listStatus(self._path(log))]
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def read(self, name: str) -> str:
        """Return the text of a file."""
        with closing(self._files.open(self._path(name))) as stream:
            return bytes(stream.readAllBytes()).decode()

    def write(self, name: str, text: str) -> None:
        """Write a text file, or replace it."""
        with closing(self._files.create(self._path(name), True)) as out:  # noqa: FBT003 - Java's signature
            out.write(text.encode())

    def delete(self, name: str = "") -> None:
        """Delete a file or directory if it exists; by default the whole checkpoint."""
        self._files.delete(self._path(name), True)  # noqa: FBT003 - Java's signature

    def copy(self, name: str, other: Checkpoint) -> None:
        """Copy a directory to another checkpoint."""
        util, to, delete_source = self._spark._jvm.org.apache.hadoop.fs.FileUtil, other._path(name), False  # noqa: SLF001
        conf = self._spark._jsc.hadoopConfiguration()  # noqa: SLF001
        util.copy(self._files, self._path(name), self._files, to, delete_source, conf)

    def move(self, location: str) -> None:
        """Rename the checkpoint; raise a StartError if the file system refuses."""
        if not self._files.rename(self._path(), locate(self._spark, location)[1]):
            raise StartError(f"{self.location} cannot be renamed to {location}: rename it by hand.")

    @property
    def remembered(self) -> dict[str, Any]:
        """The content of :data:`REMEMBERED`; empty before the first start of a query."""
        found: dict[str, Any] = self._parse(REMEMBERED, json.loads) if self.exists(REMEMBERED) else {}
        return found

    @property
    def topic_ids(self) -> dict[str, str]:
        """The ids of the topics (real names) whose offsets it has."""
        return {key.removeprefix(TOPIC_ID): one for key, one in self.remembered.items() if key.startswith(TOPIC_ID)}

    def remember(self, values: Mapping[str, object]) -> None:
        """Replace the content of :data:`REMEMBERED` atomically: a job may be killed at any moment."""
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
    def query_id(self) -> str | None:
        """The id of the query; ``None`` before its first start."""
        started = self.exists("metadata") or max(map(self.last, ("offsets", "commits"))) >= 0
        return self._parse("metadata", json.loads)["id"] if started else None

    @property
    def planned(self) -> Planned | None:
        """The query and its newest planned batch; ``None`` before the first batch.

        :raises StartError: a file is missing or damaged, without which Spark would fail, or plan a decided batch again
        """
        query_id, batch, committed = self.query_id, self.last("offsets"), self.last("commits")
        # a batch is planned before it writes its state, which has the number of the next one
        later = f"state/*/*/{batch + 2 if batch >= 0 else '[0-9]*'}.*"
        if committed > batch or self._files.globStatus(self._path(later)):
            self.planned_ends(max(committed, batch + 1))
        if query_id is None or batch < 0:
            return None
        self._parse(REMEMBERED, json.loads)
        for needed in {max(batch - 1, 0), batch}:
            self.planned_ends(needed)
        if committed >= 0:
            self._parse(f"commits/{committed}", lambda text: json.loads(text.partition("\n")[2]))
        return Planned(query_id, batch, unfinished=committed < batch)

    def planned_end(self, batch: int, topic: str) -> int:
        """Return the offset after the last record that a batch reads from a topic with one partition; 0 without one."""
        return max((source.get(topic, {}).get("0", 0) for source in self.planned_ends(batch)), default=0)

    def planned_ends(self, batch: int) -> list[dict[str, Any]]:
        """Return the offsets at which a batch ends, of each source that has any, in the source's own form."""
        # a version, metadata, then a line for each source
        return self._parse(
            f"offsets/{batch}",
            lambda text: [json.loads(one) for one in text[text.index("\n{") :].splitlines()[2:] if one != "-"],
        )

    def _parse(self, name: str, parse: Callable[[str], T]) -> T:
        path = self.path(name)
        if not self.exists(name):
            raise StartError(f"The file {path} is missing: {WAY_OUT}")
        try:
            return parse(self.read(name))
        except ValueError as error:
            raise StartError(
                f"The file {path} is damaged ({error}), by a full disk or a power failure: {WAY_OUT}"
            ) from None

    def _path(self, name: str = "") -> Any:
        return locate(self._spark, self.path(name))[1]


def is_new_checkpoint(spark: SparkSession, location: str) -> bool:
    """Return whether no query was started with a checkpoint."""
    return not Checkpoint(spark, location).remembered


def compare_batches(location: str, batch: int, committed: int, remedy: str) -> None:
    """Raise a StartError if ``committed``, the newest batch in the tables, is later than ``batch``, planned last."""
    if committed > batch:
        ours = f"ends with batch {batch}" if batch >= 0 else "has no batch"
        raise StartError(
            f"The checkpoint {location} is older than the tables: it {ours}, they have batch {committed}. It is an"
            " older copy, and the records that it reads now would be skipped silently as already stored. Put the newest"
            f" checkpoint back, or {remedy}."
        )


def fixed_values(settings: Settings, keys: Iterable[str]) -> dict[str, Any]:
    """Return settings by their full keys, such as ``settle.shards``."""
    return {key: attrgetter(key)(settings) for key in keys}


def deciding_values(settings: Settings, keys: Collection[str]) -> dict[str, object]:
    """Return the JSON values of settings, or of parts of them, by their full keys; ``None`` for a default."""
    # without defaults: a later release may add some
    written: Any = settings.model_dump(mode="json", exclude_defaults=True)
    defaults = Settings()
    changed = [key for key in keys if attrgetter(key)(settings) != attrgetter(key)(defaults)]
    return dict.fromkeys(keys) | {key: reduce(getitem, key.split("."), written) for key in changed}


def guard_checkpoint(
    checkpoint: Checkpoint,
    ours: Mapping[str, object],
    remedy: Callable[[str], str],
    *,
    decides: Mapping[str, object] = MappingProxyType({}),
    stored: bool = False,
    run: str = ANY_RUN,
    end: int | None = None,
    forgets: bool = False,
) -> str | None:
    """Compare the settings with those in the checkpoint, and remember them.

    :param ours: the fixed settings by their full keys, the ids of the topics, and the number of the rules
    :param remedy: returns the remedy for a key, as the end of a sentence
    :param stored: whether a table already has the newest batch, which the settings ``decides`` have decided
    :param run: the run whose ticks count from now on
    :param end: the offset after the ticks of the batch to replay; ``None``: the newest batch is finished
    :param forgets: accept that a topic which the query has read is not among its topics any more, unless there is a
        batch to replay
    :return: the run that planned the batch to replay, whose ticks count in it; ``None`` if unknown
    :raises StartError: a setting differs, a migration was interrupted, or other rules or settings began the last batch
    """
    theirs, location = checkpoint.remembered, checkpoint.location
    # some brokers report no ids
    reported = any(key.startswith(TOPIC_ID) for key in ours)
    gone = sorted(key for key in theirs if reported and key.startswith(TOPIC_ID) and key not in ours)
    if theirs:
        compare_topics(ours, theirs, f"The checkpoint {location}", remedy(TOPIC_ID))
        compare_values({key: value for key, value in ours.items() if key != RULES}, theirs, location, remedy)
        if gone and (end is not None or not forgets):
            raise StartError(
                f"The checkpoint {location} has read the topic {gone[0].removeprefix(TOPIC_ID)}, which is deleted, or "
                "which the settings no longer name: name it again. To leave it out, let the job read all of it "
                "first, and set kafka.on_data_loss = continue for one start."
            )
        if end is not None:
            compare_rules(ours, theirs, location)
            if stored:
                compare_decisions(decides, theirs.get(DECIDES, {}), location)
    elif checkpoint.at(location + DRAFT).remembered:
        raise StartError(
            f"The migration of the checkpoint {location} was interrupted: repeat `ackstream migrate`, or delete "
            f"{location}{DRAFT} to start with a new checkpoint."
        )
    # a run that only replays a batch has no ticks in it: its ticks come after the batch
    ends = {known: planned for planned, known in theirs.get(RUNS, {}).items()}
    former: str | None = None if end is None else ends.get(end, ends.get(None))
    runs = {run: None} if former is None else {former: end, run: None}
    kept = {key: value for key, value in theirs.items() if key not in gone}
    checkpoint.remember(kept | dict(ours) | {RUNS: runs, DECIDES: dict(decides)})
    return former


def compare_rules(ours: Mapping[str, object], theirs: Mapping[str, object], location: str) -> None:
    """Raise a StartError if other rules would replay the batch: its answers could differ under the same ids."""
    # the first releases wrote no number
    if theirs.get(RULES, 1) != ours.get(RULES, 1):
        raise StartError(
            f"The checkpoint {location} ends with a batch that another release has begun, and this one decides by other"
            " rules: answers that were already sent could change. Start the other release once more, and"
            " stop it in order (SIGTERM) when it has caught up and nothing is sent to it; if it was stopped within a"
            f" batch again, repeat that. If it cannot finish the batch, set {RULES} to {ours.get(RULES, 1)} in the"
            f" checkpoint's {REMEMBERED}; docs/operate/upgrade.md names the costs."
        )


def compare_decisions(ours: Mapping[str, object], theirs: Mapping[str, object], location: str) -> None:
    """Raise a StartError if other settings would replay a stored batch: its answers would contradict the tables."""
    for key, value in ours.items():
        if key in theirs and theirs[key] != value:
            before, now = ("its default" if one is None else json.dumps(one) for one in (theirs[key], value))
            raise StartError(
                f"The checkpoint {location} ends with a batch that is in the tables, decided with {key} = {before}, and"
                f" not answered as a whole; the settings now have {now}, and answers could differ. Set {key} back,"
                " start the job, and change the setting after that."
            )


def compare_values(
    ours: Mapping[str, object], theirs: Mapping[str, object], location: str, remedy: Callable[[str], str]
) -> None:
    """Raise a StartError that names the first key whose value differs from the checkpoint's."""
    for key, value in ours.items():
        if key in theirs and theirs[key] != value:
            raise StartError(
                f"The checkpoint {location} was made with {key} = {theirs[key]}, the settings say {value}. Set {key} "
                f"back to that, or {remedy(key)}."
            )
