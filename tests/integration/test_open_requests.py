"""More open requests than a state keeps: the others are beside the checkpoint, found when something concerns them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from ackstream.jobs.correlate.job import inflight
from ackstream.jobs.correlate.pending import HOT_BYTES
from ackstream.jobs.correlate.state import open_requests
from tests.harness.system import System

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackstream.settings import Kafka

pytestmark = pytest.mark.integration

REQUESTS, SILENT, ACKNOWLEDGED = 3_000, range(100, 150), range(1_000, 1_100)


def test_open_requests_are_found_by_acknowledgement_and_deadline_before_and_after_a_restart(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    with closing(System(kafka, tmp_path, shards=1, shuffle_partitions=1)) as system:
        pieces = Path(system.settings.lake.checkpoint("correlate"), "pieces", "0")

        def acknowledge(*numbers: int) -> None:
            for number in numbers:
                system.post("acks", system.ack_json(f"id-{number}", "a-ack"))
            system.producer.flush()

        with system.correlate(spark) as query:
            for number in range(REQUESTS):
                timeout = "1s" if number in SILENT else "1h"
                system.post("signals", system.command_json(f"id-{number}", requested_acks=["a-ack"], timeout=timeout))
            system.producer.flush()
            query.processAllAvailable()
            # a batch that touches few of them
            now = system.command("last", requested_acks=["a-ack"], timeout="1h")
            query.processAllAvailable()
            assert sum(path.stat().st_size for path in pieces.iterdir() if path.is_file()) > HOT_BYTES
            assert len(inflight(spark, system.settings)) == REQUESTS + 1
            # as if the job had deleted meanwhile what the state names
            gone = mock.Mock(side_effect=[OSError, mock.DEFAULT], wraps=open_requests)
            with mock.patch("ackstream.jobs.correlate.state.open_requests", gone):
                assert len(inflight(spark, system.settings)) == REQUESTS + 1
            acknowledge(*ACKNOWLEDGED[:50])
            query.processAllAvailable()
        with system.correlate(spark) as query:
            acknowledge(*ACKNOWLEDGED[50:])
            system.tick(query, now + 2_000)
            query.processAllAvailable()
            found = {entry.correlation_id for entry in inflight(spark, system.settings)}
        replies = {key: reply["status"] for key, reply in system.replies().items()}
    silent, acknowledged = {f"id-{number}" for number in SILENT}, {f"id-{number}" for number in ACKNOWLEDGED}
    assert replies == dict.fromkeys(silent, 408) | dict.fromkeys(acknowledged, 200)
    assert found == {"last", *(f"id-{number}" for number in range(REQUESTS))} - silent - acknowledged
