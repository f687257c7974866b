"""Whether a series grows: its slope, how certain that is, and the verdict. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FEWEST = 8
"""Fewer samples allow no verdict."""
SAMPLES, BLOCKS = 200, 5
CONFIDENCE = 95
FLAT, GROWS, SHORT = "flat", "grows", "too short"


class Trend(NamedTuple):
    """The trend of a series; slopes are per hour, in the unit of its values.

    :ivar level: the median
    :ivar low: the lower end of the slope's confidence interval
    :ivar limit: slopes up to it are no growth
    """

    level: float
    slope: float
    low: float
    high: float
    limit: float
    verdict: str


def trend(hours: Sequence[float], values: Sequence[float], share: float, floor: float = 0.0) -> Trend:
    """Judge a series.

    It grows if its slope (Theil and Sen's: the median of the slopes of all pairs, which outliers do not move) exceeds
    both the noise and a limit, and its latter half still climbs: a level that is reached once is no growth. The noise
    is estimated by a bootstrap of blocks of residuals, since neighbouring samples depend on each other.

    :param hours: when each value was measured
    :param share: of the level, per hour: slopes up to it are no growth
    :param floor: the same, absolute; the larger one counts
    """
    x, y = np.asarray(hours, float), np.asarray(values, float)
    level = float(np.median(y)) if len(y) else math.nan
    limit = max(share * abs(level), floor)
    if len(y) < FEWEST:
        return Trend(level, math.nan, math.nan, math.nan, limit, SHORT)
    slope = float(_slopes(x, y[None, :])[0])
    low, high = _interval(x, y, slope)
    half = len(y) // 2
    climbs = float(_slopes(x[half:], y[None, half:])[0]) > limit
    return Trend(level, slope, low, high, limit, GROWS if slope > limit and low > 0 and climbs else FLAT)


def _slopes(x: np.ndarray, ys: np.ndarray) -> np.ndarray:
    first, second = np.triu_indices(len(x), 1)
    found: np.ndarray = np.median((ys[:, second] - ys[:, first]) / (x[second] - x[first]), axis=1)
    return found


def _interval(x: np.ndarray, y: np.ndarray, slope: float) -> tuple[float, float]:
    count, length = len(y), math.ceil(len(y) / BLOCKS)
    residuals = y - slope * x
    residuals = residuals - residuals.mean()
    # the same series always gets the same verdict
    chance = np.random.default_rng(count)
    starts = chance.integers(count, size=(SAMPLES, BLOCKS))
    drawn = (starts[:, :, None] + np.arange(length)).reshape(SAMPLES, -1)[:, :count] % count
    found = _slopes(x, slope * x + residuals[drawn])
    tail = (100 - CONFIDENCE) / 2
    low, high = np.percentile(found, [tail, 100 - tail])
    return float(low), float(high)
