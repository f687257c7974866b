"""What the query job reads: commands, and how far persist says that the log is."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.options import options
from ackstream.protocol.stored import StoredError
from ackstream.protocol.stored import read as read_stored
from ackstream.publishing import commands
from ackstream.publishing.queries import filters, requests, results, selections
from ackstream.publishing.queries.requests import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ackstream.publishing.queries.requests import Request
    from ackstream.settings import Kafka

log = logging.getLogger(__name__)


class Record(NamedTuple):
    """A record of Kafka; ``time`` is the broker's, epoch milliseconds."""

    time: int
    partition: int
    offset: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def ends(kafka: Kafka, topics: list[str]) -> str:
    """Return the present ends of topics, for a new checkpoint.

    Commands that are older have been given up by their clients, and deleting twice is not deleting once. Spark itself
    would look later, and leave out what is sent as soon as the query has been started.
    """
    known = options(kafka, KafkaConsumer.DEFAULT_CONFIG)
    with closing(KafkaConsumer(bootstrap_servers=kafka.bootstrap, **known)) as consumer:
        places = [TopicPartition(topic, number) for topic in topics for number in consumer.partitions_for_topic(topic)]
        found: dict[str, dict[str, int]] = {topic: {} for topic in topics}
        for place, offset in consumer.end_offsets(places).items():
            found[place.topic][str(place.partition)] = offset
    return json.dumps(found)


def collect(frame: DataFrame) -> list[Record]:
    """Bring the records of a batch to the driver, in the order of their times."""
    columns = (F.unix_millis("timestamp").alias("time"), *Record._fields[1:])
    found = []
    for row in frame.select(*columns).toArrow().to_pylist():
        headers = [(entry["key"], entry["value"]) for entry in row["headers"] or ()]
        found.append(Record(**{**row, "headers": headers}))
    return sorted(found, key=lambda record: record[:3])


def newest_batch(records: Iterable[Record], topic: str, known: int) -> int:
    """Return the last batch of the log: the one that is known, or a later one that persist has told of.

    :param topic: the topic ``stored`` by its real name
    """
    newest = known
    for record in records:
        if record.topic == topic:
            try:
                newest = max(newest, read_stored(record.value or b"").batch)
            except StoredError as error:
                log.warning("A record of %s is left out (offset %s): %s", topic, record.offset, error)
    return newest


def read(spark: SparkSession, records: Iterable[Record]) -> tuple[list[Request], list[tuple[Record, str]]]:
    """Return the commands among records, and those that are none, with the reason."""
    asked, dead = [], []
    for record in records:
        origin = f"{record.partition}-{record.offset}"
        try:
            request = requests.read(record.key, record.headers, origin, record.time)
        except UnreadableError as error:
            dead.append((record, str(error)))
        else:
            text = request.command.filter
            unsound = text is not None and request.reason is None and not _sound(spark, text)
            asked.append(request.refused(commands.BAD_FILTER) if unsound else request)
    return asked, dead


def dead_letters(spark: SparkSession, dead: Sequence[tuple[Record, str]]) -> DataFrame:
    """Return dead letters as records: key, value, and in the headers the reason and where they stood."""
    rows = []
    for record, reason in dead:
        said = {"reason": reason, "topic": record.topic, "partition": record.partition, "offset": record.offset}
        rows.append((record.key, record.value, [(name, str(value).encode()) for name, value in said.items()]))
    return spark.createDataFrame(rows, "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>")


@lru_cache(maxsize=1024)
def _sound(spark: SparkSession, text: str) -> bool:
    """Tell whether Spark and Java take a filter that has been read."""
    try:
        for pattern in filters.patterns(text) if isinstance(selections.read(text), str) else ():
            spark._jvm.java.util.regex.Pattern.compile(pattern)  # noqa: SLF001 - Spark asks it no sooner than it runs
        spark.createDataFrame([], "value STRING").where(results.fits(text))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is this command's affair
        log.info("Spark does not take the filter %r: %s", text, error)
        return False
    return True
