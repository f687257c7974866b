"""Check that the demo adds up: commands sent, replies, acknowledgements of the devices, and rows in the tables."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ackstream.client.requests.replies import Reply, read_reply
from ackstream.errors import AckstreamError
from ackstream.kafka import topics
from ackstream.kafka.clients import connect_admin, connect_consumer
from ackstream.kafka.reader import TopicReader
from ackstream.lake import tables
from ackstream.protocol.record_headers import CORRELATION_ID
from ackstream.spark.progress import consumed_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ackstream.cli.demo.traffic import Tally
    from ackstream.settings import Kafka, Settings

READ_SECONDS = 60.0
SHOWN = 3
"""Maximum number of examples named per difference."""


@dataclass(frozen=True)
class Evidence:
    """Everything to compare: what was sent and received, the topics replies and acks, and rows of the tables.

    Requests are given by their correlation-ids, acknowledgements as topic-partition-offset.
    """

    sent: Sequence[str]
    received: Sequence[Reply]
    replies: Sequence[Reply]
    acks: Sequence[str]
    signal_rows: Sequence[str]
    outcome_rows: Sequence[Reply]
    ack_rows: Sequence[str]
    dead_letters: int


@dataclass(frozen=True)
class Finding:
    """One check and its differences, which are empty if it holds."""

    text: str
    differences: Sequence[str]


def check(evidence: Evidence) -> list[Finding]:
    """Compare sent commands, acknowledgements, replies and tables."""
    sent, received, outcomes = evidence.sent, evidence.received, evidence.outcome_rows
    commands = [
        *_once("the replies", sent, [reply.correlation_id for reply in received]),
        *_once("outcomes", sent, [row.correlation_id for row in outcomes]),
        *_once("signals", sent, evidence.signal_rows),
    ]
    if evidence.dead_letters:
        commands.append(f"{evidence.dead_letters:,} rows in dead_letters")
    return [
        Finding(
            f"{len(sent):,} commands sent = {len(received):,} replies received = {len(outcomes):,} rows in outcomes"
            f" = {len(evidence.signal_rows):,} rows in signals",
            commands,
        ),
        Finding(
            f"{len(evidence.acks):,} acknowledgements, responses and errors of devices and twin ="
            f" {len(evidence.ack_rows):,} rows in acknowledgements",
            _once("acknowledgements", evidence.acks, evidence.ack_rows),
        ),
        Finding("no command has two different answers; each reply is the one in outcomes", _one_answer(evidence)),
    ]


def _once(where: str, wanted: Iterable[str], found: Iterable[str]) -> list[str]:
    expected, present = Counter(wanted), Counter(found)
    entries = {"lacks": expected - present, "has duplicates of": present - expected}
    return [f"{where}: {what} {_examples(list(names))}" for what, names in entries.items() if names]


def _one_answer(evidence: Evidence) -> list[str]:
    contents: dict[str, set[tuple[str, bytes]]] = defaultdict(set)
    for reply in evidence.replies:
        contents[reply.correlation_id].add((reply.reply_id, reply.data))
    differences = []
    if several := [key for key, found in contents.items() if len(found) > 1]:
        differences.append(f"several different replies to {_examples(several)}")
    outcomes = {row.correlation_id: _answer(row) for row in evidence.outcome_rows}
    if other := [
        reply.correlation_id for reply in evidence.received if outcomes.get(reply.correlation_id) != _answer(reply)
    ]:
        differences.append(f"outcome differs from the reply: {_examples(other)}")
    return differences


def _answer(reply: Reply) -> Any:
    statuses = {label: ack.status for label, ack in reply.acks.items()}
    return reply.reply_id, reply.status, reply.completed_by, statuses


def _examples(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


# -- gathering the evidence --------------------------------------------------------------------------------------------


def caught_up(client: Any, kafka: Kafka, queries: Mapping[StreamingQuery, tuple[str, ...]]) -> bool:
    """Return whether each query has read its topics to the end, in order, since each writes what the next reads."""
    for query, names in queries.items():
        ends = topics.ends(client, topics.of_topics(client, map(kafka.topic, names)))
        consumed = consumed_offsets(query)
        if any(consumed.get(partition, 0) < end for partition, end in ends.items()):
            return False
    return True


def gather(spark: SparkSession, settings: Settings, tally: Tally) -> Evidence:
    """Read topics and tables, ignoring requests of others, such as those sent over HTTP meanwhile.

    :raises AckstreamError: the broker does not respond
    """
    own = tally.sent

    def rows(table: str, *columns: str) -> list[Any]:
        found = tables.read(spark, settings.lake, table).select("correlation_id", *columns).collect()
        # a row without an id may be ours
        return [tuple(row) for row in found if row[0] is None or row[0] in own]

    records = _records(settings, "replies", own)
    replies = [read_reply(record.headers, record.value, record.timestamp) for record in records]
    return Evidence(
        sent=list(own),
        received=list(tally.replies.values()),
        replies=[reply for reply in replies if reply is not None],
        acks=[
            f"{record.topic}-{record.partition}-{record.offset}"
            for name in ("acks", "twin-acks")
            for record in _records(settings, name, own)
        ],
        signal_rows=[key for (key,) in rows("signals")],
        outcome_rows=[
            Reply(key, reply_id, status, completed_by, (reply or "").encode())
            for key, reply_id, status, completed_by, reply in rows(
                "outcomes", "reply_id", "status", "completed_by", "reply"
            )
        ],
        ack_rows=["-".join(map(str, names)) for _, *names in rows("acknowledgements", "topic", "partition", "offset")],
        dead_letters=len(rows("dead_letters")),
    )


def _records(settings: Settings, name: str, own: Mapping[str, Any]) -> list[Any]:
    """Return all records of a topic with a correlation-id in ``own``."""
    kafka = settings.kafka
    found: list[Any] = []
    with connect_admin(kafka) as client, closing(connect_consumer(kafka, None)) as consumer:
        ends = topics.ends(client, topics.of_topics(client, [kafka.topic(name)]))
        consumer.assign(list(ends))
        consumer.seek_to_beginning()
        reader = TopicReader(consumer)
        until = time.monotonic() + READ_SECONDS
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            if time.monotonic() > until:
                raise AckstreamError(f"Kafka at {kafka.bootstrap} timed out: no records within {READ_SECONDS:g} s.")
            found += reader.read()
    return [record for record in found if (dict(record.headers).get(CORRELATION_ID) or b"").decode() in own]
