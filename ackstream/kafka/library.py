"""Adaptations of kafka-python 3.0.12.

They are about partitions without a leader, connecting again, waiting for sockets, the size of batches, partitions of
keys, ids of producers.
"""

import gzip
import io
import logging
import selectors
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import lz4.frame
import snappy  # noqa: F401 - without it the library cannot read records that are compressed with it
import zstandard
from kafka import KafkaConsumer, errors
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.partitioner import DefaultPartitioner, murmur2
from kafka.producer.transaction_manager import TransactionState
from kafka.record import default_records, memory_records


def _matters(record: logging.LogRecord) -> bool:
    """Return whether a record of the library's log is not about a connection that a client has closed."""
    error = record.exc_info[1] if record.exc_info else None
    read_again = isinstance(error, AttributeError) and error.obj is None and error.name in ("recv", "send")
    return not read_again and not any(isinstance(argument, errors.Cancelled) for argument in record.args or ())


# it reads a closed socket once more, and logs a stack trace; and an error for a request that the end has cancelled
for _logger in "kafka.net.transport", "kafka.cluster":
    logging.getLogger(_logger).addFilter(_matters)
# it warns of each turn of its own loop that took a tenth of a second, as all do on a busy machine
logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)


class AdaptedConsumer(KafkaConsumer):  # type: ignore[misc]  # kafka-python is not typed
    """Names a partition without a leader; the library leaves it out of an answer, and then raises a KeyError."""

    @property
    def reached(self) -> bool:
        """Whether a broker is connected."""
        # there is no public way; another thread may connect
        return any(one.connected for one in list(self._client._manager._conns.values()))  # noqa: SLF001

    def beginning_offsets(self, partitions: Any, timeout_ms: int | None = None) -> Any:
        """Return the first offset of each partition, or raise a LeaderNotAvailableError."""
        return _of_leaders(super().beginning_offsets, partitions, timeout_ms)

    def end_offsets(self, partitions: Any, timeout_ms: int | None = None) -> Any:
        """Return the end of each partition, or raise a LeaderNotAvailableError."""
        return _of_leaders(super().end_offsets, partitions, timeout_ms)


def _of_leaders(look_up: Callable[..., Any], partitions: Any, timeout_ms: int | None) -> Any:
    try:
        return look_up(partitions, timeout_ms)
    except KeyError as error:
        without = error.args[0]
        problem = f"Partition {without.partition} of {without.topic} has no leader"
        raise errors.LeaderNotAvailableError(problem) from error


class Sockets(selectors.DefaultSelector):
    """Waits for sockets, without a description of unknown ones.

    The library looks up each socket before it waits for it, which fails every time; the text of that error needs the
    addresses of the socket from the system, which takes longer than the wait.
    """

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        """Return the registration of a socket, or raise a KeyError."""
        # there is no public way
        found: selectors.SelectorKey = self._fd_to_key[self._fileobj_lookup(fileobj)]  # type: ignore[attr-defined]
        return found


class _Passing(dict[Any, Any]):
    """Failures, each of which is reported once."""

    def get(self, key: Any, default: Any = None) -> Any:
        return self.pop(key, default)


class _Connections(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python is not typed
    """Connects again after a connection has ended, with growing pauses.

    For the library, a broker is back once something accepts the connection. A proxy or load balancer in front of an
    unavailable broker does so and closes it at once: each client would connect hundreds of times a second. Here the
    pause grows until a broker has answered. After the first refusal of a login, such as of a token whose key the broker
    does not know yet, the library would report it forever and never try that broker again.
    """

    def __init__(self, sockets: Any, **options: Any) -> None:
        super().__init__(sockets, **options)
        self._auth_failures = _Passing()

    async def _connect(self, node: Any, conn: Any, *arguments: Any, **options: Any) -> None:
        before = self._backoff.get(node.node_id)
        await super()._connect(node, conn, *arguments, **options)
        if not conn.connected and node.node_id not in self._backoff:
            if before is not None:
                self._backoff[node.node_id] = before
            self.update_backoff(node.node_id)


class PatientClient(KafkaNetClient):  # type: ignore[misc]  # kafka-python is not typed
    """The connections of a consumer, a producer or an admin client."""

    def __init__(self, **options: Any) -> None:
        sockets = NetworkSelector(**options)
        super().__init__(sockets, _Connections(sockets, **options))


MAX_BATCH_BYTES = 64 * 1024 * 1024
"""The largest batch of records that is unpacked; some kB of a foreign cluster may be gigabytes once decompressed."""


class BatchTooLargeError(errors.KafkaError):  # type: ignore[misc]  # kafka-python is not typed
    """A batch is larger than :data:`MAX_BATCH_BYTES` once decompressed; ``following``: the offset after it."""


def _decompress(open_stream: Callable[[io.BytesIO], Any], payload: Any) -> bytes:
    with open_stream(io.BytesIO(payload)) as stream:
        unpacked: bytes = stream.read(MAX_BATCH_BYTES + 1)
    if len(unpacked) > MAX_BATCH_BYTES:
        raise BatchTooLargeError(f"The batch has more than {MAX_BATCH_BYTES // 2**20} MiB once decompressed.")
    return unpacked


class _BoundedBatch(default_records.DefaultRecordBatch):  # type: ignore[misc]  # kafka-python is not typed
    __slots__ = ()

    def _maybe_uncompress(self) -> None:
        try:
            super()._maybe_uncompress()
        except BatchTooLargeError as error:
            error.following = self.next_offset
            raise


def _decompress_lz4(payload: bytes) -> bytes:
    # it grows to at most 255 times its size: for small batches, such as replies, the faster way is safe
    if len(payload) * 255 <= MAX_BATCH_BYTES:
        return bytes(lz4.frame.decompress(payload))
    return _decompress(lz4.frame.open, payload)


# the library decompresses without a limit; snappy has one, 22 times the size
default_records.gzip_decode = partial(_decompress, gzip.open)
default_records.lz4_decode = _decompress_lz4
default_records.zstd_decode = partial(
    _decompress, lambda packed: zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
)
memory_records.DefaultRecordBatch = _BoundedBatch


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the number of the partition to which every Kafka client sends records of a key."""
    # partition numbers have no gaps
    return (int(murmur2(key)) & 0x7FFFFFFF) % partitions


class KeyPartitioner(DefaultPartitioner):  # type: ignore[misc]  # kafka-python is not typed
    """Chooses the partition of a key as every Kafka client does; those of recent keys are cached."""

    def partition(
        self, topic: str, key: Any, serialized_key: bytes | None, value: Any, serialized_value: Any, cluster: Any
    ) -> int:
        """Return the partition of a record."""
        if serialized_key is None:
            return int(super().partition(topic, key, serialized_key, value, serialized_value, cluster))
        partitions = cluster.partitions_for_topic(topic)
        if not partitions:
            raise errors.LeaderNotAvailableError(topic)
        return partition_of(serialized_key, len(partitions))


def keep_identity(producer: Any) -> None:
    """Let a producer always request an id from the broker again, without which it cannot send."""
    # kafka-python 3.0.12 never requests another one after it has given up a record that may have been sent, nor if the
    # broker does not answer in time; and it forgets the batches that it was about to send as it gave up the record

    # there is no public way
    manager, sender, batches = producer._transaction_manager, producer._sender, producer._accumulator  # noqa: SLF001
    reset, enqueue = manager.reset_producer_id, manager._enqueue_request  # noqa: SLF001
    send = sender._send_producer_data  # noqa: SLF001

    def send_or_put_back() -> float:
        now = time.monotonic()
        wait: float = send(now)
        for batch in () if manager.has_producer_id() else batches._incomplete.all():  # noqa: SLF001
            if batch.drained == now:
                batches.reenqueue(batch)
                sender._maybe_remove_from_inflight_batches(batch)  # noqa: SLF001
                batches.muted.discard(batch.topic_partition)
        return wait

    def renew() -> None:
        reset()
        if manager._current_state == TransactionState.READY:  # noqa: SLF001
            manager._current_state = TransactionState.UNINITIALIZED  # noqa: SLF001

    def repeat(handler: Any) -> None:
        complete = type(handler).on_complete

        def on_complete(number: int, answer: object) -> None:
            # the only failure after which the library repeats a request
            away = errors.KafkaConnectionError(str(answer)) if isinstance(answer, errors.RetriableError) else answer
            complete(handler, number, away)

        handler.on_complete = on_complete
        enqueue(handler)

    manager.reset_producer_id, manager._enqueue_request = renew, repeat  # noqa: SLF001
    sender._send_producer_data = send_or_put_back  # noqa: SLF001


def producer_identity(producer: Any) -> str:
    """Return the id and epoch that the broker gave to a producer of transactions: no two have the same."""
    identity = producer._transaction_manager.producer_id_and_epoch  # noqa: SLF001 - there is no public way
    return f"{identity.producer_id}-{identity.epoch}"


def is_fenced(producer: Any, error: BaseException) -> bool:
    """Return whether a producer of transactions failed since another one has taken its transactional id."""
    # a send that follows raises a plain KafkaError, which has the cause in its text only
    causes = (error, producer._transaction_manager.last_error)  # noqa: SLF001 - there is no public way
    return any(isinstance(one, errors.ProducerFencedError | errors.InvalidProducerEpochError) for one in causes)


def end_transaction(producer: Any, timeout: float, *, commit: bool) -> None:
    """Commit a producer's transaction, or abort it; raise a KafkaTimeoutError if that takes longer."""
    # the library's own functions wait without a limit
    manager = producer._transaction_manager  # noqa: SLF001 - there is no public way
    result = manager.begin_commit() if commit else manager.begin_abort()
    producer._sender.wakeup()  # noqa: SLF001
    if not result.wait(timeout * 1000):
        raise errors.KafkaTimeoutError(f"a transaction did not end within {timeout:g} s")
