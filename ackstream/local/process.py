"""The operating system: locked and private files, command lines, TCP ports and their owners."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from typing import TYPE_CHECKING

import psutil

from ackstream.errors import LocalError

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator
    from pathlib import Path


def java_text(text: str, plain: re.Pattern[str]) -> str:
    """Write a text for a file of Java's properties, which are Latin-1; other characters are written as code units."""
    code = text.encode("utf-16-be", "surrogatepass").hex()
    units = (code[place : place + 4] for place in range(0, len(code), 4))
    return "".join(chr(int(unit, 16)) if plain.match(chr(int(unit, 16))) else f"\\u{unit}" for unit in units)


@contextlib.contextmanager
def locked(path: Path, remedy: str, busy: Callable[[], object]) -> Iterator[None]:
    """Hold a file lock; the system releases it when the process ends, however it ends.

    :param remedy: the advice of the ``LocalError`` if the directory cannot be written
    :param busy: called before waiting for another process that holds the lock; may raise
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise LocalError(f"The directory {path.parent} cannot be written ({error.strerror}): {remedy}.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically and durably; only its owner can read it, from the start."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


PRIVATE = 0o077
"""The umask with which only the owner can read new files."""


def keep_private() -> None:
    """Let only the owner read the files that this process and its children create: data, logs and states."""
    os.umask(PRIVATE | os.umask(PRIVATE))


def command_line(pid: int) -> str:
    """Return a process's command line, separated by spaces; empty if it has ended (a zombie has, too)."""
    try:
        return " ".join(psutil.Process(pid).cmdline()).strip()
    except psutil.Error:
        return ""


def is_free(port: int) -> bool:
    """Return whether a program could listen at ``localhost:port`` now."""
    with socket.socket() as probe:
        # as Kafka does: a port whose last connections are in TIME_WAIT is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    # some systems let a second program bind while another listens at all addresses
    return not answers(port)


def answers(port: int) -> bool:
    """Return whether a program accepts connections at ``localhost:port``."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def owner(port: int) -> str | None:
    """Return the program that listens at a port, such as ``java (process 4711 in /home/ada)``; ``None`` if unknown."""
    for process in psutil.process_iter():
        # processes of other users are not visible, and a process may end meanwhile
        with contextlib.suppress(psutil.Error):
            for found in process.net_connections("tcp"):
                if found.status == psutil.CONN_LISTEN and found.laddr.port == port:
                    # a Kafka of ackstream is stopped from where it was started
                    return f"{process.name()} (process {process.pid} in {process.cwd()})"
    return None
