"""Builders for shard tests: records by hand, a shard that survives its batches as it does in Spark."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from ackstream.jobs.correlate.state import (
    ACKS,
    DECLARATIONS,
    LARGEST_NUMBER,
    OWN,
    SIGNALS,
    TWIN_ACKS,
    Record,
)
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.protocol.ledger import reply_id
from ackstream.settings import Correlate
from ackstream.testing.system import ShardRun, hash_of

if TYPE_CHECKING:
    from ackstream.jobs.correlate.records import Emission
    from tests.harness.pieces import MemoryPieces

THING = "org.acme/lamp"


def entries(reply: dict[str, Any]) -> dict[str, int]:
    """Return the status of each label in an aggregate."""
    return {label: entry["status"] for label, entry in reply["value"].items()}


class Log:
    """One partition of each topic that is read: gives records their offsets."""

    def __init__(self, partition: int = 0) -> None:
        self.partition = partition
        self.offsets = [0, 0, 0, 0]
        self.further: Counter[str] = Counter()
        self.asked: dict[str | None, int] = {}

    def record(self, source: int, time: int, correlation_id: str | None, value: Any, **headers: str) -> Record:
        """Return a record; one of the twin answers the latest signal with its correlation-id, or else the next one."""
        offset = self.offsets[source]
        self.offsets[source] += 1
        if source == SIGNALS:
            self.asked[correlation_id] = offset
        elif source == TWIN_ACKS:
            signal = self.asked.get(correlation_id, self.offsets[SIGNALS])
            headers = {"reply_id": reply_id(correlation_id or "", "signals", self.partition, signal)} | headers
        data = value if isinstance(value, (bytes, type(None))) else json.dumps(value).encode()
        return Record(
            time, source, self.partition, offset, hash_of(correlation_id or ""), correlation_id, b"key", data,
            len(data or b""), {name.replace("_", "-"): text.encode() for name, text in headers.items()},
        )  # fmt: skip

    def command(self, time: int, correlation_id: str = "c", thing: str = THING, **headers: Any) -> Record:
        return self.signal(time, correlation_id, f"{thing}/things/twin/commands/modify", **headers)

    def live(self, time: int, correlation_id: str = "c", **headers: Any) -> Record:
        return self.signal(time, correlation_id, f"{THING}/things/live/commands/modify", **headers)

    def message(self, time: int, correlation_id: str = "c", **headers: Any) -> Record:
        return self.signal(
            time, correlation_id, f"{THING}/things/live/messages/ask", path="/inbox/messages/ask", **headers
        )

    def signal(self, time: int, correlation_id: str, topic: str, path: str = "/attributes/x", **headers: Any) -> Record:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        value = {"topic": topic, "headers": {"correlation-id": correlation_id, **named}, "path": path, "value": 1}
        return self.record(SIGNALS, time, correlation_id, value)

    def ack(
        self, time: int, label: str, status: int = 200, correlation_id: str = "c", payload: Any = None,
        thing: str = THING, **headers: Any,
    ) -> Record:  # fmt: skip
        value = {
            "topic": f"{thing}/things/twin/acks/{label}",
            "headers": {"correlation-id": correlation_id, **headers},
            "path": "/",
            "status": status,
        }
        if payload is not None:
            value["value"] = payload
        return self.record(ACKS, time, correlation_id, value)

    def response(
        self, time: int, status: int = 204, correlation_id: str = "c", topic: str = "things/twin/commands/modify",
        path: str = "/attributes/x", thing: str = THING, value: Any = None, *, source: int | None = None,
    ) -> Record:  # fmt: skip
        """Return a response: of the twin, or on the live channel of a subscriber, unless ``source`` differs."""
        body = {
            "topic": f"{thing}/{topic}",
            "headers": {"correlation-id": correlation_id},
            "path": path,
            "status": status,
        }
        if value is not None:
            body["value"] = value
        usual = ACKS if "/live/" in topic else TWIN_ACKS
        return self.record(usual if source is None else source, time, correlation_id, body)

    def error(
        self, time: int, status: int = 404, code: str = "things:thing.notfound", correlation_id: str = "c",
        channel: str = "twin", *, thing: str = THING, source: int | None = None,
    ) -> Record:  # fmt: skip
        """Return an error, from where a response of its channel comes."""
        usual = ACKS if channel == "live" else TWIN_ACKS
        body = {"status": status, "error": code, "message": "It went wrong."}
        return self.record(
            usual if source is None else source, time, correlation_id,
            {"topic": f"{thing}/things/{channel}/errors", "headers": {"correlation-id": correlation_id}, "path": "/",
             "value": body, "status": status},
        )  # fmt: skip

    def acks(
        self, time: int, *labels: str, source: int = ACKS, channel: str = "twin", status: int = 200,
        correlation_id: str = "c", thing: str = THING,
    ) -> Record:  # fmt: skip
        """Return an aggregate of acknowledgements with one status."""
        value = {
            "topic": f"{thing}/things/{channel}/acks",
            "headers": {"correlation-id": correlation_id},
            "path": "/",
            "status": status,
            "value": {label: {"status": status} for label in labels},
        }
        return self.record(source, time, correlation_id, value)

    def order(self, time: int, correlation_id: str | None = "c", topic: str = "orders", **headers: str) -> Record:
        """Return a record of an application that asks."""
        offset = self.further[topic]
        known = f"{topic}-{self.partition}-{offset}" if correlation_id is None else correlation_id
        return self.of_application(SIGNALS, time, known, b"an order", topic, **headers)

    def confirmation(
        self, time: int, label: str, status: int = 200, correlation_id: str | None = "c", topic: str = "bookings",
        payload: bytes | None = None, **headers: str,
    ) -> Record:  # fmt: skip
        """Return a record of an application that answers."""
        headers = {"label": label, "status": str(status)} | headers
        return self.of_application(ACKS, time, correlation_id, payload, topic, **headers)

    def of_application(
        self, role: int, time: int, correlation_id: str | None, value: bytes | None, topic: str, **headers: str
    ) -> Record:
        offset = self.further[topic]
        self.further[topic] += 1
        number = crc32(topic.encode()) & LARGEST_NUMBER
        return Record(
            time, role + OWN * number, self.partition, offset, hash_of(correlation_id or ""), correlation_id, b"key",
            value, len(value or b""), {name.replace("_", "-"): text.encode() for name, text in headers.items()}, topic,
        )  # fmt: skip

    def claim(self, time: int, *labels: str, lease_ms: int = 30_000) -> Record:
        """Return a declaration of labels."""
        return self.record(DECLARATIONS, time, None, {"labels": labels, "lease_ms": lease_ms})


class Run(ShardRun):
    """A shard that keeps what it has written."""

    def __init__(
        self,
        reply_topics: dict[str, int] | None = None,
        record_bytes: int = 10**7,
        partitions: dict[str, int] | None = None,
        slack: int = 0,
        store: MemoryPieces | None = None,
        **limits: Any,
    ) -> None:
        topics = CorrelateTopics(
            reply_topics=reply_topics or {}, record_bytes=record_bytes, partitions=partitions or {}
        )
        patterns = limits.pop("allowed", tuple(reply_topics or ()))
        super().__init__(Correlate(reply_topics=patterns, **limits), topics, slack, store)
        self.emissions: list[Emission] = []

    def feed(self, *records: Record, watermark: int = 0) -> list[Emission]:
        written = self.process(records, watermark)
        self.emissions += written
        return written

    def replies(self) -> list[dict[str, Any]]:
        """All replies so far, as JSON, with what their record headers say."""
        return [
            {**json.loads(emission.value or b""), "completed-by": emission.completed_by, "reply-id": emission.reply_id,
             "sent-to": emission.topic, "in-partition": emission.partition}
            | ({} if emission.version is None else {"reply-version": emission.version})
            for emission in self.emissions if emission.reply_id is not None
        ]  # fmt: skip

    def ledger(self) -> list[dict[str, Any]]:
        return [json.loads(e.value or b"") for e in self.emissions if e.topic == self.topics.ledger]

    def outcomes(self) -> list[dict[str, Any]]:
        return [record["outcome"] for record in self.ledger() if "outcome" in record]

    def acks(self) -> list[tuple[str | None, str]]:
        """Label and disposition of all acknowledgements recorded so far."""
        return [(ack["label"], ack["disposition"]) for record in self.ledger() for ack in record.get("acks", ())]

    def reasons_of_acks(self) -> list[str | None]:
        """Why the acknowledgements recorded so far are invalid."""
        return [ack.get("reason") for record in self.ledger() for ack in record.get("acks", ())]

    def reasons(self) -> list[str]:
        return [record["dead_letter"]["reason"] for record in self.ledger() if "dead_letter" in record]
