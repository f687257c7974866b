"""A stand-in for the correlate job: a thread on the real broker that answers requests.

It answers each record of a topic with the replies that a function returns. It decides nothing that the real job
decides: the tests are about how requesters and responders use Kafka.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from ackstream.kafka import clients
from ackstream.kafka.reader import TopicReader
from ackstream.protocol import ledger
from ackstream.protocol.ditto.acknowledgements import Acknowledgement
from ackstream.protocol.ditto.aggregates import write_acks
from ackstream.protocol.ditto.envelopes import decode, encode
from ackstream.protocol.record_headers import COMPLETED_BY, CONTENT_TYPE, CORRELATION_ID, REPLY_ID, STATUS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Self

    from ackstream.settings import Kafka

    Headers = list[tuple[str, bytes]]
    Answer = Callable[[Any], Iterable[tuple[bytes | None, Headers]]]


def aggregate(record: Any, reply_id: str | None = None, status: int = 200) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return a reply as the job writes it, with the request's value as the payload of every requested label."""
    request = decode(record.value)
    correlation_id = dict(record.headers)[CORRELATION_ID]
    entries = [
        Acknowledgement(label, status, request.value) for label in request.headers.get("requested-acks", ["x-x"])
    ]
    topic = request.topic
    reply = write_acks(entries, thing_id=topic.thing_id, channel=topic.channel, headers=request.headers)
    return encode(reply), reply_headers(correlation_id, reply_id or id_of_reply(record), str(reply.status))


def id_of_reply(record: Any) -> str:
    """Return the id that the job gives the reply to a request."""
    correlation_id = dict(record.headers)[CORRELATION_ID].decode()
    return ledger.reply_id(correlation_id, record.topic, record.partition, record.offset)


def reply_headers(
    correlation_id: bytes, reply_id: str = "r-1", status: str = "200", completed_by: str = "acknowledgements"
) -> list[tuple[str, bytes]]:
    return [
        (CORRELATION_ID, correlation_id),
        (REPLY_ID, reply_id.encode()),
        (STATUS, status.encode()),
        (COMPLETED_BY, completed_by.encode()),
        (CONTENT_TYPE, b"application/vnd.eclipse.ditto+json"),
    ]


class Counterpart:
    """Reads ``topic`` from now on, and writes the replies that ``answer`` returns to one partition.

    With ``signs`` it shows the job's signs of life.
    """

    def __init__(
        self,
        kafka: Kafka,
        answer: Answer = lambda record: [aggregate(record)],
        topic: str = "signals",
        replies: str | None = None,
        *,
        signs: bool = False,
    ) -> None:
        self._signs = kafka.topic("correlate-lease") if signs else None
        self.seen: list[Any] = []
        self._answer = answer
        self._replies = replies or kafka.topic("replies")
        self._stop = threading.Event()
        self._reader = TopicReader.at_end(kafka, kafka.topic(topic), stop=self._stop)
        self.producer = clients.connect_producer(kafka, self._replies, delivery_timeout=120)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        clients.close_producer(self.producer, 5)
        self._reader.consumer.close()

    def write(self, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        self.producer.send(self._replies, value=value, key=b"k", headers=headers, partition=0)

    def _run(self) -> None:
        signed = 0.0
        while not self._stop.is_set():
            if self._signs is not None and time.monotonic() >= signed:
                # a gateway refuses requests without them
                self.producer.send(self._signs, value=b"0", key=b"0")
                signed = time.monotonic() + 1
            for record in self._reader.read():
                self.seen.append(record)
                for value, headers in self._answer(record):
                    self.write(value, headers)
