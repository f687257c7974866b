"""Ports that nothing listens on."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack

# below the range of outgoing connections, so that a stopped broker finds its port again
_FIRST, _LAST = 10_240, 32_000
_random = random.Random(os.getpid())


def free_ports(number: int) -> list[int]:
    """Return ports that are free now, all different."""
    with ExitStack() as stack:
        found: list[int] = []
        while len(found) < number:
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", _random.randrange(_FIRST, _LAST)))
            except OSError:
                continue
            found.append(probe.getsockname()[1])
        return found
