"""What a query client reads while its streams have no room: each stream holds a limited number of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackstream.client.errors import StreamClosedError
from ackstream.kafka.reader import POLL_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackstream.client.queries.message_stream import MessageStream
    from ackstream.kafka.reader import TopicReader


class BackPressure:
    """Pauses the reader of the answers, and has it read again what had no room; for the reader's thread."""

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self._paused = False

    def steer(self, streams: Sequence[MessageStream]) -> None:
        """Read again what a stream had no room for; read no further while only full streams are waited for."""
        behind = [stream for stream in streams if stream.behind is not None]
        ready = [stream for stream in behind if stream.has_room]
        for stream in ready:
            self._go_back(stream)
        pause = bool(behind) and not ready and not any(stream.waiting for stream in streams)
        if pause != self._paused:
            consumer, self._paused = self._reader.consumer, pause
            (consumer.pause if pause else consumer.resume)(*consumer.assignment())

    def _go_back(self, stream: MessageStream) -> None:
        """Read from the first message on that a stream had no room for."""
        number, offset = stream.behind or (0, 0)
        consumer = self._reader.consumer
        partition = next((one for one in consumer.assignment() if one.partition == number), None)
        if partition is not None and (consumer.position(partition, timeout_ms=POLL_MS) or 0) <= offset:
            return
        if partition is None or consumer.beginning_offsets([partition])[partition] > offset:
            remedy = "subscribe again after the last bookmark, and receive faster"
            stream.end(StreamClosedError(f"Kafka has deleted answers that were not received in time: {remedy}."))
        else:
            consumer.seek(partition, offset)
