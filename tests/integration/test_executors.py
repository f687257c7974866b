"""A master with executors in processes of their own, as on a cluster: what they run and load must reach them."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from ackstream.local import installation
from tests.harness.processes import Program
from tests.harness.system import System
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ackstream.settings import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.long]

MASTER = "local-cluster[2,1,1024]"
"""Two workers with one core and 1 GB each."""


@pytest.fixture
def _workers_leave_nothing() -> Iterator[None]:
    """Spark gives such workers a directory in its installation."""
    work = installation.spark_home() / "work"
    existed = work.exists()
    yield
    if not existed:
        shutil.rmtree(work, ignore_errors=True)


@pytest.mark.usefixtures("_workers_leave_nothing")
def test_executors_in_other_processes_answer_requests_and_timeouts(kafka: Kafka, tmp_path: Path) -> None:
    environment = {"ACKSTREAM_SPARK_MASTER": MASTER, "SPARK_LOCAL_IP": "127.0.0.1"}
    with closing(System(kafka, tmp_path)) as system:
        program = Program("correlate", ["submit", "correlate"], system.settings, tmp_path, environment)
        try:
            for number in range(20):
                system.command(f"answered-{number}", requested_acks=["a-ack"], timeout="300s")
                system.ack(f"answered-{number}", "a-ack")
            system.command("silent", requested_acks=["a-ack"], timeout="2s")
            eventually(lambda: program.check() or len(system.replies()) == 21, "all replies")
            found = {key: reply["status"] for key, reply in system.replies().items()}
        finally:
            program.kill()
    assert found == {f"answered-{number}": 200 for number in range(20)} | {"silent": 408}
