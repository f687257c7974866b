"""Outcomes of the same steps with one setting changed (brokers.md 6): words such as ``without_required_retained``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ackstream.errors import DeliveryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.conformance.scenarios.scenario import Json

    Run = Callable[[Json, list[Json]], Mapping[str, Any]]

WORDS = r"(with|without|if)_.+"


def observe(
    run: Run, given: Json, when: list[Json], *, switches: Iterable[str] = (), values: Iterable[tuple[str, str]] = ()
) -> Json:
    """Return what is observed, and what would be with a setting left out or switched off, or with another value.

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
        seen = _try(run, variation, when)
        observed |= {f"{name}_{word}": value for word, value in seen.items()}
        if "state" in seen:
            observed[name] = seen["state"]
    return observed | dict(run(given, when))


def _without(given: Json, key: str) -> Json:
    return {name: value for name, value in given.items() if name != key}


def _try(run: Run, given: Json, when: list[Json]) -> Mapping[str, Any]:
    try:
        return run(given, when)
    except (DeliveryError, LookupError, ValueError):
        # the steps make no sense with this setting; nothing is expected of them then
        return {}
