from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer
from typer.testing import CliRunner

from ackstream.cli.main import app
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import Settings
from tests.harness import ledgers

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from ackstream.settings import Kafka


@pytest.fixture
def settings(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACKSTREAM_KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("ACKSTREAM_KAFKA_TOPIC_PREFIX", kafka.topic_prefix)
    monkeypatch.setenv("COLUMNS", "60")
    return Settings(kafka=kafka)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["watch", *arguments])


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
    result = run("--once", "--window", "10m")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["last", "10m", "total", "p50", "p95"] in rows
    assert [row[1:3] for row in rows if row[:1] == ["answered"]] == [["2", "2"]]
    assert [row[2:4] for row in rows if row[:2] == ["timed", "out"]] == [["1", "1"]]
    assert [row[1:3] for row in rows if row[:1] == ["failed"]] == [["1", "1"]]
    assert ["in", "flight", "1"] in rows
    assert [row[1:] for row in rows if row and row[0].endswith("ledger")] == [["unknown", "ackstream-archive"]]


@pytest.mark.integration
def test_without_topics_there_is_a_sentence(settings: Settings):
    result = run("--once")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"There is no topic {settings.kafka.topic('signals')} at ")


def test_a_window_that_is_no_duration_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    result = run("--once", "--window", "soon")
    assert result.exit_code == 1
    assert result.stderr.startswith("--window is 'soon': ")
