"""Ports that nothing listens on, or nothing that answers."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

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


@contextmanager
def ending_each() -> Iterator[int]:
    """Accept connections and end each at once, as a load balancer does whose server is away; give the port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def end() -> None:
            # until it is closed
            with suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=end, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
