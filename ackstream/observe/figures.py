"""Figures of a process: counters, gauges and histograms in memory, whether or not an endpoint serves them."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from ackstream.observe.catalogue import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ackstream.observe.catalogue import Metric

log = logging.getLogger(__name__)

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
        self.counters: dict[Key, float] = {}
        self.gauges: dict[Key, float] = {}
        self.histograms: dict[Key, list[float]] = {}
        """The counts of the buckets, then the sum."""

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Let a counter grow."""
        if by:
            key = (metric.name, *labels)
            self.counters[key] = self.counters.get(key, 0) + by

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
        total.counters, total.gauges = dict(self.counters), {**self.gauges, **other.gauges}
        total.histograms = dict(self.histograms)
        for key, value in other.counters.items():
            total.counters[key] = total.counters.get(key, 0) + value
        for key, values in other.histograms.items():
            before = total.histograms.get(key)
            total.histograms[key] = (
                values if before is None else [sum(pair) for pair in zip(before, values, strict=True)]
            )
        return total

    def merge_gauges(self, several: Iterable[dict[Key, float]]) -> None:
        """Set each gauge to the sum or the minimum of several values, as its metric defines."""
        for gauges in several:
            for key, value in gauges.items():
                before = self.gauges.get(key)
                if before is None:
                    self.gauges[key] = value
                else:
                    self.gauges[key] = min(before, value) if METRICS[key[0]].merge == "min" else before + value

    def samples(self) -> list[MetricSample]:
        """Return all series, in order."""
        found = [MetricSample(METRICS[name], tuple(labels), value) for (name, *labels), value in self.counters.items()]
        found += [MetricSample(METRICS[name], tuple(labels), value) for (name, *labels), value in self.gauges.items()]
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
