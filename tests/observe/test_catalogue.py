"""Names of metrics as Prometheus wants them, and labels of which there are few values."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ackstream.observe import catalogue
from ackstream.observe.catalogue import METRICS, Metric

PACKAGE = Path(catalogue.__file__).parents[1]
CONSTANTS = {name: value for name, value in vars(catalogue).items() if isinstance(value, Metric)}
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
        if path.parent.name == "telemetry" and path.name != "endpoint.py":
            continue
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        imports = (one for one in nodes if isinstance(one, ast.ImportFrom) and one.module == catalogue.__name__)
        imported = {alias.name for one in imports for alias in one.names}
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            names = [one.id for one in node.args if isinstance(one, ast.Name) and one.id in imported & CONSTANTS.keys()]
            for name in names:
                used.add(name)
                place = next(i for i, one in enumerate(node.args) if isinstance(one, ast.Name) and one.id == name)
                if isinstance(node.func, ast.Attribute):
                    assert len(node.args) - place - 1 == len(CONSTANTS[name].labels), f"{path}: {name}"
    assert used == CONSTANTS.keys()
