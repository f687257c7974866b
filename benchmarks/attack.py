"""Hostile clients of the gateway, one kind after the other: the wait of another user, and the cost.

``python -m benchmarks.attack`` needs neither Kafka nor Spark: the gateway's server is the real one, in a process of its
own, and each command is answered at once. The attackers are a second process, with sockets that never stop (one that
is ended connects again), and the other user is a third one, which sends a command ten times a second and waits for
each answer. ``results/attack.json`` has, for each kind, these waits, the growth of the server's resident memory and the
lines of its log. It fails if one of them exceeds the goal. ``--seconds 3`` is a quick look, and names select kinds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console

from ackstream.gateway.access.passwords import hash_password
from benchmarks.pages import RESULTS, machine, show
from tests.gateway.test_server import serving
from tests.harness.certificates import Authority

SOCKETS, SECONDS = 20, 60.0
GOAL = {"max_seconds": 0.5, "growth_mb": 64, "log_lines": 100}
PAUSE_SECONDS, AWAY_SECONDS, MEGABYTE = 0.1, 120.0, 2**20
THING = "/api/2/things/org.acme:lamp"
GOOD, EVE = "good", "eve"
CHUNK = 20_000
"""Frames in one piece of data."""


def basic(user: str, password: str = "pw") -> str:
    """Return a header with a login."""
    return f"authorization: Basic {b64encode(f'{user}:{password}'.encode()).decode()}\r\n"


def upgrade(login: str = "") -> bytes:
    """Return the handshake of a WebSocket."""
    return (
        "GET /ws/2 HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        f"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{login or basic(EVE)}\r\n"
    ).encode()


def frame(head: int, data: bytes = b"") -> bytes:
    """Return a short frame, under a mask that changes nothing."""
    return bytes([head, 0x80 | len(data), 0, 0, 0, 0]) + data


def get(target: str = THING, headers: str = "") -> bytes:
    """Return a request without a login."""
    return f"GET {target} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n".encode()


def posted(kind: str, headers: str) -> bytes:
    """Return the head of a form or of a value of EVE."""
    method, target = ("POST", "/api/2/search/things") if "form" in kind else ("PUT", f"{THING}/attributes/x")
    return (
        f"{method} {target} HTTP/1.1\r\nhost: localhost\r\n{basic(EVE)}content-type: {kind}\r\n{headers}\r\n".encode()
    )


WRONG = upgrade(basic(GOOD, "wrong"))
FORM = b"a&" * 499_000
HALF = bytes([0x81, 0xFF]) + (2_000_000).to_bytes(8, "big") + bytes(4) + bytes(1_999_000)
KINDS: dict[str, tuple[bytes, bytes, bool]] = {
    "pings": (upgrade(), frame(0x89) * CHUNK, True),
    "pongs that are not read": (upgrade(), frame(0x89, bytes(125)) * 1_000, False),
    "pongs": (upgrade(), frame(0x8A) * CHUNK, True),
    "empty texts": (upgrade(), frame(0x81) * CHUNK, True),
    "empty binary messages": (upgrade(), frame(0x82) * CHUNK, True),
    "small fragments": (upgrade() + frame(0x01, b"ab"), frame(0x00, b"ab") * CHUNK, True),
    "empty fragments": (upgrade() + frame(0x01), frame(0x00) * CHUNK, True),
    "half messages": (upgrade() + HALF, b"", True),
    "pings before the answer": (WRONG, frame(0x89) * CHUNK, True),
    "wrong frames before the answer": (WRONG + frame(0x83), b"", True),
    "long queries": (get(f"{THING}?{'a&' * 30_000}"), b"", True),
    "long paths": (get(f"/api/2/things/{'a/' * 30_000}"), b"", True),
    "many headers": (get(headers="a: b\r\n" * 11_000), b"", True),
    "forms of many parameters": (
        posted("application/x-www-form-urlencoded", f"content-length: {len(FORM)}\r\n") + FORM, b"", True,
    ),
    "bodies in small chunks": (
        posted("application/json", "transfer-encoding: chunked\r\n"), b"1\r\n1\r\n" * CHUNK, True,
    ),
}  # fmt: skip
"""The first and the repeated bytes of each kind, and whether it reads. Without more to send it waits for the end."""


def two_users() -> dict[str, Any]:
    """Return settings of the gateway with two users who may do everything."""
    password = hash_password("pw")
    everything: dict[str, Any] = {"subjects": [f"user:{GOOD}", f"user:{EVE}"], "grant": ["READ", "WRITE"]}
    return {"users": {GOOD: password, EVE: password}, "access": [everything]}


def serve(directory: str = "") -> None:
    """Serve until the input ends, and under TLS beside, with the certificate that goes into a directory."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    given = two_users()
    with ExitStack() as stack:
        running = [stack.enter_context(serving(**given))]
        if directory:
            certificate, key = Authority(Path(directory)).issue_pair("gateway")
            running.append(stack.enter_context(serving(**given, tls={"certificate": certificate, "key": key})))
        for each in running:
            # the commands that the tests keep are not growth of the gateway
            kept: Any = deque(maxlen=1_000)
            each.clients.sent = each.clients.futures = each.hub.answers = kept
        sys.stdout.write("".join(f"{each.port}\n" for each in running))
        sys.stdout.flush()
        sys.stdin.readline()
        # without the order of a shutdown, whose time is not measured
        os._exit(0)


def attack(port: int, kind: str, sockets: int) -> None:
    """Attack until the input ends; print the connections and the megabytes."""
    # as if on a machine of their own: with the processors that are not needed elsewhere
    os.nice(19)
    totals = [[0, 0] for _ in range(sockets)]
    for total in totals:
        threading.Thread(target=_go_on, args=(port, *KINDS[kind], total), daemon=True).start()
    sys.stdin.readline()
    connections, sent = map(sum, zip(*totals, strict=True))
    sys.stdout.write(f"{json.dumps({'connections': connections, 'sent_mb': round(sent / MEGABYTE, 1)})}\n")


def _go_on(port: int, first: bytes, more: bytes, reads: bool, total: list[int]) -> None:  # noqa: FBT001 - of the table
    while True:
        with suppress(OSError), socket.socket() as client:
            if not reads:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.settimeout(SECONDS)
            client.connect(("127.0.0.1", port))
            total[0] += 1
            client.sendall(first)
            total[1] += len(first)
            if reads:
                threading.Thread(target=_read, args=(client,), daemon=True).start()
            while more:
                total[1] += client.send(more)
            _read(client)


def _read(client: socket.socket) -> None:
    with suppress(OSError):
        while client.recv(65_536):
            pass


def measure(kind: str, seconds: float, sockets: int, log: Path) -> dict[str, Any]:
    """Measure one kind of attack on a new server."""
    with ExitStack() as stack, log.open("w") as lines:
        server = stack.enter_context(process("--role", "server", stderr=lines))
        port = int(line_of(server))
        known = psutil.Process(server.pid)
        address, headers = f"http://127.0.0.1:{port}", dict([basic(GOOD).strip().split(": ", 1)])
        client = stack.enter_context(httpx.Client(base_url=address, timeout=AWAY_SECONDS, headers=headers))
        before = statistics.median([wait_for_answer(client) for _ in range(10)])
        resident, written = known.memory_info().rss, _lines(log)
        attacker = stack.enter_context(process("--role", "attacker", str(port), kind, str(sockets)))
        waits, largest, began = [], resident, time.monotonic()
        while time.monotonic() - began < seconds:
            waits.append(wait_for_answer(client))
            largest = max(largest, known.memory_info().rss)
            time.sleep(PAUSE_SECONDS)
        found = {
            "seconds_before": round(before, 4),
            "p50_seconds": round(statistics.median(waits), 4),
            "max_seconds": round(max(waits), 4),
            "requests": len(waits),
            "growth_mb": round((largest - resident) / MEGABYTE, 1),
            "log_lines": _lines(log) - written,
        }
        attacker.stdin.write("\n")
        attacker.stdin.flush()
        found |= {"attackers": json.loads(line_of(attacker))}
    return found | {"holds": all(found[name] <= most for name, most in GOAL.items())}


@contextmanager
def process(*arguments: str, module: str = "benchmarks.attack", **streams: Any) -> Iterator[Any]:
    """Run a program for a block."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **streams) as made:
        try:
            yield made
        finally:
            made.kill()


def line_of(process: Any) -> str:
    """Return the next line of a process; it must not have ended."""
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"The process {process.args} has ended with {process.wait()}")
    return str(line)


def _lines(log: Path) -> int:
    return log.read_bytes().count(b"\n")


def wait_for_answer(client: httpx.Client) -> float:
    """Return the seconds that a command takes."""
    began = time.monotonic()
    client.put(f"{THING}/attributes/x", json=1).raise_for_status()
    return time.monotonic() - began


def main(arguments: argparse.Namespace) -> int:
    """Measure the kinds, write the results, and return whether one of them fails."""
    console = Console(highlight=False)
    found: dict[str, Any] = {}
    report = {"machine": machine(), "seconds": arguments.seconds, "sockets": arguments.sockets, "goal": GOAL}
    with tempfile.TemporaryDirectory(prefix="ackstream-attack-") as directory:
        for kind in arguments.kinds or KINDS:
            found[kind] = one = measure(kind, arguments.seconds, arguments.sockets, Path(directory, "log"))
            waits = " s, ".join(show(one[name]) for name in ("seconds_before", "p50_seconds", "max_seconds"))
            console.print(
                f"{'holds' if one['holds'] else '[red]fails[/]'}  {kind}: {waits} s (before, p50, max), "
                f"{one['growth_mb']} MB, {one['log_lines']} lines; {one['attackers']}"
            )
    if arguments.seconds >= SECONDS and not arguments.kinds:
        (RESULTS / "attack.json").write_text(json.dumps({**report, "kinds": found}, indent=2) + "\n", "utf-8")
    return 0 if all(one["holds"] for one in found.values()) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"all without one, of: {', '.join(KINDS)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each kind; a shorter run writes no results")
    parser.add_argument("--sockets", type=int, default=SOCKETS)
    parser.add_argument("--role", choices=("server", "attacker"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    match given.role:
        case "server":
            serve(*given.kinds)
        case "attacker":
            attack(int(given.kinds[0]), given.kinds[1], int(given.kinds[2]))
        case _:
            sys.exit(main(given))
