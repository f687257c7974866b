"""What ``python -m benchmarks scale`` compares: who has more than a fair share, and what the driver does by itself."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from benchmarks import driving
from benchmarks.driving import Width
from benchmarks.scale import EVERY, HOT, PADDING, HeavyThing, HotThing
from benchmarks.workload import Workload

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
