"""What a scenario expects, with the time that the engine takes on top (brokers.md 6)."""

from __future__ import annotations

from typing import Any

from tests.conformance.scenarios.observations import AT, BY, NOT_BEFORE

ALLOWANCE_MS = 60_000
"""What a batch may take on the slowest machine."""
EXACT = (AT, "t_ms")


def patient(expected: Any) -> Any:
    """Allow what must happen at a time, or by then, to happen later, but never earlier."""
    if isinstance(expected, list):
        return [patient(entry) for entry in expected]
    if not isinstance(expected, dict):
        return expected
    changed = {key: patient(value) for key, value in expected.items() if key not in EXACT}
    for word in EXACT:
        if word in expected:
            changed |= {NOT_BEFORE: expected[word], BY: expected[word]}
    if BY in changed:
        changed[BY] += ALLOWANCE_MS
    return changed
