"""The twin's journal, its things and their search index: changes are appended first, the others are merged later.

``thing_events`` is the truth: one row per change, with the whole thing at its last change in a batch. ``things`` is the
present state, merged from the journal, and names the batch up to which it is complete; a restart restores the things
before a given batch from both. ``things_search`` has one row for every value within every thing; paths are those of RQL
(``features/lamp/properties/on``): the values of an array, and of the objects in it, share a path.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.pandas.types import to_arrow_type

from ackstream.lake import commits, tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.protocol.json import escape
from ackstream.settings import Lake

JOURNAL = "thing_events"
_THINGS = ALL_TABLES["things"].names
ORIGIN, BEGIN = "ackstream.origin", "ackstream.begin"
"""Properties of the journal: the id of the topic of its offsets, and the first batch that has read that topic."""
_MERGED = "merged"
"""The application whose version in ``things`` is the batch of :func:`merged`."""


def first_batch(spark: SparkSession, lake: Lake, query_id: str) -> int:
    """Return the number of a query's first batch: the batches of earlier checkpoints precede it."""
    return tables.first_and_newest(tables.transactions(spark, lake, JOURNAL), query_id)[0]


def origin(spark: SparkSession, lake: Lake) -> str | None:
    """Return the id of the topic whose offsets the journal has; ``None`` before :func:`remember_origin`."""
    return _properties(spark, lake).get(ORIGIN)


def remember_origin(spark: SparkSession, lake: Lake, topic_id: str) -> None:
    """Remember the topic of the commands in all further batches."""
    found = _properties(spark, lake)
    if found.get(ORIGIN) != topic_id:
        # a journal of an earlier release already has offsets of that topic
        begin = first_batch(spark, lake, "") if ORIGIN in found else 0
        wanted = f"SET TBLPROPERTIES ('{ORIGIN}' = '{topic_id}', '{BEGIN}' = '{begin}')"
        commits.retried(lambda: spark.sql(f"ALTER TABLE delta.`{tables.location(lake, JOURNAL)}` {wanted}"))


def _properties(spark: SparkSession, lake: Lake) -> dict[str, str]:
    path = tables.location(lake, JOURNAL)
    if not DeltaTable.isDeltaTable(spark, path):
        return {}
    found: dict[str, str] = DeltaTable.forPath(spark, path).detail().select("properties").collect()[0][0]
    return found


def next_offsets(spark: SparkSession, lake: Lake, topic: str) -> dict[int, int]:
    """Return, by partition of the signals topic, the offset after the last command in the journal; scans all of it."""
    begin = int(_properties(spark, lake).get(BEGIN, 0))
    events = tables.read(spark, lake, JOURNAL).where((F.col("batch") >= begin) & (F.col("topic") == topic))
    return {partition: last + 1 for partition, last in events.groupBy("partition").agg(F.max("offset")).collect()}


def append(
    spark: SparkSession,
    lake: Lake,
    rows: pa.Table,
    query_id: str,
    batch: int,
    part: int = 0,
    check: Callable[[Mapping[str, int]], None] | None = None,
) -> None:
    """Append the rows of a batch, or of a part of it, unless the journal has them: :func:`tables.append_rows`."""
    application = f"{query_id}+{part}" if part else query_id
    tables.append_rows(spark, rows, lake, JOURNAL, application, batch, check=check)


def before(spark: SparkSession, lake: Lake, batch: int) -> DataFrame:
    """Return all things before a batch, in the columns of ``things``; ``thing`` is null for a deleted thing."""
    # The tables may already have the batch, if it will be replayed.
    since, place = merged(spark, lake), tables.location(lake, "things")
    version = commits.log_and_snapshot(spark, place)[1].version()
    # the index merges meanwhile: without a version, each query could see another table
    things = spark.read.format("delta").option("versionAsOf", version).load(place)
    events = tables.read(spark, lake, JOURNAL).where(F.col("last") & (F.col("batch") < batch))
    parts = [things.where(F.col("batch") < batch), events.where(F.col("batch") >= since)]
    # things that the batch has already changed are restored from the whole journal
    ahead = things.where(F.col("batch") >= batch).select("thing_id")
    if not ahead.isEmpty():
        parts.append(events.join(ahead, "thing_id", "left_semi"))
    return latest(reduce(lambda one, other: one.union(other), [part.select(*_THINGS) for part in parts]))


def merged(spark: SparkSession, lake: Lake) -> int:
    """Return a batch before which ``things`` is complete, and which may be merged in part; 0: it is unknown."""
    return tables.transactions(spark, lake, "things").get(_MERGED, 0)


def remember_merged(spark: SparkSession, lake: Lake, batch: int) -> None:
    """Commit the batch of :func:`merged`, unless a later one is known."""
    place = tables.location(lake, "things")
    commits.commit(spark, place, f"{_MERGED}/things", batch, lambda _: commits.added(spark, []))


def complete(spark: SparkSession, lake: Lake, batch: int) -> None:
    """Merge the missing changes up to a batch: ``things`` is from an earlier release or backup, or is new."""
    # the merge changes the rows that are lacking
    rows = unmerged(spark, lake, batch).localCheckpoint()
    merge(spark, lake, rows)
    merge_values(spark, lake, rows)


def unmerged(spark: SparkSession, lake: Lake, batch: int) -> DataFrame:
    """Return the last state, up to a batch of the journal, of each thing that is older or missing in ``things``."""
    span = F.col("batch").between(merged(spark, lake), batch)
    events = tables.read(spark, lake, JOURNAL).where(F.col("last") & span)
    newest = events.groupBy("thing_id").agg(F.max("revision").alias("revision"))
    same = (F.col("known.thing_id") == F.col("new.thing_id")) & (F.col("known.revision") >= F.col("new.revision"))
    known = tables.read(spark, lake, "things")
    newer = newest.alias("new").join(known.alias("known"), same, "left_anti")
    return events.join(newer, ["thing_id", "revision"], "left_semi")


def latest(rows: DataFrame) -> DataFrame:
    """Return the row with the highest revision of each thing, in the columns of ``things``."""
    columns = [name for name in _THINGS if name != "thing_id"]
    newest = rows.groupBy("thing_id").agg(F.max_by(F.struct(*columns), "revision").alias("newest"))
    return newest.select("thing_id", "newest.*")


def merge(spark: SparkSession, lake: Lake, events: DataFrame) -> None:
    """Merge rows of the journal into ``things``; rows that are not newer change nothing."""
    changed = latest(events.where("last").select(*_THINGS))
    known, new = F.col("known.thing_id") == F.col("new.thing_id"), F.col("new.revision") > F.col("known.revision")
    # by name: the table may have columns of a later release
    columns = {name: F.col(f"new.{name}") for name in _THINGS}

    def attempt() -> None:
        target = DeltaTable.forPath(spark, tables.location(lake, "things")).alias("known")
        merging = target.merge(changed.alias("new"), known).whenMatchedUpdate(new, columns)
        merging.whenNotMatchedInsert(values=columns).execute()

    commits.retried(attempt)


VALUE_KEY = ("thing_id", "path", "element")
_INDEX = ALL_TABLES["things_search"].schema
_ARROW = pa.schema([(column.name, to_arrow_type(column.dataType)) for column in _INDEX])

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def flatten(thing: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each value of a thing with its path; an empty object or array is a value."""
    rest: list[tuple[str, Any]] = [(escape(name), value) for name, value in reversed(thing.items())]
    while rest:
        path, value = rest.pop()
        if isinstance(value, dict) and value:
            rest.extend((f"{path}/{escape(name)}", entry) for name, entry in reversed(value.items()))
        elif isinstance(value, list) and value:
            rest.extend((path, entry) for entry in reversed(value))
        else:
            yield path, value


def value_rows(thing_id: str, thing: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a thing (JSON), in the columns of the table."""
    seen: dict[str, int] = {}
    for path, value in flatten(_decode(thing)):
        element = seen[path] = seen.get(path, -1) + 1
        text = value if isinstance(value, str) else None
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        flag = value if isinstance(value, bool) else None
        yield thing_id, path, element, text, number, flag, _encode(value).decode()


def merge_values(spark: SparkSession, lake: Lake, events: DataFrame) -> None:
    """Merge rows of the journal, after their merge into ``things``, into the index; earlier states change nothing."""
    # A new checkpoint reads the journal by the times of its files: a state may come after a later one.
    changed = latest(events.where("last").select(*_THINGS)).select("thing_id", "thing", "revision")
    later = tables.read(spark, lake, "things").selectExpr("thing_id AS known_id", "revision AS known_revision")
    changed = changed.join(later, F.expr("thing_id = known_id AND known_revision > revision"), "left_anti")
    new = changed.where("thing IS NOT NULL").mapInArrow(_index, _INDEX)
    index = tables.read(spark, lake, "things_search")
    known = index.join(changed.select("thing_id"), "thing_id", "left_semi").selectExpr(*VALUE_KEY, "value AS known")
    different = new.join(known, list(VALUE_KEY), "full_outer").where("NOT (value <=> known)").localCheckpoint()
    same_value = " AND ".join(f"known.{name} = new.{name}" for name in VALUE_KEY)
    columns = {name: f"new.{name}" for name in _ARROW.names}

    def attempt() -> None:
        target = DeltaTable.forPath(spark, tables.location(lake, "things_search")).alias("known")
        merging = target.merge(different.alias("new"), same_value).whenMatchedDelete("new.value IS NULL")
        merging = merging.whenMatchedUpdate(set=columns)
        merging.whenNotMatchedInsert("new.value IS NOT NULL", values=columns).execute()

    if not different.isEmpty():
        commits.retried(attempt)


def _index(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        things = zip(batch.column("thing_id").to_pylist(), batch.column("thing").to_pylist(), strict=True)
        found = [row for thing_id, thing in things for row in value_rows(thing_id, thing)]
        columns = [pa.array([row[at] for row in found], field.type) for at, field in enumerate(_ARROW)]
        yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)
