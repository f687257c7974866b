"""A standby: a second driver that waits for the lease of the first one, and replaces it within seconds."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.harness.processes import Program
from tests.harness.system import System
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from ackstream.settings import Kafka

pytestmark = pytest.mark.integration

COMMAND = ["submit", "correlate", "--standby"]
WAITING = "Standing by: another process runs correlate."
WORKER_LOST = re.compile(r"Traceback \(most recent call last\):\n(?:  .*\n)+BrokenPipeError: .*\n")
"""A Python worker of Spark prints this when its driver cancels its task while it writes."""


def _answered(system: System, correlation_id: str, running: Program) -> None:
    system.command(correlation_id, requested_acks=["a-ack"], timeout="60s")
    system.ack(correlation_id, "a-ack")

    def answer() -> bool:
        running.check()
        return correlation_id in system.replies()

    eventually(answer, f"the reply to {correlation_id}")


def test_a_standby_answers_when_the_first_driver_is_killed_and_ends_in_order_while_it_waits(
    kafka: Kafka, tmp_path: Path
) -> None:
    programs: list[Program] = []
    with closing(System(kafka, tmp_path)) as system:

        def start(name: str) -> Program:
            programs.append(Program(name, COMMAND, system.settings, tmp_path))
            return programs[-1]

        def waits(program: Program) -> bool:
            program.check()
            return WAITING in program.log.read_text("utf-8")

        try:
            # without another process, it runs the job
            first = start("first")
            _answered(system, "before", first)
            second = start("second")
            eventually(lambda: waits(second), "the second to wait")
            # it rehearses while it waits, and writes nothing
            _answered(system, "meanwhile", first)
            first.kill()
            _answered(system, "after", second)
            third = start("third")
            eventually(lambda: waits(third), "the third to wait")
            third.terminate()
            eventually(lambda: third.ended and not third.exists, "the third to end")
            assert third.status == 0
            _answered(system, "at last", second)
            # the batch that the kill interrupted may be repeated; results of a rehearsal would repeat other replies
            replied = Counter(record.key.decode() for record in system.records("replies"))
            assert replied.pop("meanwhile") <= 2
            assert replied == Counter(("before", "after", "at last"))
            second.terminate()
            eventually(lambda: second.ended, "the second to end")
            logs = [program.log.read_text("utf-8") for program in programs]
            assert second.status == 0
            assert not [log[-3_000:] for log in logs if "rehearsal" in log]
            # the killed driver is left out: its workers write to it until they notice
            assert not [log[-3_000:] for log in logs[1:] if "Traceback" in WORKER_LOST.sub("", log)]
        finally:
            for program in programs:
                program.kill()
