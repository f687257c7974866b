"""Steps in the order of their time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.conformance.scenarios.observations import Series, matches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.conformance.scenarios.scenario import Json


def timed(when: Iterable[Json]) -> list[tuple[int, Json]]:
    """Return the steps with their times; one without a time follows the one before it at once."""
    steps = []
    now = 0
    for step in when:
        now = step.get("t_ms", now)
        steps.append((now, step))
    return sorted(steps, key=lambda entry: entry[0])


class Absent(Series):
    """Values of which those expected must be none."""

    def matches(self, expected: Any) -> bool:
        """Compare."""
        return isinstance(expected, list) and not any(
            matches(value, other) for value in expected for other in self.values
        )


class PerName(Series):
    """Counts of several things: expected is the sum, or an object with the count of each."""

    def matches(self, expected: Any) -> bool:
        """Compare."""
        counts = dict(self.values)
        return matches(expected, counts if isinstance(expected, dict) else sum(counts.values()))
