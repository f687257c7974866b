"""The cost of a request at the gateway: commands of a signed-in user that Kafka stores, and nothing waits for a job.

The gateway is a process of its own with the shipped settings, but for the limit of requests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx

from ackstream.gateway.access.passwords import hash_password
from benchmarks import common, pages
from benchmarks.contenders.running import processor
from benchmarks.progress import percentiles
from tests.harness.ports import free_ports
from tests.harness.processes import Program
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from benchmarks.common import Bench

CONNECTIONS = 32
WARM_UP_SECONDS = 10.0
SECONDS = 15.0
USER, PASSWORD = "ada", "a password"
METHOD = (
    f"{CONNECTIONS} connections in one process send a command of a signed-in user (PUT of an attribute, "
    "response-required=false) as soon as the one before has its 202, which it gets once Kafka has stored the command. "
    "'processor': user and system time of the gateway's process per request. Medians of the rounds after a warm-up."
)


def measure(bench: Bench) -> dict[str, Any]:
    """Measure one gateway, warm."""
    warm_up, seconds = (1.0, 1.0) if bench.small else (WARM_UP_SECONDS, SECONDS)
    with ExitStack() as stack:
        program, port = _gateway(bench, stack)
        asyncio.run(_load(port, warm_up))
        rounds = []
        for _ in range(common.ROUNDS):
            before = processor(program.session)
            began = time.monotonic()
            times = asyncio.run(_load(port, seconds))
            took = time.monotonic() - began
            used = (processor(program.session) - before) / len(times)
            rounds.append({"requests_per_second": len(times) / took, "processor": used, **percentiles(times)})
            bench.say(f"{len(times) / took:,.0f} requests/s, {used * 1e6:.0f} µs of processor each")
    figures = {name: median(each[name] for each in rounds) for name in rounds[0]}
    bench.table(
        "Gateway",
        ("requests/s", "processor µs", "p50 ms", "p95 ms", "p99 ms"),
        [(
            pages.show(figures["requests_per_second"]), figures["processor"] * 1e6,
            *(figures[name] * 1e3 for name in ("p50", "p95", "p99")),
        )],
    )  # fmt: skip
    return {"method": METHOD, "figures": figures, "rounds": rounds}


def _gateway(bench: Bench, stack: ExitStack) -> tuple[Program, int]:
    (port,) = free_ports(1)
    access = [{"subjects": [f"user:{USER}"], "grant": ["READ", "WRITE"]}]
    environment = {
        "ACKSTREAM_GATEWAY_PORT": str(port),
        "ACKSTREAM_GATEWAY_USERS": json.dumps({USER: hash_password(PASSWORD)}),
        "ACKSTREAM_GATEWAY_ACCESS": json.dumps(access),
        "ACKSTREAM_GATEWAY_MAX_REQUESTS": "1000000",
    }
    program = Program("gateway", ["gateway"], bench.settings("gateway"), bench.directory, environment)
    stack.callback(program.kill)
    url = f"http://127.0.0.1:{port}/api/2/whoami"

    def ready() -> bool:
        try:
            return httpx.get(url, auth=(USER, PASSWORD)).is_success
        except httpx.TransportError:
            return False

    eventually(ready, "the gateway")
    return program, port


async def _load(port: int, seconds: float) -> list[float]:
    until = time.monotonic() + seconds
    found = await asyncio.gather(*(_client(port, number, until) for number in range(CONNECTIONS)))
    return [time_ for times in found for time_ in times]


async def _client(port: int, number: int, until: float) -> list[float]:
    credentials = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    request = (
        f"PUT /api/2/things/org.acme:lamp-{number}/attributes/on?response-required=false HTTP/1.1\r\n"
        f"host: 127.0.0.1:{port}\r\nauthorization: Basic {credentials}\r\ncontent-type: application/json\r\n"
        "content-length: 4\r\n\r\ntrue"
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = []
    while (began := time.monotonic()) < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 202 "):
            raise RuntimeError(f"The gateway answers {head.decode('latin-1')}")
        times.append(time.monotonic() - began)
    writer.close()
    return times


if __name__ == "__main__":
    common.main("gateway", measure)
