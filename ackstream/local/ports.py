"""Whether a TCP port of this machine is free, and who has it if not."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

_LISTEN = "0A"
_ANSWER_SECONDS = 10


def is_free(port: int) -> bool:
    """Tell whether a program could listen at ``localhost:port`` now."""
    with socket.socket() as probe:
        # as Kafka does it: a port whose last connections are still fading is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    # some systems let a second program bind beside one that listens at all addresses
    return not answers(port)


def answers(port: int) -> bool:
    """Tell whether something accepts connections at ``localhost:port``."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def owner(port: int) -> str | None:
    """Name the program that listens at a port, such as ``java (process 4711)``; ``None`` when it cannot be known."""
    process = _owner_by_proc(port) if Path("/proc/net/tcp").exists() else _owner_by_lsof(port)
    if process is None:
        return None
    name = Path(f"/proc/{process}/comm")
    return f"{name.read_text().strip()} (process {process})" if name.exists() else f"process {process}"


def _owner_by_proc(port: int) -> int | None:
    inodes = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(Path("/proc/net") / table, port)}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(link.readlink())
        except OSError:
            # of another user, or gone meanwhile
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
    program = shutil.which("lsof")
    if program is None:
        return None
    answer = subprocess.run(  # noqa: S603 - fixed arguments, no shell
        [program, "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-t"],
        capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False,
    )  # fmt: skip
    return int(answer.stdout.split()[0]) if answer.stdout.strip() else None
