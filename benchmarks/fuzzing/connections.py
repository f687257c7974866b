"""Connections of the gateway from a seed: heads of HTTP and frames of WebSockets, valid, nearly valid, and cut off.

``python -m benchmarks.fuzzing.connections`` is the process that opens them; :func:`run` starts it, a server, and
another user that is answered meanwhile. A connection depends on the seed and its number alone: ``--first`` repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import ssl
import statistics
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.attack import EVE, GOOD, MEGABYTE, THING, basic, line_of, process, wait_for_answer
from benchmarks.fuzzing.garbage import Garbage

CONNECTIONS, BATCH, THREADS = 100_000, 500, 64
QUIET_SECONDS, PAUSE_SECONDS, END_SECONDS, AWAY_SECONDS = 0.5, 0.1, 60.0, 120.0
MAX_GROWTH_MB, MAX_WAIT_SECONDS, WARM, SHOWN = 64, 5.0, 0.1, 10
"""Goals; the part of the connections after which growth is measured; the number of errors that are written down."""

SECURED = 20
"""One of this many connections is under TLS."""

METHODS = (b"GET", b"PUT", b"POST", b"PATCH", b"DELETE", b"OPTIONS", b"HEAD", b"CONNECT", b"TRACE", b"get", b"", b"\0")
# the pages that show topics and tables need those
TARGETS = (
    THING.encode(), f"{THING}/attributes/x".encode(), f"{THING}/inbox/messages/ask?timeout=1s".encode(), b"/ws/2",
    b"/api/2/search/things?filter=eq(attributes/x,1)", b"/api/2/things?ids=a:b,c:d", b"/api/2/policies/a:b", b"/",
    b"/api/2/whoami", b"/doc", b"/health/live", b"/metrics", b"*", b"", b"//",
    b"http://localhost/api/2/whoami", b"/api/2/things/%ff%00%", b"/api/2/things/..%2f..", b"/%c3%28", b"/\xc3\x28",
    b"/api/2/things/" + b"a" * 9_000, b"/?" + b"a=b&" * 300, b"/api/2/things/a:b?fields=" + b"(" * 2_000,
)  # fmt: skip
VERSIONS = (b"HTTP/1.1",) * 20 + (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"HTTP/1.1 ", b"", b"\xff")
NAMES = (
    b"correlation-id", b"timeout", b"requested-acks", b"response-required", b"if-match", b"if-none-match", b"condition",
    b"origin", b"cookie", b"accept", b"accept-encoding", b"content-type", b"content-length", b"transfer-encoding",
    b"connection", b"upgrade", b"expect", b"authorization", b"host", b"sec-fetch-site", b"sec-websocket-key", b"te",
    b"sec-websocket-version", b"sec-websocket-protocol", b"sec-websocket-extensions", b"x-forwarded-for", b"forwarded",
    b"put-metadata", b"live-channel-condition", b"traceparent", b"Range", b"a b", b"", b"a\0", b"\xe9", b":",
    b"a" * 300,
)  # fmt: skip
VALUES = (
    b"", b"a", b"1s", b"0", b"-1", b"99d", b"[]", b'["a-ack"]', b'"rev:1"', b"*", b"true", b"null", b"same-origin",
    b"cross-site", b"http://evil", b"gzip, identity", b"chunked", b"chunked, chunked", b"gzip, chunked", b"close",
    b"keep-alive, upgrade", b"websocket", b"h2c", b"100-continue", b"text/event-stream", b"application/json", b"13",
    b"Basic ====", b"Basic \xff", b"Bearer a.b.c", b"localhost", b"[::1", b"evil:99999", b"\xff\xfe", b"a\0b", b"a\rb",
    b"permessage-deflate; client_max_window_bits=99", b"00-" + b"0" * 32 + b"-0-1", b"9" * 5_000, b"eq(a,1", b"\t \t",
)  # fmt: skip
ENDS = (b"\n", b"\r", b"\r\n ", b"\r\n\r\n", b"", b"\r\n\t")
SIZES = (b"0", b"1", b"ffffffffffffffff", b"-1", b"0x1", b"1;a=b", b'1;a="', b" 1", b"", b"zz", b"00000000000000001")
TEXTS = (
    b"START-SEND-EVENTS", b"STOP-SEND-EVENTS", b"START-SEND-MESSAGES?filter=eq(", b"START-SEND-LIVE-COMMANDS?a=%ff%",
    b"START-SEND-EVENTS?namespaces=a,b&extraFields=attributes", b"JWT-TOKEN?jwtToken=a.b.c", b"JWT-TOKEN", b"START-",
    b"", b"{", b"[]", b"null", b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3", b"\0", b"[" * 5_000,
)  # fmt: skip
CODES = (0, 999, 1000, 1001, 1003, 1004, 1005, 1006, 1007, 1009, 1015, 2999, 3000, 4999, 5000, 65_535)
LENGTHS = (0, 1, 125, 126, 127, 65_535, 65_536, 10_000_000, 2**31, 2**63 - 1, 2**63, 2**64 - 1)
TEXT, CLOSE, PING, FINAL, MASKED = 1, 8, 9, 0x80, 0x80


class Wire(Garbage):
    """Gives the bytes that clients send to the gateway's port."""

    def pieces(self) -> list[bytes]:
        """Return the bytes of a connection, in order; most are damaged somewhere."""
        data = b"".join(self._request() for _ in range(self.pick((1, 1, 1, 2, 5))))
        if self.one_in(2):
            frames = b"".join(self._frame() for _ in range(self.chance.randrange(12)))
            data = (data if self.one_in(3) else b"") + self._upgrade() + frames
        if self.one_in(40):
            data = self.chance.randbytes(self.chance.randrange(1, 3_000))
        for _ in range(self.pick((0, 0, 0, 0, 1, 1, 2, 5))):
            data = self._damage(data)
        cuts = sorted(self.chance.randrange(len(data) + 1) for _ in range(self.pick((0, 0, 0, 1, 3))))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def _damage(self, data: bytes) -> bytes:
        first, last = sorted(self.chance.randrange(len(data) + 1) for _ in range(2))
        near = min(last, first + 9)
        return self.pick(
            (
                data[:last], data[:first] + self.chance.randbytes(near - first) + data[near:],
                data[:first] + data[near:], data[:near] + data[first:], data[:first] + self.pick(VALUES) + data[first:],
            )
        )  # fmt: skip

    def _request(self) -> bytes:
        method = self.pick(METHODS if self.one_in(8) else METHODS[:5])
        line = b" ".join((method, self.pick(TARGETS if self.one_in(4) else TARGETS[:4]), self.pick(VERSIONS)))
        lines = [line, *self._lines()]
        body = b"" if self.one_in(2) else self.record(self.signal("a")) or b""
        if body and self.one_in(2):
            lines += [b"content-type: application/json", b"transfer-encoding: chunked"]
            body = self._chunks(body)
        elif body or self.one_in(4):
            length = self.pick((len(body), len(body), len(body), len(body) + 1, max(0, len(body) - 1), -1, 10**9))
            lines.append(b"content-length: %d" % length)
        if self.one_in(20):
            lines.append(b"%b: %b" % (self.pick((b"content-length", b"transfer-encoding")), self.pick(VALUES)))
        lines.append(b"")
        odd = self.chance.randrange(len(lines)) if self.one_in(10) else None
        return b"".join(line + (self.pick(ENDS) if at == odd else b"\r\n") for at, line in enumerate(lines)) + body

    def _lines(self) -> list[bytes]:
        found = [b"host: localhost"]
        if not self.one_in(4):
            found.append(basic(EVE, "wrong" if self.one_in(8) else "pw").strip().encode())
        between = b": " if self.chance.random() < 0.95 else b" : "
        count = self.pick((0, 0, 0, 0, 0, 1, 1, 2, 6, 120))
        found += [b"%b%b%b" % (self.pick(NAMES), between, self.pick(VALUES)) for _ in range(count)]
        self.chance.shuffle(found)
        return found

    def _chunks(self, body: bytes) -> bytes:
        found = b""
        while body:
            part, body = body[:1_000], body[1_000:]
            size = self.pick(SIZES) if self.one_in(10) else b"%x" % len(part)
            found += size + b"\r\n" + part + (b"" if self.one_in(30) else b"\r\n")
        return found + self.pick((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\na: b\r\n\r\n", b"0\r\n", b""))

    def _upgrade(self) -> bytes:
        headers = [
            b"host: localhost", b"upgrade: websocket", b"connection: upgrade", b"sec-websocket-version: 13",
            b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==", basic(EVE).strip().encode(),
        ]  # fmt: skip
        if self.one_in(4):
            headers[self.chance.randrange(len(headers))] = b"%b: %b" % (self.pick(NAMES), self.pick(VALUES))
        if self.one_in(8):
            headers += self._lines()
        target = b"/ws/2" + self.pick((b"", b"", b"", b"?declared-acks=%00", b"?correlation-id=%0d", b"?a=b", b"/"))
        return b"\r\n".join([b"GET %b HTTP/1.1" % target, *headers, b"", b""])

    def _frame(self) -> bytes:
        opcode, data = self.pick((TEXT, TEXT, 2, 0, CLOSE, PING, PING, 10)), b""
        if opcode == CLOSE:
            data = self.pick((b"", b"\x03", struct.pack("!H", self.pick(CODES)) + self.pick(TEXTS)[:130]))
        elif opcode in (TEXT, 2, 0):
            data = self.pick(TEXTS) if self.one_in(2) else self.record(self.signal("a")) or b""
        else:
            data = self.chance.randbytes(self.pick((0, 1, 125, 126)))
        if self.one_in(12):
            opcode = self.chance.randrange(16)
        head = opcode | (0 if self.one_in(4) else FINAL) | (self.pick((0x40, 0x20, 0x10)) if self.one_in(20) else 0)
        length = self.pick(LENGTHS) if self.one_in(15) else len(data)
        masked = 0 if self.one_in(20) else MASKED
        if length < 126 and not self.one_in(20):
            sized = bytes([masked | length])
        elif length < 65_536 and not self.one_in(20):
            sized = bytes([masked | 126]) + length.to_bytes(2, "big")
        else:
            sized = bytes([masked | 127]) + length.to_bytes(8, "big")
        mask = self.chance.randbytes(4) if masked else bytes(4)
        under = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        return bytes([head]) + sized + (mask if masked else b"") + under


# -- the other end -----------------------------------------------------------------------------------------------------

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def faults(data: bytes) -> list[str]:
    """Return the faults of the gateway that its bytes show."""
    found = [] if not data or data.startswith(b"HTTP/1.1 ") else [f"not HTTP: {data[:60]!r}"]
    if b"HTTP/1.1 500 " in data or b'"status":500' in data:
        found.append("a status 500")
    if b"\x88" in data and b"\x03\xf3" in data[data.index(b"\x88") :][1:6]:
        found.append("a WebSocket ended with 1011")
    return found


class Client:
    """Opens connections to a port, one after the other; for a thread."""

    def __init__(self, seed: int, port: int, secured: int = 0) -> None:
        self._seed, self._port, self._secured = seed, port, secured
        # it has a certificate of its own, which is not at issue
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    def open(self, number: int) -> tuple[Counter[str], list[str]]:
        """Open one connection; return its end, and the errors."""
        wire = Wire(f"{self._seed} {number}")
        pieces, end = wire.pieces(), wire.pick(("close", "close", "reset", "half", "read", "read", "unread"))
        under_tls, counts = bool(self._secured and wire.one_in(SECURED)), Counter[str]()
        counts["TLS" if under_tls else "TCP"] += 1
        counts[end] += 1
        data = b""
        with suppress(OSError), ExitStack() as stack:
            client = stack.enter_context(socket.socket())
            if end == "unread":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.settimeout(AWAY_SECONDS)
            client.connect(("127.0.0.1", self._secured if under_tls else self._port))
            if under_tls and not wire.one_in(4):
                client = stack.enter_context(self._tls.wrap_socket(client))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces:
                client.sendall(piece)
            if end == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif end in ("half", "read"):
                if end == "half" and not under_tls:
                    client.shutdown(socket.SHUT_WR)
                client.settimeout(QUIET_SECONDS)
                while chunk := client.recv(65_536):
                    data += chunk
        counts.update(f"status {status.decode()}" for status in _STATUS.findall(data))
        # the answer to anything but TLS is an alert
        found = [] if under_tls and data[:1] == b"\x15" else faults(data)
        return counts, [f"connection {number}: {what}" for what in found]


def open_all(client: Client, numbers: Iterable[int], minutes: float = 1e9) -> dict[str, Any]:
    """Open connections while there is time, many at once; return their number, their ends, and the errors."""
    counts, wrong, opened, until = Counter[str](), list[str](), 0, time.monotonic() + 60 * minutes
    with ThreadPoolExecutor(THREADS) as pool:
        left = iter(numbers)
        working = takewhile(lambda _: time.monotonic() < until, left)
        # a bounded part at once: the pool takes everything
        while batch := [number for _, number in zip(range(BATCH), working, strict=False)]:
            for found, faulty in pool.map(client.open, batch):
                counts.update(found)
                wrong += faulty
            opened += len(batch)
            print(opened, flush=True)
    return {"connections": opened, "wrong": wrong, "ends": dict(sorted(counts.items()))}


def run(seed: int, connections: int, minutes: float, first: int = 0) -> dict[str, Any]:
    """Open connections to a server, each in a process of its own; return their results and the cost."""
    with tempfile.TemporaryDirectory(prefix="ackstream-fuzz-") as directory, ExitStack() as stack:
        log = Path(directory, "log")
        server = stack.enter_context(process("--role", "server", directory, stderr=stack.enter_context(log.open("w"))))
        ports = [line_of(server).strip() for _ in range(2)]
        known = psutil.Process(server.pid)
        headers = dict([basic(GOOD).strip().split(": ", 1)])
        other = stack.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}", timeout=AWAY_SECONDS, headers=headers)
        )
        wait_for_answer(other)
        files = known.num_fds()
        began, waits, came = time.monotonic(), list[float](), list[Any]()
        numbers = (str(seed), str(first), str(connections), str(minutes), *ports)
        opening = stack.enter_context(process(*numbers, module="benchmarks.fuzzing.connections"))
        reader = threading.Thread(target=lambda: came.extend(map(json.loads, opening.stdout)), daemon=True)
        reader.start()
        warm = largest = 0
        while reader.is_alive():
            waits.append(wait_for_answer(other))
            resident = known.memory_info().rss
            done = sum(isinstance(each, int) for each in came) * BATCH
            warm = resident if done <= WARM * connections else warm
            largest = max(largest, resident)
            time.sleep(PAUSE_SECONDS)
        if not came or isinstance(came[-1], int):
            raise RuntimeError(f"Nothing opens connections any more: {opening.wait()}")
        found = came[-1]
        seconds = time.monotonic() - began
        until = time.monotonic() + END_SECONDS
        while (left := known.num_fds() - files) > 0 and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
        lines = log.read_text("utf-8", "replace").splitlines()
    wrong = [*found.pop("wrong"), *filter(is_trace, lines)]
    growth = round((largest - warm) / MEGABYTE, 1)
    for value, most, name in (
        (growth, MAX_GROWTH_MB, "MB of growth"), (max(waits), MAX_WAIT_SECONDS, "s for another user"),
        (left, 0, "connections that have not ended"),
    ):  # fmt: skip
        wrong += [f"{value} {name}"] if value > most else []
    return {
        **found,
        "seed": seed,
        "wrong": len(wrong),
        "shown": wrong[:SHOWN],
        "log_lines": len(lines),
        "growth_mb": growth,
        "other_user": {
            "answers": len(waits), "p50_seconds": round(statistics.median(waits), 4),
            "max_seconds": round(max(waits), 4),
        },
        "seconds": round(seconds, 1),
    }  # fmt: skip


def is_trace(line: str) -> bool:
    """Return whether a line of the log is about an error that was not foreseen."""
    return line.startswith(("Traceback", "ERROR", "CRITICAL")) or "cannot be handled" in line


if __name__ == "__main__":
    # after the measured processes, and other work of the machine
    os.nice(5)
    parser = argparse.ArgumentParser()
    for name in ("seed", "first", "connections"):
        parser.add_argument(name, type=int)
    parser.add_argument("minutes", type=float)
    parser.add_argument("ports", type=int, nargs=2)
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.connections)
    print(json.dumps(open_all(Client(given.seed, *given.ports), numbers, given.minutes)))
