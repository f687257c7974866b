from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

from ackstream.jobs.correlate import job
from ackstream.jobs.correlate.job import InFlight
from ackstream.kafka.topics import ensure_topics
from ackstream.observe import outcomes
from ackstream.settings import Kafka, Settings
from tests.cli.commands import rows, run
from tests.harness import ledgers

if TYPE_CHECKING:
    from pathlib import Path


SECOND = 1_000


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


# -- watch ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("ACKSTREAM_KAFKA_TOPIC_PREFIX", kafka.topic_prefix)
    monkeypatch.setenv("COLUMNS", "60")
    return Settings(kafka=kafka)


@pytest.mark.integration
def test_once_shows_the_last_window(settings: Settings):
    ensure_topics(settings, ("signals", "acks", "ledger"))
    with KafkaProducer(bootstrap_servers=settings.kafka.bootstrap) as producer:
        for number, (status, completed_by) in enumerate(
            [(200, "acknowledgements"), (200, "response"), (424, "timeout"), (404, "error")]
        ):
            record = ledgers.outcome(str(number), status=status, completed_by=completed_by)
            producer.send(settings.kafka.topic("ledger"), value=record)
        producer.send(settings.kafka.topic("ledger"), value=ledgers.signal("open"))
    result = run("watch", "--once", "--window", "10m")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["last", "10m", "total", "p50", "p95"] in rows
    # below the counts are trends, under the same names
    assert next(row[:3] for row in rows if row[:1] == ["answered"]) == ["answered", "2", "2"]
    assert next(row[:4] for row in rows if row[:2] == ["timed", "out"]) == ["timed", "out", "1", "1"]
    assert next(row[:3] for row in rows if row[:1] == ["failed"]) == ["failed", "1", "1"]
    assert ["in", "flight", "1"] in rows
    assert "newest" in result.stdout


@pytest.mark.integration
def test_once_as_json_is_one_object(settings: Settings):
    ensure_topics(settings, ("signals", "acks", "ledger"))
    (line,) = run("watch", "--once", "--json").stdout.splitlines()
    found = json.loads(line)
    assert found["requests"]["counts"].keys() == {"answered", "timed out", "failed"}
    assert found["planes"]["publishers"] == found["jobs"] == []
    assert "The job correlate" in found["warning"]


@pytest.mark.integration
def test_without_topics_there_is_a_sentence(settings: Settings):
    result = run("watch", "--once")
    assert result.exit_code == 3
    assert result.stderr.startswith(f"There is no topic {settings.kafka.topic('ledger')} at ")


def test_a_window_that_is_no_duration_is_a_sentence():
    for text in ("soon", "10", "-5s"):
        result = run("watch", "--once", "--window", text)
        assert result.exit_code == 2
        assert result.stderr == (
            f"--window is {text!r}: a duration is a text with its unit, such as 250ms, 10s, 5m or 2h, or in "
            "ISO 8601, such as PT10S.\n"
        )


# -- inflight ---------------------------------------------------------------------------------------------------------


def open_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() // 1_000_000
    # what is shown does not depend on how long the command takes
    monkeypatch.setattr(outcomes, "epoch_milliseconds", lambda: now)
    found = [
        InFlight("c-1", "org.acme:lamp", now - 70 * SECOND, now - 9_500, ("a:b", "c:d")),
        InFlight("c-2", None, now - 2 * SECOND, now + 3_600 * SECOND + 500, ()),
    ]
    monkeypatch.setattr(job, "inflight", lambda *_: found)


@pytest.mark.usefixtures("_no_spark")
def test_open_requests_are_shown_with_age_and_time_left(monkeypatch: pytest.MonkeyPatch):
    open_requests(monkeypatch)
    found = rows(run("inflight"))
    assert found[0] == ["correlation-id", "age", "left", "thing", "missing"]
    assert found[1][0] == "c-1"
    assert found[1][1:] == ["1m10s", "-9.5s", "org.acme:lamp", "a:b,", "c:d"]
    assert found[2][0] == "c-2"
    assert found[2][2:] == ["1h", "the", "response"]


@pytest.mark.usefixtures("_no_spark")
def test_more_than_the_limit_is_said(monkeypatch: pytest.MonkeyPatch):
    open_requests(monkeypatch)
    result = run("inflight", "--limit", "1")
    assert "c-2" not in result.stdout
    assert result.stdout.endswith("1 more are open; --limit 2 shows all.\n")


@pytest.mark.usefixtures("_no_spark")
def test_json_has_a_line_for_each_open_request(monkeypatch: pytest.MonkeyPatch):
    open_requests(monkeypatch)
    lines = [json.loads(line) for line in run("inflight", "--json").stdout.splitlines()]
    assert [line["correlation_id"] for line in lines] == ["c-1", "c-2"]
    assert lines[0]["missing"] == ["a:b", "c:d"]


@pytest.mark.usefixtures("_no_spark")
def test_json_has_all_open_requests_unless_a_limit_is_given(monkeypatch: pytest.MonkeyPatch):
    many = [InFlight(f"c-{number}", None, 0, 0, ()) for number in range(30)]
    monkeypatch.setattr(job, "inflight", lambda *_: many)
    assert len(run("inflight", "--json").stdout.splitlines()) == 30
    assert len(run("inflight", "--json", "--limit", "3").stdout.splitlines()) == 3
    assert run("inflight").stdout.endswith("10 more are open; --limit 30 shows all.\n")


@pytest.mark.usefixtures("_no_spark")
def test_no_open_request_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job, "inflight", lambda *_: [])
    assert run("inflight").stdout == "No request is open in the checkpoint.\n"
    assert run("inflight", "--json").stdout == ""


@pytest.mark.usefixtures("spark")
def test_without_a_checkpoint_there_is_a_sentence():
    result = run("inflight")
    assert result.exit_code == 1
    assert result.stderr.startswith("No state can be read at .ackstream/checkpoints/correlate: start the correlate job")
