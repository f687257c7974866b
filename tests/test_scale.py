"""What ``python -m benchmarks scale`` compares: who has more than a fair share, and what the driver does by itself."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import driving, pages
from benchmarks.driving import Width
from benchmarks.workload import EVERY, HOT, PADDING, HeavyThing, HotThing, Workload

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
REQUESTS = 1_000


def test_half_of_all_messages_are_about_the_hot_thing() -> None:
    workload = HotThing(REQUESTS)
    keys = Counter(key for _, key, _, _ in workload.kafka(""))
    assert keys[b"org.acme:lamp-%05d" % HOT] == pytest.approx(workload.messages / 2, rel=0.05)


def test_the_heavy_thing_has_few_messages_of_most_bytes() -> None:
    workload, plain = HeavyThing(REQUESTS), Workload(REQUESTS)
    heavy = [number for number in range(REQUESTS) if workload.thing(number) == HOT]
    assert len(heavy) >= REQUESTS // EVERY
    longer = [len(workload.signal(number)) - len(plain.signal(number)) for number in range(REQUESTS)]
    assert Counter(longer) == {0: REQUESTS - REQUESTS // EVERY, PADDING: REQUESTS // EVERY}
    assert json.loads(workload.signal(0))["value"]["reason"].endswith("Evening programme of building 7")


def test_the_drivers_own_part_is_measured_without_spark_and_kafka() -> None:
    width = Width("narrow", 6, 4, 2)
    parts = {**driving.decisions(width), **driving.reports(width), **driving.offsets(width)}
    assert len(parts) == 7
    assert all(milliseconds > 0 for milliseconds in parts.values())


def test_the_tables_of_the_page_are_those_of_the_last_run() -> None:
    text = pages.part((BENCHMARKS / "README.md").read_text("utf-8"), "scale")
    result = BENCHMARKS / "results" / "scale.json"
    found = (
        pages.scale(json.loads(result.read_text("utf-8"))) if result.exists() else pages.NOT_MEASURED.format("scale")
    )
    assert text == found


def test_the_tables_have_a_line_for_each_run_on_the_cluster_and_each_part_of_the_driver() -> None:
    cluster = {
        "executors": 2, "messages_are": "even", "partitions": 8, "shards": 12, "warm": 50_000.4, "whole": 40_000.0,
        "driver_microseconds": 1.2, "as_expected": True,
    }  # fmt: skip
    widths = [vars(driving.NARROW), vars(driving.WIDE)]
    driver = {"widths": widths, "milliseconds": {width["name"]: {"clock: a tick": 1.25} for width in widths}}
    report = {
        "figures": {"cluster": [cluster], "driver": driver},
        "machine": {"cores": 2, "cpu": "a processor"},
        "date": "2026-11-24T08:00:00+00:00",
    }
    lines = pages.scale(report).splitlines()
    assert "| 2 | even | 8 | 12 | 50,000 | 40,000 | 1 |" in lines
    assert "| ms | 12 partitions, 6 shards | 1,000 partitions, 400 shards |" in lines
    assert lines[-1] == "| clock: a tick | 1.25 | 1.25 |"
