from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from ackstream.local import process
from ackstream.local.process import PidFile, command_line
from tests.harness.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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


@pytest.mark.parametrize(("printed", "owner"), [("4711\n4712\n", 4711), ("", None)])
def test_where_there_is_no_proc_lsof_is_asked(monkeypatch: pytest.MonkeyPatch, printed: str, owner: int | None):
    monkeypatch.setattr("shutil.which", lambda _: "/usr/sbin/lsof")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=printed))
    assert process._owner_by_lsof(9092) == owner


def test_without_lsof_either_the_owner_is_not_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert process._owner_by_lsof(9092) is None


OBEDIENT = "print(flush=True); sys.stdin.read()"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"


@contextmanager
def running(mark: str, body: str = OBEDIENT) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a mark in its command line; it has come to its last statement."""
    command = [sys.executable, "-S", "-c", f"import signal, sys; {body}", mark]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def pid_file(tmp_path: Path) -> PidFile:
    return PidFile(tmp_path / "broker.pid", mark=str(tmp_path / "broker.properties"))


def test_a_process_that_was_written_is_read(pid_file: PidFile):
    with running(pid_file.mark) as process:
        pid_file.write(process.pid)
        assert pid_file.read() == process.pid


def test_without_a_file_there_is_no_process(pid_file: PidFile):
    assert pid_file.read() is None
    assert not pid_file.stop()


@pytest.mark.parametrize("content", ["", "text", "-1", "0", "4194305"])
def test_a_file_that_names_no_process_is_removed(pid_file: PidFile, content: str):
    pid_file.path.write_text(content)
    assert pid_file.read() is None
    assert not pid_file.path.exists()


def test_a_pid_that_now_belongs_to_another_program_is_never_killed(pid_file: PidFile):
    with running("/elsewhere/broker.properties") as other:
        pid_file.write(other.pid)
        assert not pid_file.stop()
        assert other.poll() is None
    assert not pid_file.path.exists()


@pytest.mark.parametrize(("body", "number"), [(OBEDIENT, signal.SIGTERM), (STUBBORN, signal.SIGKILL)])
def test_a_process_is_asked_to_end_and_then_killed(pid_file: PidFile, body: str, number: int):
    with running(pid_file.mark, body) as process:
        pid_file.write(process.pid)
        # Popen learns the signal only if it reaps its child itself
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "waitpid", lambda *_: None)
            assert pid_file.stop(grace=0.2)
        assert process.wait() == -number
    assert not pid_file.path.exists()


def test_a_process_that_ended_and_was_not_reaped_has_ended(pid_file: PidFile):
    with running(pid_file.mark) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        pid_file.write(process.pid)
        assert pid_file.read() is None


def test_the_command_line_of_no_process_is_empty():
    assert command_line(4194305) == ""
