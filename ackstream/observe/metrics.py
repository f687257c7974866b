"""All metrics of the product, once, and their numbers in a process, whether or not an endpoint serves them.

Names follow Prometheus: base units, ``_total`` for counters. A label has a bounded number of values: names of the
settings and of the code, never an id, a thing, or a name that a client chooses. Dashboards, alerts and docs name no
other metrics.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

log = logging.getLogger(__name__)

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "min"]

LATENCIES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Upper bounds in seconds for requests, whose timeouts are seconds to hours."""

BATCHES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
HTTP = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metric(NamedTuple):
    """One metric, with the names of its labels in the order of their values; ``buckets``: bounds but infinity."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    # how the values of a gauge that several shards report become one
    merge: Merge = "sum"


METRICS: dict[str, Metric] = {}


def _metric(metric: Metric) -> Metric:
    METRICS[metric.name] = metric
    return metric


def _counter(name: str, text: str, *labels: str) -> Metric:
    return _metric(Metric(f"ackstream_{name}_total", "counter", text, labels))


def _gauge(name: str, text: str, *labels: str, merge: Merge = "sum") -> Metric:
    return _metric(Metric(f"ackstream_{name}", "gauge", text, labels, merge=merge))


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = LATENCIES) -> Metric:
    return _metric(Metric(f"ackstream_{name}_seconds", "histogram", text, labels, buckets))


INFO = _gauge("info", "Always 1: the program and its version.", "program", "version")

# -- every job ---------------------------------------------------------------------------------------------------------

QUERY_ACTIVE = _gauge("query_active", "Whether the query of a job runs: 1 or 0.", "query")
BATCHES_DONE = _counter("batches", "Batches that a query has finished.", "query")
BATCH_SECONDS = _histogram("batch_duration", "Duration of a batch, from trigger to commit.", "query", buckets=BATCHES)
PHASE_SECONDS = _counter("batch_phase_seconds", "Time that batches spent, by Spark's phases.", "query", "phase")
INPUT_ROWS = _counter("input_rows", "Records and rows that a query has read.", "query")
LAST_BATCH = _gauge("last_batch_timestamp_seconds", "End of the last batch of a query.", "query")
LAG = _gauge("lag_records", "Records that a job has yet to read.", "query", "topic")
LOST = _counter("lost_records", "Records that Kafka had deleted before a job read them.", "query", "topic")
STATE_BYTES = _gauge("state_bytes", "JVM memory of the states of a query.", "query")
SIGN = _gauge("clock_sign_timestamp_seconds", "Last sign of life of a job, by its own clock.", "query")
TICK = _gauge("clock_tick_timestamp_seconds", "Event time to which the clock of a query has advanced.", "query")
OVERDUE = _gauge("clock_overdue_seconds", "Time since the earliest deadline of a query.", "query")
AHEAD = _gauge("clock_ahead_seconds", "Distance of the broker's clock from the time of a query.", "query")

# -- requests ----------------------------------------------------------------------------------------------------------

REQUESTS = _counter("requests", "Requests that correlate has decided.", "completed_by", "status")
DECISION = _histogram(
    "request_decision",
    "From a request to its decision, in event time: the last answer, or the deadline.",
    "completed_by",
)
REPLY = _histogram(
    "request_reply", "From a request to the batch that answers it: the wait of its sender.", "completed_by"
)
OPEN_REQUESTS = _gauge("open_requests", "Requests that await something.")
OLDEST_REQUEST = _gauge(
    "open_requests_oldest_timestamp_seconds",
    "Start of the oldest open request; approximate among many requests with unequal timeouts.",
    merge="min",
)
DEADLINE = _gauge(
    "open_requests_deadline_timestamp_seconds", "The earliest deadline among the open requests.", merge="min"
)
EARLY_ACKS = _gauge("early_acknowledgements", "Acknowledgements that wait for their request.")
ACKS = _counter("acknowledgements", "Acknowledgements, responses and errors, by disposition.", "disposition")
DEAD_LETTERS = _counter("dead_letters", "Unusable records, by the code of their reason.", "query", "reason")

# -- messages ----------------------------------------------------------------------------------------------------------

MESSAGES = _counter("messages", "Records of publishers: stored, or the reason for refusal.", "result")
KNOWN_PUBLISHERS = _gauge("publishers", "Publishers whose state persist holds in memory.")
WAITING_ACKS = _gauge("publisher_acks_waiting_batches", "Batches whose acks wait for destinations or publishers.")
DESTINATION_LAG = _gauge("destination_lag_batches", "Batches that a destination lacks.", "destination")
DESTINATION_SYNC = _gauge("destination_waited_for", "Whether acks wait for a destination: 1 or 0.", "destination")
MIRRORED = _gauge("mirror_batch", "Batch up to which a destination has all messages.", "destination")
DELIVERIES = _counter("deliveries", "Acknowledgements of readers that settle has stored.")
IGNORED_REPORTS = _counter("ignored_reports", "Reports of readers that settle has not used.", "reason")
READERS = _gauge("readers", "Readers that are present.")
OPEN_WRITERS = _gauge("writers_with_open_samples", "Writers with samples that a required role has not acknowledged.")

# -- queues ------------------------------------------------------------------------------------------------------------

QUEUE_DEPTH = _gauge("queue_messages", "Messages in a work queue, delivered or not.", "queue")
QUEUE_OLDEST = _gauge(
    "queue_oldest_message_timestamp_seconds",
    "Time at which the oldest message of a queue was stored.",
    "queue",
    merge="min",
)
QUEUE_CONSUMERS = _gauge("queue_consumers", "Consumers that are bound to a queue.", "queue")
QUEUE_DELIVERIES = _counter("queue_deliveries", "Deliveries to consumers.", "queue")
QUEUE_REDELIVERIES = _counter("queue_redeliveries", "Deliveries of a message that was delivered before.", "queue")
QUEUE_LEFT = _counter("queue_left", "Messages that have left a queue, by outcome.", "queue", "outcome")

# -- gateway -----------------------------------------------------------------------------------------------------------

HTTP_REQUESTS = _counter("gateway_requests", "Responses over HTTP.", "method", "status")
HTTP_SECONDS = _histogram("gateway_request_duration", "From request to response.", "method", buckets=HTTP)
CONNECTIONS = _gauge("gateway_connections", "Connections of clients that are open.")
UNREAD = _gauge("gateway_unread_characters", "Characters sent to clients that they have not read yet.")
OLDEST = _gauge("gateway_oldest_open_request_seconds", "Age of the oldest open request.")

# -- connections of the connector --------------------------------------------------------------------------------------

CONNECTION_OPEN = _gauge("connection_open", "Whether a connection to another system is open: 1 or 0.", "connection")
CONNECTION_FAILURES = _counter("connection_failures", "Connections that could not be opened, or ended.", "connection")
CONNECTION_MESSAGES = _counter(
    "connection_messages", "Messages of connections, by result.", "connection", "direction", "result"
)
ROUTE_OPEN = _gauge("route_open", "Whether a route to another system is open: 1 or 0.", "route")

# -- the numbers of a process ------------------------------------------------------------------------------------------

Key = tuple[str, ...]
"""The name of a metric, and the values of its labels."""


class MetricSample(NamedTuple):
    """One series: a counter's or gauge's value, or a histogram's sum and counts."""

    metric: Metric
    labels: tuple[str, ...]
    value: float = 0.0
    # not cumulative, one more than the metric has bounds
    counts: tuple[int, ...] = ()


class Tally:
    """Numbers by their series, as a Spark task returns them to the driver; :class:`Figures` is for several threads."""

    __slots__ = ("counters", "gauges", "histograms")

    def __init__(self) -> None:
        self.counters: defaultdict[Key, float] = defaultdict(float)
        self.gauges: dict[Key, float] = {}
        self.histograms: dict[Key, list[float]] = {}
        """The counts of the buckets, then the sum."""

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Let a counter grow."""
        if by:
            key = (metric.name, *labels)
            self.counters[key] += by

    def set(self, metric: Metric, *labels: str, value: float) -> None:
        """Set a gauge."""
        key = (metric.name, *labels)
        self.gauges[key] = value

    def observe(self, metric: Metric, *labels: str, values: Iterable[float]) -> None:
        """Add values to a histogram."""
        found = self._histogram(metric, labels)
        for value in values:
            found[bisect_left(metric.buckets, value)] += 1
            found[-1] += value

    def observe_counts(self, metric: Metric, *labels: str, counts: Sequence[float], total: float) -> None:
        """Add values to a histogram by bucket: one count more than it has bounds, and the sum of the values."""
        found = self._histogram(metric, labels)
        for index, count in enumerate([*counts, total]):
            found[index] += count

    def _histogram(self, metric: Metric, labels: tuple[str, ...]) -> list[float]:
        return self.histograms.setdefault((metric.name, *labels), [0.0] * (len(metric.buckets) + 2))

    def add(self, other: Tally) -> Tally:
        """Return the sum of both; a gauge of the other one wins. Neither is changed."""
        total = Tally()
        total.gauges = {**self.gauges, **other.gauges}
        for key, value in chain(self.counters.items(), other.counters.items()):
            total.counters[key] += value
        for key, values in chain(self.histograms.items(), other.histograms.items()):
            before = total.histograms.get(key, [0.0] * len(values))
            total.histograms[key] = [sum(pair) for pair in zip(before, values, strict=True)]
        return total

    def merge_gauges(self, several: Iterable[dict[Key, float]]) -> None:
        """Set each gauge to the sum or the minimum of several values, as its metric defines."""
        for gauges in several:
            for key, value in gauges.items():
                both = [self.gauges[key], value] if key in self.gauges else [value]
                self.gauges[key] = min(both) if METRICS[key[0]].merge == "min" else sum(both)

    def samples(self) -> list[MetricSample]:
        """Return all series, in order."""
        numbers = chain(self.counters.items(), self.gauges.items())
        found = [MetricSample(METRICS[name], tuple(labels), value) for (name, *labels), value in numbers]
        for (name, *labels), (*counts, total) in self.histograms.items():
            found.append(MetricSample(METRICS[name], tuple(labels), total, tuple(map(int, counts))))
        return sorted(found, key=lambda sample: (sample.metric.name, sample.labels))


class Figures:
    """The numbers of a process; for any thread."""

    def __init__(self) -> None:
        self._own = Tally()
        self._lock = threading.Lock()
        self._sources: dict[str, Callable[[], Tally]] = {}

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Let a counter grow."""
        with self._lock:
            self._own.count(metric, *labels, by=by)

    def set(self, metric: Metric, *labels: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._own.set(metric, *labels, value=value)

    def observe(self, metric: Metric, *labels: str, value: float) -> None:
        """Add a value to a histogram."""
        with self._lock:
            self._own.observe(metric, *labels, values=(value,))

    def follow(self, name: str, source: Callable[[], Tally]) -> None:
        """Read a source each time the figures are read; it replaces a source of the same name."""
        with self._lock:
            self._sources[name] = source

    def unfollow(self, name: str) -> None:
        """Stop reading a source."""
        with self._lock:
            self._sources.pop(name, None)

    def read(self) -> Tally:
        """Return all numbers of this moment."""
        with self._lock:
            total, sources = Tally().add(self._own), list(self._sources.values())
        for source in sources:
            try:
                total = total.add(source())
            except Exception:
                # a failing source must not hide the others
                log.exception("A part of the metrics is missing.")
        return total


FIGURES = Figures()
"""Figures of this process, which has one endpoint for everything that runs in it."""
