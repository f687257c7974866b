"""Commits to Delta's log by Delta itself, inside the JVM: a transaction with the files and the version that they are.

Spark's writer commits in the same way. But it looks for the version of an application in the whole log, which is a
Spark job of 0.4 s in each append, and it has rows written by a job, however few they are.
"""

from __future__ import annotations

import itertools
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from delta import exceptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

ATTEMPTS = 20
"""A job tries a merge much longer than maintenance tries a compaction, so that it is maintenance that gives way."""
CONFLICTS = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.DeltaConcurrentModificationException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)
"""The errors of Delta for a commit that came second; unlike in Java, they have no common class."""

CHECKED = "ackstream.checked"
"""The application that all appends with a check are versions of, beside their own."""

_CHECKPOINTS = ThreadPoolExecutor(1, "ackstream-checkpoints")
"""Makes the checkpoints of logs, one at a time; those that are due when the process ends are made before it has ended.
Its thread is in Spark's default pool, which comes after the jobs that clients wait for."""
_DUE: set[str] = set()
"""The tables that wait for it."""


def java(spark: SparkSession, name: str) -> Any:
    """Return a class of the JVM, for functions without a public interface in Python."""
    return _java(spark._jvm, name)  # noqa: SLF001


@lru_cache(maxsize=64)
def _java(jvm: Any, name: str) -> Any:
    # by the whole name: for a.b.c the JVM looks for classes a and a.b in all jars; and once, since each look is a call
    return getattr(jvm, name)


@lru_cache(maxsize=4)
def _appending(jvm: Any) -> tuple[Any, Any, Any]:
    """Return Scala's ``None``, the operation of a transaction that appends, and its hook after the commit."""
    none = _java(jvm, "scala.Option").empty()
    append = _java(jvm, "org.apache.spark.sql.SaveMode").Append
    hook = getattr(_java(jvm, "org.apache.spark.sql.delta.hooks.CheckpointHook$"), "MODULE$")
    return none, _java(jvm, "org.apache.spark.sql.delta.DeltaOperations$Write")(append, *[none] * 8), hook


def log_and_snapshot(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return Delta's log of a table and its view of it as it is now; the version is -1 where there is no table."""
    tables = java(spark, "org.apache.spark.sql.delta.DeltaLog")
    found = tables.forTableWithSnapshot(spark._jsparkSession, path)  # noqa: SLF001
    return found._1(), found._2()  # noqa: SLF001 - names of Scala


def known_snapshot(spark: SparkSession, path: str) -> Any:
    """Return Delta's view of a table as this process knows it, which costs nothing; or else as it is now.

    It is taken anew once it has twice the commits that a checkpoint is made after: a commit adds itself to what is
    known, and nothing but a look at the log takes up the checkpoint in place of the commits, which another process may
    have made. And it is taken anew if its newest commit is no longer there. Then the log was cleaned up meanwhile, or
    the table is another one: the next version may be missing there although it was committed, so that a commit by what
    is known would not conflict.
    """
    table = java(spark, "org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, path)  # noqa: SLF001
    snapshot = table.unsafeVolatileSnapshot()
    commits = snapshot.logSegment().deltas()
    if 0 < commits.size() <= 2 * table.checkpointInterval(snapshot.metadata()):
        newest = commits.last().getPath()
        if newest.getFileSystem(table.newDeltaHadoopConf()).exists(newest):
            return snapshot
    return log_and_snapshot(spark, path)[1]


def versions(spark: SparkSession, snapshot: Any) -> dict[str, int]:
    """Return the newest version of each application in a snapshot.

    The checksum beside the newest commit has them. A Spark job reads the log where it is missing, such as after the
    commit of another program, or lacks them, because they are more than 100 or have a retention time.
    """
    checksum = snapshot.checksumOpt()
    listed = checksum.get().setTransactions() if checksum.isDefined() else checksum
    found = listed.get() if listed.isDefined() else snapshot.setTransactions()
    # in one call: there may be many
    text = java(spark, "org.apache.spark.sql.delta.util.JsonUtils").mapper().writeValueAsString(found)
    return {one["appId"]: one["version"] for one in json.loads(text)}


def changed_files(
    spark: SparkSession, table: Any, after: int, upto: int
) -> tuple[list[dict[str, Any]], set[str]] | None:
    """Return the files that the commits after one version and up to another have added and not removed again.

    They are read from the log, without a Spark job.

    :param table: its ``DeltaLog``
    :return: the files as the log has them, and the paths that were removed before; a file with new statistics is among
        the added ones, one that was brought back among both. ``None`` if a commit is no longer in the log
    """
    added: dict[str, dict[str, Any]] = {}
    removed: set[str] = set()
    conf, store = table.newDeltaHadoopConf(), table.store()
    found = table.getChangeLogFiles(after + 1, upto, _appending(spark._jvm)[0], False)  # noqa: FBT003, SLF001 - Scala's
    version = after
    while found.hasNext():
        commit = found.next()
        if commit._1() != version + 1:  # noqa: SLF001 - a name of Scala
            return None
        version += 1
        # all lines in one call: a compaction has one for each file of a day
        for line in store.read(commit._2(), conf).mkString("\n").split("\n"):  # noqa: SLF001 - a name of Scala
            kind = line[:12]
            if '"add"' in kind:
                file = json.loads(line)["add"]
                added[file["path"]] = file
            elif '"remove"' in kind:
                path = json.loads(line)["remove"]["path"]
                if added.pop(path, None) is None:
                    removed.add(path)
    return ([*added.values()], removed) if version == upto else None


def retried(work: Callable[[], _Result], attempts: int = ATTEMPTS) -> _Result:
    """Run a commit to a table; retry it if another one conflicts with it.

    :raises PySparkException: one of ``CONFLICTS``, if each attempt conflicts
    """
    for _ in range(attempts - 1):
        try:
            return work()
        except CONFLICTS:
            continue
    return work()


def commit(
    spark: SparkSession,
    path: str,
    application: str,
    version: int,
    write: Callable[[Any], Any],
    check: Callable[[dict[str, int]], None] | None = None,
    follows: int | None = None,
) -> bool:
    """Append files to a table as a version of an application, unless the table has that version or a later one.

    The commit does not wait for the checkpoint of the log that may be due then, which takes seconds.

    :param write: writes the files of a transaction; returns the actions that add them: :func:`added`, :func:`written`
    :param check: gets the :func:`versions` that the table has, and raises to refuse the append; those with a check
        conflict with each other, so none comes between the check and the commit
    :param follows: the newest version that the table may have instead, where versions have gaps
    :return: whether they were appended
    """
    none, operation, checkpoint_hook = _appending(spark._jvm)  # noqa: SLF001
    names = [application] if check is None else [application, CHECKED]
    attempts = itertools.count()

    def attempt() -> bool:
        # a commit of another process conflicts, and only then is the log listed
        snapshot = log_and_snapshot(spark, path)[1] if next(attempts) else known_snapshot(spark, path)
        found = versions(spark, snapshot)
        if check is not None:
            check(found)
        if found.get(application, -1) > (version - 1 if follows is None else follows):
            return False
        table = snapshot.deltaLog()
        transaction = table.startTransaction(none, java(spark, "scala.Option").apply(snapshot))
        transaction.postCommitHooks().subtractOne(checkpoint_hook)
        for name in names:
            # as Delta's own look-up of the version: it lets commits of the same application conflict
            transaction.readTxn().append(name)
        now = table.clock().getTimeMillis()
        own = [{"txn": {"appId": name, "version": version, "lastUpdated": now}} for name in names]
        committed = transaction.commit(write(transaction).appendedAll(added(spark, own)), operation)
        # as the hook has it
        if committed % table.checkpointInterval(transaction.metadata()) == 0:
            _checkpoint_later(spark, path)
        return True

    # a job that starts may be adding a column, or changing a property
    return retried(attempt)


def _checkpoint_later(spark: SparkSession, path: str) -> None:
    if path not in _DUE:
        _DUE.add(path)
        # the process may be ending
        with suppress(RuntimeError):
            _CHECKPOINTS.submit(_checkpoint, spark, path)


def _checkpoint(spark: SparkSession, path: str) -> None:
    """Make a checkpoint of a table's log, and clean the log up, as Delta does after a commit.

    If that fails, Delta logs the reason, and readers of the log have more to read until the next one.
    """
    _DUE.discard(path)
    try:
        table, snapshot = log_and_snapshot(spark, path)
        table.checkpoint(snapshot, _appending(spark._jvm)[0])  # noqa: SLF001
        # takes it up, unless a commit is under way
        log_and_snapshot(spark, path)
    except Exception as error:
        log.warning("There is no new checkpoint of the log of %s; the next one is due later.", path, exc_info=error)


def added(spark: SparkSession, actions: Iterable[dict[str, Any]]) -> Any:
    """Return actions, given as the log has them, as Delta takes them."""
    action = java(spark, "org.apache.spark.sql.delta.actions.Action")
    found = java(spark, "java.util.ArrayList")()
    for one in actions:
        found.add(action.fromJson(json.dumps(one)))
    return java(spark, "scala.jdk.javaapi.CollectionConverters").asScala(found).toSeq()


def written(transaction: Any, rows: DataFrame) -> Any:
    """Write the rows of a frame by a Spark job; return the actions that add its files."""
    return transaction.writeFiles(rows._jdf)  # noqa: SLF001
