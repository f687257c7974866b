"""The other side of readers and publishers: a thread on the real broker that plays persist and settle.

It decides by their own pure parts, and answers within a poll; it has no tables.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

from ackstream.jobs.persist.decisions import Admission
from ackstream.jobs.persist.job import fold
from ackstream.jobs.persist.records import MessageMetadata
from ackstream.jobs.settle.records import REPORTS, STORED, TICK, ReportRecord
from ackstream.jobs.settle.shard import SettleShard
from ackstream.kafka import clients
from ackstream.kafka.reader import TopicReader
from ackstream.protocol import messages
from ackstream.protocol.messages import encode_ack
from ackstream.protocol.record_headers import SESSION
from ackstream.settings import Kafka, Persist, PublishRule, RequiredRole, Settle
from tests.harness.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from typing_extensions import Self

    from ackstream.jobs.persist.state import PublisherState

TOPICS = ("messages", "stored", "publisher-acks", "app-acks", "acks", "declarations")
SHARDS = 2
SLACK_MS = 200


class Acknowledging:
    """Stores every message to the topics ``or*`` and ``news`` or without a topic, and settles for the given roles.

    ``holding``: while it is set, nothing is stored; ``silent``: while it is set, nothing is settled.
    """

    def __init__(self, kafka: Kafka, **required: int) -> None:
        self.holding = threading.Event()
        self.silent = threading.Event()
        self._kafka = kafka
        self._admission = Admission(Persist(entitlements=(PublishRule(clients=("*",), topics=("or*", "news", "")),)))
        rules = Settle(
            required=[RequiredRole(role=role, quorum=quorum) for role, quorum in required.items()], shards=SHARDS
        )
        self._shards = [SettleShard(rules, index) for index in range(SHARDS)]
        self._states: dict[str, PublisherState] = {}
        self._messages: list[MessageMetadata] = []
        self._reports: list[ReportRecord] = []
        self._batch = 0
        self._watermark = 0
        self._stop = threading.Event()
        self._sources = {kafka.topic("stored"): STORED, kafka.topic("app-acks"): REPORTS}
        self._reader = TopicReader.at_end(kafka, kafka.topic("messages"), *self._sources, stop=self._stop)
        self._answers = kafka.topic("publisher-acks")
        self._producer = clients.connect_producer(kafka, self._answers, delivery_timeout=PATIENCE_SECONDS)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._reader.consumer.close(autocommit=False)
        self._producer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            # the broker is on this machine: what it stored a moment ago comes with the next poll
            watermark = time.time_ns() // 1_000_000 - SLACK_MS
            for record in self._reader.read(20):
                if record.topic in self._sources:
                    self._reports.append(
                        ReportRecord(
                            record.timestamp, self._sources[record.topic], record.partition, record.offset, record.value
                        )
                    )
                else:
                    self._messages.append(_metadata(record))
            if not self.holding.is_set():
                self._persist()
            if not self.silent.is_set():
                self._settle()
                self._watermark = watermark

    def _persist(self) -> None:
        if not self._messages:
            return
        result = fold(self._messages, self._states, self._admission, floor_ms=20, batch=self._batch)
        self._messages = []
        self._batch += 1
        self._states.update(result.changed)
        for client, ack in result.acks:
            self._producer.send(self._answers, encode_ack(ack), client.encode())
        for record in result.stored:
            self._producer.send(self._kafka.topic("stored"), messages.write_stored(record), record.client.encode())

    def _settle(self) -> None:
        taken, self._reports = self._reports, []
        for index, shard in enumerate(self._shards):
            told = [record for record in taken if _concerns(record, index)]
            settled = shard.process([*told, ReportRecord(self._watermark, TICK, 0, 0, None)], self._watermark)
            for key, value in settled.messages():
                self._producer.send(self._answers, value, key.encode())


def _metadata(record: Any) -> MessageMetadata:
    headers = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers}
    return MessageMetadata(
        record.partition,
        record.offset,
        record.timestamp,
        len(record.value or b""),
        headers.get("client"),
        **{name: headers.get(name) for name in ("seq", "command", "cid", "ack", "topic", "ttl", "first")},
        session=headers.get(SESSION),
    )


def _concerns(record: ReportRecord, shard: int) -> bool:
    """Tell whether a record is for a shard: by the name of its writer, or for all."""
    said = json.loads(record.value or b"{}")
    writer = said.get("writer") or said.get("client")
    return writer is None or sum(writer.encode()) % SHARDS == shard
