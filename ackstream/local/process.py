"""What the system knows: files that one process at a time may write, command lines, TCP ports and their owners."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from ackstream.errors import LocalError

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator

_TIMEOUT_SECONDS = 10
_LISTEN = "0A"
"""The state of a listening socket in ``/proc/net/tcp``."""


def java_text(text: str, plain: re.Pattern[str]) -> str:
    """Write a text for a file of Java's properties, which are Latin-1: what is not plain by its code units."""
    code = text.encode("utf-16-be", "surrogatepass").hex()
    units = (code[place : place + 4] for place in range(0, len(code), 4))
    return "".join(chr(int(unit, 16)) if plain.match(chr(int(unit, 16))) else f"\\u{unit}" for unit in units)


@contextlib.contextmanager
def locked(path: Path, remedy: str, busy: Callable[[], object]) -> Iterator[None]:
    """Hold a file lock; the system releases it when the process ends, however it ends.

    :param remedy: what to do if the directory cannot be written
    :param busy: called before waiting for another process that holds the lock; may raise
    :raises LocalError: the directory cannot be written
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
    """Write a file atomically and durably; only its owner can read it, from its first moment on."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


PRIVATE = 0o077
"""The umask by which only the owner can read what is created."""


def keep_private() -> None:
    """Let only the owner read the files that this process and its children create: data, logs and states."""
    os.umask(PRIVATE | os.umask(PRIVATE))


def command_line(pid: int) -> str:
    """Return a process's command line, separated by spaces; empty if it has ended (a zombie has, too)."""
    proc = Path("/proc")
    if (proc / "self" / "cmdline").exists():
        try:
            return (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            return ""
    return _output("ps", "-ww", "-o", "args=", "-p", str(pid))


def _output(name: str, *arguments: str) -> str:
    """Return what a program prints; nothing if it is not installed."""
    program = shutil.which(name)
    if program is None:
        return ""
    finished = subprocess.run(  # noqa: S603 - fixed arguments, no shell
        [program, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    return finished.stdout.strip()


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
    process = _owner_by_proc(port) if Path("/proc/net/tcp").exists() else _owner_by_lsof(port)
    if process is None:
        return None
    name, directory = Path(f"/proc/{process}/comm"), Path(f"/proc/{process}/cwd")
    try:
        # a Kafka of ackstream is stopped from where it was started
        return f"{name.read_text().strip()} (process {process} in {directory.readlink()})"
    except OSError:
        # of another user, or there is no /proc
        return f"{name.read_text().strip()} (process {process})" if name.exists() else f"process {process}"


def _owner_by_proc(port: int) -> int | None:
    inodes = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(Path("/proc/net") / table, port)}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(link.readlink())
        except OSError:
            # of another user, or ended meanwhile
            continue
        if target in inodes:
            return int(link.parts[2])
    return None


def _listening(table: Path, port: int) -> list[str]:
    """Return the socket inodes of the listeners at a port: columns 2 (address:port, hex), 4 (state), 10 (inode)."""
    if not table.exists():
        return []
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]


def _owner_by_lsof(port: int) -> int | None:
    listed = _output("lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-t")
    return int(listed.split()[0]) if listed else None
