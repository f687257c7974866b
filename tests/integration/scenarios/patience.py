"""What a scenario expects, with the time that the engine takes on top (brokers.md 6)."""

from __future__ import annotations

from typing import Any

from tests.conformance.scenarios.observations import AT, BY, NOT_BEFORE, OR

ALLOWANCE_MS = 45_000
"""What a batch may take on the slowest machine."""
OWN_ALLOWANCE_MS = 3_000
"""What a reader may take for a report of its own, which waits for no batch: less than the default of its period."""
INTERVAL_MS = 60_000
"""An interval of merged acks that no scenario has the time for: what comes within its own has another cause."""
MERGED_MS = 20_000
"""An interval of merged acks that a scenario waits for, longer than a batch on the slowest machine."""
EXACT = (AT, "t_ms")


def patient(expected: Any, allowance_ms: int = ALLOWANCE_MS) -> Any:
    """Allow what must happen at a time, or by then, to happen later, but never earlier."""
    if isinstance(expected, list):
        return [patient(entry, allowance_ms) for entry in expected]
    if not isinstance(expected, dict) or OR in expected:
        # where something else is as good, a time that the engine cannot keep is no reason to take later for it
        return expected
    own = {"app_acks": OWN_ALLOWANCE_MS}
    changed = {key: patient(value, own.get(key, allowance_ms)) for key, value in expected.items() if key not in EXACT}
    for word in EXACT:
        if word in expected:
            changed |= {NOT_BEFORE: expected[word], BY: expected[word]}
    if BY in changed:
        changed[BY] += allowance_ms if BY in expected else ALLOWANCE_MS
    return changed
