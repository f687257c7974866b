"""What deploy/monitoring asks Prometheus for is what the product exports, and docs/operate/monitoring.md has it all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from ackstream.observe.metrics import METRICS

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "deploy" / "monitoring"
PAGE = (ROOT / "docs/operate/monitoring.md").read_text("utf-8")
DASHBOARD: dict[str, Any] = json.loads((DIRECTORY / "dashboard.json").read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DIRECTORY / "alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
TARGET = {"job", "instance"}
"""The labels that Prometheus adds."""


def _series() -> dict[str, set[str]]:
    """Return the labels of every series that a process exports, and of those that Prometheus makes itself."""
    found = dict.fromkeys(("up", "process_resident_memory_bytes", "process_cpu_seconds_total"), TARGET)
    for metric in METRICS.values():
        labels = {*metric.labels, *TARGET}
        if metric.kind == "histogram":
            found |= {f"{metric.name}_{end}": labels for end in ("count", "sum")}
            found[f"{metric.name}_bucket"] = labels | {"le"}
        else:
            found[metric.name] = labels
    return found


SERIES = _series()


def _queries() -> Iterator[Any]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
    for alert in ALERTS:
        yield pytest.param(alert["expr"], id=alert["alert"])


def _parsed(query: str) -> Any:
    return promql_parser.parse(query.replace("$__rate_interval", "5m"))


def _selectors(expression: Any) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(expression, pre_visit=visit)
    return found


def _grouped(expression: Any) -> set[str]:
    """Return the labels by which results are grouped or matched."""
    found: set[str] = set()

    def visit(node: Any) -> None:
        modifier = getattr(node, "modifier", None)
        if isinstance(node, promql_parser.AggregateExpr) and modifier is not None:
            found.update(modifier.labels)
        elif isinstance(node, promql_parser.BinaryExpr) and modifier is not None:
            found.update(modifier.matching.labels if modifier.matching else ())
            found.update(modifier.group_labels or ())

    promql_parser.walk(expression, pre_visit=visit)
    return found


@pytest.mark.parametrize("query", list(_queries()))
def test_a_query_names_what_the_product_exports(query: str) -> None:
    parsed = _parsed(query)
    selectors = _selectors(parsed)
    assert selectors
    labels: set[str] = set()
    for selector in selectors:
        assert selector.name in SERIES, selector.name
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= SERIES[selector.name], f"{selector.name} has no labels {matched - SERIES[selector.name]}"
        labels |= SERIES[selector.name]
    assert _grouped(parsed) <= labels


def test_the_check_finds_names_and_labels_that_do_not_exist() -> None:
    for wrong in (
        "ackstream_nothing",
        'ackstream_open_requests{thing="x"}',
        "sum by (thing) (ackstream_open_requests)",
    ):
        with pytest.raises(AssertionError):
            test_a_query_names_what_the_product_exports(wrong)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_and_names_labels_that_its_queries_have(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    for target in panel["targets"]:
        labels = set().union(*(SERIES[one.name] for one in _selectors(_parsed(target["expr"]))))
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels


def test_the_panels_lie_beside_each_other() -> None:
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_a_summary_and_a_row_in_the_page_with_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    labels = set().union(*(SERIES[one.name] for one in _selectors(_parsed(alert["expr"]))))
    assert set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"])) <= labels
    row = re.search(rf"(?m)^\| `{alert['alert']}` \| (?P<means>.+?) \| (?P<do>.+) \|$", PAGE)
    assert row is not None
    assert len(row["means"]) > 20
    assert len(row["do"]) > 20


@pytest.mark.parametrize("metric", list(METRICS.values()), ids=METRICS)
def test_the_page_has_a_row_for_every_metric_with_its_labels(metric: Any) -> None:
    row = re.search(rf"(?m)^\| `{metric.name}` \| (?P<labels>.*?) \| .+ \|$", PAGE)
    assert row is not None
    assert re.findall(r"`(\w+)`", row["labels"]) == list(metric.labels)


def test_the_page_names_no_other_metrics_and_no_other_alerts() -> None:
    # a rate and a quantile of them has a suffix
    named = set(re.findall(r"\backstream_[a-z_]+", PAGE))
    assert named <= SERIES.keys() | METRICS.keys()
    assert set(re.findall(r"\bAckstream[A-Z]\w+", PAGE)) == {alert["alert"] for alert in ALERTS}
