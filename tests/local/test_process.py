from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from ackstream.local import process
from ackstream.local.process import command_line
from tests.harness.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def taken(request: pytest.FixtureRequest) -> Iterator[int]:
    with socket.socket() as server:
        server.bind((request.param, 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_without_a_listener_is_free():
    (port,) = free_ports(1)
    assert process.is_free(port)
    assert not process.answers(port)


def test_a_port_with_a_listener_is_not_free(taken: int):
    assert not process.is_free(taken)
    assert process.answers(taken)


def test_the_program_that_has_a_port_is_named(taken: int):
    assert str(os.getpid()) in str(process.owner(taken))


def test_a_free_port_has_no_owner():
    (port,) = free_ports(1)
    assert process.owner(port) is None


def test_the_command_line_of_no_process_is_empty():
    assert command_line(4194305) == ""


def test_a_process_that_has_ended_has_no_command_line_even_before_its_parent_takes_notice():
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert command_line(ended.pid) == ""
