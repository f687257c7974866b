"""The gateway beside the demo: a thread with its event loop, and a line to try it with."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ackstream.errors import LocalError
from ackstream.gateway.service import Server, connected
from ackstream.local import ports
from ackstream.settings import Gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.settings import Settings


@contextmanager
def gateway(settings: Settings) -> Iterator[str]:
    """Serve for the time of the block; the value is the address. A taken port is replaced by a free one.

    :raises LocalError: it cannot listen
    """
    # whoever runs a demo is not asked for a password: the address is this machine's alone
    port = settings.gateway.port
    own = settings.model_copy(update={"gateway": Gateway(port=port if ports.is_free(port) else 0)})
    address: Future[str] = Future()
    with connected(own) as dependencies:
        server = Server(dependencies, address.set_result)
        thread = threading.Thread(target=_serve, args=(server, address), name="ackstream-gateway", daemon=True)
        thread.start()
        try:
            yield address.result()
        finally:
            server.should_exit = True
            thread.join()


def curl(address: str, thing_id: str, labels: tuple[str, ...]) -> str:
    """Return a shell line that sends a command over HTTP and prints the aggregate."""
    asked = ",".join(("twin-persisted", *labels))
    url = f"{address}/api/2/things/{thing_id}/attributes/speed?timeout=10s&requested-acks={asked}"
    return f"curl -X PUT '{url}' -H 'content-type: application/json' -d 42"


def _serve(server: Server, address: Future[str]) -> None:
    try:
        asyncio.run(server.serve())
    except SystemExit:
        # uvicorn ends a program that cannot listen
        address.set_exception(LocalError("The gateway cannot listen at any port of this machine."))
