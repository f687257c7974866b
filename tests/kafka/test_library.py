from __future__ import annotations

import logging
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError, NodeNotReadyError, SaslAuthenticationFailedError

from ackstream.kafka.library import PatientClient
from tests.harness.ports import ending_each


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


def test_a_login_that_is_refused_while_a_program_runs_is_reported_and_tried_again() -> None:
    manager = PatientClient(bootstrap_servers="localhost:1")._manager
    refusal = SaslAuthenticationFailedError("a new key")
    manager._auth_failures["bootstrap-0"] = refusal
    with pytest.raises(SaslAuthenticationFailedError):
        manager.maybe_raise_auth_failure("bootstrap-0")
    manager.maybe_raise_auth_failure("bootstrap-0")


def test_a_proxy_that_accepts_and_ends_each_connection_is_tried_at_longer_and_longer_intervals() -> None:
    """As a load balancer does whose broker is away: the library would try hundreds of times a second."""

    async def opened(connection: Any) -> None:
        await connection

    with ending_each() as port:
        client = PatientClient(bootstrap_servers=f"127.0.0.1:{port}")
        connections, broker, delays = client._manager, "bootstrap-0", []
        for _ in range(5):
            connection = connections.get_connection(broker)
            with pytest.raises(KafkaConnectionError):
                client._net.run(opened, connection)
            delays.append(connections.connection_delay(broker))
            with pytest.raises(NodeNotReadyError):
                connections.get_connection(broker)
            # as if the time were over
            failures, _, timeout = connections._backoff[broker]
            connections._backoff[broker] = (failures, 0.0, timeout)
        client.close()
    # from 50 ms on, doubled each time, with a fifth of chance
    assert delays == sorted(delays)
    assert delays[-1] > 0.5
