"""All metrics of the product, which ``metrics.toml`` describes, and their numbers in a process, served or not."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

log = logging.getLogger(__name__)

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "min"]


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metric, with the names of its labels in the order of their values; ``buckets``: bounds except infinity."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    # how the values of a gauge that several shards report become one
    merge: Merge = "sum"


CATALOGUE = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, Metric])
"""All metrics by their names in Python, from ``metrics.toml``."""

METRICS = {metric.name: metric for metric in CATALOGUE.values()}


def __getattr__(name: str) -> Metric:
    """Return a metric by its name in Python (PEP 562)."""
    if name not in CATALOGUE:
        raise AttributeError(f"metrics.toml has no metric {name}")
    return CATALOGUE[name]


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
        self.gauges |= {(metric.name, *labels): value}

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
