"""The numbers of a process in the form of Prometheus, by its own library."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from prometheus_client import gc_collector, platform_collector, process_collector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from ackstream.observe.catalogue import Metric
    from ackstream.observe.figures import Figures, Sample


class FiguresCollector(Collector):
    """Gives Prometheus' library what a process has counted."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Family]:
        """Yield a family for each metric that has a series."""
        for metric, samples in groupby(self._figures.read().samples(), key=lambda sample: sample.metric):
            yield family(metric, samples)


def family(metric: Metric, samples: Iterable[Sample]) -> Family:
    """Return the series of a metric."""
    labels = list(metric.labels)
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for sample in samples:
            bounds = [*map(repr, metric.buckets), "+Inf"]
            buckets = list(zip(bounds, accumulate(map(float, sample.counts)), strict=True))
            histogram.add_metric(sample.labels, buckets, sample.value)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    found = kind(metric.name, metric.help, labels=labels)
    for sample in samples:
        found.add_metric(sample.labels, sample.value)
    return found


def registry(figures: Figures) -> CollectorRegistry:
    """Return what can be rendered: the numbers of a process, beside those of Python and of the process itself."""
    found = CollectorRegistry()
    process_collector.ProcessCollector(registry=found)
    platform_collector.PlatformCollector(registry=found)
    gc_collector.GCCollector(registry=found)
    found.register(FiguresCollector(figures))
    return found
