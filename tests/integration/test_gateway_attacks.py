"""The gateway as a process of its own, with the limits it has by default, while others attack it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ackstream.client import Response, Signal
from ackstream.gateway.access.passwords import hash_password
from ackstream.settings import Gateway, Kafka
from tests.harness.attacks import GUESSES, HALF_OPEN, SOCKETS, authorization
from tests.harness.gateway import LAMP, TwinAndDevices
from tests.harness.ports import free_ports
from tests.harness.processes import Program
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration

GOOD, MOST_SECONDS = 3, 2.0


def answer(signal: Signal) -> Any:
    """Answer as a twin that has every thing."""
    return [Response(200, {"thingId": signal.thing_id})]


@pytest.fixture(scope="module")
def port(broker: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    directory: Path = tmp_path_factory.mktemp("attacks")
    kafka = Kafka(bootstrap=broker, topic_prefix=f"attacks-{time.time_ns()}-", partitions=2)
    users = {name: hash_password(f"of {name}") for name in ("ada", "eve", "mallory")}
    everything = [{"subjects": ["user:*"], "grant": ["READ", "WRITE"]}]
    (number,) = free_ports(1)
    more = {
        "ACKSTREAM_GATEWAY_PORT": str(number),
        "ACKSTREAM_GATEWAY_USERS": json.dumps(users),
        "ACKSTREAM_GATEWAY_ACCESS": json.dumps(everything),
    }
    with ExitStack() as stack:
        system = stack.enter_context(closing(System(kafka, directory, clock=True)))
        stack.enter_context(system.correlate(spark))
        stack.enter_context(closing(TwinAndDevices(kafka, answer)))
        gateway = Program("gateway", ["gateway"], system.settings, directory, more)
        stack.callback(gateway.kill)

        def ready() -> bool:
            gateway.check()
            with suppress(httpx.TransportError):
                return ask(number).status_code == 200
            return False

        eventually(ready, "the gateway")
        yield number
        gateway.terminate()
        eventually(lambda: gateway.ended, "the end of the gateway")
        # whatever was sent, it is no defect of the gateway
        assert "Traceback" not in gateway.log.read_text("utf-8")


def ask(port: int, name: str = "ada") -> httpx.Response:
    return httpx.get(
        f"http://127.0.0.1:{port}{LAMP}", headers={"authorization": authorization(name)}, timeout=PATIENCE_SECONDS
    )


def test_a_good_client_is_served_while_others_attack(port: int) -> None:
    for name in ("eve", "mallory"):
        # their own passwords are right: they are clients, too
        assert ask(port, name).status_code == 200
    taken: list[float] = []
    statuses: Counter[int] = Counter()
    over = threading.Event()

    def go_on() -> None:
        own = {"authorization": authorization("ada")}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=own, timeout=PATIENCE_SECONDS) as client:
            while not over.is_set():
                began = time.monotonic()
                statuses[client.get(LAMP).status_code] += 1
                taken.append(time.monotonic() - began)

    def calm() -> float:
        """Return how long a request takes without an attack."""
        found = []
        for _ in range(20):
            began = time.monotonic()
            assert ask(port).status_code == 200
            found.append(time.monotonic() - began)
        return statistics.median(found)

    before = calm()
    threads = [threading.Thread(target=go_on) for _ in range(GOOD)]
    for thread in threads:
        thread.start()
    command = [sys.executable, "-m", "tests.harness.attacks", str(port)]
    try:
        found = Counter(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert statuses.keys() == {200}, statuses
    # on a busy machine the client waits without an attack, too, and it may have become busy meanwhile
    usual = max(before, calm())
    assert statistics.quantiles(taken, n=100)[-1] < MOST_SECONDS + 2 * usual, (usual, taken, found)
    # half-open ones end by themselves
    assert found["half-open ended"] == HALF_OPEN * 3 // 4
    # few passwords were compared, and none was found
    assert found["guess 401"] + found["guess 429"] == GUESSES
    assert found["guess 401"] < 30
    # nothing of 5 MB was read; what was read was refused, or is affordable
    assert "5 MB accepted" not in found
    assert {name for name in found if name.startswith(("5 MB form", "1 MB", "dear"))} <= {
        "5 MB form 413", "1 MB message 400", "dear START-SEND-EVENTS:ACK"
    }  # fmt: skip
    assert found["1 MB message 400"] == 10
    assert 0 < found["sockets at a time"] <= Gateway().max_sockets
    assert found["socket 101"] + found["socket 429"] + found["socket closed"] == SOCKETS
    # and afterwards all is as before
    assert ask(port, "eve").status_code == 200
