"""What a scenario expects, with the time that the engine takes on top (brokers.md 6)."""

from __future__ import annotations

from typing import Any

from tests.conformance.scenarios.observations import AT, BY, NOT_BEFORE, OR

ALLOWANCE_MS = 45_000
"""What a batch may take on the slowest machine."""
INTERVAL_MS = 60_000
"""An interval of merged acks that no scenario has the time for: what comes within its own has another cause."""
MERGED_MS = 20_000
"""An interval of merged acks that a scenario waits for, longer than a batch on the slowest machine."""
EXACT = (AT, "t_ms")


def patient(expected: Any) -> Any:
    """Allow what must happen at a time, or by then, to happen later, but never earlier."""
    if isinstance(expected, list):
        return [patient(entry) for entry in expected]
    if not isinstance(expected, dict) or OR in expected:
        # where something else is as good, a time that the engine cannot keep is no reason to take later for it
        return expected
    changed = {key: patient(value) for key, value in expected.items() if key not in EXACT}
    for word in EXACT:
        if word in expected:
            changed |= {NOT_BEFORE: expected[word], BY: expected[word]}
    if BY in changed:
        changed[BY] += ALLOWANCE_MS
    return changed
