"""`ackstream inflight` on the state of a real correlate job."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from ackstream.cli.main import app
from tests.harness.system import System
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from ackstream.settings import Kafka

pytestmark = pytest.mark.integration


def test_requests_without_an_outcome_are_read_from_the_checkpoint(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(System(kafka, tmp_path)) as system, system.correlate(spark) as query:
        system.command("open", requested_acks=["a-ack", "b-ack"], timeout="60s")
        system.command("done", requested_acks=["a-ack"])
        system.ack("open", "a-ack")
        system.ack("done", "a-ack")
        eventually(lambda: "done" in system.replies(), "the reply to the second request", query)
        # a reply is out before the state it left behind is
        query.processAllAvailable()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACKSTREAM_LAKE_CHECKPOINTS", system.settings.lake.checkpoints)
    monkeypatch.setenv("ACKSTREAM_KAFKA_TOPIC_PREFIX", kafka.topic_prefix)
    result = CliRunner().invoke(app, ["inflight", "--json"])
    assert result.exit_code == 0, result.stderr
    (found,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert (found["correlation_id"], found["thing_id"], found["missing"]) == ("open", "org.acme:lamp", ["b-ack"])
