"""Requests from DataFrames, one per row, and the acknowledgement of a committed batch.

The format ``ackstream`` takes :data:`COLUMNS`, and :data:`OPTIONS` for rows without. Each row becomes a record whose
headers request acknowledgements; no reply is sent, the outcome is a row of ``ackstream.outcomes``. A row that cannot be
a request fails its task, after earlier rows have been sent.

Spark writes the rows of a failed task again, so a request may be in its topic twice. Both copies have one
correlation-id, since it follows from the row, and correlate answers the first: until the deadline plus
``correlate.recent_memory`` another record of that id is a dead letter ``duplicate`` (``CorrelateShard._open``,
``Recent.end``). A later copy is a new request, so the timeout has to be longer than a task with its retries. Equal rows
are one request, unless the column ``correlation_id`` distinguishes them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, datasource
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from ackstream.client.core.connection import Connection
from ackstream.client.parties.answers import Ack
from ackstream.client.parties.signals import messages, read_record_signal
from ackstream.client.requests.commands import address_record
from ackstream.errors import AckstreamError, BadParameterError
from ackstream.kafka.connection import Outbox, OutgoingRecord
from ackstream.kafka.topics import system_topics
from ackstream.protocol.ditto.envelopes import encode
from ackstream.protocol.ditto.headers import RESPONSE_REQUIRED, requested_acks_in
from ackstream.protocol.ditto.labels import parse_declared
from ackstream.protocol.ditto.record_requests import read_record
from ackstream.protocol.durations import MAX_MS
from ackstream.protocol.errors import DittoError
from ackstream.protocol.record_headers import CORRELATION_ID
from ackstream.settings import Kafka, Settings, load
from ackstream.settings.base import nearest
from ackstream.settings.jobs import matches

AT_ONCE = 1_000  # records that Kafka has stored before the next ones are made
TEXT, BYTES = ("string",), ("string", "binary")
COLUMNS = {
    "topic": TEXT,
    "key": BYTES,
    "value": BYTES,
    "labels": ("string", "array<string>"),
    "timeout": TEXT,
    "correlation_id": TEXT,
    "headers": ("map<string,string>", "map<string,binary>"),
}
"""The columns of a row, and the types that each may have; ``topic`` is a real name."""
OPTIONS = ("topic", "labels", "timeout")
OF_BATCH = ("topic", "partition", "offset", "key", "value", "headers")
_StreamBase: Any = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)  # Spark 4.0


def read_options(given: Mapping[str, str], own: Sequence[str]) -> tuple[Settings, dict[str, str]]:
    """Return ``settings`` (a file; by default that of clients) with the Kafka of ``bootstrap``, and all options."""
    # Spark passes on two of its own
    options = {name.lower(): text for name, text in given.items() if name.lower() not in ("path", "checkpointlocation")}
    _check_names("option", options, (*own, "bootstrap", "settings"))
    settings = load(Path(options["settings"]) if "settings" in options else None)
    kafka = settings.kafka.model_copy(update={"bootstrap": options.get("bootstrap", settings.kafka.bootstrap)})
    return settings.model_copy(update={"kafka": kafka}), options


def _check_names(kind: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise BadParameterError(f"There is no {kind} {name}, {nearest(name, known)}: rename or remove it.")


@dataclass(frozen=True)
class RowRequests:
    """Makes the record of each row, which has columns of these ``names``; the others are the options."""

    names: tuple[str, ...]
    topic: str | None = None
    labels: tuple[str, ...] = ()
    timeout: str | None = None
    max_timeout: int = MAX_MS
    patterns: tuple[str, ...] = ()
    system: frozenset[str] = frozenset()

    @classmethod
    def of(cls, columns: Mapping[str, str], options: Mapping[str, str], settings: Settings) -> "RowRequests":
        """Check the options, and the types of columns by name; raise an ``AckstreamError`` for a wrong one."""
        _check_names("column", columns, tuple(COLUMNS))
        for name, kind in columns.items():
            if kind not in COLUMNS[name]:
                raise BadParameterError(f"The column {name} is {kind}: cast it to {' or '.join(COLUMNS[name])}.")
        for name in ("topic", "labels"):
            if name not in columns and not options.get(name):
                raise BadParameterError(f"The option {name} is missing: set it, or add a column {name}.")
        if not {"key", "value", "correlation_id"} & columns.keys():
            raise BadParameterError(f"The columns are {', '.join(columns)}: add the request itself, key or value.")
        labels, timeout, limits = _labels(options.get("labels")), options.get("timeout"), settings.correlate
        _headers(labels or ("any:label",), timeout, limits.max_timeout)
        rules = limits.max_timeout, limits.request_topics, system_topics(settings.kafka)
        found = cls(tuple(columns), options.get("topic"), labels, timeout, *rules)
        if found.topic:
            found.check_topic(found.topic)
        return found

    def check_topic(self, topic: str) -> None:
        """Raise ``BadParameterError`` for a topic of the system, or one outside ``correlate.request_topics``."""
        if topic in self.system:
            raise BadParameterError(f"The topic {topic} is one of the system: name a topic of your own.")
        if self.patterns and not matches(self.patterns, topic):
            raise BadParameterError(
                f"The topic {topic} matches no pattern of correlate.request_topics, {', '.join(self.patterns)}, so"
                " correlate does not read it: add the topic there and restart correlate, or correct its name."
            )

    def record(self, row: Sequence[Any]) -> OutgoingRecord:
        """Return the record of a row; raise ``BadParameterError``, with the row, if it cannot be a request."""
        given = dict(zip(self.names, row, strict=True))
        topic, timeout = given.get("topic") or self.topic, given.get("timeout") or self.timeout
        labels = _labels(given.get("labels")) or self.labels
        key, value = (text.encode() if isinstance(text, str) else text for text in map(given.get, ("key", "value")))
        try:
            if not topic or not labels:
                raise BadParameterError("It has no topic or no labels: fill the column, or set the option.")
            self.check_topic(topic)
            further = tuple(dict(given.get("headers") or ()).items())
            headers = _headers(labels, timeout, self.max_timeout, further)
        except (AckstreamError, ValueError) as error:
            why = f"{error} {error.description or ''}" if isinstance(error, DittoError) else str(error)
            shown = ", ".join(f"{name} {given[name]!r:.80}" for name in self.names)
            raise BadParameterError(f"A row cannot be a request. {why.strip()} The row: {shown}.") from None
        identity = given.get("correlation_id") or digest(topic, key, value, labels)
        return topic, identity if key is None else key, value, [(CORRELATION_ID, identity), *headers]


def digest(topic: str, key: bytes | None, value: bytes | None, labels: Iterable[str]) -> str:
    """Return the correlation-id of a row: a hash of these, 32 hexadecimal digits."""
    found = blake2b(digest_size=16)
    for part in (topic.encode(), key, value, *map(str.encode, labels)):
        # each with its length: the end of one is not the beginning of the next
        found.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    return found.hexdigest()


def _labels(given: str | Sequence[str] | None) -> tuple[Any, ...]:
    return tuple(requested_acks_in(given) if isinstance(given, str) else given or ())


@lru_cache(maxsize=1024)
def _headers(
    labels: tuple[str, ...], timeout: str | None, longest: int, own: tuple[Any, ...] = ()
) -> list[tuple[str, bytes]]:
    """Return the record headers of a request, without its id; raise an ``AckstreamError`` for a wrong one."""
    _, headers = address_record(dict(own), timeout=timeout, acks=labels, correlation_id="any")
    request, _ = read_record(dict(headers), default_timeout_ms=1, max_timeout_ms=MAX_MS)
    if request.timeout_ms > longest:
        raise BadParameterError(
            f"The timeout is {timeout}, but correlate.max_timeout is {longest / 1000:g}s, to which correlate would cut"
            " it: shorten it, or raise that setting, for correlate and in the settings file of this job."
        )
    return [*(each for each in headers if each[0] != CORRELATION_ID), (RESPONSE_REQUIRED, b"false")]


def _send(kafka: Kafka, records: Iterator[OutgoingRecord]) -> int:
    """Send records, and return how many; ``UnreachableError``: a topic is missing, seen before its first record."""
    count, known = 0, set[str]()
    with closing(Outbox(kafka)) as outbox:
        while sent := list(islice(records, AT_ONCE)):
            for topic in {record[0] for record in sent} - known:
                Connection(kafka).consumer(writes=[topic]).close()
                known.add(topic)
            outbox.send(sent)
            count += len(sent)
    return count


@dataclass(frozen=True)
class _Writer:
    requests: RowRequests
    kafka: Kafka

    def write(self, iterator: Iterator[Any]) -> datasource.WriterCommitMessage:
        # batches of Arrow, or rows
        found = ([one] if isinstance(one, tuple) else zip(*one.to_pydict().values(), strict=True) for one in iterator)
        _send(self.kafka, map(self.requests.record, chain.from_iterable(found)))
        return datasource.WriterCommitMessage()


class _BatchWriter(_Writer, datasource.DataSourceArrowWriter): ...


class _StreamWriter(_Writer, _StreamBase): ...


class _RequestSource(datasource.DataSource):
    @classmethod
    def name(cls) -> str:
        return "ackstream"

    def writer(self, schema: Any, overwrite: bool) -> _BatchWriter:  # noqa: FBT001 - Spark's signature
        return _BatchWriter(*self._plan(schema, overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> _StreamWriter:  # noqa: FBT001, N802 - as before
        return _StreamWriter(*self._plan(schema, overwrite))

    def _plan(self, schema: Any, overwrite: bool) -> tuple[RowRequests, Kafka]:  # noqa: FBT001 - as before
        if overwrite:
            raise BadParameterError("The mode is overwrite, but requests are only added: use the mode append.")
        settings, options = read_options(self.options, OPTIONS)
        columns = {each.name: each.dataType.simpleString() for each in schema.fields}
        requests = RowRequests.of(columns, options, settings)
        # here in the driver: each task would wait for the broker, and Spark repeats a failed task
        Connection(settings.kafka).consumer(writes=[requests.topic] if requests.topic else ()).close()
        return requests, settings.kafka


@dataclass(frozen=True)
class BatchAcknowledger:
    """Acknowledges the requests of batches under a label; :func:`acknowledge` makes it."""

    label: str
    answer: Ack
    kafka: Kafka

    def after(self, batch: DataFrame) -> int:
        """Acknowledge those rows of Spark's Kafka source that request the label; return how many.

        To be called once the work is committed. A batch that runs again sends equal acknowledgements, which correlate
        records as ``duplicate``. ``BadParameterError``: a column of :data:`OF_BATCH` is missing.
        """
        if missing := set(OF_BATCH).difference(batch.columns):
            raise BadParameterError(
                f"The batch has no column {min(missing)}: read Kafka with the option includeHeaders."
            )
        return sum(row[0] for row in batch.select(*OF_BATCH).mapInArrow(self._send, "sent bigint").collect())

    def _send(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records = (record for batch in batches for row in batch.to_pylist() if (record := self.record(row)))
        yield pa.RecordBatch.from_pydict({"sent": [_send(self.kafka, records)]})

    def record(self, row: Mapping[str, Any]) -> OutgoingRecord | None:
        """Return the acknowledgement of a row; ``None``: it does not request the label, or correlate refuses it."""
        headers = [(each["key"], each["value"]) for each in row["headers"] or ()]
        given = SimpleNamespace(**{**row, "headers": headers, "timestamp": 0})
        with suppress(DittoError):
            if (signal := read_record_signal(given, (self.label,), lambda *_: False)) is not None:
                ((_, message),) = messages(signal, self.answer)
                identity = signal.correlation_id
                return self.kafka.topic("acks"), identity, encode(message), [(CORRELATION_ID, identity)]
        return None


def acknowledge(label: str, answer: Ack | None = None, kafka: str | Kafka | None = None) -> BatchAcknowledger:
    """Return an acknowledger, for ``acknowledge("stock:loaded").after(batch)``; ``DittoError``: a wrong label.

    ``answer`` is 200 by default; ``kafka``, ``host:port`` or that of settings, is that of the settings file.
    ``ImportError``: pandas is missing, which Spark's ``mapInArrow`` needs; so call this before the work.
    """
    require_minimum_pandas_version()
    kafka = load().kafka if kafka is None else Kafka.of(kafka)
    return BatchAcknowledger(parse_declared(label), answer or Ack(), kafka)
