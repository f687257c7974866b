"""Metrics: names as Prometheus wants them, few values of labels, numbers counted in any order and added up."""

from __future__ import annotations

import ast
import pickle
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ackstream.observe import metrics
from ackstream.observe.endpoint import registry
from ackstream.observe.metrics import (
    BATCH_SECONDS,
    DEADLINE,
    LAG,
    METRICS,
    OPEN_REQUESTS,
    REQUESTS,
    Figures,
    Metric,
    Tally,
)

PACKAGE = Path(metrics.__file__).parents[1]
CONSTANTS = metrics.CATALOGUE
UNBOUNDED = {"correlation_id", "thing", "thing_id", "client", "publisher", "reader", "writer", "subject", "address"}


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_metric_is_named_as_prometheus_names_it(metric: Metric) -> None:
    assert re.fullmatch(r"ackstream(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.help.endswith((".", "0."))
    if metric.kind == "histogram":
        assert metric.name.endswith("_seconds")


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_no_label_has_a_value_for_each_request_client_or_thing(metric: Metric) -> None:
    # job and instance are Prometheus' own
    assert not (UNBOUNDED | {"job", "instance"}) & set(metric.labels)
    assert all(re.fullmatch(r"[a-z_]+", label) for label in metric.labels)


def test_every_metric_is_counted_somewhere_with_a_value_for_each_label() -> None:
    """A call of ``count``, ``set`` or ``observe`` names a constant, and gives as many labels as it has."""
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        imports = (one for one in nodes if isinstance(one, ast.ImportFrom) and one.module == metrics.__name__)
        imported = {alias.name for one in imports for alias in one.names}
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            for place, one in enumerate(node.args):
                # some modules import the constants, others the module of the metrics
                text = ast.unparse(one)
                name = text.removeprefix("metrics.")
                if name not in CONSTANTS or (name == text and name not in imported):
                    continue
                used.add(name)
                if isinstance(node.func, ast.Attribute):
                    assert len(node.args) - place - 1 == len(CONSTANTS[name].labels), f"{path}: {name}"
    assert used == CONSTANTS.keys()


counts = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=20)
times = st.lists(st.floats(0, 100), max_size=20)


def _tally(counted: list[tuple[str, int]], observed: list[float]) -> Tally:
    tally = Tally()
    for name, by in counted:
        tally.count(REQUESTS, name, "2xx", by=by)
    tally.observe(BATCH_SECONDS, "correlate", values=observed)
    return tally


def _content(tally: Tally) -> object:
    histograms = {key: [*map(int, found[:-1]), pytest.approx(found[-1])] for key, found in tally.histograms.items()}
    return tally.counters, histograms


@given(st.lists(st.tuples(counts, times), max_size=5))
def test_the_sum_of_parts_is_the_whole_and_no_part_changes(parts: list[tuple[Any, Any]]) -> None:
    tallies = [_tally(*part) for part in parts]
    before = pickle.dumps(tallies)
    total = reduce(Tally.add, tallies, Tally())
    assert pickle.dumps(tallies) == before
    whole = _tally([one for counted, _ in parts for one in counted], [one for _, observed in parts for one in observed])
    if not parts:
        whole = Tally()
    assert _content(total) == _content(whole)


@given(times)
def test_a_value_counts_in_the_first_bucket_that_it_is_not_above(values: list[float]) -> None:
    (sample,) = _tally([], values).samples()
    bounds = [*BATCH_SECONDS.buckets, float("inf")]
    for index, bound in enumerate(bounds):
        assert sum(sample.counts[: index + 1]) == sum(value <= bound for value in values)


def test_gauges_of_shards_are_added_or_the_least_of_them() -> None:
    shards = []
    for count, deadline in ((3, 50.0), (4, 20.0), (0, None)):
        one = Tally()
        one.set(OPEN_REQUESTS, value=count)
        if deadline is not None:
            one.set(DEADLINE, value=deadline)
        shards.append(one.gauges)
    whole = Tally()
    whole.merge_gauges(shards)
    assert whole.gauges == {(OPEN_REQUESTS.name,): 7, (DEADLINE.name,): 20.0}


def test_what_is_counted_is_rendered_with_its_labels_buckets_and_help() -> None:
    figures = Figures()
    figures.count(REQUESTS, "timeout", "4xx", by=2)
    figures.set(LAG, "correlate", "signals", value=7)
    figures.observe(BATCH_SECONDS, "correlate", value=0.3)
    figures.observe(BATCH_SECONDS, "correlate", value=100)
    families = {one.name: one for one in text_string_to_metric_families(generate_latest(registry(figures)).decode())}
    (requests,) = families["ackstream_requests"].samples
    assert (requests.name, requests.labels, requests.value) == (
        "ackstream_requests_total", {"completed_by": "timeout", "status": "4xx"}, 2.0
    )  # fmt: skip
    assert families["ackstream_requests"].documentation == REQUESTS.help
    assert [one.value for one in families[LAG.name].samples] == [7.0]
    samples = {(one.name, one.labels.get("le")): one.value for one in families[BATCH_SECONDS.name].samples}
    assert samples[f"{BATCH_SECONDS.name}_bucket", "0.2"] == 0
    assert samples[f"{BATCH_SECONDS.name}_bucket", "0.3"] == 1
    assert samples[f"{BATCH_SECONDS.name}_bucket", "+Inf"] == samples[f"{BATCH_SECONDS.name}_count", None] == 2
    assert samples[f"{BATCH_SECONDS.name}_sum", None] == pytest.approx(100.3)


def test_every_metric_can_be_rendered() -> None:
    figures = Figures()
    for metric in METRICS.values():
        labels = ["x"] * len(metric.labels)
        if metric.kind == "counter":
            figures.count(metric, *labels)
        elif metric.kind == "gauge":
            figures.set(metric, *labels, value=1)
        else:
            figures.observe(metric, *labels, value=1)
    text = generate_latest(registry(figures)).decode()
    found = {sample.name for one in text_string_to_metric_families(text) for sample in one.samples}
    assert {f"{m.name}_count" if m.kind == "histogram" else m.name for m in METRICS.values()} <= found


def test_a_source_is_asked_when_the_numbers_are_read_until_it_has_ended() -> None:
    figures, depth = Figures(), [3]

    def source() -> Tally:
        found = Tally()
        found.set(OPEN_REQUESTS, value=depth[0])
        return found

    figures.follow("x", source)
    assert figures.read().gauges == {(OPEN_REQUESTS.name,): 3}
    depth[0] = 5
    assert figures.read().gauges == {(OPEN_REQUESTS.name,): 5}
    figures.unfollow("x")
    assert figures.read().gauges == {}
