"""Ports that nothing listens on."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(number: int) -> list[int]:
    """Return ports that are free now, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
