"""Waiting for what must come: until it is there, and not for a time."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# taken out of the environment, since the settings would not know the name
PATIENCE_SECONDS = 300.0 * float(os.environ.pop("ACKSTREAM_TEST_PATIENCE", "1"))
"""How long a test waits for what must happen, on the slowest machine; only a failure ever waits so long.

``ACKSTREAM_TEST_PATIENCE=3`` triples it.
"""

POLL_SECONDS, LONGEST_POLL_SECONDS = 0.02, 1.0


def eventually(look: Callable[[], Any], what: str, query: Any = None) -> Any:
    """Look again and again, and return the first true value.

    :param what: what is waited for, for the error
    :param query: a streaming query that must run meanwhile
    :raises AssertionError: the patience is at its end, or the query stopped
    """
    start = time.monotonic()
    while (began := time.monotonic()) < start + PATIENCE_SECONDS:
        found = look()
        if found:
            return found
        if query is not None and not query.isActive:
            raise AssertionError(f"the query stopped while the test waited for {what}: {query.exception()}")
        # leaves most of the processor to what is waited for; what takes long is looked for less often
        now = time.monotonic()
        time.sleep(min(max(POLL_SECONDS, 4 * (now - began), (now - start) / 40), LONGEST_POLL_SECONDS))
    raise AssertionError(f"not within {PATIENCE_SECONDS:g} s: {what}")
