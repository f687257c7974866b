"""What a scenario is, and what can run one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping

Json = dict[str, Any]

STEP_WORDS = frozenset({"op", "t_ms"})
"""What every step may have: what is done, and when (milliseconds from the scenario's start)."""


class Scenario(msgspec.Struct, frozen=True):
    """One scenario: configuration and starting state, ordered steps, and what is to be observed (brokers.md 6)."""

    id: str
    given: Json
    when: list[Json]
    expect: Json
    source: str = ""


class Uncovered(Exception):  # noqa: N818 - a verdict on the scenario, not a defect
    """Nothing here can run the scenario; the text says which word of it is not known."""


@dataclass(frozen=True)
class Interpreter:
    """Runs the scenarios of one protocol whose words it knows; which those are is data.

    ``observe`` takes ``given`` and ``when`` and returns every word of ``expect`` that makes sense for them, as plain
    JSON values or as the kinds of :mod:`.observations`. It never sees ``expect``. It raises :class:`Uncovered` for a
    value it does not know.
    """

    prefix: str
    """The part of the ids that names the protocol."""
    given: frozenset[str]
    steps: Mapping[str, frozenset[str]]
    """The words of each operation, besides :data:`STEP_WORDS`."""
    expect: frozenset[str]
    observe: Callable[[Json, list[Json]], Mapping[str, Any]]
    more: re.Pattern[str] | None = None
    """Words of ``expect`` with something of the scenario in them, such as ``write_4``."""

    def unknown_words(self, scenario: Scenario) -> list[str]:
        """Name the words of a scenario that are not known here; without any it can be run."""
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
