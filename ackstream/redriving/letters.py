"""Dead letters, as the tables and the topics of other systems have them, and the records that they stand for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from kafka import TopicPartition

from ackstream.errors import InputError
from ackstream.kafka.reader import Place, TopicReader
from ackstream.settings import Lake

AT_ONCE = 500
"""Maximum number of letters that are read or sent at once."""
MOST_DIGITS = 19
"""The digits of the largest offset."""

_COLUMNS = (
    "id, coalesce(reason, ''), queue, subject, coalesce(topic, ''), coalesce(partition, -1),"
    ' coalesce("offset", -1), batch, correlation_id'
)
_TABLES = {
    "dead_letters": (
        'SELECT id, reason, NULL::VARCHAR AS queue, NULL::VARCHAR AS subject, topic, partition, "offset",'
        " NULL::BIGINT AS batch, correlation_id, received_at AS given_up_at, NULL::INTEGER AS deliveries"
        " FROM dead_letters"
    ),
    "queue_events": (
        "SELECT queue || '/' || message AS id, reason, queue, subject, topic, partition, \"offset\", batch,"
        " NULL::VARCHAR AS correlation_id, e.at AS given_up_at, e.count AS deliveries FROM queue_events AS e"
        " WHERE event = 'left' AND outcome = 'dead-letter'"
    ),
}
"""The dead letters in the tables, with the columns that a condition may name."""

SPRING = "kafka_dlt-"
_FOREIGN = {
    # of share groups (KIP-1191), of Kafka Connect (KIP-298), of Spring's DeadLetterPublishingRecoverer (bytes)
    "__dlq.errors.": ("topic", "partition", "offset", "message"),
    "__connect.errors.": ("topic", "partition", "offset", "exception.message"),
    SPRING: ("original-topic", "original-partition", "original-offset", "exception-message"),
}
"""The headers of other systems' dead letters by their prefix: the coordinates of the original, and the reason."""


class Content(NamedTuple):
    """The key, value and headers of a record."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def can_be_sent(self) -> bool:
        """Whether the library sends such a record: with a key or a value, and a value in each header."""
        return not (self.key is self.value is None) and all(value is not None for _, value in self.headers)


class Letter(msgspec.Struct, frozen=True):
    """A dead letter.

    :ivar id: ``topic-partition-offset`` of the unusable record; of a message, its queue, a slash and the same; of a
        record in a dead letter topic of another system, its own coordinates
    :ivar topic: the real name of the topic of the original record; empty: not known
    :ivar batch: the batch of a message in the table ``messages``
    :ivar copy: where a copy of the record is, in a dead letter topic of another system; ``None``: no such copy
    """

    id: str
    reason: str
    queue: str | None
    subject: str | None
    topic: str
    partition: int
    offset: int
    batch: int | None = None
    correlation_id: str | None = None
    copy: Place | None = None

    @property
    def place(self) -> Place:
        """Topic, partition and offset of the original record."""
        return self.topic, self.partition, self.offset


def from_tables(lake: Lake, where: str) -> list[Letter]:
    """Return the dead letters in the tables ``dead_letters`` and ``queue_events`` that meet a condition, by place."""
    from ackstream.lake import reading  # noqa: PLC0415 - other clients need no tables

    with reading.database(lake, _TABLES) as connection:
        if not (parts := [_TABLES[name] for name in sorted(reading.views(connection))]):
            return []
        rows = _selected(connection, f"SELECT {_COLUMNS} FROM ({' UNION ALL '.join(parts)}) WHERE {where}", where)  # noqa: S608 - the condition is the operator's
    # a replayed batch may write a row twice
    return sorted({row[0]: Letter(*row) for row in rows}.values(), key=lambda letter: letter.place)


def from_topic(reader: TopicReader, topic: str, where: str) -> list[Letter]:
    """Return the dead letters in a topic of another system that meet a condition."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    from ackstream.lake.reading import connect  # noqa: PLC0415 - see above

    kinds = pa.schema({
        "id": pa.string(), "reason": pa.string(), "topic": pa.string(), "partition": pa.int64(),
        "given_up_at": pa.timestamp("ms", tz="UTC"), "key": pa.binary(), "value": pa.binary(),
    })  # fmt: skip
    found: list[Letter] = []
    with connect() as connection:
        for records in chunks(all_of(reader, reader.consumer.partitions_for_topic(topic) or (), topic), AT_ONCE):
            letters = [letter_of(record) for record in records]
            rows = [
                (one.id, one.reason, one.topic, one.partition, record.timestamp, record.key, record.value)
                for one, record in zip(letters, records, strict=True)
            ]
            connection.register("letters", pa.table(list(zip(*rows, strict=True)), schema=kinds))
            chosen = {row[0] for row in _selected(connection, f"SELECT id FROM letters WHERE {where}", where)}  # noqa: S608 - see above
            found += [one for one in letters if one.id in chosen]
    return found


def _selected(connection: Any, query: str, where: str) -> list[Any]:
    import duckdb  # noqa: PLC0415 - see above

    try:
        rows: list[Any] = connection.execute(query).fetchall()
    except duckdb.Error as error:
        raise InputError(f"{where!r} is not a condition over dead letters: {error}") from None
    return rows


def letter_of(record: Any) -> Letter:
    """Read a record of another system's dead letter topic; it has no topic if its headers do not name the original."""
    headers, own = dict(record.headers), (record.topic, record.partition, record.offset)
    # a share group may be set to copy no value: then the original record is read
    copy = None if record.key is record.value is None else own
    identity, prefix = "-".join(map(str, own)), _system(headers)
    if prefix is None:
        return Letter(identity, "", None, None, "", -1, -1, copy=own)
    topic, partition, offset, reason = (headers.get(prefix + name) for name in _FOREIGN[prefix])
    text, place = (reason or b"").decode(errors="replace"), (_number(partition, prefix), _number(offset, prefix))
    return Letter(identity, text, None, None, (topic or b"").decode(errors="replace"), *place, copy=copy)


def _system(headers: Mapping[str, bytes | None]) -> str | None:
    """Return the prefix of the headers in which a system has named the original of its copy."""
    return next((prefix for prefix, (topic, *_) in _FOREIGN.items() if headers.get(prefix + topic)), None)


def _number(value: bytes | None, prefix: str) -> int:
    """Read a number, in bytes or in digits, else -1."""
    if value is not None and prefix == SPRING:
        return int.from_bytes(value, "big")
    return int(value) if value and value.isdigit() and len(value) <= MOST_DIGITS else -1


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield items in lists of at most ``size``."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def all_of(reader: TopicReader, partitions: Iterable[int], topic: str) -> Iterator[Any]:
    """Yield the present records of a topic, partition by partition."""
    consumer = reader.consumer
    for partition in (TopicPartition(topic, number) for number in sorted(partitions)):
        start, end = consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
        yield from reader.between(partition, start, end)


def contents(reader: TopicReader, lake: Lake, letters: Sequence[Letter]) -> dict[str, Content]:
    """Return the content of those letters whose record is still stored: in Kafka, or in a table."""
    from ackstream.lake import reading  # noqa: PLC0415 - other clients need no tables

    found: dict[str, Content] = {}
    if messages := [letter for letter in letters if letter.queue and letter.batch is not None]:
        rows = {
            (row["topic"], row["partition"], row["offset"]): Content(
                row["key"], row["value"], [(header["name"], header["value"]) for header in row["headers"] or ()]
            )
            for row in reading.messages_at(lake, [(one.batch or 0, one.partition, one.offset) for one in messages])
        }
        found = {one.id: rows[one.place] for one in messages if one.place in rows}
    records, consumer = [letter for letter in letters if not letter.queue], reader.consumer
    if records:
        # a letter may name any topic, partition and offset
        known, named = consumer.topics(), {one.copy or one.place for one in records}
        wanted = [one for one in named if one[0] in known and one[1] in consumer.partitions_for_topic(one[0])]
        ends = consumer.end_offsets([TopicPartition(*partition) for partition in {one[:2] for one in wanted}])
        kept = reader.fetch([one for one in wanted if 0 <= one[2] < ends[TopicPartition(*one[:2])]])
        for letter in records:
            if (record := kept.get(letter.copy or letter.place)) is not None:
                # of a copy without the headers of the system that has made it
                prefix = None if letter.copy is None else _system(dict(record.headers))
                headers = [each for each in record.headers if prefix is None or not each[0].startswith(prefix)]
                found[letter.id] = Content(record.key, record.value, headers)
    if missing := [letter.id for letter in records if letter.id not in found]:
        with reading.database(lake, ["dead_letters"]) as connection:
            if reading.views(connection):
                # the table has no headers, and some records only in part
                query = "SELECT id, key, value FROM dead_letters WHERE NOT truncated AND list_contains($1, id)"
                copies = connection.execute(query, [missing]).fetchall()
                found |= {name: Content(key, value, []) for name, key, value in copies}
    return found
