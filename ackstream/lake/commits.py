"""Commits to Delta's log by Delta itself, inside the JVM: a transaction with files and their version.

Spark's writer commits in the same way. But it looks up the version of an application in the whole log, a Spark job of
0.4 s in each append, and writes even a few rows by a job.
"""

import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

from delta import exceptions
from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

ATTEMPTS = 20
"""A job retries a merge much longer than maintenance retries a compaction, so that maintenance gives way."""
CONFLICTS = tuple(getattr(exceptions, name) for name in exceptions.__all__)
"""The errors of Delta for the later of two conflicting commits; unlike in Java, they have no common class."""
_GONE = re.compile(r"FileNotFound|FILE_NOT_(?:FOUND|EXIST)|VERSIONS_NOT_CONTIGUOUS|TRUNCATED_TRANSACTION_LOG")
"""The errors of Spark and Delta for a missing file of a table or of its log."""
CHECKED = "ackstream.checked"
"""The common application of all appends with a check, besides their own."""
_CHECKPOINTS = ThreadPoolExecutor(1, "ackstream-checkpoints")
"""Makes the checkpoints of logs, one at a time, and the due ones before the process ends. Its thread is in Spark's
default pool, which comes after the jobs that clients wait for."""
_DUE: set[str] = set()
"""The tables that wait for a checkpoint."""


def java(spark: SparkSession, name: str) -> Any:
    """Return a class of the JVM, for functions without a public interface in Python."""
    return _java(spark._jvm, name)  # noqa: SLF001


@lru_cache(maxsize=64)
def _java(jvm: Any, name: str) -> Any:
    # by the whole name: for a.b.c the JVM searches all jars for classes a and a.b; and once, since a lookup is a call
    return getattr(jvm, name)


@lru_cache(maxsize=4)
def _appending(jvm: Any) -> tuple[Any, Any, Any]:
    """Return Scala's ``None``, the operation of a transaction that appends, and its hook after the commit."""
    none = _java(jvm, "scala.Option").empty()
    append = _java(jvm, "org.apache.spark.sql.SaveMode").Append
    hook = getattr(_java(jvm, "org.apache.spark.sql.delta.hooks.CheckpointHook$"), "MODULE$")
    return none, _java(jvm, "org.apache.spark.sql.delta.DeltaOperations$Write")(append, *[none] * 8), hook


def log_and_snapshot(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return Delta's log of a table and its present snapshot; the version is -1 without a table."""
    tables = java(spark, "org.apache.spark.sql.delta.DeltaLog")
    found = tables.forTableWithSnapshot(spark._jsparkSession, path)  # noqa: SLF001
    return found._1(), found._2()  # noqa: SLF001 - names of Scala


def known_snapshot(spark: SparkSession, path: str) -> Any:
    """Return the cached snapshot of a table, which costs nothing, or a new one if that is too old."""
    # It is too old with twice the commits of a checkpoint interval: commits add themselves to it, and only reading the
    # log again replaces them by a checkpoint, which another process may have made. It is also too old if the log does
    # not continue it.
    table = java(spark, "org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, path)  # noqa: SLF001
    snapshot = table.unsafeVolatileSnapshot()
    recent = 0 < snapshot.logSegment().deltas().size() <= 2 * table.checkpointInterval(snapshot.metadata())
    return snapshot if recent and _continued(spark, snapshot) else log_and_snapshot(spark, path)[1]


def _continued(spark: SparkSession, snapshot: Any) -> bool:
    """Return whether the newest commit of a snapshot exists; a clean-up of the log may free committed versions, too."""
    log = snapshot.deltaLog()
    newest = java(spark, "org.apache.hadoop.fs.Path")(log.logPath(), f"{snapshot.version():020}.json")
    return bool(newest.getFileSystem(log.newDeltaHadoopConf()).exists(newest))


def empty_commit(spark: SparkSession, path: str) -> str | None:
    """Return the newest commit of a table if it is an empty file, which Delta takes for a commit without changes."""
    commits = log_and_snapshot(spark, path)[1].logSegment().deltas()
    newest = commits.last() if commits.size() else None
    return str(newest.getPath()) if newest is not None and not newest.getLen() else None


def versions(spark: SparkSession, snapshot: Any) -> dict[str, int]:
    """Return the newest version of each application in a snapshot."""
    # They are in the checksum beside the newest commit. A Spark job reads the log if the checksum is missing, such as
    # after the commit of another program, or lacks them, because they are more than 100 or have a retention time.
    checksum = snapshot.checksumOpt()
    listed = checksum.get().setTransactions() if checksum.isDefined() else checksum
    found = listed.get() if listed.isDefined() else snapshot.setTransactions()
    # in one call: there may be many
    text = java(spark, "org.apache.spark.sql.delta.util.JsonUtils").mapper().writeValueAsString(found)
    return {one["appId"]: one["version"] for one in json.loads(text)}


def changed_files(
    spark: SparkSession, table: Any, after: int, upto: int
) -> tuple[list[dict[str, Any]], set[str]] | None:
    """Return the files that commits after one version and up to another have added, from the log, without a Spark job.

    :param table: its ``DeltaLog``
    :return: the files in the form of the log, without those removed again, and the removed paths of earlier files; a
        file with new statistics counts as added, one that was brought back as both. ``None``: the log lacks a commit
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
    """Run a commit to a table, or a read of it; retry after a conflict, or if a file that it reads was deleted."""
    for _ in range(attempts - 1):
        try:
            return work()
        except Exception as error:
            if not isinstance(error, CONFLICTS) and _GONE.search(str(error)) is None:
                raise
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
    """Append files as a version of an application, unless the table has that version or a later one.

    The commit does not wait for a due checkpoint of the log, which takes seconds.

    :param write: writes the files of a transaction; returns the actions that add them: :func:`added`, :func:`written`
    :param check: gets the :func:`versions` of the table, and raises to refuse the append; appends with a check conflict
        with each other, so that none happens between the check and the commit
    :param follows: the newest version that the table may have, if versions have gaps
    :return: whether the last attempt has appended them
    """
    none, operation, checkpoint_hook = _appending(spark._jvm)  # noqa: SLF001
    names = [application] if check is None else [application, CHECKED]
    attempts = itertools.count()

    def attempt() -> bool:
        # only after a conflict with another process is the log listed
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
            # as Delta's own lookup of the version: commits of the same application conflict
            transaction.readTxn().append(name)
        now = table.clock().getTimeMillis()
        own = [{"txn": {"appId": name, "version": version, "lastUpdated": now}} for name in names]
        committed = transaction.commit(write(transaction).appendedAll(added(spark, own)), operation)
        # the condition of the hook
        if committed % table.checkpointInterval(transaction.metadata()) == 0 and path not in _DUE:
            _DUE.add(path)
            # the process may be ending
            with suppress(RuntimeError):
                _CHECKPOINTS.submit(_checkpoint, spark, path)
        if not _continued(spark, snapshot):
            raise exceptions.ConcurrentWriteException("The log was cleaned up meanwhile: it may lack the commit.")
        return True

    # a job that starts may be adding a column, or changing a property
    return retried(attempt)


def _checkpoint(spark: SparkSession, path: str) -> None:
    """Make a checkpoint of a table's log, and clean the log up, as Delta does after a commit."""
    # After a failure, whose reason Delta logs, readers of the log have more to read until the next checkpoint.
    _DUE.discard(path)
    try:
        table, snapshot = log_and_snapshot(spark, path)
        table.checkpoint(snapshot, _appending(spark._jvm)[0])  # noqa: SLF001
        # uses the checkpoint, unless a commit is in progress
        log_and_snapshot(spark, path)
    except Exception as error:
        log.warning("There is no new checkpoint of the log of %s; the next one is due later.", path, exc_info=error)


def added(spark: SparkSession, actions: Iterable[dict[str, Any]]) -> Any:
    """Return Delta's objects for actions in the form of the log."""
    action = java(spark, "org.apache.spark.sql.delta.actions.Action")
    found = java(spark, "java.util.ArrayList")()
    for one in actions:
        found.add(action.fromJson(json.dumps(one)))
    return java(spark, "scala.jdk.javaapi.CollectionConverters").asScala(found).toSeq()


def written(transaction: Any, rows: DataFrame) -> Any:
    """Write the rows of a frame by a Spark job; return the actions that add its files."""
    return transaction.writeFiles(rows._jdf)  # noqa: SLF001
