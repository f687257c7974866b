"""What operators see of jobs that run on the real broker: metrics over HTTP, probes, traces."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ackstream.observe.endpoint import HEALTH, serving
from ackstream.observe.metrics import METRICS
from ackstream.settings import Kafka, Metrics
from ackstream.spark.job import DRIVER
from tests.harness.ports import free_ports
from tests.harness.system import System
from tests.harness.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class _Scraper:
    """Reads the endpoint as Prometheus does."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def value(self, name: str, **labels: str) -> float | None:
        text = httpx.get(f"{self._url}/metrics").text
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        ours = [one for one in samples if one.name.startswith("ackstream_")]
        for one in ours:
            base = one.name if one.name in METRICS else one.name.rpartition("_")[0]
            assert set(one.labels) - {"le"} == set(METRICS[base].labels)
        found = [one.value for one in ours if one.name == name and labels.items() <= one.labels.items()]
        return sum(found) if found else None

    def ready(self) -> Any:
        answer = httpx.get(f"{self._url}/health/ready")
        return answer.status_code == 200 or answer.json()["problems"]


def test_correlate_shows_what_it_decides_what_is_open_and_how_far_it_is(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    with closing(System(kafka, tmp_path, clock=True)) as system:
        system.settings = system.settings.model_copy(update={"metrics": Metrics(port=port)})
        with (
            serving(system.settings.metrics, "correlate"),
            HEALTH.expecting(DRIVER, 60, vital=True),
            system.correlate(spark) as query,
        ):
            scraper = _Scraper(port)
            before = scraper.value("ackstream_requests_total", completed_by="acknowledgements") or 0
            system.command("a", requested_acks=["a-ack"], timeout="600s")
            asked = system.command("b", requested_acks=["a-ack"], timeout="600s")
            system.ack("a", "a-ack")
            system.ack("nobody", "a-ack")
            system.send("signals", b"nonsense", {"correlation-id": b"c"})
            eventually(lambda: system.replies().get("a"), "the reply", query)

            def decided() -> bool:
                found = scraper.value("ackstream_requests_total", completed_by="acknowledgements", status="2xx")
                return (found or 0) == before + 1

            eventually(decided, "the count", query)
            # a batch may have the first request and its acknowledgement without what came after them
            eventually(lambda: scraper.value("ackstream_open_requests") == 1, "the open request", query)
            eventually(lambda: scraper.value("ackstream_early_acknowledgements") == 1, "the early one", query)
            deadline = scraper.value("ackstream_open_requests_deadline_timestamp_seconds") or 0
            assert deadline == pytest.approx(asked / 1000 + 600)
            oldest = scraper.value("ackstream_open_requests_oldest_timestamp_seconds") or 0
            assert deadline - oldest == pytest.approx(600)
            assert (scraper.value("ackstream_dead_letters_total", query="correlate") or 0) >= 1

            def lags() -> list[float | None]:
                # by topic: topics of applications are read by other queries of this name in this process
                return [scraper.value("ackstream_lag_records", topic=topic) for topic in ("signals", "acks")]

            eventually(lambda: lags() == [0, 0], "no lag", query)
            assert (scraper.value("ackstream_batches_total", query="correlate") or 0) > 0
            assert (scraper.value("ackstream_input_rows_total", query="correlate") or 0) >= 5
            ended = scraper.value("ackstream_last_batch_timestamp_seconds", query="correlate") or 0
            assert abs(ended - time.time()) < PATIENCE_SECONDS
            assert scraper.value("ackstream_query_active", query="correlate") == 1
            # the loop of a driver gives this sign, which is the test here
            assert scraper.ready() == [f"{DRIVER}: no sign yet."]
            HEALTH.beat(DRIVER, time.monotonic())
            assert scraper.ready() is True
            assert scraper.value("ackstream_clock_overdue_seconds", query="correlate") == 0


def test_the_trace_of_a_record_header_comes_back_with_the_reply(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    with closing(System(kafka, tmp_path)) as system, system.correlate(spark) as query:
        system.command("a", {"correlation-id": b"a", "traceparent": TRACE}, requested_acks=["a-ack"])
        of_spring = {"correlation-id": b"b", "kafka_correlationId": b"s", "traceparent": TRACE}
        system.command("b", of_spring, timeout="wrong")
        system.command("c", {"correlation-id": b"c"}, requested_acks=["a-ack"])
        for name in "ac":
            system.ack(name, "a-ack")
        eventually(lambda: len(system.replies()) == 3, "the replies", query)
        found = {name: reply["record"].get("traceparent") for name, reply in system.replies().items()}
        signals = {name: row["signal"]["headers"].get("traceparent") for name, row in _signals(system).items()}
    assert found == {"a": TRACE, "b": TRACE, "c": None}
    assert signals == {"a": TRACE.decode(), "c": None}


def _signals(system: System) -> dict[str, Any]:
    return {row["signal"]["correlation_id"]: row for row in system.ledger() if "signal" in row}
