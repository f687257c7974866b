"""What a scenario is, what can run one, and how its steps are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ackstream.errors import DeliveryError

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Mapping

Json = dict[str, Any]

STEP_WORDS = frozenset({"op", "t_ms"})
"""The words that every step may have: the operation and its time (milliseconds from the scenario's start)."""
VARIATION = r"(with|without|if)_.+"
"""Words of ``expect`` about the same steps with one setting changed, such as ``without_required_retained``."""


class Scenario(msgspec.Struct, frozen=True):
    """One scenario: configuration and starting state, ordered steps, and the expected observations (brokers.md 6)."""

    id: str
    given: Json
    when: list[Json]
    expect: Json
    source: str = ""


class Uncovered(Exception):  # noqa: N818 - a verdict on the scenario, not a defect
    """No interpreter knows a word of the scenario; the text names it."""


@dataclass(frozen=True)
class Interpreter:
    """Runs the scenarios of one protocol whose words it knows; the words are data.

    ``observe`` takes ``given`` and ``when`` and returns every word of ``expect`` that makes sense for them, as plain
    JSON values or as the kinds of :mod:`.observations`. It never sees ``expect``. It raises :class:`Uncovered` for an
    unknown value.
    """

    prefix: str
    """The part of the ids that names the protocol."""
    given: frozenset[str]
    steps: Mapping[str, frozenset[str]]
    """The words of each operation, besides :data:`STEP_WORDS`."""
    expect: frozenset[str]
    observe: Callable[[Json, list[Json]], Mapping[str, Any]]
    more: re.Pattern[str] | None = None
    """Words of ``expect`` that include a word of the scenario, such as ``write_4``."""

    def unknown_words(self, scenario: Scenario) -> list[str]:
        """Name the words of a scenario that this interpreter does not know."""
        unknown = [f"given {word}" for word in sorted(scenario.given.keys() - self.given)]
        for step in scenario.when:
            op = str(step.get("op"))
            if op not in self.steps:
                unknown.append(f"op {op}")
            else:
                unknown += [f"{op} {word}" for word in sorted(step.keys() - self.steps[op] - STEP_WORDS)]
        unknown += [f"expect {word}" for word in sorted(filter(self._is_unknown, scenario.expect))]
        return list(dict.fromkeys(unknown))

    def _is_unknown(self, word: str) -> bool:
        return word not in self.expect | {"or"} and not (self.more and self.more.fullmatch(word))


def timed(when: Iterable[Json]) -> list[tuple[int, Json]]:
    """Return the steps with their times; a step without a time follows the one before it at once."""
    steps = []
    now = 0
    for step in when:
        now = step.get("t_ms", now)
        steps.append((now, step))
    return sorted(steps, key=lambda entry: entry[0])


def observe_variations(
    run: Callable[[Json, list[Json]], Mapping[str, Any]],
    given: Json,
    when: list[Json],
    *,
    switches: Iterable[str] = (),
    values: Iterable[tuple[str, str]] = (),
) -> Json:
    """Return the observations, and those with each setting left out, switched off or given another value.

    :param switches: settings that can be switched off though ``given`` does not name them
    :param values: settings and their possible values, as ``("history", "KEEP_ALL")``
    """
    changed = [
        (f"without_{key}", given | {key: False} if isinstance(given.get(key, True), bool) else _without(given, key))
        for key in dict.fromkeys([*given, *switches])
    ]
    changed += [(f"{word}_{value}", given | {key: value}) for key, value in values for word in ("with", "if")]
    observed: Json = {}
    for name, variation in changed:
        try:
            seen = run(variation, when)
        except (DeliveryError, LookupError, ValueError):
            # the steps make no sense with this setting; no scenario expects anything of them then
            continue
        observed |= {f"{name}_{word}": value for word, value in seen.items()}
        if "state" in seen:
            observed[name] = seen["state"]
    return observed | dict(run(given, when))


def _without(given: Json, key: str) -> Json:
    return {name: value for name, value in given.items() if name != key}
