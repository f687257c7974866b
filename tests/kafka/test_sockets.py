from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ackstream.kafka import sockets

if TYPE_CHECKING:
    import pytest

assert sockets


def test_a_socket_that_was_closed_while_it_was_read_is_no_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("kafka.net.transport")
    for closed in (None, object()):
        try:
            closed.recv(1)  # type: ignore[union-attr]
        except AttributeError:
            log.exception("Error receiving network data from %s", closed)
    # what is no socket at all is a defect, and told
    (told,) = caplog.messages
    assert "object" in told
