"""Comparing what was observed with what a scenario expects (brokers.md 6).

An object must have what is expected of it and may have more; a list must be equal in length and order, so that one ack
too many is a failure. Times are words of an object: ``at_ms`` exactly, ``by_ms`` no later, ``not_before_ms`` no earlier
than the observed ``at_ms``. ``or`` in an object is another object that is as good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

AT, BY, NOT_BEFORE, OR = "at_ms", "by_ms", "not_before_ms", "or"


@dataclass(frozen=True)
class Series:
    """A value seen after each step: expected is the last one, or all of them, with or without repetitions."""

    values: Sequence[Any]

    def matches(self, expected: Any) -> bool:
        """Compare."""
        values = list(self.values)
        if not isinstance(expected, list):
            return matches(expected, values[-1])
        changes = [value for index, value in enumerate(values) if index == 0 or value != values[index - 1]]
        return matches(expected, values) or matches(expected, changes)


@dataclass(frozen=True)
class Counted:
    """A list of which also the length may be expected."""

    values: Sequence[Any]

    def matches(self, expected: Any) -> bool:
        """Compare."""
        return matches(expected, list(self.values) if isinstance(expected, list) else len(self.values))


@dataclass(frozen=True)
class Lines:
    """Lines of a log: each expected text must stand in one of them."""

    values: Sequence[str]

    def matches(self, expected: Any) -> bool:
        """Compare."""
        return isinstance(expected, list) and all(any(text in line for line in self.values) for text in expected)


@dataclass(frozen=True)
class AtMost:
    """A number of which the greatest allowed one is expected."""

    value: int

    def matches(self, expected: Any) -> bool:
        """Compare."""
        return isinstance(expected, int) and self.value <= expected


class Absent(Series):
    """Values of which none may be among the expected ones."""

    def matches(self, expected: Any) -> bool:
        """Compare."""
        return isinstance(expected, list) and not any(
            matches(value, other) for value in expected for other in self.values
        )


class Cumulative(Series):
    """Acknowledgements up to a number: where a batch ends is the engine's choice, and each batch has one of its own.

    Each that is expected, the end of a third for one, is there in its time, and ends exactly there; they are in order,
    and end with the last; if it is fewer than the messages, so are those that were seen.
    """

    def matches(self, expected: Any) -> bool:
        """Compare."""
        values = list(self.values)
        if matches(expected, values):
            return True
        numbers = [value["up_to"] for value in values]
        reached = all(any(matches(wanted, value) for value in values) for wanted in expected)
        ended = bool(values) and matches(expected[-1], values[-1])
        return reached and ended and numbers == sorted(set(numbers)) and len(values) < numbers[-1]


class Runs(Series):
    """Numbers, each of which stands for the run of messages that ends with it, as an acknowledgement does."""

    def matches(self, expected: Any) -> bool:
        """Compare."""
        wanted, seen = ([{"up_to": number} for number in numbers] for numbers in (expected, self.values))
        return Cumulative(seen).matches(wanted)


class PerName(Series):
    """Counts of several things: expected is the sum, or an object with the count of each."""

    def matches(self, expected: Any) -> bool:
        """Compare."""
        counts = dict(self.values)
        return matches(expected, counts if isinstance(expected, dict) else sum(counts.values()))


def matches(expected: Any, observed: Any) -> bool:
    """Tell whether what was observed is what is expected."""
    if isinstance(observed, (Series, Counted, Lines, AtMost)):
        return observed.matches(expected)
    if isinstance(expected, dict):
        return isinstance(observed, dict) and _matches_object(expected, {str(key): observed[key] for key in observed})
    if isinstance(expected, list):
        return (
            isinstance(observed, (list, tuple))
            and len(expected) == len(observed)
            and all(map(matches, expected, observed))
        )
    # a boolean is no number
    return isinstance(expected, bool) == isinstance(observed, bool) and bool(expected == observed)


def plain(observed: Any) -> Any:
    """Return an observation as JSON, for people to read."""
    if isinstance(observed, (Series, Counted, Lines)):
        return plain(list(observed.values))
    if isinstance(observed, AtMost):
        return observed.value
    if isinstance(observed, dict):
        return {str(key): plain(value) for key, value in observed.items()}
    if isinstance(observed, (list, tuple)):
        return [plain(value) for value in observed]
    return observed


def _matches_object(expected: dict[str, Any], observed: dict[str, Any]) -> bool:
    if OR in expected:
        rest = {key: value for key, value in expected.items() if key != OR}
        return _matches_object(rest, observed) or matches(expected[OR], observed)
    return all(
        _TIMES[key](value, observed[AT]) if key in _TIMES and AT in observed else _has(observed, key, value)
        for key, value in expected.items()
    )


def _has(observed: dict[str, Any], key: str, value: Any) -> bool:
    return key in observed and matches(value, observed[key])


_TIMES: dict[str, Callable[[int, int], bool]] = {
    AT: lambda time, seen: seen == time,
    BY: lambda time, seen: seen <= time,
    NOT_BEFORE: lambda time, seen: seen >= time,
}
