"""Requests of query clients: records of the topic ``queries``, each one command or the reason to refuse it.

The client's name is the record's key. Everything else is in record headers; the last one of a name counts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from ackstream.jobs.query.amps_filters import FilterSyntaxError
from ackstream.jobs.query.filters import fits, read_filter
from ackstream.kafka.connection import OutgoingRecord
from ackstream.protocol import messages, queries, record_headers
from ackstream.protocol.durations import MAX_MS, read_duration
from ackstream.protocol.messages import NOT_SUPPORTED, SUPPORTED, ClientCommand
from ackstream.spark.records import guarded, in_order

log = logging.getLogger(__name__)

NO_CLIENT, NO_COMMAND, TOO_LONG = "no client name", "no such command", "a name is too long"
TOO_LARGE = "command too large"
NO_TOPIC, INVALID_TOPIC, INVALID_SUB_ID = "no topic", "invalid topic", "invalid subId"
INVALID_OPTIONS, INVALID_ORDER_BY = "invalid options", "invalid order by"
NOTHING_TO_DELETE, AMBIGUOUS = "no filter or keys", "more than one of filter and keys"

MAX_NAME: Final = 1_000
"""The maximum length of the names that every result repeats: the client's, command's, subscription's and topic's."""

MAX_ORDER_KEYS: Final = 20
"""Each is looked up in every message, and compared."""

UNSERVED: Final = frozenset({"publish", "delta_publish", "delta_subscribe", "sow_and_delta_subscribe"})
"""Commands that are refused: messages are published on a topic of their own, and there are no deltas."""

WITH_TOPIC: Final = frozenset({"subscribe", "sow", "sow_and_subscribe", "sow_delete"})
_NAMES: Final = (record_headers.CID, record_headers.SUB_ID, record_headers.TOPIC)
_INTERVALS: Final = frozenset({"ack_conflation", "heartbeat"})
_OPTIONS: Final = {"subscribe": {"replace"}, "sow_and_subscribe": {"replace"}, "logon": _INTERVALS}
_ORDER = re.compile(r"((?:/@?[A-Za-z_][\w.-]*)+)(?:\s+(ASC|DESC))?", re.IGNORECASE)


class UnreadableError(ValueError):
    """A record that cannot be answered; the text is the reason."""


class OrderKey(NamedTuple):
    """A path in the message that orders the records."""

    path: tuple[str, ...]
    descending: bool


@dataclass(frozen=True)
class QueryRequest:
    """One command of a client; ids of its results begin with ``origin``, the record's ``partition-offset``.

    ``time``: the record's timestamp, epoch milliseconds; ``bookmark``: as the client wrote it; ``options``: intervals
    in milliseconds by name, ``ack_conflation`` between bookmarks, ``heartbeat`` between heartbeats (0: none any more);
    ``reason``, and a sentence about it, ``detail``: the reason why the record itself shows that the command is refused.
    """

    client: str
    origin: str
    time: int
    command: ClientCommand
    topic: str = ""
    sub_id: str = ""
    bookmark: str | None = None
    keys: tuple[str, ...] = ()
    order_by: tuple[OrderKey, ...] = ()
    options: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None
    detail: str | None = None

    def refused(self, reason: str | None, detail: str | None = None) -> QueryRequest:
        """Return the request with the reason to refuse it, if there is one; the first one counts."""
        return self if self.reason else replace(self, reason=reason, detail=detail)

    def notified(self, reason: str) -> QueryRequest:
        """Return the request with another reason to refuse it, of which its client is notified in any case."""
        return replace(self, command=replace(self.command, asked=self.command.asked | {"processed"}), reason=reason)


def read(key: bytes | None, headers: Iterable[tuple[str, bytes | None]], origin: str, time: int) -> QueryRequest:
    """Read a record. Raises UnreadableError if it cannot be answered."""
    client = (key or b"").decode("utf-8", "replace")
    if not client:
        raise UnreadableError(NO_CLIENT)
    values = {name: value.decode("utf-8", "replace") for name, value in headers if value is not None}
    name = values.get(record_headers.COMMAND, "")
    if any(len(text) > MAX_NAME for text in (client, name, *(values.get(header, "") for header in _NAMES))):
        raise UnreadableError(TOO_LONG)
    asked = messages.asked(values.get(record_headers.ACK, "").replace(" ", "").split(","))
    command = ClientCommand(name, values.get(record_headers.CID), asked)
    sub_id = values.get(record_headers.SUB_ID) or values.get(record_headers.CID, "")
    request = QueryRequest(client, origin, time, command, sub_id=sub_id)
    if name in UNSERVED:
        return request.refused(NOT_SUPPORTED)
    if name not in SUPPORTED:
        return request.notified(NO_COMMAND)
    try:
        request = _with_headers(request, values)
        return request.refused(_refusal(request))
    except _InvalidHeaderError as error:
        return request.refused(str(error))
    except FilterSyntaxError as error:
        return request.refused(queries.BAD_FILTER, str(error))


class _InvalidHeaderError(ValueError):
    """A header is invalid; the text is the reason."""


def _with_headers(request: QueryRequest, values: Mapping[str, str]) -> QueryRequest:
    name = request.command.name
    words = [word.strip() for word in values.get(record_headers.OPTIONS, "").split(",") if word.strip()]
    top_n, seq = values.get(record_headers.TOP_N), values.get(record_headers.SEQ)
    if not all(number is None or re.fullmatch(r"\d{1,18}", number) for number in (top_n, seq)):
        raise _InvalidHeaderError(INVALID_OPTIONS)
    keys = tuple(filter(None, values.get(record_headers.SOW_KEYS, "").split(",")))
    command = replace(
        request.command,
        seq=int(seq) if seq is not None else None,
        filter=values.get(record_headers.FILTER) or None,
        top_n=int(top_n) if top_n is not None else None,
    )
    return replace(
        request,
        command=command,
        topic=values.get(record_headers.TOPIC, ""),
        bookmark=values.get(record_headers.BOOKMARK) or None,
        keys=keys,
        options=_heartbeat(words) if name == "heartbeat" else _options(name, words),
        order_by=_order_by(values.get(record_headers.ORDER_BY, "")),
    )


def _refusal(request: QueryRequest) -> str | None:
    command = request.command
    name = command.name
    if name in WITH_TOPIC and not request.topic:
        return NO_TOPIC
    if "subscribe" in name and not request.sub_id:
        return INVALID_SUB_ID
    if name == "sow_delete" and bool(command.filter) == bool(request.keys):
        return AMBIGUOUS if request.keys else NOTHING_TO_DELETE
    if request.bookmark and name != "subscribe":
        return NOT_SUPPORTED
    if command.filter is not None:
        read_filter(command.filter)
    return messages.refusal(command)


def _options(name: str, words: list[str]) -> dict[str, int]:
    options = {}
    for word in words:
        key, sign, value = word.partition("=")
        if key not in _OPTIONS.get(name, ()) or bool(sign) != (key in _INTERVALS):
            raise _InvalidHeaderError(INVALID_OPTIONS)
        options[key] = _milliseconds(value) if sign else 0
    return options


def _heartbeat(words: list[str]) -> dict[str, int]:
    """Read ``start,10`` (seconds, or with a unit), ``stop``, ``beat`` or nothing."""
    match words:
        case ["start", interval]:
            return {"heartbeat": _milliseconds(interval if not interval.isdecimal() else f"{interval}s")}
        case ["stop"]:
            return {"heartbeat": 0}
        case ["beat"] | []:
            return {}
        case _:
            raise _InvalidHeaderError(INVALID_OPTIONS)


def _milliseconds(text: str) -> int:
    found = read_duration(text)
    if not found or found > MAX_MS:
        raise _InvalidHeaderError(INVALID_OPTIONS)
    return found


def _order_by(text: str) -> tuple[OrderKey, ...]:
    keys: list[OrderKey] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if len(keys) == MAX_ORDER_KEYS:
            raise _InvalidHeaderError(INVALID_ORDER_BY)
        found = _ORDER.fullmatch(part)
        if found is None:
            raise _InvalidHeaderError(INVALID_ORDER_BY)
        path = tuple(found[1].replace("/@", "/").split("/")[1:])
        keys.append(OrderKey(path, (found[2] or "").upper() == "DESC"))
    return tuple(keys)


MAX_COMMAND_BYTES = 64_000
"""Maximum of the headers of a command, and of a value: memory of the driver for a batch must be bounded."""


class QueryRecord(NamedTuple):
    """A record of Kafka; ``time`` is the broker's, epoch ms; an ``oversized`` one has only the headers that name it."""

    time: int
    partition: int
    offset: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    oversized: bool = False


_SIZE = "aggregate(coalesce(headers, array()), 0, (total, h) -> total + length(h.key) + coalesce(length(h.value), 0))"
_KEPT = ", ".join(f"'{name}'" for name in (record_headers.COMMAND, record_headers.CID, record_headers.ACK))
_NAMED = f"filter(headers, h -> h.key IN ({_KEPT}) AND length(h.value) <= {MAX_NAME})"
_COLUMNS = (
    "unix_millis(timestamp) AS time",
    "partition",
    "offset",
    "topic",
    f"substring(key, 1, {MAX_NAME + 1}) AS key",
    f"IF(length(value) <= {MAX_COMMAND_BYTES}, value, NULL) AS value",
    f"IF({_SIZE} <= {MAX_COMMAND_BYTES}, headers, {_NAMED}) AS headers",
    f"{_SIZE} > {MAX_COMMAND_BYTES} AS oversized",
)


def projected(records: DataFrame) -> DataFrame:
    """Lay out Kafka's records for the driver, each with a limited number of bytes; it is applied to the stream."""
    return records.selectExpr(*_COLUMNS)


def collect(frame: DataFrame) -> Sequence[QueryRecord]:
    """Bring the :func:`projected` records of a batch to the driver, in order."""
    found = []
    for row in frame.toArrow().to_pylist():
        headers = [(entry["key"], entry["value"]) for entry in row["headers"] or ()]
        found.append(QueryRecord(**{**row, "headers": headers}))
    topics = sorted({record.topic for record in found})
    return in_order(found, lambda record: (record.time, topics.index(record.topic), record.partition, record.offset))


def read_queries(
    spark: SparkSession, records: Iterable[QueryRecord]
) -> tuple[list[QueryRequest], list[tuple[QueryRecord, str]]]:
    """Return the commands among records, and the unreadable records with the reason."""
    asked: list[QueryRequest] = []
    dead: list[tuple[QueryRecord, str]] = []

    def decide(record: QueryRecord) -> None:
        request = read(record.key, record.headers, f"{record.partition}-{record.offset}", record.time)
        if record.oversized:
            request = request.notified(TOO_LARGE)
        text = request.command.filter
        unsound = text is not None and request.reason is None and not _sound(spark._jsparkSession, text)  # noqa: SLF001 - see there
        asked.append(request.refused(queries.BAD_FILTER, UNSOUND) if unsound else request)

    def fail(record: QueryRecord, error: Exception) -> None:
        if isinstance(error, UnreadableError):
            dead.append((record, str(error)))
            return
        log.error("A record of %s cannot be read (offset %s)", record.topic, record.offset, exc_info=error)
        dead.append((record, f"it cannot be processed: {error!r}"))

    for record in records:
        guarded(record, decide, fail)
    return asked, dead


def dead_letters(dead: Iterable[tuple[QueryRecord, str]], topic: str) -> list[OutgoingRecord]:
    """Return dead letters as records of a topic, with the reason and the coordinates in the headers."""
    return [
        (topic, one.key, one.value, record_headers.of_dead_letter(reason, one.topic, one.partition, one.offset))
        for one, reason in dead
    ]


UNSOUND = "The types of the compared or calculated values do not fit."


@lru_cache(maxsize=1024)
def _sound(session: Any, text: str) -> bool:
    """Return whether Spark accepts a filter that has been parsed: the types of its functions may not fit."""
    # ``session`` is the JVM's, which lasts; each batch has a session of Python of its own
    spark = SparkSession(SparkContext.getOrCreate(), session)
    try:
        found = spark.createDataFrame([], "value STRING").where(fits(spark.sparkContext, text))
        # planned, not only analysed: the plan of a long filter is deeper
        found._jdf.queryExecution().executedPlan()  # noqa: SLF001 - there is no public way
    except Exception as error:  # noqa: BLE001 - the error concerns this command alone
        log.info("Spark does not accept the filter %r: %s", text, error)
        return False
    return True
