"""Builders for shard tests: records by hand, a shard that survives its batches as it does in Spark."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from ackstream.jobs.correlate.emissions import Emission, Writer
from ackstream.jobs.correlate.shard import CorrelateShard
from ackstream.jobs.correlate.state import ACKS, SIGNALS, Record
from ackstream.jobs.correlate.topics import CorrelateTopics
from ackstream.settings import Correlate

THING = "org.acme/lamp"


def hash_of(correlation_id: str | None) -> int:
    digest = blake2b((correlation_id or "").encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class Log:
    """One partition each of signals and acks: gives records their offsets."""

    def __init__(self, partition: int = 0) -> None:
        self.partition = partition
        self.offsets = [0, 0]

    def record(self, source: int, time: int, correlation_id: str | None, value: Any, **headers: str) -> Record:
        offset = self.offsets[source]
        self.offsets[source] += 1
        data = value if isinstance(value, (bytes, type(None))) else json.dumps(value).encode()
        return Record(
            time, source, self.partition, offset, hash_of(correlation_id), correlation_id, b"key", data,
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
        self, time: int, label: str, status: int = 200, correlation_id: str = "c", payload: Any = None, **headers: Any
    ) -> Record:
        value = {
            "topic": f"{THING}/things/twin/acks/{label}",
            "headers": {"correlation-id": correlation_id, **headers},
            "path": "/",
            "status": status,
        }
        if payload is not None:
            value["value"] = payload
        return self.record(ACKS, time, correlation_id, value)

    def response(
        self, time: int, status: int = 204, correlation_id: str = "c", topic: str = "things/twin/commands/modify",
        path: str = "/attributes/x", thing: str = THING, value: Any = None,
    ) -> Record:  # fmt: skip
        body = {
            "topic": f"{thing}/{topic}",
            "headers": {"correlation-id": correlation_id},
            "path": path,
            "status": status,
        }
        if value is not None:
            body["value"] = value
        return self.record(ACKS, time, correlation_id, body)

    def error(
        self, time: int, status: int = 404, code: str = "things:thing.notfound", correlation_id: str = "c",
        channel: str = "twin",
    ) -> Record:  # fmt: skip
        body = {"status": status, "error": code, "message": "It went wrong."}
        return self.record(
            ACKS, time, correlation_id,
            {"topic": f"{THING}/things/{channel}/errors", "headers": {"correlation-id": correlation_id}, "path": "/",
             "value": body, "status": status},
        )  # fmt: skip


class Run:
    """Feeds a shard batch by batch; its state goes through bytes in between."""

    def __init__(self, reply_topics: dict[str, int] | None = None, record_bytes: int = 10**7, **limits: Any) -> None:
        self.topics = CorrelateTopics(reply_topics=reply_topics or {}, record_bytes=record_bytes)
        self.limits = Correlate(**limits)
        self.state: tuple[int, bytes] | None = None
        self.batch = 0
        self.emissions: list[Emission] = []
        self.next_timeout: int | None = None

    def feed(self, *records: Record, watermark: int = 0) -> list[Emission]:
        writer = Writer(self.topics, "query", self.batch)
        self.batch += 1
        shard = CorrelateShard(self.limits, self.topics, writer)
        if self.state is not None:
            shard.load(*self.state)
        shard.process(list(records), watermark)
        self.state = shard.dump()
        self.next_timeout = shard.next_timeout
        self.emissions += writer.emissions
        return writer.emissions

    def replies(self) -> list[dict[str, Any]]:
        """All replies so far, as JSON, with what their record headers say."""
        return [
            {**json.loads(emission.value or b""), "completed-by": emission.completed_by, "reply-id": emission.reply_id,
             "sent-to": emission.topic}
            for emission in self.emissions if emission.reply_id is not None
        ]  # fmt: skip

    def ledger(self) -> list[dict[str, Any]]:
        return [json.loads(e.value or b"") for e in self.emissions if e.topic == self.topics.ledger]

    def outcomes(self) -> list[dict[str, Any]]:
        return [record["outcome"] for record in self.ledger() if "outcome" in record]

    def acks(self) -> list[tuple[str | None, str]]:
        """Label and disposition of all acknowledgements recorded so far."""
        return [(ack["label"], ack["disposition"]) for record in self.ledger() for ack in record.get("acks", ())]

    def reasons(self) -> list[str]:
        return [record["dead_letter"]["reason"] for record in self.ledger() if "dead_letter" in record]
