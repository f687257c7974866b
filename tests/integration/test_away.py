"""Jobs, gateway and connections end in time after a SIGTERM while Kafka is away."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from ackstream.kafka.topics import ensure_topics
from ackstream.local.broker import Broker
from ackstream.settings import Kafka, Lake, Local, Settings
from tests.harness.ports import free_ports
from tests.harness.processes import Program
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.long]

END_SECONDS = 20.0 * PATIENCE_SECONDS / 300
"""The shortest limit that deploy/ sets is 30 s."""

CONNECTION = {
    "id": "c",
    "type": "http-push",
    "url": "http://127.0.0.1:9",
    "targets": [{"address": "POST:/x", "topics": ["_/_/things/twin/events"], "subjects": ["connection:c"]}],
}


@pytest.mark.parametrize(
    "arguments", [["submit", "correlate"], ["run", "correlate", "persist"], ["gateway"], ["connect"]], ids=" ".join
)
def test_a_program_ends_in_time_while_kafka_is_away(tmp_path: Path, arguments: list[str]) -> None:
    port, controller_port, served, probed = free_ports(4)
    settings = Settings(
        local=Local(data=tmp_path, port=port, controller_port=controller_port),
        kafka=Kafka(bootstrap=f"localhost:{port}", partitions=2),
        lake=Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints")),
    )
    own = {
        "ACKSTREAM_GATEWAY_PORT": str(served),
        "ACKSTREAM_METRICS_PORT": str(probed),
        "ACKSTREAM_CONNECTIONS": json.dumps([CONNECTION]),
        "ACKSTREAM_GATEWAY_ACCESS": json.dumps([{"subjects": ["connection:c"], "things": ["*"], "grant": ["READ"]}]),
    }
    broker = Broker(settings)
    broker.start()
    try:
        ensure_topics(settings)
        program = Program(arguments[0], arguments, settings, tmp_path, own)
        try:

            def status() -> int:
                program.check()
                try:
                    return httpx.get(f"http://127.0.0.1:{probed}/health/ready", timeout=5).status_code
                except httpx.TransportError:
                    return 0

            eventually(lambda: "Running c" in program.log.read_text("utf-8") or status() == 200, "the program to work")
            broker.stop()
            if arguments != ["connect"]:
                # the signs of life of connections are those of the other systems
                eventually(lambda: status() == 503, "Kafka to be missed")
            sent = time.monotonic()
            program.terminate()
            eventually(lambda: program.ended and not _exists(program), "the end")
            assert time.monotonic() - sent < END_SECONDS
            assert program.status == 0, program.log.read_text("utf-8")[-3_000:]
        finally:
            program.kill()
    finally:
        broker.stop()


def _exists(program: Program) -> bool:
    try:
        os.killpg(program.session, 0)
    except ProcessLookupError:
        return False
    return True
