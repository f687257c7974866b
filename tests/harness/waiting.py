"""Waiting for what must come: until it is there, and not for a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from inspect import getclosurevars, isfunction
from reprlib import Repr
from typing import Any

# taken out of the environment, since the settings would not know the name
PATIENCE_SECONDS = 300.0 * float(os.environ.pop("ACKSTREAM_TEST_PATIENCE", "1"))
"""How long a test waits for what must happen, on the slowest machine; only a failure ever waits so long.

``ACKSTREAM_TEST_PATIENCE=3`` triples it.
"""

POLL_SECONDS, LONGEST_POLL_SECONDS = 0.02, 1.0

_short = Repr()
_short.maxlevel, _short.maxstring, _short.maxother = 4, 400, 400
_short.maxlist = _short.maxtuple = _short.maxset = _short.maxdict = 20


def eventually(look: Callable[[], Any], what: str, query: Any = None) -> Any:
    """Look again and again, and return the first true value.

    :param what: what is waited for, for the error, which also has what the look has returned last and its variables
    :param query: a streaming query that must run meanwhile
    :raises AssertionError: the patience is at its end, or the query stopped
    """
    start = time.monotonic()
    while True:
        began = time.monotonic()
        found = look()
        if found:
            return found
        if query is not None and not query.isActive:
            raise AssertionError(f"the query stopped while the test waited for {what}: {query.exception()}")
        now = time.monotonic()
        if now > start + PATIENCE_SECONDS:
            raise AssertionError(f"not within {PATIENCE_SECONDS:g} s: {what}. Seen last: {_seen(look, found, query)}")
        # leaves most of the processor to what is waited for; what takes long is looked for less often
        time.sleep(min(max(POLL_SECONDS, 4 * (now - began), (now - start) / 40), LONGEST_POLL_SECONDS))


def _seen(look: Callable[[], Any], found: Any, query: Any) -> str:
    """Describe what a look has returned, what it has looked at, and how far its query is."""
    variables = getclosurevars(look).nonlocals if isfunction(look) else {}
    seen = [_short.repr(found), *(f"{name} = {_short.repr(value)}" for name, value in variables.items())]
    if query is not None:
        seen.append(f"progress {query.lastProgress and query.lastProgress.json}")
    return "; ".join(seen)
