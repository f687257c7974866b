"""Programs on other versions of Spark ask, see outcomes and acknowledge; correlate runs in the session of the jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ackstream.dataframe import acknowledge
from ackstream.dataframe.requests import AT_ONCE
from ackstream.local import jars
from tests.harness import pages
from tests.harness.programs import ASKING, ENDED
from tests.harness.scripts import module_of
from tests.harness.waiting import PATIENCE_SECONDS, eventually
from tests.integration.test_dataframe import options, requests, system

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from ackstream.settings import Kafka
    from tests.harness.system import System

__all__ = ["options", "system"]

VERSIONS = module_of(pages.ROOT / "requirements/pins.py").SPARKS

pytestmark = [pytest.mark.integration, pytest.mark.sparks, pytest.mark.parametrize("version", VERSIONS)]

HANDOVER = str(pages.ROOT / "docs/clients/handover.py")


def _start(version: str, *command: str) -> subprocess.Popen[str]:
    """Start a Python program in the environment of a version of Spark, with the Kafka source of that version."""
    fetched = jars.resolve(f"spark-{version}", module=pages.ROOT / "tests/harness/ivy.xml")
    arguments = f"--master local[2] --conf spark.ui.enabled=false --jars {','.join(map(str, fetched))} pyspark-shell"
    environment = {**os.environ, "PYTHONPATH": str(pages.ROOT), "PYSPARK_SUBMIT_ARGS": arguments}
    python = Path(sys.prefix) / f"spark-{version}" / "bin" / "python"
    return subprocess.Popen(
        [python, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _end(process: subprocess.Popen[str]) -> list[str]:
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors[-3_000:]
    return output.splitlines()


def test_a_job_of_another_spark_hands_a_table_over(
    spark: SparkSession, kafka: Kafka, system: System, options: Mapping[str, str], tmp_path: Path, version: str
) -> None:
    orders, settings = kafka.topic("orders"), options["settings"]
    table, labels = str(tmp_path / "sales"), ["reports:loaded", "billing:loaded"]
    with system.correlate(spark) as query:
        writer = _start(version, HANDOVER, settings, "write", orders, table, "monday", "1h", *labels)
        eventually(lambda: system.end("orders") == 1 or writer.poll() is not None, "the request", query)
        for label in labels:
            copy = str(tmp_path / label.partition(":")[0])
            assert _end(_start(version, HANDOVER, settings, "load", orders, label, copy, f"{copy}-checkpoint")) == []
        assert _end(writer) == ["200 acknowledgements"]
    assert spark.read.parquet(str(tmp_path / "billing" / "*")).count() == 1_000


def test_a_worker_of_another_spark_is_killed_and_each_row_is_answered_once(
    spark: SparkSession, kafka: Kafka, system: System, options: Mapping[str, str], version: str
) -> None:
    rows, orders, settings = 8 * AT_ONCE, kafka.topic("orders"), options["settings"]
    sizes = rows, 3 * AT_ONCE, rows // 2 + AT_ONCE
    _end(_start(version, "-c", ASKING, settings, kafka.bootstrap, orders, *map(str, sizes)))
    copies = system.end("orders") - rows
    assert copies >= AT_ONCE
    with system.correlate(spark) as query:
        assert acknowledge("rows:done", kafka=kafka).after(requests(spark, kafka)) == rows + copies
        eventually(lambda: system.end("dead-letters") >= copies, "the copies", query)
        eventually(lambda: _end(_start(version, "-c", ENDED, settings)) == [f"200 {rows} {rows}"], "outcomes", query)
