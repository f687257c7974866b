"""The part of correlate that a thread of the JVM, and a sample of it, belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

KINDS = {
    "compiler": ("C1 ", "C2 "),
    "garbage collector": ("GC ", "G1 ", "VM Thread", "VM Periodic", "ParGC", "Parallel"),
    "tasks": ("Executor task", "stdout writer", "stdin writer"),
}
"""Threads of the JVM by the beginnings of their names, as the system knows them."""
OTHER_KINDS = "other threads: driver, Kafka's senders, clock"
PARTS = {
    "Kafka source": (
        "org.apache.kafka.clients.consumer", "org.apache.spark.sql.kafka010.consumer",
        "org.apache.spark.sql.kafka010.KafkaBatchPartitionReader", "org.apache.spark.sql.kafka010.KafkaRecordToRow",
    ),
    "Kafka sink": (
        "org.apache.kafka.clients.producer", "org.apache.spark.sql.kafka010.KafkaDataWriter",
        "org.apache.spark.sql.kafka010.KafkaRowWriter", "org.apache.spark.sql.kafka010.KafkaStream",
    ),
    "Arrow to Python and back": (
        "org.apache.arrow", "org.apache.spark.sql.execution.python", "org.apache.spark.api.python",
        "org.apache.spark.sql.execution.arrow", "org.apache.spark.sql.vectorized",
    ),
    "shuffle, sort": (
        "org.apache.spark.shuffle", "org.apache.spark.util.collection", "org.apache.spark.storage", "net.jpountz",
        "org.apache.spark.sql.execution.UnsafeRowSerializer", "org.apache.spark.sql.execution.UnsafeExternalRowSorter",
        "org.apache.spark.sql.execution.exchange", "org.apache.spark.sql.execution.UnsafeKVExternalSorter",
    ),
    "state store": ("org.apache.spark.sql.execution.streaming.state",),
    "columns: correlation-id, headers, rows": ("org.apache.spark.sql.catalyst", "org.apache.spark.unsafe"),
}  # fmt: skip
OTHER_PARTS = "the rest of Spark"


def parts(samples: Iterable[tuple[str, list[str]]]) -> Counter[str]:
    """Count the samples of threads that carry out tasks by part: the innermost frame that belongs to one decides."""
    found: Counter[str] = Counter()
    for thread, frames in samples:
        if thread.startswith(KINDS["tasks"]):
            known = (part for frame in frames for part, starts in PARTS.items() if frame.startswith(starts))
            found[next(known, OTHER_PARTS)] += 1
    return found
