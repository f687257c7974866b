"""The verdicts of ``make soak``: what grows is told from noise, saw teeth and a level that is reached once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.soaking.series import judge, read, rule_of, write
from benchmarks.soaking.trend import FLAT, GROWS, SHORT, trend

MINUTES = range(100)
HOURS = [minute / 60 for minute in MINUTES]
SHARE = 0.05


def noisy(level: float, an_hour: float, noise: float) -> list[float]:
    chance = random.Random(5)
    return [level + an_hour * hour + chance.gauss(0, noise) for hour in HOURS]


SERIES = {
    "flat": ([100.0] * 100, FLAT),
    "empty": ([0.0] * 100, FLAT),
    "flat within noise": (noisy(100, 0, 10), FLAT),
    "noise larger than the slope": (noisy(100, 6, 60), FLAT),
    "less than the share": (noisy(100, 3, 0.1), FLAT),
    "falling": (noisy(100, -30, 1), FLAT),
    "saw teeth": ([100.0 + minute % 20 for minute in MINUTES], FLAT),
    "a spike": ([500.0 if minute in (90, 91) else 100.0 for minute in MINUTES], FLAT),
    "a step, then level": ([100.0 if minute < 30 else 150.0 for minute in MINUTES], FLAT),
    "leaking": (noisy(100, 10, 1), GROWS),
    "leaking under noise": (noisy(100, 40, 10), GROWS),
    "leaking saw teeth": ([100.0 + minute % 20 + minute / 2 for minute in MINUTES], GROWS),
    "step by step": ([100.0 + 10 * (minute // 20) for minute in MINUTES], GROWS),
    "from nothing": ([minute / 10 for minute in MINUTES], GROWS),
}


@pytest.mark.parametrize(("values", "verdict"), SERIES.values(), ids=SERIES)
def test_the_verdict_on_a_series(values: list[float], verdict: str) -> None:
    found = trend(HOURS, values, SHARE)
    assert found.verdict == verdict, found
    assert found == trend(HOURS, values, SHARE)


def test_a_slope_below_the_floor_is_no_growth() -> None:
    assert trend(HOURS, SERIES["leaking"][0], SHARE, floor=20).verdict == FLAT


def test_a_few_samples_give_no_verdict() -> None:
    assert trend(HOURS[:5], [1.0, 2, 3, 4, 5], SHARE).verdict == SHORT


def samples(**series: list[float]) -> list[dict[str, object]]:
    rows = [dict(zip(series, values, strict=True)) for values in zip(*series.values(), strict=True)]
    return [{"minute": minute, "values": {name.replace("_", "/"): value for name, value in row.items()}}
            for minute, row in enumerate(rows)]  # fmt: skip


def test_what_grows_with_the_data_is_judged_per_record() -> None:
    count = [1000.0 * (minute + 1) for minute in MINUTES]
    linear = judge(samples(kafka_signals=[300 * value for value in count], records_signals=count), 20)
    assert linear["kafka/signals"]["verdict"] == FLAT
    more = judge(samples(kafka_signals=[value * value for value in count], records_signals=count), 20)
    assert more["kafka/signals"]["verdict"] == GROWS


def test_the_warm_up_does_not_count() -> None:
    values = [10.0 * min(minute, 20) for minute in MINUTES]
    assert judge(samples(python_gateway=values), 20)["python/gateway"]["verdict"] == FLAT


def test_what_is_kept_by_design_is_listed_without_a_verdict() -> None:
    found = judge(samples(disk_messages=[minute * 1e6 for minute in MINUTES]), 20)["disk/messages"]
    assert found["verdict"] == "by design"
    assert found["reason"]


def test_every_series_has_a_rule() -> None:
    with pytest.raises(LookupError):
        rule_of("unknown/series")


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [{"minute": 1.0, "values": {"heap/jobs": 5.0}}, {"minute": 2.0, "values": {"open/gateway": 1.5}}]
    report = {"rate": 3.5, "calibration": [{"rate": 7}], "samples": rows}
    write(report, tmp_path)
    assert read(tmp_path / "soak.json") == report
